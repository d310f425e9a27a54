//! Formatted amounts and times, and escaped text for HTML.

use std::fmt::Write;

/// Text escaped for HTML, in an attribute as well.
pub fn escape(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => made.push_str("&amp;"),
            '<' => made.push_str("&lt;"),
            '>' => made.push_str("&gt;"),
            '"' => made.push_str("&quot;"),
            '\'' => made.push_str("&#39;"),
            other => made.push(other),
        }
    }
    made
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, shown in KiB, MiB and GiB.
    Bytes,
    /// Milliseconds, shown in µs, ms and s.
    Milliseconds,
    /// Things.
    Count,
}

impl Unit {
    /// Its name in the page's script.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Milliseconds => "ms",
            Unit::Count => "count",
        }
    }

    /// The number with its unit, in three digits or a few more.
    pub fn format(self, value: f64) -> String {
        match self {
            Unit::Bytes => bytes(value),
            Unit::Milliseconds => milliseconds(value),
            Unit::Count => count(value),
        }
    }
}

fn bytes(value: f64) -> String {
    let kib = value / 1024.0;
    let (number, unit) = match kib.abs() {
        small if small < 1.0 && value != 0.0 => (value, "B"),
        kibs if kibs < 1000.0 && value != 0.0 => (kib, "KiB"),
        mibs if mibs < 1000.0 * 1024.0 => (kib / 1024.0, "MiB"),
        _ => return format!("{} GiB", two_digits(kib / 1024.0 / 1024.0)),
    };
    format!("{} {unit}", digits(number))
}

fn milliseconds(value: f64) -> String {
    let (number, unit) = match value {
        ms if ms < 1.0 && ms > 0.0 => (ms * 1e3, "µs"),
        ms if ms < 1000.0 => (ms, "ms"),
        ms => (ms / 1e3, "s"),
    };
    format!("{} {unit}", digits(number))
}

/// Whole numbers whole, in groups of three digits; others with one digit behind the point.
pub fn count(value: f64) -> String {
    if value.fract() != 0.0 && value.abs() < 100.0 {
        return format!("{value:.1}");
    }
    let plain = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (place, digit) in plain.chars().enumerate() {
        if place > 0 && (plain.len() - place).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    if value < 0.0 { format!("−{grouped}") } else { grouped }
}

/// As [`digits`], with one digit more for small numbers: a tenth of a GiB is much.
fn two_digits(number: f64) -> String {
    if number.abs() >= 9.95 {
        return digits(number);
    }
    format!("{number:.2}").trim_end_matches('0').trim_end_matches('.').to_string()
}

fn digits(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        small if small < 9.95 => format!("{number:.1}").trim_end_matches(".0").to_string(),
        _ => format!("{number:.0}"),
    }
}

/// A time span in the two units that matter: `3 min 5 s`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    let mut made = String::new();
    let parts = [
        (seconds / 86_400, "d"),
        (seconds / 3600 % 24, "h"),
        (seconds / 60 % 60, "min"),
        (seconds % 60, "s"),
    ];
    for (number, unit) in parts.into_iter().skip_while(|(number, unit)| *number == 0 && *unit != "s").take(2)
    {
        write!(made, "{number} {unit} ").expect("strings take all");
    }
    made.trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_use_the_fitting_unit() {
        let shown: Vec<String> = [0.0, 512.0, 4096.0, 1.5 * 1048576.0, 300.0 * 1048576.0, 1280.0 * 1048576.0]
            .map(|b| Unit::Bytes.format(b))
            .into();
        assert_eq!(shown, ["0 MiB", "512 B", "4 KiB", "1.5 MiB", "300 MiB", "1.25 GiB"]);
        let shown: Vec<String> =
            [0.0, 0.25, 9.96, 431.2, 1500.0].map(|ms| Unit::Milliseconds.format(ms)).into();
        assert_eq!(shown, ["0 ms", "250 µs", "10 ms", "431 ms", "1.5 s"]);
        let shown: Vec<String> = [7.0, 1.25, 12_345.0, -1_000.0].map(|n| Unit::Count.format(n)).into();
        assert_eq!(shown, ["7", "1.2", "12 345", "−1 000"]);
    }

    #[test]
    fn spans_have_at_most_two_units() {
        let shown = [0, 61_000, 3_600_000, 90_061_000].map(span);
        assert_eq!(shown, ["0 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(escape("<a href=\"x\" id='y'>&"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;");
    }
}
