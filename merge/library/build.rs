//! The library stays loaded once it is: its thread and its fork handlers would be left behind by `dlclose`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
