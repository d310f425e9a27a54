//! The policies by which caches replace lines: each does what it is known for, and a machine file chooses it.

mod common;

use common::*;
use sim::Description;
use sim::base::description::{CacheDescription, ReplacementKind};
use sim::memory::cache::Cache;

const KINDS: [ReplacementKind; 3] = [ReplacementKind::Lru, ReplacementKind::Srrip, ReplacementKind::Random];

/// One set of eight ways.
fn cache(replacement: ReplacementKind) -> Cache {
    let one =
        CacheDescription { sets: 1, ways: 8, latency_cycles: 2, mshrs: 8, cycles_per_access: 0, replacement };
    Cache::new(&one, 0)
}

/// Looks the line up and puts it in if it is not there; whether it was.
fn access(cache: &mut Cache, line: u64) -> bool {
    let hit = cache.lookup(line, false, 0).is_some();
    if !hit {
        cache.insert(line, false, 0);
    }
    hit
}

#[test]
fn an_empty_place_is_filled_before_a_line_is_replaced() {
    for kind in KINDS {
        let mut cache = cache(kind);
        for line in 0..8 {
            assert!(cache.insert(line, false, 0).is_none(), "{kind:?}");
        }
        cache.remove(5);
        assert!(cache.insert(9, false, 0).is_none(), "{kind:?}: into the place of 5");
        assert!((0..8).filter(|line| *line != 5).all(|line| cache.holds(line)), "{kind:?}");
        assert!(cache.insert(10, false, 0).is_some(), "{kind:?}: the set is full");
    }
}

#[test]
fn lru_keeps_no_line_of_a_loop_that_is_one_line_too_long() {
    let hits = |kind| {
        let mut cache = cache(kind);
        (0..900).filter(|turn| access(&mut cache, turn % 9)).count()
    };
    assert_eq!(hits(ReplacementKind::Lru), 0);
    // A random victim of eight leaves most of the nine: each is there again with more than half.
    assert!((450..800).contains(&hits(ReplacementKind::Random)), "{}", hits(ReplacementKind::Random));
    assert_eq!(hits(ReplacementKind::Random), hits(ReplacementKind::Random), "the same in each run");
}

#[test]
fn srrip_keeps_lines_that_are_used_again_beside_lines_that_are_read_once() {
    // Four lines are used twice, then eight others once, again and again.
    let hits = |kind| {
        let mut cache = cache(kind);
        let mut hits = 0;
        for turn in 0..100 {
            for line in [0, 1, 2, 3, 0, 1, 2, 3] {
                hits += u64::from(access(&mut cache, line));
            }
            for once in 0..6 {
                access(&mut cache, 100 + turn * 6 + once);
            }
        }
        hits
    };
    assert_eq!(hits(ReplacementKind::Lru), 400, "the second use of each");
    assert_eq!(hits(ReplacementKind::Srrip), 796, "all but the first of each");
}

#[test]
fn srrip_replaces_the_first_of_lines_that_were_all_used() {
    let mut cache = cache(ReplacementKind::Srrip);
    for line in [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7] {
        access(&mut cache, line);
    }
    access(&mut cache, 8);
    assert!(!cache.holds(0) && cache.holds(1));
    // The others have aged with it, and the new line has a shorter interval than they: 1 goes next.
    access(&mut cache, 9);
    assert!(!cache.holds(1) && cache.holds(8));
}

#[test]
fn a_machine_chooses_its_policies() {
    let misses = |overrides: &[&str]| {
        let mut bench = Bench::new(overrides);
        let block = bench.add(block(CODE, |a| {
            a.mov(iced_x86::code_asm::rax, iced_x86::code_asm::ptr(iced_x86::code_asm::rbx))
        }));
        // Nine lines of one set of the L1d, in turn.
        bench.measure(270, |bench, turn| {
            bench.enter(block);
            bench.load(0, 0x100_0000 + turn % 9 * 4096);
        });
        bench.statistic("l1d.misses")
    };
    assert_eq!(misses(&[]), 270.0);
    assert_eq!(misses(&["l1d.replacement=lru"]), 270.0);
    assert!(misses(&["l1d.replacement=random"]) < 200.0);
    let file = "[llc]\nreplacement = \"srrip\"\n";
    assert_eq!(Description::parse(file, &[]).unwrap().llc.replacement, ReplacementKind::Srrip);
}

#[test]
fn an_unknown_policy_gets_a_line() {
    let error = Description::parse("[llc]\nreplacement = \"plru\"\n", &[]).unwrap_err();
    assert!(error.starts_with("line 2: llc.replacement: unknown variant `plru`"), "{error}");
    assert!(error.contains("`lru`, `srrip`, `random`") && !error.contains('\n'), "{error}");
}
