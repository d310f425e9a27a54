//! The plugin's calls to QEMU: instructions of a block, registers, memory; with all unsafe code of such
//! calls.
//!
//! How QEMU calls back is in [`callbacks`](crate::callbacks).

use qemu_plugin_sys::*;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::time::Duration;

unsafe extern "C" {
    fn g_array_get_element_size(array: *mut GArray) -> c_uint;
    fn g_byte_array_new() -> *mut GByteArray;
    fn g_byte_array_set_size(array: *mut GByteArray, size: c_uint) -> *mut GByteArray;
}

/// A register that QEMU can read.
#[derive(Clone, Copy, PartialEq)]
pub struct Register(*mut qemu_plugin_register);

/// All registers by name.
pub fn registers() -> Vec<(String, Register)> {
    // SAFETY: QEMU returns an array of descriptors whose names live as long as it does. From interface 6 on
    // they are longer, with the same begin: the array has their size.
    unsafe {
        let array = qemu_plugin_get_registers();
        let size = g_array_get_element_size(array) as usize;
        assert!(size >= size_of::<qemu_plugin_reg_descriptor>(), "a register's descriptor has {size} bytes");
        (0..(*array).len as usize)
            .map(|index| {
                let one = &*(*array).data.add(index * size).cast::<qemu_plugin_reg_descriptor>();
                (CStr::from_ptr(one.name).to_string_lossy().into_owned(), Register(one.handle))
            })
            .collect()
    }
}

/// A buffer for data from QEMU.
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
            // An int or, from interface 6 on, a bool: a register that cannot be read leaves the array empty.
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

/// The virtual CPU that has its turn, and a way to end the turn early, by QEMU's own symbols for that. They
/// are not part of the plugin interface, and exported only where QEMU is built with modules, as Debian's is.
/// The interface's own number of a virtual CPU is that of the one for which a block was translated, where all
/// have one thread (`gen_cpu_index` of QEMU 10).
pub struct Turns {
    leave: unsafe extern "C" fn(*mut c_void),
    /// The thread-local variable that names the virtual CPU that runs.
    current: *const *mut c_void,
    cpus: Vec<*mut c_void>,
}

impl Turns {
    /// For this many virtual CPUs; `None` if this QEMU does not export the symbols. Call it in the thread
    /// that runs the CPUs, once they exist.
    pub fn find(cores: usize) -> Option<Turns> {
        // SAFETY: the names end with a zero byte; QEMU has no other symbols of these names.
        unsafe {
            let symbol = |name: &CStr| libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            let (cpu, leave, current) =
                (symbol(c"qemu_get_cpu"), symbol(c"cpu_exit"), symbol(c"current_cpu"));
            if cpu.is_null() || leave.is_null() || current.is_null() {
                return None;
            }
            let cpu = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> *mut c_void>(cpu);
            Some(Turns {
                leave: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(leave),
                current: current.cast(),
                cpus: (0..cores).map(|number| cpu(number as c_int)).collect(),
            })
        }
    }

    /// The virtual CPU whose callback this is.
    #[inline]
    pub fn current(&self) -> usize {
        // SAFETY: a variable of the thread that calls back.
        let current = unsafe { *self.current };
        self.cpus.iter().position(|cpu| *cpu == current).unwrap_or(0)
    }

    /// The virtual CPU executes the block that it is in and no other, before the next one has its turn.
    pub fn end(&self) {
        // SAFETY: the CPU exists, since it calls back; `cpu_exit` sets two flags of its.
        unsafe { (self.leave)(*self.current) }
    }
}

/// Has QEMU pause the guest before the next block, as its monitor's `stop` does at any block; false if this
/// QEMU does not export the functions for that. Call it in the thread that runs the CPUs.
///
/// It returns when QEMU's main loop pauses the guest. A CPU that stopped before would count as asleep, and
/// the guest's clock jump to its next timer. From then on the main loop holds QEMU's lock until the CPU is to
/// stop, and without that lock the CPU executes no further block once it has left this one.
pub fn pause() -> bool {
    /// RUN_STATE_PAUSED of qapi/run-state.json.
    const PAUSED: c_int = 4;
    let names =
        [c"qemu_system_vmstop_request_prepare", c"qemu_system_vmstop_request", c"runstate_is_running"];
    // SAFETY: the names end with a zero byte.
    let [prepare, request, runs] =
        names.map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    let Some(turns) = Turns::find(1).filter(|_| ![prepare, request, runs].iter().any(|one| one.is_null()))
    else {
        return false;
    };
    // SAFETY: QEMU has these functions of these types; any thread may call them.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn()>(prepare)();
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(request)(PAUSED);
        let runs = std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> bool>(runs);
        while runs() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    turns.end();
    true
}

/// Ends QEMU at once, with this status: no thread of it is asked.
pub fn leave(status: i32) -> ! {
    // SAFETY: it has no conditions, and does not return.
    unsafe { libc::_exit(status) }
}

/// This thread takes no signals: they are QEMU's own threads'.
pub fn take_no_signals() {
    // SAFETY: the set is this function's own, and is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// CPU time of this process so far, which other programs on the machine do not change, as they do wall time.
pub fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to the structure it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
