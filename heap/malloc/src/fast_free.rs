//! As [`crate::fast`], the entry points that free. A free takes 27 instructions, of a cell that its bin notes
//! 39.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use heap::entry::free;
use heap::span::cells;
use heap::thread::bin;
use heap::thread::current::EMPTY;
use heap::thread::{freed_cells, local};
use heap::units::call::ReturnSlot;
use heap::units::geometry::{SPAN_BYTES, SPAN_METADATA_BYTES};
use heap::units::window::{WINDOW, Window};

/// An entry point that frees the object at `rdi`.
macro_rules! frees {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C-unwind" fn $name(_object: *mut c_void, $($argument: $type),*) {
            naked_asm!(
                // rax: the span's metadata.
                "mov rax, rdi",
                "sub rax, qword ptr [rip + {window} + {window_base}]",
                "cmp rax, qword ptr [rip + {window} + {readable}]",
                "jae 2f",
                "mov rcx, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
                "shr rax, {span_shift}",
                "lea rax, [rax + rax * 4]",
                "shl rax, {fifth_shift}",
                "add rax, qword ptr [rip + {window} + {metadata}]",
                // Is it this thread's span?
                "mov ecx, dword ptr fs:[rcx + 8]",
                "cmp ecx, dword ptr [rax + {tag}]",
                "jne 2f",
                // The cell's number is above the point of the product; below it, less than one step is left
                // exactly for a multiple of the cell size.
                "mov ecx, edi",
                "and ecx, {span_bytes} - 1",
                "imul rcx, qword ptr [rax + {reciprocal}]",
                "cmp ecx, dword ptr [rax + {reciprocal}]",
                "jae 2f",
                "mov rdx, rcx",
                "shr rcx, 32",
                "shr rdx, 38",
                // It must be live, and its bit is cleared.
                "mov rsi, qword ptr [rax + rdx * 8 + {live}]",
                "btr rsi, rcx",
                "jnc 2f",
                "mov qword ptr [rax + rdx * 8 + {live}], rsi",
                "cmp rsi, qword ptr [rax + {settles_below}]",
                "jb 3f",
                "ret",
                "2:",
                "mov rsi, rsp",
                "jmp {slow}",
                // The span may be empty; or it has few cells, and its bin notes this one if it has room, as
                // `FreedCells::note` does.
                "3:",
                "mov edx, dword ptr [rax + {settles_below}]",
                "sub edx, {noted}",
                "jb 4f",
                "mov r8, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
                "lea r9, [rip + {empty}]",
                "add r9, qword ptr fs:[r8]",
                "add rdx, r9",
                "mov eax, dword ptr [rdx + {freed}]",
                "cmp eax, {most_freed}",
                "je 5f",
                "mov qword ptr [rdx + rax * 8 + {freed} + {freed_cells}], rdi",
                "inc eax",
                "mov dword ptr [rdx + {freed}], eax",
                "ret",
                "5:",
                "test rsi, rsi",
                "jz 4f",
                "ret",
                "4:",
                "jmp {settle}",
                window = sym WINDOW,
                window_base = const core::mem::offset_of!(Window, base),
                readable = const core::mem::offset_of!(Window, readable),
                metadata = const core::mem::offset_of!(Window, metadata),
                span_shift = const SPAN_BYTES.ilog2(),
                fifth_shift = const (SPAN_METADATA_BYTES / 5).ilog2(),
                tag = const cells::layout::TAG,
                reciprocal = const cells::layout::RECIPROCAL,
                span_bytes = const SPAN_BYTES,
                live = const cells::layout::LIVE,
                settles_below = const cells::layout::SETTLES_BELOW,
                noted = const cells::NOTED,
                empty = sym EMPTY,
                freed = const local::layout::BINS + bin::layout::FREED,
                freed_cells = const freed_cells::layout::CELLS,
                most_freed = const freed_cells::layout::MOST,
                slow = sym free_slow,
                settle = sym settle,
            )
        })*
    };
}

const _: () = assert!(SPAN_METADATA_BYTES == 5 << (SPAN_METADATA_BYTES / 5).ilog2());

frees! {
    /// C's free.
    free();
    /// The name for free in old programs.
    cfree();
    /// C23's free_sized.
    free_sized(_size: usize);
    /// C23's free_aligned_sized.
    free_aligned_sized(_alignment: usize, _size: usize);
    /// jemalloc's free with flags, which are hints.
    dallocx(_flags: c_int);
    /// As above, with the size.
    sdallocx(_size: usize, _flags: c_int);
    /// C++'s operators delete.
    _ZdlPv();
    /// As above.
    _ZdaPv();
    /// As above.
    _ZdlPvm(_size: usize);
    /// As above.
    _ZdaPvm(_size: usize);
    /// As above.
    _ZdlPvRKSt9nothrow_t(_nothrow: usize);
    /// As above.
    _ZdaPvRKSt9nothrow_t(_nothrow: usize);
    /// As above.
    _ZdlPvSt11align_val_t(_alignment: usize);
    /// As above.
    _ZdaPvSt11align_val_t(_alignment: usize);
    /// As above.
    _ZdlPvmSt11align_val_t(_size: usize, _alignment: usize);
    /// As above.
    _ZdaPvmSt11align_val_t(_size: usize, _alignment: usize);
    /// As above.
    _ZdlPvSt11align_val_tRKSt9nothrow_t(_alignment: usize, _nothrow: usize);
    /// As above.
    _ZdaPvSt11align_val_tRKSt9nothrow_t(_alignment: usize, _nothrow: usize);
}

extern "C-unwind" fn free_slow(object: *mut c_void, from: ReturnSlot) {
    free::free_slow(object as usize, from);
}

extern "C-unwind" fn settle(object: *mut c_void) {
    free::settle(object as usize);
}
