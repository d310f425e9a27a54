#!/usr/bin/env bash
# Rust 1.99 refuses to compile an allocator that exports `malloc` as a function which may unwind; Rust 1.95 takes it without a word.
#
# `extern "C-unwind"` is another type than `extern "C"`, and since 1.99 the compiler compares what a crate exports under names that
# the standard library calls with the C library's declarations (the lint invalid_runtime_symbol_definitions, which denies by default).
# malloc, free and realloc are such names; operator new and delete, C++'s own names for the same code, are not. An allocator that
# serves both by one function, since a new_handler may throw through it, has to allow the lint, which older compilers do not know.
#
# Seen with rustc 1.95.0 and 1.99.0:
#   1.95.0: compiled
#   1.99.0: invalid definition of the runtime `malloc` symbol used by the standard library
#   1.99.0: invalid definition of the runtime `free` symbol used by the standard library
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RUSTUP_HOME=$folder/rustup
cat >"$folder/allocator.rs" <<'RUST'
use std::ffi::c_void;

#[unsafe(no_mangle)]
pub extern "C-unwind" fn malloc(_bytes: usize) -> *mut c_void {
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn free(_object: *mut c_void) {}

/// operator new(unsigned long)
#[unsafe(no_mangle)]
pub extern "C-unwind" fn _Znwm(bytes: usize) -> *mut c_void {
    malloc(bytes)
}
RUST
seen=
for version in 1.95.0 1.99.0; do
    rustup --quiet toolchain install "$version" --profile minimal --no-self-update >/dev/null 2>&1
    if said=$(rustc "+$version" --crate-type lib --emit metadata --out-dir "$folder" "$folder/allocator.rs" 2>&1); then
        seen+="$version: compiled${said:+, with $said}"$'\n'
    else
        seen+=$(grep -o 'invalid definition.*' <<<"$said" | sed "s/^/$version: /")$'\n'
    fi
done
printf %s "$seen"
[ "$seen" = '1.95.0: compiled
1.99.0: invalid definition of the runtime `malloc` symbol used by the standard library
1.99.0: invalid definition of the runtime `free` symbol used by the standard library
' ]
