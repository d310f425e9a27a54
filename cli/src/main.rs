//! `mayfly`: run programs on the lifetime-aware heap, record their allocations, and replay them.

use clap::Parser;

#[derive(Parser)]
#[command(name = "mayfly", version, about, arg_required_else_help = true)]
struct Mayfly {}

fn main() {
    Mayfly::parse();
}
