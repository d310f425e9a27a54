//! The library stays loaded: `dlclose` would leave its thread and its fork handlers behind.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
