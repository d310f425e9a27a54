//! libmayfly_merge.so, the same that a program may use by itself: loaded before there are threads, since a child that is forked
//! while it is loaded would find it half done.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

#[derive(Clone, Copy)]
struct Functions {
    advise: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
    error: unsafe extern "C" fn() -> *const c_char,
}

static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();

const NAME: &str = "libmayfly_merge.so";

/// Where this library itself lies: the other one is its neighbour.
fn beside_this() -> Option<String> {
    // SAFETY: dladdr fills the structure for an address inside this library, or says that it did not.
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

/// Loads it; what went wrong is said when there is something to advise.
pub fn load() {
    FUNCTIONS.get_or_init(find);
}

fn find() -> Result<Functions, String> {
    let named = std::env::var("MAYFLY_MERGE_LIBRARY").ok();
    let path = named.or_else(beside_this).unwrap_or_else(|| NAME.to_owned());
    let text = CString::new(path.clone()).map_err(|_| format!("{path}: not a path"))?;
    // SAFETY: a C string; the library stays loaded.
    let loaded = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW) };
    if loaded.is_null() {
        // SAFETY: after a failure dlerror gives a C string.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(why.to_string_lossy().into_owned());
    }
    // SAFETY: `loaded` is a library; the types are those of merge/include/mayfly_merge.h, and a null is not called.
    unsafe {
        let [advise, error] =
            [c"mayfly_advise", c"mayfly_merge_error"].map(|name| libc::dlsym(loaded, name.as_ptr()));
        if advise.is_null() || error.is_null() {
            return Err(format!("{path}: is not {NAME}"));
        }
        Ok(Functions {
            advise: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
            >(advise),
            error: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *const c_char>(error),
        })
    }
}

/// Shares the pages of a range. An error is errno and a line for people.
pub fn advise(range: Range<usize>) -> Result<(), (i32, String)> {
    let Some(found) = FUNCTIONS.get() else {
        return Err((libc::ENOENT, format!("{NAME} is not loaded yet")));
    };
    let functions = found.as_ref().map_err(|why| (libc::ENOENT, why.clone()))?;
    // SAFETY: whole pages of a block that the caller holds, so they stay mapped.
    if unsafe { (functions.advise)(range.start as *mut c_void, range.len(), 0) } == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: valid until this thread's next call.
    let line = unsafe { CStr::from_ptr((functions.error)()) };
    Err((errno, line.to_string_lossy().into_owned()))
}
