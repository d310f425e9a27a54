//! Times: now, and as Lambda writes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Since 1970.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in milliseconds.
pub fn now_ms() -> u64 {
    since_1970().as_millis() as u64
}

/// A time as Lambda writes it: `2026-01-02T03:04:05.678+0000`.
pub fn lambda_time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string().replace('Z', "+0000")
}

/// A time in milliseconds since 1970.
pub fn epoch_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// A time as access logs write it: `02/Jan/2026:03:04:05 +0000`.
pub fn access_log_time(time: SystemTime) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = humantime::format_rfc3339_seconds(time).to_string();
    let month = text[5..7].parse::<usize>().unwrap_or(1);
    format!("{}/{}/{}:{} +0000", &text[8..10], MONTHS[month - 1], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_lambda_does() {
        let at = |seconds: u64, ms| lambda_time(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + ms));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000+0000");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007+0000");
        assert_eq!(at(1_767_225_599, 999), "2025-12-31T23:59:59.999+0000");
        let last = UNIX_EPOCH + Duration::from_secs(1_767_225_599);
        assert_eq!(access_log_time(last), "31/Dec/2025:23:59:59 +0000");
    }
}
