//! What Node.js calls: this library is an addon of it, too (Node-API), since JavaScript calls no C. The
//! functions of Node.js are found by name: other programs, into which the library is preloaded, have none.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use crate::{find, mayfly_rest_before_snapshot};

/// `napi_env`, `napi_value`, and `napi_callback_info`, of which only Node.js knows what they are.
type Env = *mut c_void;
type Value = *mut c_void;
type Info = *mut c_void;
type Callback = extern "C" fn(Env, Info) -> Value;

/// Bytes from the kernel that OpenSSL's generators are seeded with.
const SEED: usize = 64;

/// Called by `process.dlopen`: gives the module's object its functions. Returns the object.
#[unsafe(no_mangle)]
pub extern "C" fn napi_register_module_v1(env: Env, exports: Value) -> Value {
    define(env, exports, c"beforeSnapshot", before_snapshot);
    define(env, exports, c"addEntropy", add_entropy);
    exports
}

fn define(env: Env, object: Value, name: &CStr, callback: Callback) {
    type Create = extern "C" fn(Env, *const c_char, usize, Callback, *mut c_void, *mut Value) -> c_int;
    type Set = extern "C" fn(Env, Value, *const c_char, Value) -> c_int;
    let (create, set) = (find(c"napi_create_function"), find(c"napi_set_named_property"));
    if create.is_null() || set.is_null() {
        return;
    }
    let mut function: Value = null_mut();
    // SAFETY: Node.js' functions of these names have these types; the name ends in zero, and they copy it.
    unsafe {
        let create = transmute::<*mut c_void, Create>(create);
        if create(env, name.as_ptr(), name.count_bytes(), callback, null_mut(), &mut function) == 0 {
            transmute::<*mut c_void, Set>(set)(env, object, name.as_ptr(), function);
        }
    }
}

/// [`mayfly_rest_before_snapshot`]; returns its number.
extern "C" fn before_snapshot(env: Env, _: Info) -> Value {
    number(env, mayfly_rest_before_snapshot())
}

/// Seeds the generators of OpenSSL, of Node.js' own or the system's, from the kernel's. Returns 1, or 0 if
/// there is none.
extern "C" fn add_entropy(env: Env, _: Info) -> Value {
    type Add = extern "C" fn(*const c_void, c_int, f64);
    let add = find(c"RAND_add");
    let mut seed = [0_u8; SEED];
    // SAFETY: the kernel writes at most as many bytes as there are.
    let is_read = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), SEED, 0) } == SEED as isize;
    if add.is_null() || !is_read {
        return number(env, 0);
    }
    // SAFETY: OpenSSL's function of this name has this type, and reads that many bytes.
    unsafe { transmute::<*mut c_void, Add>(add)(seed.as_ptr().cast(), SEED as c_int, SEED as f64) };
    number(env, 1)
}

fn number(env: Env, number: i32) -> Value {
    type Create = extern "C" fn(Env, i32, *mut Value) -> c_int;
    let create = find(c"napi_create_int32");
    let mut value: Value = null_mut();
    if !create.is_null() {
        // SAFETY: Node.js' function of this name has this type.
        unsafe { transmute::<*mut c_void, Create>(create)(env, number, &mut value) };
    }
    value
}
