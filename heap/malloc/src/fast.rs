//! The entry points that programs call most, with their fast paths in assembly: those of
//! [`heap::thread::local`], without a frame, a call or a spare register. A malloc takes 26 instructions if
//! calls of the size agree, else 34, with a word of the stack 55; a free takes 27. Above 576 B a malloc of a
//! cell that was freed lately takes 25 more, and a free 12.
//!
//! Everything else continues in a Rust function, with the stack as it was at the entry; it gets the arguments
//! of the call and the address of its return address.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use heap::entry::allocate;
use heap::span::cells;
use heap::thread::bin::Bin;
use heap::thread::current::EMPTY;
use heap::thread::local::Heap;
use heap::thread::{bin, by_size, fork_guard, freed_cells, local, prediction_table};
use heap::units::call::{ReturnSlot, WORD_FACTOR};
use heap::units::geometry::PAGE_BYTES;
use heap::units::geometry::{SPAN_BYTES, SPAN_METADATA_BYTES};
use heap::units::size_class::GRANULE_BYTES;
use heap::units::window::{WINDOW, Window};

use crate::cxx::new_slow;
use crate::extended;

/// Allocates the lowest pending cell of the bin at `rdx`, marks it live and returns it. If the bin's cells
/// are too small (it is another call's) it continues at `$otherwise`, if none is pending at `$empty`. Plain
/// loads and stores: the next malloc reads what this one wrote, and waits longer for a read-modify-write.
macro_rules! take_cell {
    ($otherwise:literal, $empty:literal) => {
        concat!(
            "cmp rdi, qword ptr [rdx + {cell_bytes}]
        ja ",
            $otherwise,
            "
        mov r10, qword ptr [rdx + {pending}]
        test r10, r10
        jz ",
            $empty,
            "
        lea r9, [r10 - 1]
        mov r8, qword ptr [rdx + {word}]
        and r9, r10
        mov qword ptr [rdx + {pending}], r9
        rep bsf rax, r10
        xor r9, r10
        or r9, qword ptr [r8]
        mov qword ptr [r8], r9
        imul eax, dword ptr [rdx + {cell_bytes}]
        add rax, qword ptr [rdx + {base}]
        ret"
        )
    };
}

/// As [`take_cell`], of the bin at `rdx`, which has no pending cell: allocates the cell that it noted last,
/// as `Bin::allocate_freed` does. If there is none it continues at `$none`, with the registers that a search
/// by key needs, and if that cell or the bin needs the slow path at `$otherwise`.
macro_rules! take_freed {
    ($none:literal, $otherwise:literal) => {
        concat!(
            "mov r8d, dword ptr [rdx + {freed}]
        sub r8d, 1
        jb ",
            $none,
            "
        cmp dword ptr [rdx + {unvisited}], 0
        je ",
            $otherwise,
            // The fork guard, without a fence.
            "
        mov esi, dword ptr [rcx + {busy}]
        lea r9d, [rsi + 1]
        mov dword ptr [rcx + {busy}], r9d
        cmp byte ptr [rip + {exclusive}], 0
        jne 21f
        mov rax, qword ptr [rdx + r8 * 8 + {freed} + {freed_cells}]
        mov r11, rax
        sub r11, qword ptr [rip + {window} + {window_base}]
        shr r11, {span_shift}
        lea r11, [r11 + r11 * 4]
        shl r11, {fifth_shift}
        add r11, qword ptr [rip + {window} + {metadata}]
        mov r9d, dword ptr [rcx + {id}]
        cmp r9d, dword ptr [r11 + {tag}]
        jne 21f
        mov r9, qword ptr [r11 + {span_kind}]
        cmp r9, qword ptr [rdx + {kind}]
        jne 21f
        cmp dword ptr [r11 + {listed}], 0
        jne 21f
        mov r10d, eax
        and r10d, {span_bytes} - 1
        imul r10, qword ptr [r11 + {reciprocal}]
        shr r10, 32
        mov r9, qword ptr [r11 + {live}]
        bts r9, r10
        jc 21f
        mov qword ptr [r11 + {live}], r9
        mov dword ptr [rcx + {busy}], esi
        mov dword ptr [rdx + {freed}], r8d
        dec dword ptr [rdx + {unvisited}]
        ret
        21:
        mov dword ptr [rcx + {busy}], esi
        jmp ",
            $otherwise,
        )
    };
}

/// An entry point that allocates `rdi` bytes; `$slow` is its slow path, and `$next` that of a size whose bin
/// is known and has no pending cell. Flags in `esi` that ask for more than
/// a place continue in `$flagged`.
macro_rules! allocates {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $slow:path, $next:path $(, $mask:ident -> $flagged:path)?;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C-unwind" fn $name(_size: usize $(, $argument: $type)*) -> *mut c_void {
            naked_asm!(
                $(concat!("test esi, {asks} # ", stringify!($mask)), "jnz {flagged}",)?
                // rcx: the thread's heap, or that of threads without one.
                "mov rdx, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
                "lea rcx, [rip + {empty}]",
                "lea eax, [rdi + {granule} - 1]",
                "add rcx, qword ptr fs:[rdx]",
                "and eax, {sizes}",
                // By size alone, if the calls of this caller agree with all others. rdx: the return address,
                // then the bin.
                "mov rdx, qword ptr [rsp]",
                "mov rsi, qword ptr [rcx + rax + {by_size}]",
                "bt rsi, rdx",
                "jnc 3f",
                "mov rdx, qword ptr [rcx + rax + {by_size} + {by_size_bin}]",
                take_cell!("5f", "28f"),
                // By the key of the call: return address, stack height and size. A bucket has two entries.
                "3:",
                "imul edx, edx, {caller_factor}",
                "add edx, esp",
                "lea edx, [rdx + rax * {size_factor}]",
                "mov esi, edx",
                "and esi, dword ptr [rcx + {last}]",
                "cmp edx, dword ptr [rcx + rsi + {places} + {key}]",
                "jne 4f",
                "mov edx, dword ptr [rcx + rsi + {places} + {bin}]",
                "add rdx, rcx",
                "2:",
                take_cell!("6f", "29f"),
                "4:",
                "add rsi, {entry_bytes}",
                "cmp edx, dword ptr [rcx + rsi + {places} + {key}]",
                "jne 5f",
                "mov edx, dword ptr [rcx + rsi + {places} + {bin}]",
                "add rdx, rcx",
                "jmp 2b",
                // By the word of the stack that completes the key, if it lies in the page of the call.
                "6:",
                "movzx r8d, byte ptr [rcx + rsi + {places} + {word_above}]",
                "test r8d, r8d",
                "jz 5f",
                "lea r9, [rsp + r8 * 8]",
                "mov r8, r9",
                "xor r8, rsp",
                "cmp r8, {page_bytes}",
                "jae 5f",
                "imul edx, dword ptr [r9], {word_factor}",
                "xor edx, dword ptr [rsp]",
                "imul edx, edx, {caller_factor}",
                "add edx, esp",
                "lea edx, [rdx + rax * {size_factor}]",
                "mov esi, edx",
                "and esi, dword ptr [rcx + {last}]",
                "cmp edx, dword ptr [rcx + rsi + {places} + {key}]",
                "je 7f",
                "add rsi, {entry_bytes}",
                "cmp edx, dword ptr [rcx + rsi + {places} + {key}]",
                "jne 5f",
                "7:",
                "mov edx, dword ptr [rcx + rsi + {places} + {bin}]",
                "add rdx, rcx",
                take_cell!("5f", "27f"),
                "27:",
                take_freed!("5f", "5f"),
                "29:",
                take_freed!("6b", "5f"),
                // A size's bin has no pending cell. rdx: the bin.
                "28:",
                take_freed!("23f", "23f"),
                "23:",
                "mov rsi, rsp",
                "jmp {next}",
                "5:",
                "mov rsi, rsp",
                "jmp {slow}",
                empty = sym EMPTY,
                granule = const GRANULE_BYTES,
                sizes = const by_size::PLACES_MASK,
                by_size = const local::layout::BY_SIZE,
                by_size_bin = const by_size::BIN,
                cell_bytes = const bin::layout::CELL_BYTES,
                pending = const bin::layout::PENDING,
                word = const bin::layout::WORD,
                base = const bin::layout::BASE,
                kind = const bin::layout::KIND,
                freed = const bin::layout::FREED,
                freed_cells = const freed_cells::layout::CELLS,
                reciprocal = const cells::layout::RECIPROCAL,
                span_bytes = const SPAN_BYTES,
                unvisited = const bin::layout::UNVISITED,
                busy = const core::mem::offset_of!(Heap, busy),
                id = const core::mem::offset_of!(Heap, id),
                exclusive = sym fork_guard::EXCLUSIVE,
                window = sym WINDOW,
                window_base = const core::mem::offset_of!(Window, base),
                metadata = const core::mem::offset_of!(Window, metadata),
                span_shift = const SPAN_BYTES.ilog2(),
                fifth_shift = const (SPAN_METADATA_BYTES / 5).ilog2(),
                tag = const cells::layout::TAG,
                span_kind = const cells::layout::KIND,
                listed = const cells::layout::LISTED,
                live = const cells::layout::LIVE,
                caller_factor = const prediction_table::CALLER_FACTOR as i32,
                size_factor = const prediction_table::SIZE_FACTOR,
                last = const local::layout::PREDICTIONS + prediction_table::layout::LAST,
                places = const local::layout::PREDICTIONS + prediction_table::layout::BUCKETS,
                entry_bytes = const prediction_table::layout::ENTRY_BYTES,
                key = const prediction_table::layout::KEY,
                bin = const prediction_table::layout::BIN,
                word_above = const prediction_table::layout::WORD,
                word_factor = const WORD_FACTOR as i32,
                page_bytes = const PAGE_BYTES,
                slow = sym $slow,
                next = sym $next,
                $(asks = const extended::$mask, flagged = sym $flagged,)?
            )
        })*
    };
}

allocates! {
    /// C's malloc.
    malloc() -> malloc_slow, malloc_next;
    /// C++'s operator new.
    _Znwm() -> new_slow, new_next;
    /// As above, for arrays.
    _Znam() -> new_slow, new_next;
    /// jemalloc's malloc with flags.
    mallocx(_flags: c_int) -> malloc_slow, malloc_next, ALIGN_OR_ZERO -> extended::mallocx_flagged;
}

extern "C-unwind" fn malloc_next(
    size: usize,
    from: ReturnSlot,
    bin: &Bin,
    heap: &'static Heap,
) -> *mut c_void {
    match allocate::allocate_next(heap, bin) {
        Some(cell) => cell as *mut c_void,
        None => malloc_slow(size, from),
    }
}

extern "C-unwind" fn new_next(size: usize, from: ReturnSlot, bin: &Bin, heap: &'static Heap) -> *mut c_void {
    match allocate::allocate_next(heap, bin) {
        Some(cell) => cell as *mut c_void,
        None => new_slow(size, from),
    }
}

extern "C-unwind" fn malloc_slow(size: usize, from: ReturnSlot) -> *mut c_void {
    allocate::allocate_slow(size, from).cast()
}
