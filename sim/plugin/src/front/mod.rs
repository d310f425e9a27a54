//! The front ends: how the plugin registers with QEMU, which differs between the numbers of the plugin
//! interface. All else, the model included, is one.
//!
//! QEMU 9.1 to 10 take a plugin that was written for interface 4. QEMU 11.1 takes 7 alone, where QEMU hands
//! callbacks of translation, of CPUs and of the end a pointer of the plugin's in place of the plugin's id.
//! QEMU reads the number in [`qemu_plugin_version`] once it has loaded the library, and no number serves
//! both: so the library sets it as it is loaded, by what this QEMU exports.

mod four;
mod seven;

use qemu_plugin_sys::qemu_plugin_id_t;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicI32, Ordering};

/// The interface that this plugin was built for; QEMU refuses to load it if it has another. An atomic has the
/// layout of its integer.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(four::NUMBER);

/// The dynamic loader calls this before QEMU reads the number.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose;

extern "C" fn choose() {
    // Interface 6 brought this function, and 7 no other: with 6 alone, QEMU refuses number 7.
    if exports(c"qemu_plugin_set_pc") {
        qemu_plugin_version.store(seven::NUMBER, Ordering::Relaxed);
    }
}

fn exports(name: &CStr) -> bool {
    // SAFETY: the name ends with a zero byte.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
}

/// Registers for the begin of CPUs, translation and the end; the crate's callbacks are called.
pub fn register(id: qemu_plugin_id_t) {
    match interface() {
        seven::NUMBER => seven::register(id),
        _ => four::register(id),
    }
}

/// Drops all translations and callbacks, and registers anew: QEMU translates all code again.
pub fn translate_anew(id: qemu_plugin_id_t) {
    match interface() {
        seven::NUMBER => seven::translate_anew(id),
        _ => four::translate_anew(id),
    }
}

fn interface() -> c_int {
    qemu_plugin_version.load(Ordering::Relaxed)
}
