//! Random plugs, spawns, stops, unplugs, exits, deaths and failures against a guest that is only a model: whatever
//! happens, the host never asks for a used partition, and nothing leaks.
//!
//! The model keeps the truth: what QEMU has plugged, what is online, who lives where. A fault is one request that goes
//! wrong: not done, done without an answer, done late, or the agent dies before or after it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vm_protocol::{Agent, Answer, ErrorKind, Event, ExitReason, Layout, Mode, Operation, Refusal, Spawn};

use crate::book::Book;
use crate::error::Error;
use crate::guest::AskError;
use crate::keeper;
use crate::partition::State;
use crate::pool::{Machine, Place, Pool};
use crate::qemu::Device;

const PARTITIONS: u32 = 4;
const BYTES: u64 = 128 << 20;
const PATIENCE: Duration = Duration::from_millis(25);

/// One request that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Refused,
    NotDone,
    NoAnswer,
    Late,
    DiesBefore,
    DiesAfter,
    /// The guest does not change the size of the device.
    Stuck,
    /// QEMU refuses.
    Monitor,
}

#[derive(Default)]
struct Truth {
    alive: bool,
    agent_id: u64,
    requested: BTreeMap<u32, u64>,
    size: BTreeMap<u32, u64>,
    online: BTreeMap<u32, u64>,
    instances: BTreeMap<String, u32>,
    late: Vec<Operation>,
    faults: Vec<Fault>,
    /// What the host must never do, and did.
    wrong: Vec<String>,
}

struct Model {
    truth: Mutex<Truth>,
    book: Arc<Book>,
}

impl Truth {
    fn users(&self, partition: u32) -> usize {
        self.instances.values().filter(|used| **used == partition).count()
    }

    fn agent(&self) -> Agent {
        Agent { version: 1, agent_id: self.agent_id, kernel: "6.12".to_string(), hotmem: true, boot_ns: 0 }
    }

    fn refuse(kind: ErrorKind) -> Result<Answer, AskError> {
        Err(AskError::Refused(Refusal { kind, message: format!("{kind:?}") }))
    }

    /// What the agent does; events that it sends before its answer.
    fn carry_out(&mut self, op: &Operation) -> (Result<Answer, AskError>, Vec<Event>) {
        let mut events = Vec::new();
        let online = |bytes: u64| Ok(Answer::Confirmed { online_bytes: bytes, waited_ns: 0 });
        let answer = match op {
            Operation::Hello { .. } => Ok(Answer::Hello(self.agent())),
            Operation::PlugConfirm { partition: Some(number), bytes, .. } => {
                let size = self.size.get(number).copied().unwrap_or(0);
                self.online.insert(*number, size);
                if size >= *bytes { online(size) } else { Truth::refuse(ErrorKind::TimedOut) }
            }
            Operation::UnplugConfirm { partition: Some(number), bytes, .. } => {
                let size = self.size.get(number).copied().unwrap_or(0);
                self.online.insert(*number, size);
                if size <= *bytes { online(size) } else { Truth::refuse(ErrorKind::TimedOut) }
            }
            Operation::PrepareUnplug { partition } if self.users(*partition) > 0 => {
                Truth::refuse(ErrorKind::Busy)
            }
            Operation::PrepareUnplug { .. } => Ok(Answer::Prepared { dropped_pages: 0 }),
            Operation::Spawn(spawn) => {
                let number = spawn.partition.expect("the model spawns in partitions");
                if self.users(number) > 0 || self.online.get(&number).copied().unwrap_or(0) != BYTES {
                    self.wrong.push(format!("spawn in partition {number}, which is used or not online"));
                }
                self.instances.insert(spawn.instance.clone(), number);
                Ok(Answer::Spawned { pid: 1 })
            }
            Operation::Stop { instance, .. } => match self.instances.remove(instance) {
                None => Truth::refuse(ErrorKind::NoSuchInstance),
                Some(number) => {
                    let reason = ExitReason::Signal { signal: 15 };
                    events.push(Event::Exited {
                        instance: instance.clone(),
                        partition: Some(number),
                        reason,
                    });
                    Ok(Answer::Stopped { reason })
                }
            },
            _ => Ok(Answer::Done),
        };
        (answer, events)
    }

    fn die(&mut self) {
        self.alive = false;
        self.late.clear();
    }
}

impl Model {
    fn tell(&self, events: Vec<Event>) {
        for event in events {
            self.book.agent_event(event);
        }
    }

    fn agent_dies(&self) {
        let mut truth = self.truth.lock().unwrap();
        if truth.alive {
            truth.die();
            // Under the lock, so that news comes in the order in which it happened.
            self.book.agent_lost();
        }
    }

    /// A new agent kills what the last one left, and says that it is ready.
    fn agent_returns(&self) {
        let mut truth = self.truth.lock().unwrap();
        if !truth.alive {
            truth.instances.clear();
            truth.alive = true;
            truth.agent_id += 1;
            self.book.agent_event(Event::Ready(truth.agent()));
        }
    }

    fn exits(&self, instance: &str) {
        let mut truth = self.truth.lock().unwrap();
        if truth.alive
            && let Some(number) = truth.instances.remove(instance)
        {
            let reason = ExitReason::Code { code: 0 };
            self.tell(vec![Event::Exited {
                instance: instance.to_string(),
                partition: Some(number),
                reason,
            }]);
        }
    }
}

impl Machine for Model {
    fn request(&self, device: Device, bytes: u64) -> Result<(), Error> {
        let Device::Partition(number) = device else { panic!("the model has only partitions") };
        let mut truth = self.truth.lock().unwrap();
        if bytes == 0 && truth.users(number) > 0 {
            truth.wrong.push(format!("unplug of partition {number}, which is used"));
        }
        match truth.faults.pop() {
            Some(Fault::Monitor) => return Err(Error::Failed("QEMU refuses".to_string())),
            Some(Fault::Stuck) => {}
            fault => {
                truth.faults.extend(fault);
                truth.size.insert(number, bytes);
            }
        }
        truth.requested.insert(number, bytes);
        Ok(())
    }

    fn size(&self, device: Device) -> Result<u64, Error> {
        let Device::Partition(number) = device else { panic!("the model has only partitions") };
        Ok(self.truth.lock().unwrap().size.get(&number).copied().unwrap_or(0))
    }

    fn ask(&self, op: Operation, _: Duration) -> Result<Answer, AskError> {
        let mut truth = self.truth.lock().unwrap();
        if !truth.alive {
            return Err(AskError::TimedOut);
        }
        let mut events = Vec::new();
        for late in std::mem::take(&mut truth.late) {
            events.extend(truth.carry_out(&late).1);
        }
        let fault = match truth.faults.last() {
            Some(Fault::Monitor | Fault::Stuck) | None => None,
            Some(_) => truth.faults.pop(),
        };
        let answer = match fault {
            None | Some(Fault::Monitor | Fault::Stuck) => {
                let (answer, more) = truth.carry_out(&op);
                events.extend(more);
                answer
            }
            Some(Fault::Refused) => Truth::refuse(ErrorKind::Failed),
            Some(Fault::NotDone) => Err(AskError::TimedOut),
            Some(Fault::NoAnswer) => {
                events.extend(truth.carry_out(&op).1);
                Err(AskError::TimedOut)
            }
            Some(Fault::Late) => {
                truth.late.push(op);
                Err(AskError::TimedOut)
            }
            Some(Fault::DiesBefore) => {
                truth.die();
                Err(AskError::Lost)
            }
            Some(Fault::DiesAfter) => {
                events.extend(truth.carry_out(&op).1);
                truth.die();
                Err(AskError::Lost)
            }
        };
        self.tell(events);
        if answer == Err(AskError::Lost) {
            self.book.agent_lost();
        }
        answer
    }

    fn require_memory(&self, _: &str, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// What somebody does, or what happens.
#[derive(Debug, Clone)]
enum Action {
    Plug(Option<u32>),
    Unplug(u32),
    Spawn(Option<u32>, u32),
    Stop(u32),
    Exits(u32),
    AgentDies,
    AgentReturns,
    /// QEMU's news of the port comes after the new agent's own.
    LateNews,
    Fault(Fault),
    Pause,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let partition = 0..PARTITIONS;
    let instance = 0..PARTITIONS + 2;
    let fault = prop_oneof![
        Just(Fault::Refused),
        Just(Fault::NotDone),
        Just(Fault::NoAnswer),
        Just(Fault::Late),
        Just(Fault::DiesBefore),
        Just(Fault::DiesAfter),
        Just(Fault::Stuck),
        Just(Fault::Monitor),
    ];
    let action = prop_oneof![
        4 => prop::option::of(partition.clone()).prop_map(Action::Plug),
        4 => partition.clone().prop_map(Action::Unplug),
        5 => (prop::option::of(partition), instance.clone()).prop_map(|(place, name)| Action::Spawn(place, name)),
        3 => instance.clone().prop_map(Action::Stop),
        2 => instance.prop_map(Action::Exits),
        1 => Just(Action::AgentDies),
        2 => Just(Action::AgentReturns),
        1 => Just(Action::LateNews),
        3 => fault.prop_map(Action::Fault),
        1 => Just(Action::Pause),
    ];
    prop::collection::vec(action, 1..60)
}

fn name(instance: u32) -> String {
    format!("i{instance}")
}

fn perform(pool: &Pool<Model>, action: Action) {
    let model = &pool.machine;
    // Every outcome is allowed; what must hold is looked at afterwards.
    match action {
        Action::Plug(number) => drop(pool.plug(number)),
        Action::Unplug(number) => drop(pool.unplug(number)),
        Action::Spawn(place, instance) => {
            let argv = vec!["true".to_string()];
            let spawn = Spawn {
                instance: name(instance),
                partition: None,
                argv,
                env: BTreeMap::new(),
                cwd: None,
                cpus: vec![],
            };
            drop(pool.spawn(place.map_or(Place::Any, Place::Partition), spawn));
        }
        Action::Stop(instance) => drop(pool.stop(&name(instance), Duration::ZERO)),
        Action::Exits(instance) => model.exits(&name(instance)),
        Action::AgentDies => model.agent_dies(),
        Action::AgentReturns => model.agent_returns(),
        Action::LateNews => {
            let truth = model.truth.lock().unwrap();
            model.book.agent_lost();
            if truth.alive {
                model.book.agent_came();
            }
        }
        Action::Fault(fault) => model.truth.lock().unwrap().faults.push(fault),
        Action::Pause => std::thread::sleep(Duration::from_millis(3)),
    }
}

/// A pool over a model, with its keeper.
fn start() -> (Arc<Pool<Model>>, std::thread::JoinHandle<()>) {
    let book = Arc::new(Book::new(PARTITIONS));
    let model = Model { truth: Mutex::default(), book: Arc::clone(&book) };
    let layout =
        Layout { mode: Mode::Nodes, partitions: PARTITIONS, partition_bytes: BYTES, shared_bytes: BYTES };
    let pool = Arc::new(Pool::new(model, Arc::clone(&book), layout, u64::MAX, PATIENCE));
    let kept = Arc::downgrade(&pool);
    let keeper = std::thread::spawn(move || keeper::keep(&book, &kept));
    pool.machine.agent_returns();
    (pool, keeper)
}

/// The faults are over. Waits until nothing is on its way, then compares what the host believes with the truth.
fn settle(pool: &Pool<Model>) -> Result<(), TestCaseError> {
    pool.machine.truth.lock().unwrap().faults.clear();
    pool.machine.agent_returns();
    let quiet = pool.book.wait(Instant::now() + Duration::from_secs(20), |page| {
        let settled = page.require_guest().is_ok()
            && page.partitions.iter().all(|partition| {
                !partition.driven
                    && matches!(partition.state, State::Absent | State::Ready | State::InUse { .. })
            });
        settled.then_some(())
    });
    let page = pool.book.read();
    let states: Vec<_> = page.partitions.iter().map(|partition| partition.state.clone()).collect();
    prop_assert!(quiet.is_some(), "never settled: {states:?}, {:?}", page.line);
    let truth = pool.machine.truth.lock().unwrap();
    prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
    for (number, state) in (0..).zip(&states) {
        let value = |map: &BTreeMap<u32, u64>| map.get(&number).copied().unwrap_or(0);
        let whole = if *state == State::Absent { 0 } else { BYTES };
        let (requested, size, online) = (value(&truth.requested), value(&truth.size), value(&truth.online));
        prop_assert_eq!(
            (requested, size, online),
            (whole, whole, whole),
            "partition {} is {}",
            number,
            state
        );
        let lives: Vec<_> = truth
            .instances
            .iter()
            .filter(|(_, used)| **used == number)
            .map(|(name, _)| name.as_str())
            .collect();
        let believed: Vec<_> = state.instance().into_iter().collect();
        prop_assert_eq!(lives, believed, "partition {} is {}", number, state);
    }
    Ok(())
}

/// Everything can still be stopped and given back.
fn give_back(pool: &Pool<Model>) -> Result<(), TestCaseError> {
    let running: Vec<_> = pool.machine.truth.lock().unwrap().instances.keys().cloned().collect();
    for instance in running {
        prop_assert!(pool.stop(&instance, Duration::ZERO).is_ok());
    }
    for number in 0..PARTITIONS {
        let unplugged = pool.unplug(number);
        prop_assert!(matches!(unplugged, Ok(_) | Err(Error::Absent(_))), "{unplugged:?}");
    }
    settle(pool)?;
    let truth = pool.machine.truth.lock().unwrap();
    prop_assert!(truth.size.values().all(|size| *size == 0), "leaked: {:?}", truth.size);
    Ok(())
}

fn end(pool: Arc<Pool<Model>>, keeper: std::thread::JoinHandle<()>) -> Result<(), TestCaseError> {
    pool.book.ended("test".to_string());
    prop_assert!(pool.book.read().partitions.iter().all(|partition| partition.state == State::Absent));
    prop_assert_eq!(pool.plug(None), Err(Error::Ended("test".to_string())));
    drop(pool);
    keeper.join().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_after_the_other(actions in actions()) {
        let (pool, keeper) = start();
        for action in actions {
            perform(&pool, action);
            let truth = pool.machine.truth.lock().unwrap();
            prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
        }
        settle(&pool)?;
        give_back(&pool)?;
        end(pool, keeper)?;
    }

    #[test]
    fn side_by_side(first in actions(), second in actions(), third in actions()) {
        let (pool, keeper) = start();
        std::thread::scope(|scope| {
            for actions in [first, second, third] {
                let pool = &pool;
                scope.spawn(move || actions.into_iter().for_each(|action| perform(pool, action)));
            }
        });
        settle(&pool)?;
        give_back(&pool)?;
        end(pool, keeper)?;
    }
}
