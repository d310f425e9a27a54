//! Links libgcc's unwinder into the library, for profiles: programs in C do not bring one.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-l:libgcc_eh.a");
    // heap/src/lifetime/unwind/mod.rs replaces this function of glibc 2.35 where it does not exist.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=_dl_find_object");
    println!("cargo:rerun-if-changed=build.rs");
}
