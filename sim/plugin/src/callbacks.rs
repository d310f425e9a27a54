//! The calls from QEMU to the plugin, with all unsafe code of callbacks.
//!
//! QEMU runs all virtual CPUs in one thread (`thread=single`), and only that thread calls back, but for the
//! last call at exit, when it has stopped. So [`run`] hands out the one [`Run`] as mutable: no two calls are
//! ever active at once.

use crate::instruction::Instruction;
use crate::run::Run;
use crate::translate::{self, Wish};
use qemu_plugin_sys::*;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

static RUN: AtomicPtr<Run> = AtomicPtr::new(std::ptr::null_mut());

/// Registers the callbacks, which call `run`.
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
    // SAFETY: set by `install` before any callback, and never freed; one call at a time (see above).
    unsafe { &mut *RUN.load(Ordering::Relaxed) }
}

/// Drops all translations and callbacks: QEMU translates anew, and [`translate::block`] runs again.
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
    let block = Translation(block);
    let instructions: Vec<_> = (0..block.count()).map(|index| block.instruction(index)).collect();
    translate::block(run(), &instructions, |wish| match wish {
        Wish::Entry { block: number } => block.call_on_entry(number),
        Wish::Access { index } => block.call_on_access(index),
        Wish::Before { index, kind } => block.call_before(index, kind),
    });
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

extern "C" fn on_instruction(_: c_uint, data: *mut c_void) {
    let data = data as usize as u64;
    run().special(data as u32, (data >> 32) as usize);
}

/// A block that QEMU translates.
struct Translation(*mut qemu_plugin_tb);

impl Translation {
    /// How many instructions it has.
    fn count(&self) -> usize {
        // SAFETY: valid during the translation callback, as for all that follow.
        unsafe { qemu_plugin_tb_n_insns(self.0) }
    }

    /// One of them.
    fn instruction(&self, index: usize) -> Instruction {
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
    fn call_on_entry(&self, number: usize) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
        // SAFETY: the number is carried, not a pointer.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.0, Some(on_block), flags, number as *mut c_void) }
    }

    /// [`Run::access`] is called for each access of this instruction.
    fn call_on_access(&self, index: usize) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
        // SAFETY: as above.
        unsafe {
            let handle = qemu_plugin_tb_get_insn(self.0, index);
            let both = qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW;
            qemu_plugin_register_vcpu_mem_cb(handle, Some(on_access), flags, both, index as *mut c_void);
        }
    }

    /// [`Run::special`] is called before this instruction is executed, and can read registers.
    fn call_before(&self, index: usize, kind: u32) {
        let flags = qemu_plugin_cb_flags::QEMU_PLUGIN_CB_R_REGS;
        let carried = (u64::from(kind) | (index as u64) << 32) as usize;
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
