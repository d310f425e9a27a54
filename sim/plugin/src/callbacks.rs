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

/// The run that all callbacks call, before the first is registered.
pub fn install(run: Run) {
    RUN.store(Box::into_raw(Box::new(run)), Ordering::Release);
}

#[inline(always)]
fn run() -> &'static mut Run {
    // SAFETY: set by `install` before any callback, and never freed; one call at a time (see above).
    unsafe { &mut *RUN.load(Ordering::Relaxed) }
}

/// A virtual CPU exists, and its thread calls.
pub fn start() {
    run().find_registers();
}

/// QEMU translates a block, which is valid during this call.
pub fn translation(block: *mut qemu_plugin_tb) {
    let block = Translation(block);
    let instructions: Vec<_> = (0..block.count()).map(|index| block.instruction(index)).collect();
    translate::block(run(), &instructions, |wish| match wish {
        Wish::Entry { block: number } => block.call_on_entry(number),
        Wish::Access { index } => block.call_on_access(index),
        Wish::Before { index, kind } => block.call_before(index, kind),
    });
}

/// QEMU ends.
pub fn exit() {
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
