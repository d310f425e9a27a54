//! The cost of confusing lifetime classes, by its effect on pages. An object that outlives its page's class
//! holds the page, or promotes it, and costs more the longer it lives. An object that dies early leaves a
//! hole for shorter-lived objects (LLAMA §6.3). So predicting one class too long costs least. `mayfly train`
//! uses the same numbers (`train/model/costs.py`).

use crate::units::lifetime_class::CLASSES;

/// By how many classes an object outlives its prediction.
const OUTLIVES: [u8; CLASSES] = [0, 4, 12, 20, 28, 36, 44];
/// By how many classes it dies too early.
const DIES_BEFORE: [u8; CLASSES] = [0, 1, 4, 8, 12, 16, 20];

/// The cost of an object that lived into class `lived`, with class `predicted`.
pub fn of(predicted: usize, lived: usize) -> i32 {
    let by = if lived > predicted { OUTLIVES } else { DIES_BEFORE };
    i32::from(by[lived.abs_diff(predicted).min(CLASSES - 1)])
}

/// The part of the cost that is certain when a live object has reached the age of a class.
pub fn so_far(predicted: usize, age: usize) -> i32 {
    if age > predicted { of(predicted, age) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicting_too_short_costs_more_and_neighbours_cost_least() {
        for class in 0..CLASSES - 1 {
            assert_eq!(of(class, class), 0);
            assert!(of(class, class + 1) >= 4 * of(class + 1, class) && of(class + 1, class) > 0);
            assert!((0..class).all(|shorter| of(class, shorter) >= of(shorter + 1, shorter)));
        }
        assert!(of(0, 6) > of(6, 0));
        assert_eq!((so_far(3, 3), so_far(3, 5)), (0, of(3, 5)));
    }
}
