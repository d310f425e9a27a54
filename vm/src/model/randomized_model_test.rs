//! Random plugs, spawns, stops, unplugs, exits, deaths and failures, from one and from three threads, against a guest
//! that is only a model: whatever happens, the host never asks for a used partition, and nothing leaks. And when QEMU
//! dies in the midst of it, everybody has an answer, and no partition is anything but absent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vm_protocol::{Layout, Mode, Spawn};

use crate::base::error::Error;
use crate::model::partition::State;
use crate::model::partitions::{MemorySource, Partitions};
use crate::model::record::Record;
use crate::model::recovery;
use crate::model::simulated_vm::{BYTES, Fault, Model};

const PARTITIONS: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(25);

/// What somebody does, or what happens.
#[derive(Debug, Clone)]
enum Action {
    Plug(Option<u32>),
    Unplug(u32),
    /// Where, where more of its memory comes from, and its name.
    Spawn(Option<u32>, Option<u32>, u32),
    Stop(u32),
    Exits(u32),
    Leaks(u32),
    LetsGo(u32),
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
        5 => (prop::option::of(partition.clone()), prop::option::weighted(0.3, partition.clone()), instance.clone())
            .prop_map(|(memory, more, name)| Action::Spawn(memory, more, name)),
        3 => instance.clone().prop_map(Action::Stop),
        2 => instance.prop_map(Action::Exits),
        2 => partition.clone().prop_map(Action::Leaks),
        1 => partition.clone().prop_map(Action::LetsGo),
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

fn spawn_of(instance: u32, more: Option<u32>) -> Spawn {
    Spawn {
        more: more.into_iter().collect(),
        instance: name(instance),
        partition: None,
        argv: vec!["true".to_string()],
        env: BTreeMap::new(),
        cwd: None,
        cpus: vec![],
        vcpus_milli: None,
        confinement: None,
    }
}

fn perform(partitions: &Partitions<Model>, action: Action) {
    let model = &partitions.machine;
    // Every outcome is allowed; what must hold is looked at afterwards.
    match action {
        Action::Plug(number) => drop(partitions.plug(number)),
        Action::Unplug(number) => drop(partitions.unplug(number)),
        Action::Spawn(memory, more, instance) => {
            drop(partitions.spawn(
                memory.map_or(MemorySource::FirstReady, MemorySource::Partition),
                spawn_of(instance, more),
            ));
        }
        Action::Stop(instance) => drop(partitions.stop(&name(instance), Duration::ZERO)),
        Action::Exits(instance) => model.exits(&name(instance)),
        Action::Leaks(partition) => model.leaks(partition),
        Action::LetsGo(partition) => model.lets_go(partition),
        Action::AgentDies => model.agent_dies(),
        Action::AgentReturns => model.agent_returns(),
        Action::LateNews => {
            let truth = model.truth.lock().unwrap();
            model.record.agent_lost();
            if truth.alive {
                model.record.agent_came();
            }
        }
        Action::Fault(fault) => model.truth.lock().unwrap().faults.push(fault),
        Action::Pause => std::thread::sleep(Duration::from_millis(3)),
    }
}

/// Partitions over a model, with its keeper.
fn start() -> (Arc<Partitions<Model>>, std::thread::JoinHandle<()>) {
    let record = Arc::new(Record::new(PARTITIONS));
    let model = Model { truth: Mutex::default(), record: Arc::clone(&record) };
    let layout =
        Layout { mode: Mode::Nodes, partition_bytes: vec![BYTES; PARTITIONS as usize], shared_bytes: BYTES };
    let partitions = Arc::new(Partitions::new(model, Arc::clone(&record), layout, u64::MAX, PATIENCE));
    let kept = Arc::downgrade(&partitions);
    let keeper = std::thread::spawn(move || recovery::keep(&record, &kept));
    partitions.machine.agent_returns();
    (partitions, keeper)
}

/// The faults are over. Waits until nothing is on its way, then compares what the host believes with the truth.
fn settle(partitions: &Partitions<Model>) -> Result<(), TestCaseError> {
    partitions.machine.truth.lock().unwrap().faults.clear();
    partitions.machine.agent_returns();
    let quiet = partitions.record.wait(Instant::now() + Duration::from_secs(20), |known| {
        let settled = known.require_guest().is_ok()
            && known.partitions.iter().all(|partition| {
                !partition.driven
                    && matches!(
                        partition.state,
                        State::Absent | State::Ready | State::InUse { .. } | State::Held { .. }
                    )
            });
        settled.then_some(())
    });
    // What is not held any more is found out by looking again.
    let until = Instant::now() + Duration::from_secs(20);
    let is_late = || {
        let held = partitions.machine.truth.lock().unwrap().held.clone();
        let known = partitions.record.read();
        known
            .partitions
            .iter()
            .any(|one| matches!(one.state, State::Held { .. }) && !held.contains(&one.number))
    };
    while is_late() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let known = partitions.record.read();
    let states: Vec<_> = known.partitions.iter().map(|partition| partition.state.clone()).collect();
    prop_assert!(quiet.is_some(), "never settled: {states:?}, {:?}", known.line);
    // The keeper may be asking about what is held: nobody may have the record and wait for the truth.
    drop(known);
    let truth = partitions.machine.truth.lock().unwrap();
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
        let held = truth.held.contains(&number);
        prop_assert!(!matches!(state, State::Held { .. }) || held, "partition {number} is not held");
        prop_assert!(!held || *state != State::Absent, "partition {number} is held, and unplugged");
        let lives: Vec<_> = truth
            .instances
            .iter()
            .filter(|(_, used)| used.contains(&number))
            .map(|(name, _)| name.as_str())
            .collect();
        let believed: Vec<_> = state.instance().into_iter().collect();
        prop_assert_eq!(lives, believed, "partition {} is {}", number, state);
    }
    Ok(())
}

/// Everything can still be stopped and given back.
fn give_back(partitions: &Partitions<Model>) -> Result<(), TestCaseError> {
    let running: Vec<_> = partitions.machine.truth.lock().unwrap().instances.keys().cloned().collect();
    for instance in running {
        prop_assert!(partitions.stop(&instance, Duration::ZERO).is_ok());
    }
    // Nobody gets what is held, and it cannot be unplugged; it can when it is not any more.
    let held = partitions.machine.truth.lock().unwrap().held.clone();
    for number in held {
        let refused = partitions.unplug(number);
        prop_assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        let refused = partitions.spawn(MemorySource::Partition(number), spawn_of(0, None));
        prop_assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        partitions.machine.lets_go(number);
    }
    for number in 0..PARTITIONS {
        let unplugged = partitions.unplug(number);
        prop_assert!(matches!(unplugged, Ok(_) | Err(Error::Absent(_))), "{unplugged:?}");
    }
    settle(partitions)?;
    let truth = partitions.machine.truth.lock().unwrap();
    prop_assert!(truth.size.values().all(|size| *size == 0), "leaked: {:?}", truth.size);
    Ok(())
}

fn end(partitions: Arc<Partitions<Model>>, keeper: std::thread::JoinHandle<()>) -> Result<(), TestCaseError> {
    partitions.record.ended("test".to_string());
    prop_assert!(
        partitions.record.read().partitions.iter().all(|partition| partition.state == State::Absent)
    );
    prop_assert_eq!(partitions.plug(None), Err(Error::Ended("test".to_string())));
    drop(partitions);
    keeper.join().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_after_the_other(actions in actions()) {
        let (partitions, keeper) = start();
        for action in actions {
            perform(&partitions, action);
            let truth = partitions.machine.truth.lock().unwrap();
            prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
        }
        settle(&partitions)?;
        give_back(&partitions)?;
        end(partitions, keeper)?;
    }

    #[test]
    fn side_by_side(first in actions(), second in actions(), third in actions()) {
        let (partitions, keeper) = start();
        std::thread::scope(|scope| {
            for actions in [first, second, third] {
                let partitions = &partitions;
                scope.spawn(move || actions.into_iter().for_each(|action| perform(partitions, action)));
            }
        });
        settle(&partitions)?;
        give_back(&partitions)?;
        end(partitions, keeper)?;
    }

    #[test]
    fn qemu_dies_in_the_midst(
        first in actions(), second in actions(), third in actions(), after_us in 0..30_000u64, slowly_us in 0..3_000u64
    ) {
        let (partitions, keeper) = start();
        std::thread::scope(|scope| {
            for actions in [first, second, third] {
                let partitions = &partitions;
                scope.spawn(move || actions.into_iter().for_each(|action| perform(partitions, action)));
            }
            std::thread::sleep(Duration::from_micros(after_us));
            partitions.machine.qemu_dies(Duration::from_micros(slowly_us));
        });
        // The keeper may have been at work.
        let at_rest = partitions.record.wait(Instant::now() + Duration::from_secs(60), |known| {
            known.partitions.iter().all(|partition| !partition.driven).then_some(())
        });
        let states: Vec<_> = partitions.record.read().partitions.iter().map(|partition| partition.state.clone()).collect();
        prop_assert!(at_rest.is_some(), "somebody is still at work: {states:?}");
        prop_assert!(states.iter().all(|state| *state == State::Absent), "{states:?}");
        let killed = Error::Ended("killed".to_string());
        prop_assert_eq!(partitions.plug(None), Err(killed.clone()));
        prop_assert_eq!(partitions.unplug(0).unwrap_err(), killed.clone());
        for instance in (0..PARTITIONS + 2).map(name) {
            prop_assert_eq!(partitions.stop(&instance, Duration::ZERO), Err(killed.clone()));
            prop_assert!(!matches!(partitions.wait(&instance, Instant::now()), Ok(None)), "{instance} is said to run");
        }
        let truth = partitions.machine.truth.lock().unwrap();
        prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
        drop(truth);
        drop(partitions);
        keeper.join().unwrap();
    }
}
