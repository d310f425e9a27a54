//! The calling context of an allocation: return addresses, and the modules (program, libraries) that contain
//! them.
//!
//! Frames are unwound by the exception tables that every program has, so code without frame pointers is no
//! obstacle. glibc's `_dl_find_object` finds them; it takes no lock and allocates nothing. The rule for each
//! return address is cached ([`cached_rules`]). libgcc's unwinder, which is linked in, handles stacks with
//! unusual frames.

mod cached_rules;
mod instructions;
mod rule;
mod tables;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub use instructions::at as rule_at;
#[cfg(fuzzing)]
pub use rule::{Frame, Rule, Saved};

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The most frames of a context, the allocation's caller first.
pub const MAX_FRAMES: usize = 64;

/// A calling context.
pub struct Stack {
    frames: [usize; MAX_FRAMES],
    /// Where the return addresses lie.
    slots: [usize; MAX_FRAMES],
    depth: usize,
    most: usize,
    /// Where the context begins.
    first: First,
    /// Frames of the allocator itself that were skipped.
    skipped: usize,
}

/// The first return address of a context.
enum First {
    /// This one, the allocation's caller.
    At(usize),
    /// The innermost one outside this range.
    Outside(usize, usize),
}

impl Default for Stack {
    fn default() -> Self {
        Self::of_most(MAX_FRAMES)
    }
}

impl Stack {
    /// Room for the `most` innermost frames: unwinding ends there.
    pub fn of_most(most: usize) -> Self {
        let (most, first) = (most.min(MAX_FRAMES), First::At(0));
        Self { frames: [0; MAX_FRAMES], slots: [0; MAX_FRAMES], depth: 0, most, first, skipped: 0 }
    }

    /// The return addresses, innermost first.
    pub fn frames(&self) -> &[usize] {
        &self.frames[..self.depth]
    }

    /// Where on the stack they lie; empty where a call does not push them (aarch64).
    pub fn slots(&self) -> &[usize] {
        &self.slots[..if cfg!(target_arch = "x86_64") { self.depth } else { 0 }]
    }
}

/// The most frames of the allocator to skip before the caller; if the caller is not found behind them, the
/// context is the caller alone.
const MOST_SKIPPED: usize = 16;

const NO_REASON: c_int = 0;
const END_OF_STACK: c_int = 5;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        step: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    fn _dl_find_object(address: *const c_void, found: *mut FoundObject) -> c_int;
}

// The library is linked with `--wrap=_dl_find_object` (heap/malloc/build.rs), so this wrapper replaces
// glibc's function. musl and glibc before 2.35 have none: there the wrapper reports that nothing was found,
// and the library still loads.
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".weak __real__dl_find_object",
    ".globl __wrap__dl_find_object",
    ".hidden __wrap__dl_find_object",
    ".type __wrap__dl_find_object, @function",
    "__wrap__dl_find_object:",
    "mov rax, [rip + __real__dl_find_object@GOTPCREL]",
    "test rax, rax",
    "jz 2f",
    "jmp rax",
    "2: mov eax, -1",
    "ret",
);

#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".weak __real__dl_find_object",
    ".globl __wrap__dl_find_object",
    ".hidden __wrap__dl_find_object",
    ".type __wrap__dl_find_object, %function",
    "__wrap__dl_find_object:",
    "adrp x16, :got:__real__dl_find_object",
    "ldr x16, [x16, :got_lo12:__real__dl_find_object]",
    "cbz x16, 2f",
    "br x16",
    "2: mov w0, -1",
    "ret",
);

/// Whether the C library can find code by address: 0 unknown, 1 yes, 2 no.
static FINDS_OBJECTS: AtomicU8 = AtomicU8::new(0);

/// libgcc's unwinder aborts if it cannot find its own code.
fn can_unwind() -> bool {
    if FINDS_OBJECTS.load(Relaxed) == 0 {
        let finds = found_object(can_unwind as *const () as usize).is_some();
        FINDS_OBJECTS.store(if finds { 1 } else { 2 }, Relaxed);
    }
    FINDS_OBJECTS.load(Relaxed) == 1
}

/// Unwinds from the function that `caller` returns to; without tables the context is the caller alone.
pub fn from(caller: usize, stack: &mut Stack) {
    stack.first = First::At(caller);
    if can_unwind() {
        unwind(stack);
    }
    if stack.depth == 0 {
        (stack.frames[0], stack.depth) = (caller, 1);
    }
}

/// Unwinds from the innermost function outside this module, the allocator's caller. Empty if the allocator is
/// linked into the program, or without tables.
pub fn beyond_this_module(stack: &mut Stack) {
    let Some(own) = can_unwind().then(|| module(beyond_this_module as *const () as usize)).flatten() else {
        return;
    };
    if !own.path.is_empty() {
        stack.first = First::Outside(own.start, own.end);
        unwind(stack);
    }
}

fn unwind(stack: &mut Stack) {
    if !cached_rules::walk(|address, left| stack.push_frame(address, left)) {
        (stack.depth, stack.skipped) = (0, 0);
        unwind_with_libgcc(stack);
    }
}

/// Unwinds any frames, by libgcc.
fn unwind_with_libgcc(stack: &mut Stack) {
    // SAFETY: `step` receives the pointer to `stack`, which outlives the call.
    unsafe { _Unwind_Backtrace(step, core::ptr::from_mut(stack).cast()) };
}

extern "C" fn step(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: the context is the unwinder's; the argument is the stack of `unwind_with_libgcc`.
    let (address, left, stack) =
        unsafe { (_Unwind_GetIP(context), _Unwind_GetCFA(context), &mut *argument.cast::<Stack>()) };
    if stack.push_frame(address, left) { NO_REASON } else { END_OF_STACK }
}

impl Stack {
    /// Adds a return address whose frame ended at the stack pointer `left`; whether there is room for more.
    fn push_frame(&mut self, address: usize, left: usize) -> bool {
        let is_first = match self.first {
            First::At(first) => address == first,
            First::Outside(start, end) => !(start..end).contains(&address),
        };
        if self.depth == 0 && !is_first {
            self.skipped += 1;
            return self.skipped < MOST_SKIPPED;
        }
        if address == 0 || self.depth >= self.most {
            return false;
        }
        self.frames[self.depth] = address;
        self.slots[self.depth] = left.wrapping_sub(size_of::<usize>()); // just below
        self.depth += 1;
        self.depth < self.most
    }
}

/// glibc's `struct dl_find_object` of x86-64 and aarch64.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: *const LinkMap,
    eh_frame: usize,
    reserved: [u64; 7],
}

impl FoundObject {
    const NONE: Self = Self {
        flags: 0,
        map_start: 0,
        map_end: 0,
        link_map: core::ptr::null(),
        eh_frame: 0,
        reserved: [0; 7],
    };

    fn has(&self, address: usize) -> bool {
        (self.map_start..self.map_end).contains(&address)
    }
}

/// The C library's data on the module that contains `address`.
fn found_object(address: usize) -> Option<FoundObject> {
    let mut found = FoundObject::NONE;
    // SAFETY: `found` is valid; any address is allowed.
    let is_found = unsafe { _dl_find_object(address as *const c_void, &raw mut found) } == 0;
    (is_found && !found.link_map.is_null()).then_some(found)
}

/// The public beginning of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    load_address: usize,
    name: *const c_char,
}

/// A program or library.
pub struct Module {
    /// Where it is mapped.
    pub start: usize,
    /// As above.
    pub end: usize,
    /// The difference between its addresses in memory and in its file.
    pub load_address: usize,
    /// Its path, empty for the program itself; without the final NUL.
    pub path: &'static [u8],
}

/// The entry point of the program's code.
pub fn program_entry() -> usize {
    // SAFETY: always allowed.
    unsafe { libc::getauxval(libc::AT_ENTRY) as usize }
}

/// The module that contains `address`; `None` for code that was made at run time.
pub fn module(address: usize) -> Option<Module> {
    let found = found_object(address)?;
    // SAFETY: code at `address` is on the calling thread's stack, so its module stays loaded; the callers
    // copy the path at once.
    let (load_address, path) = unsafe {
        let map = &*found.link_map;
        (
            map.load_address,
            if map.name.is_null() { &[][..] } else { core::ffi::CStr::from_ptr(map.name).to_bytes() },
        )
    };
    let module = Module { start: found.map_start, end: found.map_end, load_address, path };
    let is_part = path.is_empty() && header(&module).is_none();
    Some(if is_part { whole_program(module) } else { module })
}

/// The program as a whole. If its segments are not adjacent (because they are aligned to huge pages), glibc
/// returns only the one that contains the address; headers and notes are in the first.
fn whole_program(part: Module) -> Module {
    // SAFETY: always allowed.
    let [at, bytes, count] =
        [libc::AT_PHDR, libc::AT_PHENT, libc::AT_PHNUM].map(|what| unsafe { libc::getauxval(what) } as usize);
    if at == 0 {
        return part;
    }
    // SAFETY: the kernel passed the address of the program's headers, which stay mapped.
    let table = unsafe { core::slice::from_raw_parts(at as *const u8, bytes * count) };
    let (mut start, mut end) = (usize::MAX, 0);
    for segment in in_table(table, bytes).filter(|segment| segment.kind == PT_LOAD) {
        let from = part.load_address.wrapping_add(segment.address);
        (start, end) = (start.min(from), end.max(from.wrapping_add(segment.bytes)));
    }
    if (start..end).contains(&part.start) { Module { start, end, ..part } } else { part }
}

/// Whether `address` lies in the code of a program or library.
pub fn is_code(address: usize) -> bool {
    const PF_X: u32 = 1;
    let Some(module) = module(address) else { return false };
    segments(&module).is_some_and(|mut segments| {
        segments.any(|segment| {
            let from = module.load_address.wrapping_add(segment.address);
            segment.kind == PT_LOAD && segment.flags & PF_X != 0 && address.wrapping_sub(from) < segment.bytes
        })
    })
}

const PT_LOAD: u32 = 1;

/// A program header of a module.
struct Segment {
    kind: u32,
    flags: u32,
    address: usize,
    bytes: usize,
}

fn mapped(module: &Module, at: usize, bytes: usize) -> Option<&'static [u8]> {
    let whole = at >= module.start && at.checked_add(bytes)? <= module.end;
    // SAFETY: within the module's mapping, which begins with readable pages (its headers and notes).
    whole.then(|| unsafe { core::slice::from_raw_parts(at as *const u8, bytes) })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// The module's ELF header, if it is mapped.
fn header(module: &Module) -> Option<&'static [u8]> {
    mapped(module, module.start, 64).filter(|header| header.starts_with(b"\x7fELF"))
}

/// The module's program headers, if its ELF header is mapped.
fn segments(module: &Module) -> Option<impl Iterator<Item = Segment> + use<>> {
    let u16_at = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]) as usize;
    let header = header(module)?;
    let (table, size, count) = (u64_at(header, 32) as usize, u16_at(header, 54), u16_at(header, 56));
    Some(in_table(mapped(module, module.start.checked_add(table)?, count.checked_mul(size)?)?, size))
}

/// The program headers in a table, each of `bytes` bytes.
fn in_table(table: &'static [u8], bytes: usize) -> impl Iterator<Item = Segment> + use<> {
    table.chunks_exact(bytes.max(56)).map(|segment| Segment {
        kind: u32_at(segment, 0),
        flags: u32_at(segment, 4),
        address: u64_at(segment, 16) as usize,
        bytes: u64_at(segment, 40) as usize,
    })
}

/// The build-id of a module (its `NT_GNU_BUILD_ID` note), if its ELF header is mapped.
pub fn build_id(module: &Module) -> Option<&'static [u8]> {
    const PT_NOTE: u32 = 4;
    const NT_GNU_BUILD_ID: u32 = 3;
    for segment in segments(module)?.filter(|segment| segment.kind == PT_NOTE) {
        let mut notes = mapped(module, module.load_address.wrapping_add(segment.address), segment.bytes)?;
        while notes.len() >= 12 {
            let (name, value) = (u32_at(notes, 0) as usize, u32_at(notes, 4) as usize);
            let value_at = 12 + name.next_multiple_of(4);
            let end = value_at.checked_add(value.next_multiple_of(4))?;
            if u32_at(notes, 8) == NT_GNU_BUILD_ID {
                return notes.get(value_at..value_at + value);
            }
            notes = notes.get(end..)?;
        }
    }
    None
}
