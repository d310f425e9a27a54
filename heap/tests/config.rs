//! The deadline factor's variable has a new name; the old one, `MAYFLY_HEAP_K`, is accepted for one release.

use heap::entry::config;
use heap::pages::page_life::deadline_factor;

fn factor_with(variables: &[(&str, &str)]) -> u32 {
    // SAFETY: the only test of this process, and it has no other thread that reads the environment.
    unsafe {
        for name in ["MAYFLY_HEAP_DEADLINE_FACTOR", "MAYFLY_HEAP_K"] {
            std::env::remove_var(name);
        }
        variables.iter().for_each(|(name, value)| std::env::set_var(name, value));
    }
    config::load();
    deadline_factor()
}

#[test]
fn the_new_name_of_the_deadline_factor_wins_over_the_old_one() {
    const NEW: &str = "MAYFLY_HEAP_DEADLINE_FACTOR";
    const OLD: &str = "MAYFLY_HEAP_K";
    assert_eq!(factor_with(&[]), 2);
    assert_eq!(factor_with(&[(OLD, "4")]), 4);
    assert_eq!(factor_with(&[(NEW, "6")]), 6);
    assert_eq!(factor_with(&[(NEW, "6"), (OLD, "4")]), 6);
    assert_eq!(factor_with(&[(OLD, "4"), (NEW, "6")]), 6);
}
