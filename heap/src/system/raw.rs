//! System calls without the C library: another preloaded library may interpose a function of the C library
//! and allocate in it, and nothing here may call back into the heap. `errno` stays as it is.

/// Makes a system call; a negative result is the negated error number.
///
/// # Safety
/// As the call itself: its pointers are valid for what it does.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the caller guarantees it; the kernel changes rcx and r11 besides.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the caller guarantees it.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    result
}

/// A system call with up to six arguments, which are converted to words.
macro_rules! syscall {
    ($number:ident $(, $argument:expr)*) => {{
        let mut arguments = [0usize; 6];
        let _given: &[usize] = &[$(crate::system::raw::Word::word($argument)),*];
        arguments[.._given.len()].copy_from_slice(_given);
        crate::system::raw::call(libc::$number, arguments)
    }};
}
pub(crate) use syscall;

/// What a system call takes.
pub trait Word {
    /// The value in a register.
    fn word(self) -> usize;
}

impl Word for usize {
    fn word(self) -> usize {
        self
    }
}

impl Word for i32 {
    fn word(self) -> usize {
        self as isize as usize
    }
}

impl Word for u32 {
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Word for *const T {
    fn word(self) -> usize {
        self.addr()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> usize {
        self.addr()
    }
}
