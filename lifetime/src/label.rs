//! The lifetime class of a context, from what was sampled of it (LLAMA §5.1).

use crate::profile::{CLASSES, Context};

/// Names of the lifetime classes, the last one for objects that are never freed.
pub const CLASS_NAMES: [&str; CLASSES] = ["10ms", "100ms", "1s", "10s", "100s", "1000s", "inf"];

/// The smallest class by which 95% of a context's objects have died (T95); those that lived at the end never did. `None`
/// if no lifetime is known.
pub fn t95(context: &Context) -> Option<usize> {
    let known = context.freed + context.live;
    let mut dead = 0;
    (known > 0).then(|| {
        (0..CLASSES - 1)
            .find(|&class| {
                dead += context.classes[class];
                dead * 100 >= known * 95
            })
            .unwrap_or(CLASSES - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(classes: [u64; CLASSES], live: u64) -> Option<usize> {
        t95(&Context { classes, freed: classes.iter().sum(), live, ..Context::default() })
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
}
