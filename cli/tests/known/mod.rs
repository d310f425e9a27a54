//! A program with known lifetimes, for tests of profiles.
#![allow(dead_code)] // each test program uses its part

use std::path::{Path, PathBuf};
use std::process::Command;

use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::{Context, Profile};

/// Each function allocates in a different way; none is inlined, all are compiled without frame pointers.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static void *kept[50000], *held[2000], *passed[4000];
static void touch(void *p) { *(volatile char *)p = 1; }
FUNCTION void brief(void) { for (int i = 0; i < 200000; i++) { void *p = malloc(100); touch(p); free(p); } }
FUNCTION void permanent(void) { for (int i = 0; i < 50000; i++) touch(kept[i] = malloc(200)); }
FUNCTION void second(void) {
    for (int i = 0; i < 2000; i++) touch(held[i] = malloc(20000));
    usleep(300000);
    for (int i = 0; i < 2000; i++) free(held[i]);
}
FUNCTION void *free_all(void *all) { for (int i = 0; i < 4000; i++) free(((void **)all)[i]); return 0; }
FUNCTION void crossing(void) {
    pthread_t other;
    for (int i = 0; i < 4000; i++) touch(passed[i] = malloc(4000));
    pthread_create(&other, 0, free_all, passed);
    pthread_join(other, 0);
}
FUNCTION void aligned(void) { for (int i = 0; i < 20000; i++) { void *p = aligned_alloc(256, 1024); touch(p); free(p); } }
FUNCTION void vast(void) { char *p = malloc(40 << 20); p = realloc(p, 200 << 20); usleep(20000); touch(p); free(p); }
FUNCTION void unseen(void) { touch(malloc(10)); }
static inline __attribute__((always_inline)) void inlined(void) { for (int i = 0; i < 20000; i++) free(malloc(500)); }
FUNCTION void outer(void) { inlined(); }
int main(int count, char **arguments) {
    if (count > 2) unseen();
    outer(); brief(); permanent(); second(); crossing(); aligned(); vast();
    if (count > 1) raise(SIGKILL);
    return 7;
}
"#;

pub fn program(folder: &Path) -> PathBuf {
    let source = folder.join("known.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let program = folder.join("known");
    let flags = ["-O2", "-fomit-frame-pointer", "-g", "-pthread", "-fno-builtin-malloc", "-o"];
    let cc = Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap();
    assert!(cc.success());
    program
}

/// The context that `function` allocates in.
pub fn of<'a>(profile: &'a Profile, function: &str) -> &'a Context {
    let mut symbols = Symbols::new(profile);
    let caller = |context: &&Context| symbols.of(context.frames[0])[0].name == function;
    profile.contexts.iter().find(caller).unwrap_or_else(|| panic!("no context of {function}"))
}
