//! The calls between QEMU and the plugin; all that is unsafe about them.
//!
//! QEMU runs one virtual CPU in one thread (`thread=single`), and only that thread calls back, but for the last call at
//! exit, when it has stopped. So [`run`] hands out the one [`Run`] as mutable: no two calls are ever active at once.

use crate::run::Run;
use crate::translate::{self, Instruction};
use qemu_plugin_sys::*;
use std::ffi::{CStr, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

unsafe extern "C" {
    fn g_byte_array_new() -> *mut GByteArray;
    fn g_byte_array_set_size(array: *mut GByteArray, size: c_uint) -> *mut GByteArray;
}

static RUN: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());

/// A register that QEMU can read.
#[derive(Clone, Copy, PartialEq)]
pub struct Register(*mut qemu_plugin_register);

/// Makes `run` the one that calls go to, and asks for them.
pub fn install(run: Run) {
    let id = run.id;
    RUN.store(Box::into_raw(Box::new(run)), Ordering::Release);
    register(id);
}

fn register(id: qemu_plugin_id_t) {
    // SAFETY: `id` is the one that QEMU gave this plugin; the functions are of the types it wants.
    unsafe {
        qemu_plugin_register_vcpu_init_cb(id, Some(on_start));
        qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation));
        qemu_plugin_register_atexit_cb(id, Some(on_exit), std::ptr::null_mut());
    }
}

#[inline(always)]
fn run() -> &'static mut Run {
    // SAFETY: set by `install` before any call comes, and never freed; one call at a time (see above).
    unsafe { &mut *RUN.load(Ordering::Relaxed) }
}

/// Drops all translations and all callbacks: QEMU translates anew, asking [`translate::block`] again.
pub fn translate_anew(id: qemu_plugin_id_t) {
    extern "C" fn on_reset(id: qemu_plugin_id_t) {
        register(id);
    }
    // SAFETY: `id` is the one that QEMU gave this plugin.
    unsafe { qemu_plugin_reset(id, Some(on_reset)) }
}

extern "C" fn on_start(_: qemu_plugin_id_t, _: c_uint) {
    run().find_registers();
}

extern "C" fn on_translation(_: qemu_plugin_id_t, block: *mut qemu_plugin_tb) {
    translate::block(run(), &Translation(block));
}

extern "C" fn on_exit(_: qemu_plugin_id_t, _: *mut c_void) {
    run().at_exit();
}

extern "C" fn on_block(_: c_uint, number: *mut c_void) {
    run().enter(number as usize);
}

extern "C" fn on_access(_: c_uint, info: qemu_plugin_meminfo_t, address: u64, index: *mut c_void) {
    // SAFETY: the information is this callback's own; the handle is valid until it returns.
    let (store, size, place) = unsafe {
        let handle = qemu_plugin_get_hwaddr(info, address);
        let place = (!handle.is_null() && !qemu_plugin_hwaddr_is_io(handle))
            .then(|| qemu_plugin_hwaddr_phys_addr(handle));
        (qemu_plugin_mem_is_store(info), 1 << qemu_plugin_mem_size_shift(info), place)
    };
    run().access(sim::Access {
        address,
        physical: place.unwrap_or(0),
        index: index as usize as u16,
        size,
        store,
        device: place.is_none(),
    });
}

extern "C" fn on_instruction(_: c_uint, what: *mut c_void) {
    let what = what as usize as u64;
    run().special(what as u32, (what >> 32) as usize);
}

/// A block that QEMU translates.
pub struct Translation(*mut qemu_plugin_tb);

impl Translation {
    /// How many instructions it has.
    pub fn count(&self) -> usize {
        // SAFETY: valid during the translation callback, as for all that follow.
        unsafe { qemu_plugin_tb_n_insns(self.0) }
    }

    /// One of them.
    pub fn instruction(&self, index: usize) -> Instruction {
        let mut bytes = [0; 16];
        // SAFETY: `index` is below the count; at most 16 bytes are written.
        unsafe {
            let handle = qemu_plugin_tb_get_insn(self.0, index);
            let length = qemu_plugin_insn_size(handle).min(16);
            qemu_plugin_insn_data(handle, bytes.as_mut_ptr().cast(), length);
            Instruction {
                bytes,
                length,
                address: qemu_plugin_insn_vaddr(handle),
                host: qemu_plugin_insn_haddr(handle) as u64,
            }
        }
    }

    /// [`Run::enter`] is called each time the block is entered.
    pub fn call_on_entry(&self, number: usize) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
        // SAFETY: the number is carried, not a pointer.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.0, Some(on_block), flags, number as *mut c_void) }
    }

    /// [`Run::access`] is called for each access of this instruction.
    pub fn call_on_access(&self, index: usize) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
        // SAFETY: as above.
        unsafe {
            let handle = qemu_plugin_tb_get_insn(self.0, index);
            let both = qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW;
            qemu_plugin_register_vcpu_mem_cb(handle, Some(on_access), flags, both, index as *mut c_void);
        }
    }

    /// [`Run::special`] is called before this instruction is executed, and can read registers.
    pub fn call_before(&self, index: usize, what: u32) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_R_REGS;
        let carried = (u64::from(what) | (index as u64) << 32) as usize;
        // SAFETY: as above.
        unsafe {
            let handle = qemu_plugin_tb_get_insn(self.0, index);
            qemu_plugin_register_vcpu_insn_exec_cb(
                handle,
                Some(on_instruction),
                flags,
                carried as *mut c_void,
            );
        }
    }
}

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
