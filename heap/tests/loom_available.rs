//! Every interleaving (up to three preemptions) of insertions, removals and searches in
//! `heap/src/pages/available.rs`. `heap/tests/loom_remote.rs` has the command to run it.

#![cfg(loom)]

#[allow(dead_code)]
#[path = "../src/pages/available.rs"]
mod available;
mod sequential;

use available::AvailableSet;
use loom::thread;
use sequential::AtomicU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

// Two members of one leaf, one of another leaf of the same word above, and one below another word of that
// level.
const A: usize = 65 * 64;
const NEXT_TO_A: usize = A + 1;
const NEAR_A: usize = 66 * 64 + 2;
const LOW: usize = 64 + 1;

fn check(steps: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(steps);
}

fn set_of(members: &[usize]) -> Arc<AvailableSet> {
    let set = AvailableSet::new();
    members.iter().for_each(|&id| set.insert(id));
    Arc::new(set)
}

/// The upper levels agree with the leaves: a search from any start finds the members, and no others.
fn check_at_rest(set: &AvailableSet, members: &[usize]) {
    for start in [0, LOW, LOW + 1, A, A + 1, NEAR_A, NEAR_A + 1] {
        let expected = members.iter().copied().filter(|&id| id >= start).min();
        assert_eq!(set.first(start), expected, "from {start} on");
    }
}

enum Change {
    Insert(usize),
    Remove(usize),
}
use Change::{Insert, Remove};

/// Each list of changes is made by its own thread, the last one by this one.
fn changes(before: &'static [usize], threads: &'static [&'static [Change]], after: &'static [usize]) {
    check(move || {
        let set = set_of(before);
        let change = |set: &AvailableSet, changes: &[Change]| {
            for change in changes {
                match *change {
                    Insert(id) => set.insert(id),
                    Remove(id) => assert!(set.remove(id), "{id} is a member"),
                }
            }
        };
        let (own, others) = threads.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|changes| {
                let set = set.clone();
                thread::spawn(move || change(&set, changes))
            })
            .collect();
        change(&set, own);
        others.into_iter().for_each(|other| other.join().unwrap());
        check_at_rest(&set, after);
    });
}

#[test]
fn a_leaf_that_empties_while_it_is_filled() {
    changes(&[A], &[&[Insert(NEXT_TO_A)], &[Remove(A)]], &[NEXT_TO_A]);
    changes(&[A], &[&[Insert(NEXT_TO_A), Remove(NEXT_TO_A)], &[Remove(A), Insert(A)]], &[A]);
    changes(&[A, NEXT_TO_A], &[&[Remove(A)], &[Remove(NEXT_TO_A)]], &[]);
}

#[test]
fn a_middle_word_that_empties_while_it_is_filled() {
    changes(&[A], &[&[Insert(NEAR_A)], &[Remove(A)]], &[NEAR_A]);
    changes(&[A, NEAR_A], &[&[Remove(A)], &[Remove(NEAR_A), Insert(NEAR_A)]], &[NEAR_A]);
    changes(&[LOW], &[&[Insert(NEAR_A)], &[Remove(LOW), Insert(A)]], &[A, NEAR_A]);
}

#[test]
fn three_threads_insert_and_remove() {
    changes(&[A], &[&[Insert(NEXT_TO_A)], &[Insert(NEAR_A)], &[Remove(A)]], &[NEXT_TO_A, NEAR_A]);
    changes(&[A, NEAR_A], &[&[Insert(NEXT_TO_A)], &[Remove(A)], &[Remove(NEAR_A)]], &[NEXT_TO_A]);
    changes(&[LOW], &[&[Insert(NEAR_A), Remove(NEAR_A)], &[Insert(A)], &[Remove(LOW)]], &[A]);
}

#[test]
fn one_of_two_removers_removes_a_member() {
    check(|| {
        let set = set_of(&[A]);
        let other = {
            let set = set.clone();
            thread::spawn(move || set.remove(A))
        };
        let removed = set.remove(A);
        assert_ne!(removed, other.join().unwrap());
        check_at_rest(&set, &[]);
    });
}

#[test]
fn a_search_finds_only_inserted_members() {
    check(|| {
        let set = set_of(&[A]);
        let changer = {
            let set = set.clone();
            thread::spawn(move || {
                set.insert(LOW);
                set.remove(A);
                set.insert(NEAR_A);
            })
        };
        for start in [0, LOW + 1, A + 1] {
            let found = set.first(start);
            assert!(found.is_none_or(|id| id >= start && [LOW, A, NEAR_A].contains(&id)));
        }
        changer.join().unwrap();
        check_at_rest(&set, &[LOW, NEAR_A]);
    });
}

/// Three threads; the flag that shows the set to searchers is right at the end.
fn flag(before: &'static [usize], insert: usize, remove: [usize; 2], flagged: bool) {
    check(move || {
        let set = set_of(before);
        let nonempty = Arc::new(AtomicU64::new(1));
        let with = |f: fn(&AvailableSet, usize, &AtomicU64), id: usize| {
            let (set, nonempty) = (set.clone(), nonempty.clone());
            thread::spawn(move || f(&set, id, &nonempty))
        };
        let inserter = with(|set, id, nonempty| set.insert_flagged(id, nonempty, 1), insert);
        let remover = with(|set, id, nonempty| set.remove_flagged(id, nonempty, 1), remove[0]);
        set.remove_flagged(remove[1], &nonempty, 1);
        inserter.join().unwrap();
        remover.join().unwrap();
        assert_eq!(set.first(0).is_some(), flagged);
        assert_eq!(nonempty.load(SeqCst) == 1, flagged, "the flag agrees with the set");
    });
}

#[test]
fn the_flag_of_a_set_agrees_with_it() {
    flag(&[A, NEAR_A], NEXT_TO_A, [A, NEAR_A], true);
    flag(&[A, NEXT_TO_A], NEAR_A, [A, NEXT_TO_A], true);
    flag(&[A, LOW], NEAR_A, [A, LOW], true);
}
