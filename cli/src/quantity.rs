//! Formats numbers for people, and parses sizes and times that people write.

use std::time::Duration;

/// "12.5 MiB": binary units, three digits.
pub fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// "1.5 ms", "448 s".
pub fn duration(ns: f64) -> String {
    scaled(ns, 1000.0, &["ns", "us", "ms", "s"])
}

/// "12,345,678".
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", units[unit])
}

/// A size like `4096`, `64k`, `256MiB` or `1.5GiB`, in bytes. Units are binary.
///
/// # Errors
/// One line that names the allowed forms.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" | "B" => Some(0),
        "K" | "k" | "KiB" | "kiB" => Some(10),
        "M" | "MiB" => Some(20),
        "G" | "GiB" => Some(30),
        "T" | "TiB" => Some(40),
        _ => None,
    };
    // Exact: a double holds all integers up to 9e15.
    let number = text[..digits].parse::<f64>().ok();
    number
        .zip(shift)
        .map(|(number, shift)| number * (1u64 << shift) as f64)
        .filter(|bytes| (0.0..9e15).contains(bytes) && bytes.fract() == 0.0)
        .map(|bytes| bytes as u64)
        .ok_or_else(|| "a size is a number of bytes, or like 64KiB, 256MiB or 2GiB".to_string())
}

/// A page size: a power of two from 1 KiB to 1 TiB.
///
/// # Errors
/// One line that names the allowed forms.
pub fn parse_page_bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (1 << 10..=1 << 40).contains(bytes))
        .ok_or_else(|| "a page is a power of two from 1KiB up, like 4KiB, 2MiB or 1GiB".to_string())
}

/// A time like `30s`, `500ms` or `2m`.
///
/// # Errors
/// One line that names the allowed forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0)];
    units
        .iter()
        .find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds))
        .filter(|seconds| (0.0..1e6).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a time is like 30s, 500ms or 2m".to_string())
}

/// "4KiB", "2MiB": the name of a page size in keys and legends.
pub fn page_name(page_bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if page_bytes >= 1 << shift && page_bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", page_bytes >> shift);
        }
    }
    format!("{page_bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_bytes_durations_and_counts() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(1290.0 * 1048576.0), "1.3 GiB");
        assert_eq!(duration(1_500_000.0), "1.5 ms");
        assert_eq!(duration(448e9), "448 s");
        assert_eq!(duration(4480e9), "4480 s");
        assert_eq!(count(1), "1");
        assert_eq!(count(12_345_678), "12,345,678");
    }

    #[test]
    fn sizes_and_times() {
        for (text, size) in [
            ("0", 0),
            ("3k", 3072),
            ("256MiB", 256 << 20),
            ("1.5GiB", 1536 << 20),
            ("134217728B", 128 << 20),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(size));
        }
        for text in ["", "MiB", ".", "-1", "1.5", "nan", "1e30", "256 MB", "inf", "1..5M"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "5", "s", "-1s", "nans", "1e9s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn page_sizes() {
        for (text, size) in
            [("4096", 4096), ("4KiB", 4096), ("2MiB", 2 << 20), ("2M", 2 << 20), ("1GiB", 1 << 30)]
        {
            assert_eq!(parse_page_bytes(text), Ok(size));
        }
        for text in
            ["", "0", "3KiB", "4kb", "MiB", "-4KiB", "99999999999999999999", "18446744073709551615GiB", "512"]
        {
            assert!(parse_page_bytes(text).is_err(), "{text}");
        }
        assert_eq!([4096, 2 << 20, 1 << 30].map(page_name), ["4KiB", "2MiB", "1GiB"]);
    }
}
