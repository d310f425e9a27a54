//! Links libgcc's unwinder into the library, for profiles: programs in C do not bring one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-l:libgcc_eh.a");
    println!("cargo:rerun-if-changed=build.rs");
}
