//! A site without a word of the stack that separates its lasting objects is studied less and less often.

use std::collections::VecDeque;

use heap::entry::{allocate, free, maintenance, start};
use heap::system::clock;
use heap::system::events::Event;
use heap::units::call::{Call, ReturnSlot};

const CALL: Call = Call { size: 8000, caller: 0x1000, stack: 0x7fff_0000 };
const ROUNDS: u64 = 20_000;
const CALLS_A_ROUND: usize = 40;
/// One call in this many allocates an object that lives two classes longer than the others.
const ONE_LATE_IN: usize = 8;
const LATE_MS: usize = 150;

#[test]
fn a_site_without_a_separating_word_is_studied_ever_less() {
    clock::set(1_000_000_000);
    let heap = start::visit(&CALL).expect("memory").heap;
    let measured = || heap.counts.of(Event::LifetimeMeasured as usize);
    let mut late = VecDeque::new();
    let mut in_first_tenth = 0;
    for round in 0..ROUNDS {
        clock::set((1_000 + round) * 1_000_000);
        maintenance::run(heap);
        let objects: [usize; CALLS_A_ROUND] = core::array::from_fn(|_| allocate::allocate(CALL) as usize);
        for (n, object) in objects.into_iter().enumerate() {
            if n % ONE_LATE_IN == 0 { late.push_back(object) } else { free::free(object, ReturnSlot::NONE) }
        }
        let over = late.len().saturating_sub(LATE_MS * CALLS_A_ROUND / ONE_LATE_IN);
        late.drain(..over).for_each(|object| free::free(object, ReturnSlot::NONE));
        if round == ROUNDS / 10 {
            in_first_tenth = measured();
        }
    }
    let in_others = measured() - in_first_tenth;
    println!("{in_first_tenth} objects were watched in the first tenth, {in_others} in the others");
    assert!(in_first_tenth > 200);
    assert!(in_others < 5 * in_first_tenth);
    late.into_iter().for_each(|object| free::free(object, ReturnSlot::NONE));
}
