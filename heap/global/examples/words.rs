//! Counts the words of its input, or of a text of its own, on Mayfly's heap: cargo run --example words < FILE

use std::collections::HashMap;
use std::io::{IsTerminal, Read};

#[global_allocator]
static HEAP: mayfly_alloc::Mayfly = mayfly_alloc::Mayfly;

fn main() -> std::io::Result<()> {
    let mut text = String::from("a mayfly lives a day and a heap learns it");
    if !std::io::stdin().is_terminal() {
        text.clear();
        std::io::stdin().read_to_string(&mut text)?;
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|(a, m), (b, n)| n.cmp(m).then(a.cmp(b)));
    for (word, count) in sorted.iter().take(10) {
        println!("{count:6} {word}");
    }
    Ok(())
}
