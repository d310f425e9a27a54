//! What the plugin asks of QEMU: instructions of a block, registers, memory; all that is unsafe about asking.
//!
//! How QEMU calls back is in [`callbacks`](crate::callbacks).

use qemu_plugin_sys::*;
use std::ffi::{CStr, c_uint};

unsafe extern "C" {
    fn g_byte_array_new() -> *mut GByteArray;
    fn g_byte_array_set_size(array: *mut GByteArray, size: c_uint) -> *mut GByteArray;
}

/// A register that QEMU can read.
#[derive(Clone, Copy, PartialEq)]
pub struct Register(*mut qemu_plugin_register);

/// All registers by name.
pub fn registers() -> Vec<(String, Register)> {
    // SAFETY: QEMU returns an array of descriptors whose names live as long as it does.
    unsafe {
        let array = qemu_plugin_get_registers();
        let length = (*array).len as usize;
        let descriptors =
            std::slice::from_raw_parts((*array).data.cast::<qemu_plugin_reg_descriptor>(), length);
        descriptors
            .iter()
            .map(|one| (CStr::from_ptr(one.name).to_string_lossy().into_owned(), Register(one.handle)))
            .collect()
    }
}

/// A buffer for what QEMU hands out.
pub struct Buffer(*mut GByteArray);

impl Buffer {
    /// An empty one.
    pub fn new() -> Buffer {
        // SAFETY: it has no conditions.
        Buffer(unsafe { g_byte_array_new() })
    }

    /// A register's value; only in callbacks that may read registers.
    pub fn register(&mut self, register: Register) -> u64 {
        // SAFETY: the handle came from `registers`; the array is this buffer's own.
        unsafe {
            self.0 = g_byte_array_set_size(self.0, 0);
            qemu_plugin_read_register(register.0, self.0);
        }
        self.value()
    }

    /// Eight bytes of the guest's memory, at a virtual address.
    pub fn memory(&mut self, address: u64) -> Option<u64> {
        // SAFETY: the array is this buffer's own.
        let read = unsafe {
            self.0 = g_byte_array_set_size(self.0, 0);
            qemu_plugin_read_memory_vaddr(address, self.0, 8)
        };
        read.then(|| self.value())
    }

    fn value(&self) -> u64 {
        // SAFETY: the array holds `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts((*self.0).data, (*self.0).len as usize) };
        bytes.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}

/// CPU time of this process so far, which other programs on the machine do not change, as they do wall time.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to the structure it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
