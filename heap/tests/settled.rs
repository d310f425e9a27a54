//! Instances that start alike have the same memory layout while the heap's clock stands still, however long
//! they take.
//!
//! Needs `target/release/libmayfly_heap.so`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Allocates and frees for a while, with the pauses of its argument, and prints the addresses of its objects.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
void mayfly_heap_settled(void) __attribute__((weak));
static void *kept[4096];
int main(int count, char **arguments) {
    unsigned long random = 1, sum = 0;
    for (int i = 0; i < 200000; i++) {
        random = random * 6364136223846793005ul + 1442695040888963407ul;
        void **place = &kept[random >> 52];
        free(*place);
        *place = malloc((random >> 30) % ((random >> 20) % 50 ? 300 : 60000));
        sum = sum * 31 + (unsigned long)*place;
        if (i % 20000 == 0) usleep(atoi(arguments[1]));
    }
    if (count > 2 && mayfly_heap_settled) mayfly_heap_settled();
    printf("%lx\n", sum);
    return 0;
}
"#;

#[test]
fn instances_that_start_alike_have_the_same_layout() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("settled-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let flags = ["-O1", "-fno-builtin-malloc", "-o"];
    assert!(Command::new("cc").args(flags).arg(&program).arg(&source).status().unwrap().success());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("release/libmayfly_heap.so");
    assert!(library.is_file(), "{} is missing: `cargo build --release -p mayfly_heap`", library.display());
    let places = |pause_us: &str, clock: &str| {
        let mut command = Command::new("setarch");
        command.args(["--addr-no-randomize"]).arg(&program).args([pause_us, "settled"]);
        command.env("LD_PRELOAD", &library).env("MAYFLY_HEAP_CLOCK", clock);
        let output = command.env("MAYFLY_HEAP_LIFETIMES", "fixed:inf").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let first = places("0", "settled");
    for pause_us in ["100000", "30000", "0"] {
        assert_eq!(places(pause_us, "settled"), first, "paused for {pause_us} us ten times");
    }
    assert_ne!(places("100000", "runs"), first, "the clock matters: the test would see it");
    std::fs::remove_dir_all(folder).unwrap();
}
