//! Links the stub library, which does nothing: containers get it where they did not request the real one
//! (src/inject/artifacts.rs).

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("stub.so");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    // Without a C library and without symbols, so that every loader takes it.
    let made = Command::new(&compiler)
        .args(["-shared", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-o"])
        .arg(&target)
        .args(["-x", "c", "/dev/null"])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "{compiler:?} makes no shared library");
}
