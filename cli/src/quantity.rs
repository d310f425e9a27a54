//! Numbers as people read them, and page sizes as people write them.

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

/// A page size written as `4096`, `4KiB`, `2MiB` or `1GiB`; a power of two from 1 KiB to 1 TiB.
///
/// # Errors
/// One line that tells what is allowed.
pub fn parse_page_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" | "kiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => 64,
    };
    text[..digits]
        .parse::<u64>()
        .ok()
        .filter(|number| shift < 64 && *number <= u64::MAX >> shift)
        .map(|number| number << shift)
        .filter(|bytes| bytes.is_power_of_two() && (1 << 10..=1 << 40).contains(bytes))
        .ok_or_else(|| "a page is a power of two from 1KiB up, like 4KiB, 2MiB or 1GiB".to_string())
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
    fn people_read_them() {
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
