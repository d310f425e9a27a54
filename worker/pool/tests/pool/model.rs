//! The pool under random events: it answers each request once and passes no limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use worker_pool::{Action, Pool, Time};

use super::capacity;

const MEMORY_MIB: [u32; 3] = [128, 256, 512];

#[derive(Clone, Debug)]
enum Event {
    Request(u64),
    /// An index, modulo the number of instances that may send the event; the same below.
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

/// The state that the pool's caller keeps.
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
                // An instance that waits for work does not ask for it again.
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
                let actions = self.pool.ended(instance);
                let lost = actions.iter().any(|a| matches!(a, Action::Lost { .. }));
                assert_eq!(
                    lost,
                    had.is_some() && !self.stopping.contains(&instance),
                    "a request that ran is answered"
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
                assert!(self.pool.withdraw(request), "a waiting request can be withdrawn");
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
            assert!(counts.idle == 0 || counts.queued == 0, "no request waits while an instance is idle");
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
        // Then every start succeeds and every running request finishes: no request may be left waiting.
        for _ in 0..400 {
            for instance in model.running.keys().copied().collect::<Vec<_>>() {
                if model.stopping.contains(&instance) {
                    model.stopping.remove(&instance);
                    model.running.remove(&instance);
                    model.memory_mib.remove(&instance);
                    let actions = model.pool.ended(instance);
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
