//! The pool under random events: it answers each request once and passes no limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use worker_pool::{Action, FunctionId, InstanceId, Pool, RequestId, Time};

use super::capacity;

const MEMORY_MIB: [u32; 3] = [128, 256, 512];
/// Requests at once in an instance of each function.
const AT_ONCE: [u32; 3] = [1, 1, 3];

#[derive(Clone, Debug)]
enum Event {
    Request(FunctionId),
    /// An index, modulo the number of instances that may send the event; the same below.
    Ready(usize),
    Answered(usize),
    Gone(usize),
    Undelivered(usize),
    Stop(usize),
    Drain(usize),
    Reserve(FunctionId, Option<u32>),
    Change(FunctionId, usize),
    Remove(FunctionId),
    Withdraw(usize),
    Wait(u64),
    /// Microseconds.
    Release(u64),
    Saturated(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let function = (0..3_u64).prop_map(FunctionId);
    prop_oneof![
        8 => function.clone().prop_map(Event::Request),
        8 => (0..8_usize).prop_map(Event::Ready),
        4 => (0..8_usize).prop_map(Event::Answered),
        3 => (0..8_usize).prop_map(Event::Gone),
        1 => (0..8_usize).prop_map(Event::Undelivered),
        1 => (0..8_usize).prop_map(Event::Stop),
        1 => (0..8_usize).prop_map(Event::Drain),
        1 => (function.clone(), prop::option::of(0..3_u32)).prop_map(|(f, r)| Event::Reserve(f, r)),
        1 => (function.clone(), 0..3_usize).prop_map(|(f, m)| Event::Change(f, m)),
        1 => function.prop_map(Event::Remove),
        1 => (0..8_usize).prop_map(Event::Withdraw),
        2 => (1..30_u64).prop_map(Event::Wait),
        4 => (1..30_000_u64).prop_map(Event::Release),
        1 => prop::bool::ANY.prop_map(Event::Saturated),
    ]
}

/// The state that the pool's caller keeps.
struct Model {
    pool: Pool,
    now: Time,
    next_request: u64,
    /// When each arrived, or came back.
    waiting: BTreeMap<RequestId, Time>,
    running: BTreeMap<InstanceId, Instance>,
    stopping: BTreeSet<InstanceId>,
    memory_mib: BTreeMap<InstanceId, u64>,
    function_memory: [u32; 3],
    removed: [bool; 3],
    reserved: [Option<u32>; 3],
}

struct Instance {
    function: FunctionId,
    requests: Vec<RequestId>,
    asks: u32,
    /// It has asked once.
    started: bool,
}

impl Instance {
    /// Whether its runtime could ask for one more: each process of it has one request at a time.
    fn may_ask(&self) -> bool {
        self.requests.len() as u32 + self.asks < AT_ONCE[self.function.0 as usize]
    }
}

impl Model {
    fn new() -> Model {
        let mut pool = Pool::new(capacity());
        for (function, (memory, at_once)) in MEMORY_MIB.iter().zip(AT_ONCE).enumerate() {
            assert!(pool.set_function_at_once(FunctionId(function as u64), *memory, at_once).is_empty());
        }
        Model {
            pool,
            now: Time::ZERO,
            next_request: 0,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            stopping: BTreeSet::new(),
            memory_mib: BTreeMap::new(),
            function_memory: MEMORY_MIB,
            removed: [false; 3],
            reserved: [None; 3],
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    assert!(!self.removed[function.0 as usize], "a removed function starts nothing");
                    let new = Instance { function, requests: Vec::new(), asks: 0, started: false };
                    assert!(self.running.insert(instance, new).is_none(), "instances have ids of their own");
                    self.memory_mib.insert(instance, u64::from(self.function_memory[function.0 as usize]));
                }
                Action::Dispatch { instance, request } => {
                    assert!(self.waiting.remove(&request).is_some(), "{request} was not waiting");
                    assert!(!self.stopping.contains(&instance));
                    let known = self.running.get_mut(&instance).expect("it has started");
                    assert!(known.asks > 0, "it has not asked");
                    known.asks -= 1;
                    known.requests.push(request);
                    assert!(known.requests.len() <= AT_ONCE[known.function.0 as usize] as usize);
                }
                Action::Refuse { request, .. } | Action::FailedStart { request, .. } => {
                    assert!(self.waiting.remove(&request).is_some(), "{request} was answered twice");
                }
                Action::Lost { instance, request } => {
                    let known = self.running.get_mut(&instance).expect("it ends now");
                    let before = known.requests.len();
                    known.requests.retain(|its| *its != request);
                    assert_eq!(known.requests.len() + 1, before, "a request that it did not have");
                }
                Action::Stop { instance } => assert!(self.stopping.insert(instance), "stopped twice"),
            }
        }
    }

    fn chosen(&self, index: usize, may: impl Fn(&Instance) -> bool) -> Option<InstanceId> {
        let all: Vec<InstanceId> =
            self.running.iter().filter(|(_, its)| may(its)).map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }

    /// Takes a request from an instance.
    fn request(&mut self, index: usize) -> Option<(InstanceId, RequestId)> {
        let instance = self.chosen(index, |known| !known.requests.is_empty())?;
        let requests = &mut self.running.get_mut(&instance)?.requests;
        Some((instance, requests.swap_remove(index % requests.len())))
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Request(function) => {
                let request = RequestId(self.next_request);
                self.next_request += 1;
                self.waiting.insert(request, self.now);
                let actions = self.pool.request(function, request, self.now);
                self.carry_out(actions);
            }
            Event::Ready(index) => {
                let Some(instance) = self.chosen(index, Instance::may_ask) else { return };
                let known = self.running.get_mut(&instance).expect("just chosen");
                (known.asks, known.started) = (known.asks + 1, true);
                let actions = self.pool.ready(instance, self.now);
                self.carry_out(actions);
            }
            Event::Answered(index) => {
                let Some((instance, request)) = self.request(index) else { return };
                let actions = self.pool.answered(instance, request, self.now);
                self.carry_out(actions);
            }
            Event::Gone(index) => {
                let Some(instance) = self.chosen(index, |_| true) else { return };
                self.apply_end(instance);
            }
            Event::Undelivered(index) => {
                let Some((instance, request)) = self.request(index) else { return };
                self.waiting.insert(request, self.now);
                let actions = self.pool.undelivered(instance, request, self.now);
                self.carry_out(actions);
            }
            Event::Stop(index) => {
                let Some(instance) = self.chosen(index, |_| true) else { return };
                let actions = self.pool.stop(instance);
                self.carry_out(actions);
            }
            Event::Drain(index) => {
                let Some(instance) = self.chosen(index, |known| known.started) else { return };
                let actions = self.pool.drain(instance);
                self.carry_out(actions);
            }
            Event::Reserve(function, reserved) => {
                if !self.removed[function.0 as usize] {
                    self.reserved[function.0 as usize] = reserved;
                }
                let actions = self.pool.reserve(function, reserved);
                self.carry_out(actions);
            }
            Event::Change(function, memory) => {
                if self.removed[function.0 as usize] {
                    return;
                }
                self.function_memory[function.0 as usize] = MEMORY_MIB[memory];
                let at_once = AT_ONCE[function.0 as usize];
                let actions = self.pool.set_function_at_once(function, MEMORY_MIB[memory], at_once);
                self.carry_out(actions);
            }
            Event::Remove(function) => {
                self.removed[function.0 as usize] = true;
                self.reserved[function.0 as usize] = None;
                let actions = self.pool.remove_function(function);
                self.carry_out(actions);
            }
            Event::Withdraw(index) => {
                let Some(request) = self.waiting.keys().nth(index).copied() else { return };
                assert!(self.pool.withdraw(request), "a waiting request can be withdrawn");
                self.waiting.remove(&request);
            }
            Event::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                let actions = self.pool.tick(self.now);
                self.carry_out(actions);
            }
            Event::Saturated(saturated) => {
                self.pool.set_saturated(saturated);
                let actions = self.pool.tick(self.now);
                self.carry_out(actions);
            }
            Event::Release(micros) => {
                self.now += Duration::from_micros(micros);
                let actions = self.pool.release(self.now);
                self.carry_out(actions);
            }
        }
    }

    fn apply_end(&mut self, instance: InstanceId) {
        let actions = self.pool.ended(instance);
        self.carry_out(actions);
        let known = self.running.remove(&instance).expect("it is one that has not ended");
        assert!(known.requests.is_empty(), "a request that ran is answered");
        self.stopping.remove(&instance);
        self.memory_mib.remove(&instance);
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
        for function in (0..3).map(FunctionId) {
            let counts = self.pool.counts(Some(function));
            if counts.idle > 0 && counts.queued > 0 {
                assert_eq!(AT_ONCE[function.0 as usize], 1);
                assert!(self.pool.holds_requests());
                assert!(self.waiting.values().any(|since| self.now < *since + Duration::from_millis(50)));
            }
            let its = self.running.values().filter(|known| known.function == function);
            assert_eq!(counts.running as usize, its.map(|known| known.requests.len()).sum::<usize>());
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
        // Then every start succeeds, every running request finishes, and who waits for a busy instance is
        // looked at every millisecond, as the pool's caller does: no request may be left waiting.
        for _ in 0..400 {
            if model.pool.holds_requests() {
                model.apply(&Event::Release(1000));
            }
            for instance in model.running.keys().copied().collect::<Vec<_>>() {
                if model.stopping.contains(&instance) {
                    model.apply_end(instance);
                } else {
                    while let Some(request) = model.running.get_mut(&instance).unwrap().requests.pop() {
                        let actions = model.pool.answered(instance, request, model.now);
                        model.carry_out(actions);
                    }
                    if model.running[&instance].may_ask() {
                        model.running.get_mut(&instance).unwrap().asks += 1;
                        let actions = model.pool.ready(instance, model.now);
                        model.carry_out(actions);
                    }
                }
            }
        }
        prop_assert!(model.waiting.is_empty(), "left waiting: {:?} {:?}", model.waiting, model.pool);
    }
}
