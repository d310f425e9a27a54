//! Links libgcc's unwinder into the library, for profiles: programs in C do not bring one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-l:libgcc_eh.a");
    // What it asks of glibc 2.35 is answered by heap/src/lifetime/unwind/mod.rs where there is none.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=_dl_find_object");
    println!("cargo:rerun-if-changed=build.rs");
}
