//! Interface 7, of QEMU 11.1: callbacks get a pointer that is registered with them. This plugin registers its
//! id with the one that needs it, and nothing with the others.
//!
//! The bindings have these functions as interface 4 declares them, under the same names: so they are called
//! by their addresses, with the types of interface 7.

use crate::callbacks;
use qemu_plugin_sys::{qemu_plugin_id_t, qemu_plugin_tb};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;

/// The number of the interface.
pub const NUMBER: c_int = 7;

type OfCpu = extern "C" fn(c_uint, *mut c_void);
type OfBlock = extern "C" fn(*mut qemu_plugin_tb, *mut c_void);
type OfPlugin = extern "C" fn(*mut c_void);
/// Takes the plugin's id, a callback and its pointer.
type Register<Callback> = unsafe extern "C" fn(qemu_plugin_id_t, Callback, *mut c_void);

/// As [`super::register`].
pub fn register(id: qemu_plugin_id_t) {
    // SAFETY: `id` is the one that QEMU gave this plugin; the types are those of interface 7, which QEMU has,
    // or it had refused this plugin.
    unsafe {
        function::<OfCpu>(c"qemu_plugin_register_vcpu_init_cb")(id, on_start, null_mut());
        function::<OfBlock>(c"qemu_plugin_register_vcpu_tb_trans_cb")(id, on_translation, null_mut());
        function::<OfPlugin>(c"qemu_plugin_register_atexit_cb")(id, on_exit, null_mut());
    }
}

/// As [`super::translate_anew`].
pub fn translate_anew(id: qemu_plugin_id_t) {
    // SAFETY: as above; the id is carried, not a pointer.
    unsafe { function::<OfPlugin>(c"qemu_plugin_reset")(id, on_reset, id as usize as *mut c_void) }
}

/// # Safety
/// QEMU has a function of this name that takes such a callback.
unsafe fn function<Callback>(name: &CStr) -> Register<Callback> {
    // SAFETY: the name ends with a zero byte.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!address.is_null(), "QEMU exports no {}", name.to_string_lossy());
    // SAFETY: it is the address of such a function, by the caller's promise.
    unsafe { std::mem::transmute::<*mut c_void, Register<Callback>>(address) }
}

extern "C" fn on_reset(id: *mut c_void) {
    register(id as usize as qemu_plugin_id_t);
}

extern "C" fn on_start(_: c_uint, _: *mut c_void) {
    callbacks::start();
}

extern "C" fn on_translation(block: *mut qemu_plugin_tb, _: *mut c_void) {
    callbacks::translation(block);
}

extern "C" fn on_exit(_: *mut c_void) {
    callbacks::exit();
}
