//! The entry points that programs call most, with their fast paths in assembly: those of
//! [`heap::thread::local`], without a frame, a call or a spare register. A malloc takes 26 instructions if
//! calls of the size agree, else 34, with a word of the stack 55; a free takes 27.
//!
//! Everything else continues in a Rust function, with the stack as it was at the entry; it gets the arguments
//! of the call and the address of its return address.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use heap::entry::{allocate, free};
use heap::span::cells;
use heap::thread::bin::Bin;
use heap::thread::current::EMPTY;
use heap::thread::local::Heap;
use heap::thread::{bin, by_size, local, prediction_table};
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
                take_cell!("5f", "8f"),
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
                take_cell!("6f", "6f"),
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
                take_cell!("5f", "5f"),
                // A size's bin has no pending cell. rdx: the bin.
                "8:",
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
                "or rsi, qword ptr [rax + {is_open}]",
                "jz 3f",
                "ret",
                "2:",
                "mov rsi, rsp",
                "jmp {slow}",
                "3:",
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
                is_open = const cells::layout::IS_OPEN,
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
