//! libmayfly_merge.so, the same that programs call directly. It is loaded before there are threads: a child
//! forked while it is being loaded would find it half loaded.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use merge_loaded::Library;

static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();

const NAME: &str = "libmayfly_merge.so";

/// The path of libmayfly_merge.so beside this library.
fn beside_this() -> Option<String> {
    // SAFETY: dladdr fills the structure for an address inside this library, or returns 0.
    let file = unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(beside_this as *const c_void, &mut about) == 0 || about.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(about.dli_fname).to_str().ok()?.to_owned()
    };
    let path = Path::new(&file).parent()?.join(NAME);
    path.exists().then(|| path.to_string_lossy().into_owned())
}

/// Loads it; an error is reported once there is something to advise.
pub fn load() {
    LIBRARY.get_or_init(find);
}

fn find() -> Result<Library, String> {
    let named = std::env::var("MAYFLY_MERGE_LIBRARY").ok();
    Library::load(&named.or_else(beside_this).unwrap_or_else(|| NAME.to_owned()))
}

/// Shares the pages of a range. An error is errno and a line for people.
pub fn advise(range: Range<usize>) -> Result<(), (i32, String)> {
    let Some(found) = LIBRARY.get() else {
        return Err((libc::ENOENT, format!("{NAME} is not loaded yet")));
    };
    let library = found.as_ref().map_err(|why| (libc::ENOENT, why.clone()))?;
    // SAFETY: whole pages of a block that the caller holds, so they stay mapped.
    unsafe { library.advise(&range, 0) }.map_err(|errno| (errno, library.last_error()))
}
