//! The guest's console, as QEMU passes it on.

use std::io::{BufRead, BufReader, Read};

/// The guest's console: its own lines, and the program's output between two lines of init.
#[derive(Default)]
pub struct Console {
    /// All of it.
    pub text: String,
    /// The program's output.
    pub output: Vec<u8>,
    /// A line that says what init could not do.
    pub refused: Option<String>,
}

/// Reads it to its end.
pub fn read_console(from: impl Read) -> Console {
    let mut console = Console::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line).into_owned();
        if let Some(size) =
            text.trim_end().strip_prefix("@sim output ").and_then(|size| size.parse::<u64>().ok())
        {
            // The serial line turns each \n into \r\n; the rest of the output is as the program wrote it.
            let mut raw = Vec::new();
            let mut taken = 0;
            while taken < size && reader.read_until(b'\n', &mut raw).is_ok_and(|read| read > 0) {
                if raw.ends_with(b"\r\n") {
                    raw.truncate(raw.len() - 2);
                    raw.push(b'\n');
                }
                let wanted = raw.len().min((size - taken) as usize);
                console.output.extend_from_slice(&raw[..wanted]);
                taken += wanted as u64;
                raw.clear();
            }
        } else if let Some(name) = text.trim_end().strip_prefix("@sim missing ") {
            console.refused = Some(format!(
                "{name}: no such program in the guest's image; one of this machine is named as ./PROGRAM"
            ));
        } else if let Some(line) = text.trim_end().strip_prefix("@sim kept out ") {
            console.refused = Some(format!("the guest cannot take {line}"));
        }
        console.text.push_str(&text);
        line.clear();
    }
    console
}

/// All text that comes.
pub fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
