//! Shortens and escapes foreign text before it is shown.

use std::io;

/// An error of the system without its number.
pub fn plain_reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

/// Foreign text, cut off and without control characters.
pub fn shown(text: &str) -> String {
    text.chars().take(160).flat_map(char::escape_debug).collect()
}
