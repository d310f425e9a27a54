//! Sizes and times as people write them for VMs.

use std::time::Duration;

/// A size like `256MiB`, `1.5GiB` or `134217728`, in bytes.
///
/// # Errors
/// One line that tells what is allowed.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let units =
        [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let (number, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))
        .unwrap_or((text.strip_suffix('B').unwrap_or(text), 0));
    let bytes = number.parse::<f64>().ok().map(|number| number * (1u64 << shift) as f64);
    bytes
        .filter(|bytes| (0.0..9e15).contains(bytes) && bytes.fract() == 0.0)
        .map(|bytes| bytes as u64)
        .ok_or_else(|| "a size is a number of bytes, or like 256MiB or 2GiB".to_string())
}

/// A time like `30s`, `500ms` or `2m`.
///
/// # Errors
/// One line that tells what is allowed.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0)];
    units
        .iter()
        .find_map(|(unit, seconds)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds))
        .filter(|seconds| (0.0..1e6).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "a time is like 30s, 500ms or 2m".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        for (text, bytes) in [
            ("0", 0),
            ("256MiB", 256 << 20),
            ("1.5GiB", 1536 << 20),
            ("134217728B", 128 << 20),
            ("2G", 2 << 30),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "MiB", "-1", "1.5", "nan", "1e30", "256 MB", "inf"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "5", "s", "-1s", "nans", "1e9s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
