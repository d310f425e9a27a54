//! The code that a restored process runs first: it carries out a list of system calls and ends in the state
//! that was taken. It is written in assembly because it runs where nothing else is mapped: no stack, no C
//! library, no thread-local storage. All policy is in the list, which [`crate::plan`] describes.
//!
//! ```text
//!   execveat(program) ─► entry: the vDSO's address from the auxiliary vector ─► slot 0
//!                        next:  arguments = numbers + slots ─► syscall ─► check ─► slot ─► next
//!                               BECOME: rt_sigreturn with a frame of the list's data
//! ```
//! Register r12 is the current operation, r13 the slots, r14 the first operation. A thread that CLONE starts
//! has registers of its own, and shares the rest. On an error it writes the operation's number and the
//! result to descriptor 2, in hexadecimal, and exits with [`FAILED`].

use std::arch::global_asm;

/// Exit status of a process that could not be restored.
pub const FAILED: i32 = 125;
/// Bytes of one operation in the list.
pub const OPERATION_BYTES: usize = 72;

/// Special operations, beside numbers of system calls.
pub mod special {
    /// Writes the thread's id to the address of argument 0.
    pub const TID: i64 = -1;
    /// Starts a thread: flags, stack, parent's and child's place of its id, TLS; it goes on at the operation
    /// whose address is argument 5.
    pub const CLONE: i64 = -2;
    /// Becomes what was taken: rt_sigreturn with the frame at argument 0.
    pub const BECOME: i64 = -3;
}

/// What the result of an operation must be.
pub mod want {
    /// Anything.
    pub const ANY: u16 = 0;
    /// No error.
    pub const NO_ERROR: u16 = 1;
    /// Argument 0: a mapping at a fixed address.
    pub const SAME: u16 = 2;
}

/// No slot.
pub const NO_SLOT: u16 = u16::MAX;

// Two places are filled in by `crate::program`: the addresses of the list and of the slots, which begin the
// code. The code refers to nothing else by address, so it may lie anywhere.
global_asm!(
    ".pushsection .rodata.mayfly_restorer, \"a\", @progbits",
    ".balign 16",
    ".globl mayfly_restorer_start",
    ".globl mayfly_restorer_entry",
    ".globl mayfly_restorer_end",
    "mayfly_restorer_start:",
    ".quad 0", // the list
    ".quad 0", // the slots
    "mayfly_restorer_entry:",
    "mov r12, [rip + mayfly_restorer_start]",
    "mov r13, [rip + mayfly_restorer_start + 8]",
    "mov r14, r12",
    // The auxiliary vector lies behind the arguments and the environment.
    "mov rcx, [rsp]",
    "lea rsi, [rsp + rcx*8 + 16]",
    "20:",
    "mov rax, [rsi]",
    "add rsi, 8",
    "test rax, rax",
    "jnz 20b",
    "21:",
    "mov rax, [rsi]",
    "test rax, rax",
    "jz 30f",
    "cmp rax, 33", // AT_SYSINFO_EHDR
    "je 22f",
    "add rsi, 16",
    "jmp 21b",
    "22:",
    "mov rax, [rsi + 8]",
    "mov [r13], rax",
    // The next operation: six arguments, each with a slot that is added.
    "30:",
    "mov rdi, [r12 + 8]",
    "movzx eax, word ptr [r12 + 56]",
    "cmp eax, 0xffff",
    "je 31f",
    "add rdi, [r13 + rax*8]",
    "31:",
    "mov rsi, [r12 + 16]",
    "movzx eax, word ptr [r12 + 58]",
    "cmp eax, 0xffff",
    "je 32f",
    "add rsi, [r13 + rax*8]",
    "32:",
    "mov rdx, [r12 + 24]",
    "movzx eax, word ptr [r12 + 60]",
    "cmp eax, 0xffff",
    "je 33f",
    "add rdx, [r13 + rax*8]",
    "33:",
    "mov r10, [r12 + 32]",
    "movzx eax, word ptr [r12 + 62]",
    "cmp eax, 0xffff",
    "je 34f",
    "add r10, [r13 + rax*8]",
    "34:",
    "mov r8, [r12 + 40]",
    "movzx eax, word ptr [r12 + 64]",
    "cmp eax, 0xffff",
    "je 35f",
    "add r8, [r13 + rax*8]",
    "35:",
    "mov r9, [r12 + 48]",
    "mov rax, [r12]",
    "cmp rax, -1",
    "je 40f",
    "cmp rax, -2",
    "je 41f",
    "cmp rax, -3",
    "je 42f",
    "syscall",
    "36:",
    "movzx ecx, word ptr [r12 + 70]",
    "test ecx, ecx",
    "jz 37f",
    "cmp rax, -4096",
    "ja 50f",
    "cmp ecx, 2",
    "jne 37f",
    "cmp rax, rdi",
    "jne 50f",
    "37:",
    "movzx ecx, word ptr [r12 + 68]",
    "cmp ecx, 0xffff",
    "je 38f",
    "mov [r13 + rcx*8], rax",
    "38:",
    "add r12, 72",
    "jmp 30b",
    // TID
    "40:",
    "mov eax, 186", // gettid
    "syscall",
    "mov [rdi], eax",
    "jmp 38b",
    // CLONE: the thread finds the address of its first operation in r9.
    "41:",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jnz 36b",
    "mov r12, r9",
    "jmp 30b",
    // BECOME
    "42:",
    "mov rsp, rdi",
    "mov eax, 15", // rt_sigreturn
    "syscall",
    "ud2",
    // An error: slot 1 and those behind it become the message's 34 bytes.
    "50:",
    "mov rbx, rax",
    "mov rax, r12",
    "sub rax, r14",
    "xor edx, edx",
    "mov ecx, 72",
    "div rcx",
    "lea rdi, [r13 + 8]",
    "mov rsi, rax",
    "mov ebp, 2",
    "51:",
    "mov ecx, 16",
    "52:",
    "rol rsi, 4",
    "mov eax, esi",
    "and eax, 15",
    "cmp eax, 10",
    "jb 53f",
    "add eax, 39",
    "53:",
    "add eax, 48",
    "mov [rdi], al",
    "inc rdi",
    "dec ecx",
    "jnz 52b",
    "mov byte ptr [rdi], 10",
    "inc rdi",
    "mov rsi, rbx",
    "dec ebp",
    "jnz 51b",
    "mov eax, 1", // write
    "mov edi, 2",
    "lea rsi, [r13 + 8]",
    "mov edx, 34",
    "syscall",
    "mov eax, 231", // exit_group
    "mov edi, 125",
    "syscall",
    "ud2",
    "mayfly_restorer_end:",
    ".popsection",
);

unsafe extern "C" {
    static mayfly_restorer_start: u8;
    static mayfly_restorer_entry: u8;
    static mayfly_restorer_end: u8;
}

/// The code, and where in it a process begins.
pub fn code() -> (&'static [u8], usize) {
    let (start, entry, end) =
        (&raw const mayfly_restorer_start, &raw const mayfly_restorer_entry, &raw const mayfly_restorer_end);
    let bytes = end as usize - start as usize;
    // SAFETY: the assembly above puts these bytes between the two symbols, in memory that is never written.
    (unsafe { std::slice::from_raw_parts(start, bytes) }, entry as usize - start as usize)
}
