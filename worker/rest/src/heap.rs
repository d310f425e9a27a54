//! What Mayfly's heap says of itself, where the process runs on it (heap/malloc/include/mayfly_heap.h). Found by name: the
//! library is preloaded, or not there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

/// The heap places objects in blocks of so many bytes; one that holds an object is held whole.
const BLOCK_BYTES: u64 = 8192;

/// Bytes of objects, and of the memory that they keep from being given back: the difference is fragmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub live_bytes: u64,
    pub held_bytes: u64,
}

/// As the heap counts now; nothing on another heap.
pub fn held() -> Held {
    let found = find(c"mayfly_heap_stats");
    if found.is_null() {
        return Held::default();
    }
    // SAFETY: the heap's function of this name has this type.
    let stats = unsafe { transmute::<*mut c_void, extern "C" fn(*mut c_char, usize) -> c_int>(found) };
    // More than it ever was; if it is not enough nothing is written, and nothing found.
    let mut text = vec![0u8; 64 << 10];
    let bytes = stats(text.as_mut_ptr().cast(), text.len());
    text.truncate(usize::try_from(bytes).unwrap_or(0).min(text.len()));
    held_in(&String::from_utf8_lossy(&text))
}

/// Tells the heap that the instance has settled: from now on it may lay objects out by time.
pub fn settled() {
    let found = find(c"mayfly_heap_settled");
    if !found.is_null() {
        // SAFETY: the heap's function of this name takes and gives nothing.
        unsafe { transmute::<*mut c_void, extern "C" fn()>(found)() };
    }
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn held_in(json: &str) -> Held {
    let value = |name: &str| {
        let (_, rest) = json.split_once(&format!("\"heap.{name}\":"))?;
        rest.split([',', '}']).next()?.parse::<u64>().ok()
    };
    let (live, blocks, direct) = (value("live_bytes"), value("blocks.live"), value("direct.bytes"));
    Held {
        live_bytes: live.unwrap_or(0),
        held_bytes: blocks.unwrap_or(0) * BLOCK_BYTES + direct.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_held_whole() {
        let json =
            r#"{"heap.live_bytes":9000,"heap.objects":3,"heap.blocks.live":2,"heap.direct.bytes":4096}"#;
        assert_eq!(held_in(json), Held { live_bytes: 9000, held_bytes: 2 * 8192 + 4096 });
        assert_eq!(held_in(""), Held::default());
        assert_eq!(held(), Held::default(), "tests run on another heap");
    }
}
