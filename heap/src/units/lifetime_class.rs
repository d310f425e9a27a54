//! Lifetime classes (LLAMA §5.1, §6.1).
//!
//! An object of class `c` is expected to die within 10^(c+1) ms; one of the last class, never.

/// The number of lifetime classes: the paper's N = 7.
pub const CLASSES: usize = 7;
/// The class of objects that live until the end: ∞.
pub const FOREVER: usize = CLASSES - 1;
/// A deadline that never comes.
pub const NEVER_MS: u64 = u64::MAX;

/// The classes' names, as configuration and statistics spell them.
pub const NAMES: [&str; CLASSES] = ["10ms", "100ms", "1s", "10s", "100s", "1000s", "inf"];

const BOUNDS_MS: [u64; CLASSES] = [10, 100, 1_000, 10_000, 100_000, 1_000_000, NEVER_MS];

/// The class of an object that lived for `lifetime_ms`.
pub fn of_lifetime_ms(lifetime_ms: u64) -> usize {
    BOUNDS_MS.iter().position(|&bound| lifetime_ms < bound).unwrap_or(FOREVER)
}

/// The shortest class whose objects may live for `limit_ms`.
pub fn of_limit_ms(limit_ms: u64) -> usize {
    let fits = |&bound: &u64| limit_ms <= bound;
    BOUNDS_MS[..FOREVER].iter().position(fits).unwrap_or(FOREVER)
}

/// The deadline of objects placed at `now_ms` with this class: now + factor × LC, where the paper's K is the
/// factor (LLAMA §6.4).
pub fn deadline_ms(now_ms: u64, class: usize, factor: u32) -> u64 {
    if class >= FOREVER { NEVER_MS } else { now_ms.saturating_add(u64::from(factor) * BOUNDS_MS[class]) }
}

/// The class with this name.
pub fn of_name(name: &[u8]) -> Option<usize> {
    NAMES.iter().position(|known| known.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_orders_of_magnitude() {
        assert_eq!(of_lifetime_ms(0), 0);
        assert_eq!(of_lifetime_ms(9), 0);
        assert_eq!(of_lifetime_ms(10), 1);
        assert_eq!(of_lifetime_ms(999_999), 5);
        assert_eq!(of_lifetime_ms(1_000_000), FOREVER);
        let limits = [10, 11, 1_000_000, 1_000_001, u64::from(u32::MAX), u64::MAX];
        assert_eq!(limits.map(of_limit_ms), [0, 1, 5, FOREVER, FOREVER, FOREVER]);
    }

    #[test]
    fn deadlines_follow_the_factor() {
        assert_eq!(deadline_ms(5, 0, 2), 25);
        assert_eq!(deadline_ms(5, 2, 4), 4005);
        assert_eq!(deadline_ms(5, FOREVER, 2), NEVER_MS);
    }
}
