//! The process that replays a trace on Mayfly's heap, driven by `on_heap` over its standard input.
//!
//! It allocates only the objects of the trace: its table of objects and its buffers are mapped or static. The
//! only others are the few objects of Rust's runtime at start-up.

use std::ffi::{CStr, c_char, c_int, c_void};

use memmap2::MmapOptions;

use crate::trace::on_heap::{STEP_BYTES, Step};

type MayflyMalloc = unsafe extern "C" fn(usize, c_int) -> *mut c_void;
type Statistics = unsafe extern "C" fn(*mut c_char, usize) -> c_int;
type SetClock = unsafe extern "C" fn(u64);

/// More than the heap's statistics ever need.
const STATISTICS_BYTES: usize = 1 << 20;
const INPUT_BYTES: usize = STEP_BYTES << 13;

/// Reads steps from standard input until it ends. Returns the exit code, 1 after one line with the reason.
pub fn drive(slots: &str) -> i32 {
    match try_drive(slots) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("mayfly: replay on the heap: {reason}");
            1
        }
    }
}

fn try_drive(slots: &str) -> Result<(), String> {
    let slots: usize = slots.parse().map_err(|_| "the number of objects is not a number")?;
    // SAFETY: the C API has these functions with these types (heap/malloc/include/mayfly_heap.h).
    let (allocate, statistics, set_clock) = unsafe {
        (
            std::mem::transmute::<*mut c_void, MayflyMalloc>(symbol(c"mayfly_malloc")?),
            std::mem::transmute::<*mut c_void, Statistics>(symbol(c"mayfly_heap_stats")?),
            std::mem::transmute::<*mut c_void, SetClock>(symbol(c"mayfly_heap_set_clock")?),
        )
    };
    let cannot_map = |error| format!("cannot map memory of its own: {error}");
    let mut objects = MmapOptions::new().len(slots * 8).map_anon().map_err(cannot_map)?;
    let mut text = MmapOptions::new().len(STATISTICS_BYTES).map_anon().map_err(cannot_map)?;
    let mut input = MmapOptions::new().len(INPUT_BYTES).map_anon().map_err(cannot_map)?;
    let mut held = 0;
    loop {
        let length = read(&mut input[held..])?;
        if length == 0 {
            return if held == 0 { Ok(()) } else { Err("the input ends inside a step".into()) };
        }
        held += length;
        let whole = held - held % STEP_BYTES;
        for bytes in input[..whole].chunks_exact(STEP_BYTES) {
            let bytes = bytes.try_into().expect("a chunk is a step");
            let (step, time_ns) = Step::decode(bytes).ok_or("the input has bytes that are no step")?;
            // SAFETY: sets a number in the heap; 0 would mean the real clock.
            unsafe { set_clock(time_ns.max(1)) };
            match step {
                Step::Allocate { slot, size_bytes, class } => {
                    // SAFETY: a plain allocation; the pointer is only stored, and freed once by its slot.
                    let object = unsafe { allocate(size_bytes as usize, c_int::from(class)) };
                    if object.is_null() {
                        return Err(format!("the heap has no {size_bytes} bytes left at {time_ns} ns"));
                    }
                    slot_mut(&mut objects, slot)?.copy_from_slice(&(object as u64).to_ne_bytes());
                }
                Step::Free { slot } => {
                    let place = slot_mut(&mut objects, slot)?;
                    let object = u64::from_ne_bytes((&*place).try_into().expect("eight bytes"));
                    place.fill(0);
                    // SAFETY: from `allocate`, and freed for the first time: the slot is cleared; NULL is
                    // fine.
                    unsafe { libc::free(object as *mut c_void) };
                }
                Step::Sample => {
                    // SAFETY: the heap writes at most the given length, ended by NUL.
                    let length = unsafe { statistics(text.as_mut_ptr().cast(), text.len()) };
                    let length = usize::try_from(length).ok().filter(|length| *length < text.len());
                    write_line(&mut text[..], length.ok_or("the heap's statistics are too long")?)?;
                }
            }
        }
        input.copy_within(whole..held, 0);
        held -= whole;
    }
}

fn slot_mut(objects: &mut [u8], slot: u32) -> Result<&mut [u8], String> {
    let at = slot as usize * 8;
    objects.get_mut(at..at + 8).ok_or_else(|| format!("no slot {slot}"))
}

fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends in NUL.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("libmayfly_heap.so has no {}", name.to_string_lossy()));
    }
    Ok(address)
}

fn read(into: &mut [u8]) -> Result<usize, String> {
    loop {
        // SAFETY: the buffer has the length given to the call.
        let length = unsafe { libc::read(0, into.as_mut_ptr().cast(), into.len()) };
        match usize::try_from(length) {
            Ok(length) => return Ok(length),
            Err(_) => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(format!("cannot read the steps: {error}"));
                }
            }
        }
    }
}

/// Writes the JSON in `text[..length]` as one line.
fn write_line(text: &mut [u8], length: usize) -> Result<(), String> {
    let end = text[..length].iter().position(|byte| *byte == 0).unwrap_or(length);
    text[..end].iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
    text[end] = b'\n';
    let mut line = &text[..=end];
    while !line.is_empty() {
        // SAFETY: the buffer has the length given to the call.
        let written = unsafe { libc::write(1, line.as_ptr().cast(), line.len()) };
        match usize::try_from(written) {
            Ok(written) => line = &line[written..],
            Err(_) => return Err(format!("cannot write a sample: {}", std::io::Error::last_os_error())),
        }
    }
    Ok(())
}
