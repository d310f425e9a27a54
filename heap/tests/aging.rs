//! When the table of call sites is full, idle sites make room for new ones.

use heap::entry::start;
use heap::lifetime::sites;
use heap::system::clock;
use heap::system::thread_stack::ThreadStack;
use heap::units::call::Call;

/// More than the table holds.
const CALLERS: usize = 60_000;

fn call(caller: usize, stack: usize) -> Call {
    Call { size: 64, caller: 0x10_0000 + caller * 16, stack }
}

#[test]
fn a_full_table_has_room_for_new_sites_again() {
    let here = 0u8;
    let stack = (&raw const here).addr();
    let mut now_ms = 1_000;
    let mut pass = |ms: u64| {
        now_ms += ms;
        clock::set(now_ms * 1_000_000);
    };
    pass(0);
    let heap = start::visit(&call(0, stack)).expect("memory").heap;
    let own = ThreadStack::with_base(stack + 64);
    let look_up = |caller| sites::of(&heap.site_cache, &call(caller, stack), own).site;
    let site = |caller| look_up(caller).expect("there is room");
    let always = site(1).number();
    for caller in 2..CALLERS {
        look_up(caller); // the last ones find no room
    }
    let held = sites::count();
    for round in 1..4 {
        pass(2_000);
        assert_eq!(site(1).number(), always, "one that is called all the time stays");
        let new: Vec<usize> = (0..1_000).map(|i| site(CALLERS * round + i).number()).collect();
        let mut different = new.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), new.len(), "each new call has a site of its own, in round {round}");
        pass(2_000);
        for caller in 0..CALLERS {
            look_up(CALLERS * (10 + round) + caller);
            site(1);
        }
        assert_eq!(sites::count(), held, "the table does not grow");
    }
}
