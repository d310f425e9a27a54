//! When a schedule calls its function: `rate(5 minutes)`, `cron(0 12 ? * MON-FRI *)` or `at(…)`, as
//! EventBridge has them.
//!
//! EventBridge's six fields (a year, and weekdays from 1 for Sunday) are no other scheduler's, so this
//! evaluates them itself. Times are UTC.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
/// The most bytes of an expression, as EventBridge has it: each of its days is looked for in all to come.
const EXPRESSION_BYTES: usize = 256;
/// The years that a schedule may name.
const YEARS: std::ops::RangeInclusive<u64> = 1970..=2199;
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// When a function is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// So often, from the worker's start on.
    Every(Duration),
    /// At these minutes.
    Cron(Box<Cron>),
    /// Once.
    At(SystemTime),
}

/// An event of a function that a schedule is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The rule's or the schedule's name.
    pub name: String,
    /// Its times.
    pub schedule: Schedule,
    /// The event in JSON, if it is not EventBridge's own.
    pub input: Option<String>,
    /// Whether it is one of EventBridge Scheduler (`ScheduleV2`), and no rule.
    pub is_scheduler: bool,
}

/// Minutes that a cron expression names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    minutes: BTreeSet<u64>,
    hours: BTreeSet<u64>,
    months: BTreeSet<u64>,
    years: BTreeSet<u64>,
    days: Vec<Day>,
}

/// Days of a month.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Day {
    /// By their number.
    Numbers(BTreeSet<u64>),
    /// By their weekday, 1 for Sunday.
    Weekdays(BTreeSet<u64>),
    /// The last, or so many before it.
    Last(u64),
    /// The last such weekday.
    LastWeekday(u64),
    /// The weekday of this number: `3#2` is the second Tuesday.
    Nth(u64, u64),
    /// The working day next to this one.
    Working(u64),
    /// The last working day.
    LastWorking,
}

impl Schedule {
    /// Reads an expression.
    ///
    /// # Errors
    /// It is wrong, and why.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        if text.len() > EXPRESSION_BYTES {
            return Err(format!("a schedule may have {EXPRESSION_BYTES} bytes and has {}", text.len()));
        }
        let inner = |kind: &str| text.trim().strip_prefix(kind)?.strip_prefix('(')?.strip_suffix(')');
        if let Some(rate) = inner("rate") {
            return every(rate).map(Schedule::Every);
        }
        if let Some(fields) = inner("cron") {
            return Cron::parse(fields).map(|cron| Schedule::Cron(Box::new(cron)));
        }
        if let Some(time) = inner("at") {
            let time = humantime::parse_rfc3339(&format!("{time}Z"));
            return time.map(Schedule::At).map_err(|_| format!("'{text}' should be at(YYYY-MM-DDThh:mm:ss)"));
        }
        Err(format!("'{}' should be rate(…) or cron(…)", text.escape_debug()))
    }

    /// The first time after `now` at which the function is called; `begun` is the worker's start.
    pub fn next(&self, begun: SystemTime, now: SystemTime) -> Option<SystemTime> {
        match self {
            Schedule::Every(interval) => {
                let done = now.duration_since(begun).unwrap_or_default().as_nanos() / interval.as_nanos();
                begun.checked_add(interval.checked_mul(u32::try_from(done + 1).ok()?)?)
            }
            Schedule::Cron(cron) => cron.next(now),
            Schedule::At(time) => Some(*time).filter(|time| *time > now),
        }
    }
}

fn every(rate: &str) -> Result<Duration, String> {
    let wrong = || format!("rate({}) should be a number and minutes, hours or days", rate.escape_debug());
    let (number, unit) = rate.trim().split_once(' ').ok_or_else(wrong)?;
    let number: u64 =
        number.parse().ok().filter(|number| (1..=100_000).contains(number)).ok_or_else(wrong)?;
    let seconds = match unit.trim() {
        "minute" | "minutes" => MINUTE,
        "hour" | "hours" => 60 * MINUTE,
        "day" | "days" => DAY,
        _ => return Err(wrong()),
    };
    Ok(Duration::from_secs(number * seconds))
}

impl Cron {
    fn parse(text: &str) -> Result<Cron, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, day, month, weekday, year] = fields[..] else {
            return Err(format!("cron({}) should have six fields", text.escape_debug()));
        };
        let days = match (day, weekday) {
            (day, "?") => day.split(',').map(day_of_month).collect::<Result<Vec<_>, _>>()?,
            ("?", weekday) => weekday.split(',').map(day_of_week).collect::<Result<Vec<_>, _>>()?,
            _ => return Err(format!("cron({}): one of the two days should be ?", text.escape_debug())),
        };
        Ok(Cron {
            minutes: numbers(minutes, 0, 59, &[])?,
            hours: numbers(hours, 0, 23, &[])?,
            months: numbers(month, 1, 12, &MONTHS)?,
            years: numbers(year, *YEARS.start(), *YEARS.end(), &[])?,
            days,
        })
    }

    fn next(&self, now: SystemTime) -> Option<SystemTime> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let earliest = (now / MINUTE + 1) * MINUTE;
        let (year, _, _) = date(earliest / DAY);
        let last = *self.years.range(year..).next_back()?;
        for day in earliest / DAY.. {
            let (year, month, number) = date(day);
            if year > last {
                return None;
            }
            if !self.years.contains(&year) || !self.months.contains(&month) || !self.has(day, number) {
                continue;
            }
            let minutes = self.hours.iter().flat_map(|hour| {
                self.minutes.iter().map(move |minute| day * DAY + (hour * 60 + minute) * MINUTE)
            });
            if let Some(time) = minutes.into_iter().find(|time| *time >= earliest) {
                return Some(UNIX_EPOCH + Duration::from_secs(time));
            }
        }
        None
    }

    /// Whether a day since 1970, which has this number in its month, is one of the schedule's.
    fn has(&self, day: u64, number: u64) -> bool {
        let length = length_of_month(day, number);
        let weekday = weekday(day);
        // The weekday of another day of the month.
        let of = |other: u64| self::weekday(day + other - number);
        let is_working = |other: u64| (2..=6).contains(&of(other));
        self.days.iter().any(|wanted| match wanted {
            Day::Numbers(numbers) => numbers.contains(&number),
            Day::Weekdays(weekdays) => weekdays.contains(&weekday),
            Day::Last(before) => number + before == length,
            Day::LastWeekday(wanted) => *wanted == weekday && number + 7 > length,
            Day::Nth(wanted, nth) => *wanted == weekday && number.div_ceil(7) == *nth,
            Day::LastWorking => is_working(number) && (number + 1..=length).all(|later| !is_working(later)),
            Day::Working(wanted) => {
                let wanted = (*wanted).min(length);
                let nearest = match of(wanted) {
                    7 if wanted == 1 => 3,
                    7 => wanted - 1,
                    1 if wanted == length => wanted - 2,
                    1 => wanted + 1,
                    _ => wanted,
                };
                number == nearest
            }
        })
    }
}

fn day_of_month(text: &str) -> Result<Day, String> {
    let number = |text: &str| number_of(text, 1, 31, &[]);
    match text {
        "L" => Ok(Day::Last(0)),
        "LW" => Ok(Day::LastWorking),
        _ => match (text.strip_prefix("L-"), text.strip_suffix('W')) {
            (Some(before), _) => number(before).map(Day::Last),
            (_, Some(near)) => number(near).map(Day::Working),
            _ => numbers(text, 1, 31, &[]).map(Day::Numbers),
        },
    }
}

fn day_of_week(text: &str) -> Result<Day, String> {
    let number = |text: &str| number_of(text, 1, 7, &WEEKDAYS);
    if let Some((day, nth)) = text.split_once('#') {
        return Ok(Day::Nth(number(day)?, number_of(nth, 1, 5, &[])?));
    }
    match text.strip_suffix('L') {
        Some("") => Ok(Day::Weekdays(BTreeSet::from([7]))),
        Some(day) => number(day).map(Day::LastWeekday),
        None => numbers(text, 1, 7, &WEEKDAYS).map(Day::Weekdays),
    }
}

fn number_of(text: &str, least: u64, most: u64, names: &[&str]) -> Result<u64, String> {
    let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let number = named.map(|at| at as u64 + 1).or_else(|| text.parse().ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("'{}' should be {least} to {most}", text.escape_debug()))
}

/// `*`, `1,2`, `1-5`, `0/15`, `1-30/2`.
fn numbers(text: &str, least: u64, most: u64, names: &[&str]) -> Result<BTreeSet<u64>, String> {
    let mut all = BTreeSet::new();
    for part in text.split(',') {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match (range, range.split_once('-')) {
            ("*", _) => (least, most),
            (_, Some((first, last))) => {
                (number_of(first, least, most, names)?, number_of(last, least, most, names)?)
            }
            _ => {
                let first = number_of(range, least, most, names)?;
                (first, if step.is_some() { most } else { first })
            }
        };
        let step = step.map_or(Ok(1), |step| number_of(step, 1, most, &[]))?;
        // A range may go past the end: SAT-MON.
        let last = if last < first { last + most - least + 1 } else { last };
        all.extend(
            (first..=last).step_by(step as usize).map(|n| if n > most { n - most + least - 1 } else { n }),
        );
    }
    Ok(all)
}

/// 1 for Sunday; the first of January 1970 was a Thursday.
fn weekday(day: u64) -> u64 {
    (day + 4) % 7 + 1
}

/// Year, month and day of a day since 1970.
fn date(day: u64) -> (u64, u64, u64) {
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(day * DAY)).to_string();
    let part = |range: std::ops::Range<usize>| text[range].parse().unwrap_or(1);
    (part(0..4), part(5..7), part(8..10))
}

/// Days of the month in which a day since 1970 has this number.
fn length_of_month(day: u64, number: u64) -> u64 {
    let first = day + 1 - number;
    (28..=31).find(|length| date(first + length).2 == 1).unwrap_or(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(expression: &str, now: &str) -> String {
        let now = humantime::parse_rfc3339(now).unwrap();
        let next = Schedule::parse(expression).unwrap().next(now - Duration::from_secs(90), now);
        next.map_or_else(|| "never".into(), |time| humantime::format_rfc3339_seconds(time).to_string())
    }

    #[test]
    fn next_call_is_eventbridges() {
        for (expression, wanted) in [
            ("rate(1 minute)", "2026-01-31T12:00:30Z"),
            ("rate(2 hours)", "2026-01-31T13:58:30Z"),
            ("cron(0/15 * * * ? *)", "2026-01-31T12:15:00Z"),
            ("cron(0 10 * * ? *)", "2026-02-01T10:00:00Z"),
            ("cron(15 12 * * ? *)", "2026-01-31T12:15:00Z"),
            ("cron(0 18 ? * MON-FRI *)", "2026-02-02T18:00:00Z"),
            ("cron(0 18 ? * 2-6 *)", "2026-02-02T18:00:00Z"),
            ("cron(0 8 1 * ? *)", "2026-02-01T08:00:00Z"),
            ("cron(0 0 L * ? *)", "2026-02-28T00:00:00Z"),
            ("cron(0 0 L-1 * ? *)", "2026-02-27T00:00:00Z"),
            ("cron(0 0 LW * ? *)", "2026-02-27T00:00:00Z"),
            ("cron(0 0 1W * ? *)", "2026-02-02T00:00:00Z"),
            ("cron(0 0 ? * 6L *)", "2026-02-27T00:00:00Z"),
            ("cron(0 0 ? * TUE#2 *)", "2026-02-10T00:00:00Z"),
            ("cron(0 0 ? * SAT-MON *)", "2026-02-01T00:00:00Z"),
            ("cron(0 0 29 FEB ? *)", "2028-02-29T00:00:00Z"),
            ("cron(0 0 1 1 ? 2030)", "2030-01-01T00:00:00Z"),
            ("cron(0 0 1 1 ? 2025)", "never"),
            ("cron(0 0 30 FEB ? 2026-2028)", "never"),
            ("at(2026-02-01T01:02:03)", "2026-02-01T01:02:03Z"),
            ("at(2025-02-01T01:02:03)", "never"),
        ] {
            assert_eq!(next(expression, "2026-01-31T12:00:00Z"), wanted, "{expression}");
        }
    }

    #[test]
    fn refuses_other_expressions() {
        for wrong in [
            "5 minutes",
            "rate(0 minutes)",
            "rate(5)",
            "rate(5 weeks)",
            "cron(0 12 * * ?)",
            "cron(0 12 * * * *)",
            "cron(60 12 * * ? *)",
            "cron(0 12 ? * 8 *)",
            "cron(0 12 ? * MON#6 *)",
            "cron(0/0 12 * * ? *)",
            "cron(0 12 * * ? 1969)",
            "at(tomorrow)",
        ] {
            assert!(Schedule::parse(wrong).is_err(), "{wrong}");
        }
        // Each of the days would be looked for in each day of 174 years.
        let long = |days: usize| format!("cron(0 12 {}31 FEB ? *)", "31,".repeat(days));
        assert!(Schedule::parse(&long(70)).is_ok());
        assert!(Schedule::parse(&long(100_000)).unwrap_err().contains("256 bytes"));
    }
}
