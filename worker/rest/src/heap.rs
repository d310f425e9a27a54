//! Statistics of Mayfly's heap, where the process runs on it (heap/malloc/include/mayfly_heap.h). Its
//! functions are found by name, since the library may not be preloaded.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

use crate::find;

/// The heap places objects in blocks of this size; a block with a live object is held whole.
const BLOCK_BYTES: u64 = 8192;

/// Bytes of live objects, and of the memory that the heap cannot return because of them: the difference is
/// fragmentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub live_bytes: u64,
    pub held_bytes: u64,
}

/// The heap's counts now; zeros on another heap.
pub fn held() -> Held {
    let found = find(c"mayfly_heap_stats");
    if found.is_null() {
        return Held::default();
    }
    // SAFETY: the heap's function of this name has this type.
    let stats = unsafe { transmute::<*mut c_void, extern "C" fn(*mut c_char, usize) -> c_int>(found) };
    // Longer than the text has ever been; if it does not fit, the heap writes nothing, and nothing is found.
    let mut text = vec![0u8; 64 << 10];
    let bytes = stats(text.as_mut_ptr().cast(), text.len());
    text.truncate(usize::try_from(bytes).unwrap_or(0).min(text.len()));
    held_in(&String::from_utf8_lossy(&text))
}

/// Notifies the heap that the instance has settled: from now on it may lay objects out by time.
pub fn settled() {
    let found = find(c"mayfly_heap_settled");
    if !found.is_null() {
        // SAFETY: the heap's function of this name takes no argument and returns nothing.
        unsafe { transmute::<*mut c_void, extern "C" fn()>(found)() };
    }
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
