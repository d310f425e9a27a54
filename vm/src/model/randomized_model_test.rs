//! Random plugs, spawns, stops, unplugs, exits, deaths and failures, from one thread and from three, against
//! a simulated VM: in every case the host never unplugs a used partition, and nothing leaks. When QEMU dies
//! in between, every call returns, and every partition is absent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vm_protocol::{Beginning, Layout, Mode, PartitionNumber, Spawn};

use crate::base::error::Error;
use crate::model::partition::State;
use crate::model::partitions::{MemorySource, Partitions};
use crate::model::record::Record;
use crate::model::recovery;
use crate::model::simulated_vm::{BYTES, Fault, SimulatedVm};

const PARTITIONS: u32 = 4;
const PATIENCE: Duration = Duration::from_millis(25);

/// A call, or something that happens in the VM.
#[derive(Debug, Clone)]
enum Action {
    Plug(Option<PartitionNumber>),
    Unplug(PartitionNumber),
    /// Partition, further partition, and name.
    Spawn(Option<PartitionNumber>, Option<PartitionNumber>, u32),
    Stop(u32),
    Exits(u32),
    LeakPages(PartitionNumber),
    FreeLeakedPages(PartitionNumber),
    AgentDies,
    AgentReturns,
    /// QEMU's events about the port arrive after the new agent's Ready.
    LatePortEvents,
    Fault(Fault),
    Pause,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let partition = (0..PARTITIONS).prop_map(PartitionNumber);
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
        2 => partition.clone().prop_map(Action::LeakPages),
        1 => partition.clone().prop_map(Action::FreeLeakedPages),
        1 => Just(Action::AgentDies),
        2 => Just(Action::AgentReturns),
        1 => Just(Action::LatePortEvents),
        3 => fault.prop_map(Action::Fault),
        1 => Just(Action::Pause),
    ];
    prop::collection::vec(action, 1..60)
}

fn name(instance: u32) -> String {
    format!("i{instance}")
}

fn spawn_of(instance: u32, more: Option<PartitionNumber>) -> Spawn {
    Spawn {
        more: more.into_iter().collect(),
        instance: name(instance),
        partition: None,
        argv: vec!["true".to_string()],
        env: BTreeMap::new(),
        cwd: None,
        cpus: vec![],
        vcpus_milli: None,
        waits_for_reader: false,
        beginning: Beginning::Command,
        confinement: None,
    }
}

fn perform(partitions: &Partitions<SimulatedVm>, action: Action) {
    let vm = &partitions.hypervisor;
    // Every outcome is allowed; the invariants are checked afterwards.
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
        Action::Exits(instance) => vm.exits(&name(instance)),
        Action::LeakPages(partition) => vm.leak_pages(partition),
        Action::FreeLeakedPages(partition) => vm.free_leaked_pages(partition),
        Action::AgentDies => vm.agent_dies(),
        Action::AgentReturns => vm.agent_returns(),
        Action::LatePortEvents => {
            let truth = vm.truth.lock().unwrap();
            vm.record.agent_lost();
            if truth.alive {
                vm.record.agent_connected();
            }
        }
        Action::Fault(fault) => vm.truth.lock().unwrap().faults.push(fault),
        Action::Pause => std::thread::sleep(Duration::from_millis(3)),
    }
}

/// A device for each partition, or one for all.
fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Nodes), Just(Mode::Ranges)]
}

/// Partitions of a simulated VM, with their recovery thread.
fn start(mode: Mode) -> (Arc<Partitions<SimulatedVm>>, std::thread::JoinHandle<()>) {
    let layout = Layout { mode, partition_bytes: vec![BYTES; PARTITIONS as usize], shared_bytes: BYTES };
    let record = Arc::new(Record::new(&layout));
    let vm = SimulatedVm { truth: Mutex::default(), record: Arc::clone(&record) };
    let partitions = Arc::new(Partitions::new(vm, Arc::clone(&record), layout, u64::MAX, PATIENCE));
    let weak = Arc::downgrade(&partitions);
    let recovery = std::thread::spawn(move || recovery::run(&record, &weak));
    partitions.hypervisor.agent_returns();
    (partitions, recovery)
}

/// Ends the faults, waits until no partition is in transition, then compares the host's record with the true
/// state.
fn settle(partitions: &Partitions<SimulatedVm>) -> Result<(), TestCaseError> {
    partitions.hypervisor.truth.lock().unwrap().faults.clear();
    partitions.hypervisor.agent_returns();
    let quiet = partitions.record.wait(Instant::now() + Duration::from_secs(20), |state| {
        let settled = state.require_guest().is_ok()
            && state.partitions.iter().all(|partition| {
                !partition.driven
                    && matches!(
                        partition.state,
                        State::Absent | State::Ready | State::InUse { .. } | State::Held { .. }
                    )
            });
        settled.then_some(())
    });
    // The recovery thread finds out about released partitions by polling.
    let until = Instant::now() + Duration::from_secs(20);
    let is_late = || {
        let held = partitions.hypervisor.truth.lock().unwrap().held.clone();
        let state = partitions.record.read();
        state
            .partitions
            .iter()
            .any(|one| matches!(one.state, State::Held { .. }) && !held.contains(&one.number))
    };
    while is_late() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let state = partitions.record.read();
    let states: Vec<_> = state.partitions.iter().map(|partition| partition.state.clone()).collect();
    prop_assert!(quiet.is_some(), "never settled: {states:?}, {:?}", state.agent);
    // The recovery thread may be asking about held partitions: do not hold the record while waiting for the
    // truth.
    drop(state);
    let truth = partitions.hypervisor.truth.lock().unwrap();
    prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
    for (number, state) in (0..).map(PartitionNumber).zip(&states) {
        let value = |map: &BTreeMap<PartitionNumber, u64>| map.get(&number).copied().unwrap_or(0);
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

/// Checks that every instance can still be stopped and every partition unplugged.
fn stop_and_unplug_all(partitions: &Partitions<SimulatedVm>) -> Result<(), TestCaseError> {
    let running: Vec<_> = partitions.hypervisor.truth.lock().unwrap().instances.keys().cloned().collect();
    for instance in running {
        prop_assert!(partitions.stop(&instance, Duration::ZERO).is_ok());
    }
    // A held partition takes no instance and cannot be unplugged; once released, it can.
    let held = partitions.hypervisor.truth.lock().unwrap().held.clone();
    for number in held {
        let refused = partitions.unplug(number);
        prop_assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        let refused = partitions.spawn(MemorySource::Partition(number), spawn_of(0, None));
        prop_assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        partitions.hypervisor.free_leaked_pages(number);
    }
    for number in (0..PARTITIONS).map(PartitionNumber) {
        let unplugged = partitions.unplug(number);
        prop_assert!(matches!(unplugged, Ok(_) | Err(Error::Absent(_))), "{unplugged:?}");
    }
    settle(partitions)?;
    let truth = partitions.hypervisor.truth.lock().unwrap();
    prop_assert!(truth.size.values().all(|size| *size == 0), "leaked: {:?}", truth.size);
    Ok(())
}

fn end(
    partitions: Arc<Partitions<SimulatedVm>>,
    recovery: std::thread::JoinHandle<()>,
) -> Result<(), TestCaseError> {
    partitions.record.ended("test".to_string());
    prop_assert!(
        partitions.record.read().partitions.iter().all(|partition| partition.state == State::Absent)
    );
    prop_assert_eq!(partitions.plug(None), Err(Error::Ended("test".to_string())));
    drop(partitions);
    recovery.join().unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sequential_operations_leak_nothing(mode in modes(), actions in actions()) {
        let (partitions, recovery) = start(mode);
        for action in actions {
            perform(&partitions, action);
            let truth = partitions.hypervisor.truth.lock().unwrap();
            prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
        }
        settle(&partitions)?;
        stop_and_unplug_all(&partitions)?;
        end(partitions, recovery)?;
    }

    #[test]
    fn concurrent_operations_leak_nothing(
        mode in modes(), first in actions(), second in actions(), third in actions()
    ) {
        let (partitions, recovery) = start(mode);
        std::thread::scope(|scope| {
            for actions in [first, second, third] {
                let partitions = &partitions;
                scope.spawn(move || actions.into_iter().for_each(|action| perform(partitions, action)));
            }
        });
        settle(&partitions)?;
        stop_and_unplug_all(&partitions)?;
        end(partitions, recovery)?;
    }

    #[test]
    fn every_call_returns_when_qemu_dies(
        mode in modes(), first in actions(), second in actions(), third in actions(),
        after_us in 0..30_000u64, slowly_us in 0..3_000u64
    ) {
        let (partitions, recovery) = start(mode);
        std::thread::scope(|scope| {
            for actions in [first, second, third] {
                let partitions = &partitions;
                scope.spawn(move || actions.into_iter().for_each(|action| perform(partitions, action)));
            }
            std::thread::sleep(Duration::from_micros(after_us));
            partitions.hypervisor.qemu_dies(Duration::from_micros(slowly_us));
        });
        // The recovery thread may still operate on a partition.
        let at_rest = partitions.record.wait(Instant::now() + Duration::from_secs(60), |state| {
            state.partitions.iter().all(|partition| !partition.driven).then_some(())
        });
        let states: Vec<_> = partitions.record.read().partitions.iter().map(|partition| partition.state.clone()).collect();
        prop_assert!(at_rest.is_some(), "a thread still operates on a partition: {states:?}");
        prop_assert!(states.iter().all(|state| *state == State::Absent), "{states:?}");
        let killed = Error::Ended("killed".to_string());
        prop_assert_eq!(partitions.plug(None), Err(killed.clone()));
        prop_assert_eq!(partitions.unplug(PartitionNumber(0)).unwrap_err(), killed.clone());
        for instance in (0..PARTITIONS + 2).map(name) {
            prop_assert_eq!(partitions.stop(&instance, Duration::ZERO), Err(killed.clone()));
            prop_assert!(!matches!(partitions.wait(&instance, Instant::now()), Ok(None)), "{instance} is reported to run");
        }
        let truth = partitions.hypervisor.truth.lock().unwrap();
        prop_assert!(truth.wrong.is_empty(), "{:?}", truth.wrong);
        drop(truth);
        drop(partitions);
        recovery.join().unwrap();
    }
}
