//! Writes operations on standard output, each with all that this model answers and holds afterwards, for the
//! lockstep with the hardware description in `sim/rtl`. `record.rs` has the format.

mod observed;
mod programs;
mod random;
mod record;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

const USAGE: &str = "usage: memento-lockstep --operations N [--seed N]   random programs
       memento-lockstep JOURNAL                       a program's, made by MEMENTO_JOURNAL=FILE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>();
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    let done = match words[..] {
        ["--operations", operations] | ["--operations", operations, "--seed", _] => {
            let seed = words.get(3).map_or(Ok(1), |text| number(text));
            match (number(operations), seed) {
                (Ok(operations), Ok(seed)) => programs::random(operations, seed, &mut out),
                _ => return usage(),
            }
        }
        [path] if !path.starts_with('-') => programs::replay(path, &mut out),
        _ => return usage(),
    };
    // The reader has ended: it says why.
    match done.and_then(|()| out.flush().map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("memento-lockstep: {why}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
