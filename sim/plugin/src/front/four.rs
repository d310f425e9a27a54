//! Interface 4, of QEMU 9.1 to 10: callbacks get the plugin's id.

use crate::callbacks;
use qemu_plugin_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// The number of the interface.
pub const NUMBER: c_int = 4;

/// As [`super::register`].
pub fn register(id: qemu_plugin_id_t) {
    // SAFETY: `id` is the one that QEMU gave this plugin; the functions are of the types it wants.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, Some(on_start));
        qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation));
        qemu_plugin_register_atexit_cb(id, Some(on_exit), std::ptr::null_mut());
    }
}

/// As [`super::translate_anew`].
pub fn translate_anew(id: qemu_plugin_id_t) {
    // SAFETY: `id` is the one that QEMU gave this plugin.
    unsafe { qemu_plugin_reset(id, Some(on_reset)) }
}

extern "C" fn on_reset(id: qemu_plugin_id_t) {
    register(id);
}

extern "C" fn on_start(_: qemu_plugin_id_t, _: c_uint) {
    callbacks::start();
}

extern "C" fn on_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    callbacks::translation(block);
}

extern "C" fn on_exit(_: qemu_plugin_id_t, _: *mut c_void) {
    callbacks::exit();
}
