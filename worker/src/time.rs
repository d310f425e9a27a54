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
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    // The civil date of a day number: years begin in March, so that the leap day comes last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (second, milliseconds) = (second % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}+0000")
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
    }
}
