//! Tables that a terminal shows again and again.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use clap::Args;

/// How often a table is shown.
#[derive(Args)]
pub struct LiveArguments {
    /// The table once, and no more
    #[arg(long)]
    once: bool,
    /// Seconds from one table to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
}

impl LiveArguments {
    /// Shows the table until the terminal closes; once if the output is no terminal.
    ///
    /// # Errors
    /// The table's.
    pub fn show(&self, mut table: impl FnMut() -> Result<String>) -> Result<i32> {
        let is_live = std::io::stdout().is_terminal() && !self.once;
        loop {
            let clear = if is_live { "\x1b[H\x1b[2J" } else { "" };
            let text = table()?;
            let mut out = std::io::stdout().lock();
            if write!(out, "{clear}{text}").and_then(|()| out.flush()).is_err() || !is_live {
                return Ok(0);
            }
            std::thread::sleep(Duration::from_secs_f64(self.every.clamp(0.1, 3600.0)));
        }
    }
}

/// A name that a program or a container has chosen, without control characters that a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
