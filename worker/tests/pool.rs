//! The pool under random events: whatever happens, each request is answered once and no limit is passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use worker::pool::{Action, Capacity, Pool, Refusal, Time};

const MEMORY_MIB: [u32; 3] = [128, 256, 512];

fn capacity() -> Capacity {
    Capacity {
        concurrency: 6,
        starting: 2,
        memory_mib: 1024,
        queue: 4,
        queue_wait: Duration::from_secs(10),
        keep_alive: Duration::from_secs(60),
    }
}

#[derive(Clone, Debug)]
enum Event {
    Request(u64),
    /// The instances that could say so, counted round.
    Ready(usize),
    Answered(usize),
    Gone(usize),
    Undelivered(usize),
    Stop(usize),
    Reserve(u64, Option<u32>),
    Change(u64, usize),
    Remove(u64),
    Withdraw(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let function = 0..3_u64;
    prop_oneof![
        8 => function.clone().prop_map(Event::Request),
        8 => (0..8_usize).prop_map(Event::Ready),
        4 => (0..8_usize).prop_map(Event::Answered),
        3 => (0..8_usize).prop_map(Event::Gone),
        1 => (0..8_usize).prop_map(Event::Undelivered),
        1 => (0..8_usize).prop_map(Event::Stop),
        1 => (function.clone(), prop::option::of(0..3_u32)).prop_map(|(f, r)| Event::Reserve(f, r)),
        1 => (function.clone(), 0..3_usize).prop_map(|(f, m)| Event::Change(f, m)),
        1 => function.prop_map(Event::Remove),
        1 => (0..8_usize).prop_map(Event::Withdraw),
        2 => (1..30_u64).prop_map(Event::Wait),
    ]
}

/// What the caller of the pool knows.
struct Model {
    pool: Pool,
    now: Time,
    next_request: u64,
    waiting: BTreeSet<u64>,
    running: BTreeMap<u64, Option<u64>>,
    stopping: BTreeSet<u64>,
    memory_mib: BTreeMap<u64, u64>,
    function_memory: [u32; 3],
    removed: [bool; 3],
    reserved: [Option<u32>; 3],
    owner: BTreeMap<u64, u64>,
    current: BTreeSet<u64>,
    finishing: BTreeSet<u64>,
}

impl Model {
    fn new() -> Model {
        let mut pool = Pool::new(capacity());
        for (function, memory) in MEMORY_MIB.iter().enumerate() {
            assert!(pool.set_function(function as u64, *memory).is_empty());
        }
        Model {
            pool,
            now: Time::ZERO,
            next_request: 0,
            waiting: BTreeSet::new(),
            running: BTreeMap::new(),
            stopping: BTreeSet::new(),
            memory_mib: BTreeMap::new(),
            function_memory: MEMORY_MIB,
            removed: [false; 3],
            reserved: [None; 3],
            owner: BTreeMap::new(),
            current: BTreeSet::new(),
            finishing: BTreeSet::new(),
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    assert!(!self.removed[function as usize], "a removed function starts nothing");
                    assert!(self.running.insert(instance, None).is_none(), "instances have ids of their own");
                    self.memory_mib.insert(instance, u64::from(self.function_memory[function as usize]));
                    self.owner.insert(instance, function);
                }
                Action::Dispatch { instance, request } => {
                    assert!(self.waiting.remove(&request), "{request} was not waiting");
                    assert!(!self.stopping.contains(&instance));
                    assert_eq!(
                        self.running.insert(instance, Some(request)),
                        Some(None),
                        "it had work already"
                    );
                    self.current.insert(instance);
                }
                Action::Refuse { request, .. } | Action::FailedStart { request, .. } => {
                    assert!(self.waiting.remove(&request), "{request} was answered twice");
                }
                Action::Lost { instance, request } => {
                    assert_eq!(self.running.get(&instance), Some(&Some(request)));
                }
                Action::Stop { instance } => assert!(self.stopping.insert(instance), "stopped twice"),
            }
        }
    }

    fn chosen(&self, index: usize, may: impl Fn(&u64) -> bool) -> Option<u64> {
        let all: Vec<u64> = self.running.keys().copied().filter(may).collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Request(function) => {
                let request = self.next_request;
                self.next_request += 1;
                self.waiting.insert(request);
                let actions = self.pool.request(function, request, self.now);
                self.carry_out(actions);
            }
            Event::Ready(index) => {
                // An instance that waits for work has nothing to say.
                let idle = |i: &u64| self.running[i].is_none() && self.current.contains(i);
                let waits = |i: &u64| idle(i) && !self.finishing.contains(i);
                let Some(instance) = self.chosen(index, |i| !waits(i)) else { return };
                self.running.insert(instance, None);
                self.finishing.remove(&instance);
                self.current.insert(instance);
                let actions = self.pool.ready(instance, self.now);
                self.carry_out(actions);
            }
            Event::Answered(index) => {
                let busy = |i: &u64| self.running[i].is_some() && !self.stopping.contains(i);
                let Some(instance) = self.chosen(index, busy) else { return };
                self.running.insert(instance, None);
                self.finishing.insert(instance);
                self.pool.answered(instance, self.now);
            }
            Event::Gone(index) => {
                let Some(instance) = self.chosen(index, |_| true) else { return };
                let had = self.running[&instance];
                let actions = self.pool.gone(instance);
                let lost = actions.iter().any(|a| matches!(a, Action::Lost { .. }));
                assert_eq!(
                    lost,
                    had.is_some() && !self.stopping.contains(&instance),
                    "a request that ran is told"
                );
                self.carry_out(actions);
                self.running.remove(&instance);
                self.stopping.remove(&instance);
                self.memory_mib.remove(&instance);
            }
            Event::Undelivered(index) => {
                let busy = |i: &u64| self.running[i].is_some() && !self.stopping.contains(i);
                let Some(instance) = self.chosen(index, busy) else { return };
                self.waiting.extend(self.running.insert(instance, None).flatten());
                let actions = self.pool.undelivered(instance, self.now);
                self.carry_out(actions);
            }
            Event::Stop(index) => {
                let Some(instance) = self.chosen(index, |_| true) else { return };
                // The caller has answered its request.
                self.running.insert(instance, None);
                self.finishing.remove(&instance);
                let actions = self.pool.stop(instance);
                self.carry_out(actions);
            }
            Event::Reserve(function, reserved) => {
                if !self.removed[function as usize] {
                    self.reserved[function as usize] = reserved;
                }
                let actions = self.pool.reserve(function, reserved);
                self.carry_out(actions);
            }
            Event::Change(function, memory) => {
                if self.removed[function as usize] {
                    return;
                }
                self.function_memory[function as usize] = MEMORY_MIB[memory];
                let actions = self.pool.set_function(function, MEMORY_MIB[memory]);
                self.carry_out(actions);
            }
            Event::Remove(function) => {
                self.removed[function as usize] = true;
                self.reserved[function as usize] = None;
                let actions = self.pool.remove_function(function);
                self.carry_out(actions);
            }
            Event::Withdraw(index) => {
                let Some(request) = self.waiting.iter().nth(index).copied() else { return };
                assert!(self.pool.withdraw(request), "what waits can be taken back");
                self.waiting.remove(&request);
            }
            Event::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                let actions = self.pool.tick(self.now);
                self.carry_out(actions);
            }
        }
    }

    fn check(&self, before: u32) {
        let counts = self.pool.counts(None);
        assert_eq!(counts.queued as usize, self.waiting.len());
        assert_eq!(self.pool.memory_mib(), self.memory_mib.values().sum::<u64>());
        assert!(self.pool.memory_mib() <= capacity().memory_mib);
        assert!(counts.starting <= capacity().starting);
        let counted = counts.starting + counts.idle + counts.busy;
        assert!(counted <= capacity().concurrency.max(before), "{counts:?}");
        assert_eq!(counts.stopping as usize, self.stopping.len());
        for function in 0..3 {
            let counts = self.pool.counts(Some(function));
            assert!(counts.idle == 0 || counts.queued == 0, "nobody waits while an instance is idle");
            assert!(counts.queued as usize <= capacity().queue + 6, "{counts:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_answered_once_and_no_limit_is_passed(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut model = Model::new();
        let mut before = 0;
        for event in &events {
            model.apply(event);
            model.check(before);
            let counts = model.pool.counts(None);
            before = counts.starting + counts.idle + counts.busy;
        }
        // Then everything that starts comes up, and all that runs finishes: nothing may be left waiting.
        for _ in 0..400 {
            for instance in model.running.keys().copied().collect::<Vec<_>>() {
                if model.stopping.contains(&instance) {
                    model.stopping.remove(&instance);
                    model.running.remove(&instance);
                    model.memory_mib.remove(&instance);
                    let actions = model.pool.gone(instance);
                    model.carry_out(actions);
                } else {
                    model.running.insert(instance, None);
                    let actions = model.pool.ready(instance, model.now);
                    model.carry_out(actions);
                }
            }
        }
        prop_assert!(model.waiting.is_empty(), "left waiting: {:?} {:?}", model.waiting, model.pool);
    }
}

#[test]
fn a_burst_starts_as_many_as_may_start_and_the_rest_wait() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    let starts: usize = (0..4).map(|request| pool.request(1, request, Time::ZERO).len()).sum();
    assert_eq!(starts, 2, "two start at once");
    assert_eq!(
        pool.ready(1, Time::ZERO),
        [Action::Dispatch { instance: 1, request: 0 }, Action::Start { instance: 3, function: 1 }]
    );
}

#[test]
fn a_full_queue_and_a_long_wait_are_refused_with_the_reason() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.reserve(1, Some(1));
    for request in 0..4 {
        pool.request(1, request, Time::ZERO);
    }
    let refused = |request| Action::Refuse { request, refusal: Refusal::Reserved };
    assert_eq!(pool.request(1, 9, Time::ZERO), [refused(9)]);
    assert_eq!(pool.tick(Duration::from_secs(10)), [refused(0), refused(1), refused(2), refused(3)]);
    pool.reserve(1, Some(0));
    assert_eq!(pool.request(1, 10, Time::ZERO), [refused(10)]);
}

#[test]
fn an_idle_instance_makes_room_for_another_function() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, ..capacity() });
    pool.set_function(1, 512);
    pool.set_function(2, 256);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.counts(Some(1)).idle, 1);
    assert_eq!(pool.request(2, 1, Time::ZERO), [Action::Stop { instance: 1 }], "its memory is needed");
    assert_eq!(pool.gone(1), [Action::Start { instance: 2, function: 2 }], "and free when it is gone");
}

#[test]
fn instances_end_when_they_were_idle_for_long() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.ready(1, Duration::from_secs(5));
    assert_eq!(pool.tick(Duration::from_secs(64)), []);
    assert_eq!(pool.tick(Duration::from_secs(65)), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.gone(1), []);
    assert!(pool.is_empty());
}

#[test]
fn a_request_waits_for_an_instance_that_has_just_answered() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.answered(1, Duration::from_secs(1));
    assert_eq!(pool.request(1, 1, Duration::from_secs(1)), []);
    assert_eq!(pool.request(1, 2, Duration::from_secs(1)), [Action::Start { instance: 2, function: 1 }]);
    assert_eq!(pool.ready(1, Duration::from_secs(1)), [Action::Dispatch { instance: 1, request: 1 }]);
    // One that does not ask again is waited for no longer than that.
    pool.answered(1, Duration::from_secs(2));
    assert_eq!(pool.request(1, 3, Duration::from_secs(2)), []);
    assert_eq!(pool.tick(Duration::from_secs(3)), [Action::Start { instance: 3, function: 1 }]);
}

#[test]
fn one_failed_start_answers_one_request() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.request(1, 1, Time::ZERO);
    assert_eq!(pool.gone(1), [Action::FailedStart { instance: 1, request: 0 }]);
    assert_eq!(pool.gone(2), [Action::FailedStart { instance: 2, request: 1 }]);
    assert!(pool.is_empty(), "no request is left, so nothing starts");
}

/// As many instances of function 1 as fit, all busy, and as many requests waiting.
fn full_of_one(capacity: Capacity) -> Pool {
    let mut pool = Pool::new(capacity);
    pool.set_function(1, 256);
    pool.set_function(2, 256);
    for instance in 1..=4 {
        pool.request(1, instance, Time::ZERO);
        pool.ready(instance, Time::ZERO);
    }
    assert_eq!((pool.counts(Some(1)).busy, pool.memory_mib()), (4, 1024));
    pool.request(1, 5, Time::ZERO);
    pool.request(1, 6, Time::ZERO);
    pool
}

#[test]
fn a_function_whose_room_another_holds_gets_an_instance_when_one_of_the_others_is_done() {
    let mut pool = full_of_one(capacity());
    assert_eq!(pool.request(2, 9, Duration::from_secs(1)), [], "all are busy");
    let now = Duration::from_secs(2);
    // One of them takes no more, though requests wait that are older.
    assert_eq!(pool.ready(1, now), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.ready(2, now), [Action::Dispatch { instance: 2, request: 5 }], "one is enough");
    assert_eq!(pool.gone(1), [Action::Start { instance: 5, function: 2 }]);
    assert_eq!(pool.ready(5, now), [Action::Dispatch { instance: 5, request: 9 }]);
}

#[test]
fn the_same_where_concurrency_is_short() {
    let mut pool = full_of_one(Capacity { concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(2, 9, Duration::from_secs(1)), []);
    let now = Duration::from_secs(2);
    let actions = pool.ready(1, now);
    assert_eq!(actions, [Action::Stop { instance: 1 }, Action::Start { instance: 5, function: 2 }]);
    assert_eq!(pool.ready(2, now), [Action::Dispatch { instance: 2, request: 5 }]);
}

#[test]
fn functions_of_which_only_one_fits_take_turns() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, queue: 100, ..capacity() });
    let mut served = [0; 2];
    pool.set_function(0, 512);
    pool.set_function(1, 512);
    let mut actions: VecDeque<Action> = VecDeque::new();
    // Both have requests at any time; each takes 100 ms.
    for step in 0..300_u64 {
        let now = Duration::from_millis(100 * step);
        for function in [0, 1] {
            actions.extend(pool.request(function, 2 * step + function, now));
        }
        actions.extend(pool.tick(now));
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Start { instance, .. } => actions.extend(pool.ready(instance, now)),
                Action::Stop { instance } => actions.extend(pool.gone(instance)),
                Action::Dispatch { instance, request } => {
                    served[(request % 2) as usize] += 1;
                    actions.extend(pool.ready(instance, now));
                }
                Action::Refuse { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let (less, more) = (served[0].min(served[1]), served[0].max(served[1]));
    assert!(less >= 50 && more <= 2 * less, "{served:?} of 300 each");
}

#[test]
fn what_is_short_is_said() {
    let mut pool = full_of_one(Capacity { queue: 2, ..capacity() });
    let refused = |refusal| vec![Action::Refuse { request: 9, refusal }];
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Memory));
    let mut pool = full_of_one(Capacity { queue: 2, concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Concurrency));
    let mut pool = Pool::new(Capacity { queue: 2, starting: 1, ..capacity() });
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.request(1, 1, Time::ZERO);
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Starting));
}

#[test]
fn versions_have_instances_of_their_own_and_share_the_reservation() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.add_version(2, 1, 128);
    pool.reserve(1, Some(1));
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.request(2, 1, Time::ZERO), [], "the only place is busy");
    // Neither starves: the function's instance serves what it has, and gives its place to the version's.
    let turn = Duration::from_secs(3);
    assert_eq!(pool.tick(turn), []);
    assert_eq!(
        pool.ready(1, turn),
        [Action::Stop { instance: 1 }, Action::Start { instance: 2, function: 2 }]
    );
    assert_eq!(pool.ready(2, turn), [Action::Dispatch { instance: 2, request: 1 }]);
    pool.ready(2, turn);
    assert_eq!(
        pool.request(1, 2, turn),
        [Action::Stop { instance: 2 }, Action::Start { instance: 3, function: 1 }],
        "an idle one goes at once"
    );
    pool.reserve(1, Some(0));
    assert_eq!(pool.request(2, 3, turn), [Action::Refuse { request: 3, refusal: Refusal::Reserved }]);
}
