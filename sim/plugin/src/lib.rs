//! The QEMU plugin: the guest's executed blocks, their memory accesses and the guest's marks, fed to the
//! machine.
//!
//! The guest boots without instrumentation. At the mark READY the plugin resets itself, which makes QEMU
//! translate all code anew, now with calls: one for each block and one for each access. User or kernel is bit
//! 63 of the address; a write to CR3 names the process. The page table is read in the guest's memory, which
//! QEMU has mapped.

mod arguments;
mod callbacks;
mod engine;
mod front;
mod functions;
mod guest;
mod instruction;
mod model;
mod qemu;
mod run;
mod tables;
mod translate;

use qemu_plugin_sys::{qemu_info_t, qemu_plugin_id_t};
use std::ffi::{CStr, c_char, c_int};

/// QEMU calls this when it has loaded the plugin, with the launcher's arguments (`arguments`).
///
/// # Safety
/// QEMU passes its own identifier, and `count` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu_plugin_id_t,
    _info: *const qemu_info_t,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let arguments = (0..count as usize).map(|index| {
        // SAFETY: QEMU passes `count` strings that end with a zero byte.
        unsafe { CStr::from_ptr(*arguments.add(index)) }.to_string_lossy().into_owned()
    });
    match run::Run::new(id, front::translate_anew, arguments) {
        Ok(run) => {
            callbacks::install(run);
            front::register(id);
            0
        }
        Err(message) => {
            eprintln!("mayfly sim: plugin: {message}");
            1
        }
    }
}
