//! The lifetime class of a context, from its samples (LLAMA §5.1), though not all lives were observed to
//! their end.

use crate::profile::contents::{CLASSES, Context};

/// Names of the lifetime classes, the last one for objects that are never freed.
pub const CLASS_NAMES: [&str; CLASSES] = ["10ms", "100ms", "1s", "10s", "100s", "1000s", "inf"];

/// A share of all objects, and the share that outlives T95. Integers, so that `train/data/dataset.py`
/// computes the same.
const WHOLE: u128 = 1_000_000;
const FIVE_PERCENT: u128 = WHOLE / 20;

/// The lifetime class of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The smallest class by which 95% of its objects have died (T95).
    pub class: usize,
    /// They live at least so long; the profile did not observe when they die.
    pub at_least: bool,
}

impl std::fmt::Display for Lifetime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.at_least { "≥" } else { "" };
        f.pad(&format!("{sign}{}", CLASS_NAMES[self.class]))
    }
}

/// The smallest class by which 95% of a context's objects have died (T95); `None` if no lifetime is known.
pub fn t95(context: &Context) -> Option<usize> {
    lifetime(context).map(|lifetime| lifetime.class)
}

/// T95 by the survival estimate of Kaplan and Meier, in classes. Of the objects that live into a class, some
/// die in it, and some were left in it alive, on average in its middle: those count half. Objects alive when
/// their process ended were never freed.
pub fn lifetime(context: &Context) -> Option<Lifetime> {
    let left = context.censored().map(u128::from);
    let mut dead = context.classes.map(u128::from);
    dead[CLASSES - 1] += u128::from(context.live).saturating_sub(left.iter().sum());
    let mut living: u128 = dead.iter().chain(&left).sum();
    if living == 0 {
        return None;
    }
    let mut share = WHOLE;
    for class in 0..CLASSES - 1 {
        let twice = (2 * living - left[class]).max(1);
        share = share * (twice - 2 * dead[class]) / twice;
        if share <= FIVE_PERCENT {
            return Some(Lifetime { class, at_least: false });
        }
        living -= dead[class] + left[class];
    }
    if living > 0 {
        return Some(Lifetime { class: CLASSES - 1, at_least: false });
    }
    let class = left.iter().rposition(|&count| count > 0).unwrap_or(CLASSES - 1);
    Some(Lifetime { class, at_least: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::contents::Alive;
    use proptest::prelude::*;

    fn of(classes: [u64; CLASSES], live: u64) -> Option<usize> {
        t95(&Context { classes, freed: classes.iter().sum(), live, ..Context::default() })
    }

    const AGES_NS: [u64; CLASSES] = [1, 50, 500, 5000, 50_000, 500_000, 5_000_000];

    /// So many of each class were left alive, and `unfreed` never died.
    fn left(classes: [u64; CLASSES], left: [u64; CLASSES], unfreed: usize) -> Option<Lifetime> {
        let mut alive = vec![Alive { age_ns: 0, never_freed: true }; unfreed];
        for (count, age_ms) in left.iter().zip(AGES_NS) {
            let one = Alive { age_ns: age_ms * 1_000_000, never_freed: false };
            alive.extend(std::iter::repeat_n(one, *count as usize));
        }
        let live = alive.len() as u64;
        lifetime(&Context { classes, freed: classes.iter().sum(), live, alive, ..Context::default() })
    }

    #[test]
    fn is_the_class_by_which_95_percent_have_died() {
        assert_eq!(of([95, 0, 5, 0, 0, 0, 0], 0), Some(0));
        assert_eq!(of([94, 0, 6, 0, 0, 0, 0], 0), Some(2));
        assert_eq!(of([94, 1, 0, 0, 0, 0, 0], 5), Some(1));
        assert_eq!(of([94, 0, 0, 0, 0, 0, 0], 6), Some(6));
        assert_eq!(of([0, 0, 0, 0, 0, 0, 3], 0), Some(6), "freed after more than 1000 s");
        assert_eq!(of([0; CLASSES], 0), None);
    }

    #[test]
    fn objects_left_alive_live_at_least_so_long() {
        let text = |found: Option<Lifetime>| found.unwrap().to_string();
        assert_eq!(text(left([60, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 40, 0, 0], 0)), "≥100s");
        assert_eq!(text(left([0; CLASSES], [0, 0, 0, 9, 0, 0, 0], 0)), "≥10s");
        assert_eq!(text(left([0; CLASSES], [0, 0, 0, 0, 0, 0, 9], 0)), "inf", "it outlived the last limit");
        // All that were observed for so long died; those that were left sooner would have, too.
        assert_eq!(text(left([100, 0, 0, 50, 0, 0, 0], [0, 0, 40, 0, 0, 0, 0], 0)), "10s");
        // A whole run decides how long objects live that a short profile left: 100 s here, for ever there.
        assert_eq!(text(left([0, 0, 0, 0, 80, 0, 0], [0, 0, 0, 500, 0, 0, 0], 0)), "100s");
        assert_eq!(text(left([0; CLASSES], [0, 0, 0, 500, 0, 0, 0], 2)), "inf");
        // Most die at once, and objects left then say nothing about longer lives.
        assert_eq!(text(left([99, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0], 0)), "10ms");
    }

    proptest! {
        #[test]
        fn without_objects_left_alive_it_is_the_definition(classes: [u8; CLASSES], unfreed in 0usize..40) {
            let counts = classes.map(u64::from);
            let known = counts.iter().sum::<u64>() + unfreed as u64;
            let dead = |class: usize| counts[..=class].iter().sum::<u64>();
            let first = (0..CLASSES - 1).find(|&class| dead(class) * 100 >= known * 95).unwrap_or(CLASSES - 1);
            let wanted = (known > 0).then_some(Lifetime { class: first, at_least: false });
            prop_assert_eq!(left(counts, [0; CLASSES], unfreed), wanted);
        }

        #[test]
        fn any_counts_have_a_class_that_objects_lived_in(dead: [u8; CLASSES], alive: [u8; CLASSES], unfreed in 0usize..9) {
            let (dead, alive) = (dead.map(u64::from), alive.map(u64::from));
            if let Some(found) = left(dead, alive, unfreed) {
                let in_class = dead[found.class] + alive[found.class];
                prop_assert!(in_class > 0 || found.class == CLASSES - 1);
                prop_assert!(!found.at_least || dead[found.class + 1..].iter().all(|&count| count == 0));
            }
        }
    }
}
