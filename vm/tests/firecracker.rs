//! A VM under Firecracker, or rather under a peer that answers as Firecracker does and needs no KVM
//! (`vm/tests/firecracker_peer`). `bench/vm/firecracker` is for a real one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use vm::image::Image;
use vm::protocol::{Beginning, ExitReason, Layout, Mode, PartitionNumber, Spawn};
use vm::settings::{AcceleratorChoice, Backing, HypervisorChoice};
use vm::{Error, MemorySource, Settings, State, Vm};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A VM's settings, and the folder of its files.
struct Setup {
    settings: Settings,
    folder: tempfile::TempDir,
}

impl Setup {
    /// With four partitions of 256 MiB and a shared one of 128 MiB; `words` control the peer.
    fn new(mode: Mode, words: &str) -> Setup {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let image = Image {
            kernel: file("kernel", &bzimage(b"\x7fELF and so on")),
            initrd: file("initrd", b"initrd"),
            disk: Some(file("disk", b"disk")),
            append: String::new(),
            hotmem: true,
            linux: None,
        };
        let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/firecracker_peer");
        let settings = Settings {
            name: "peer".to_string(),
            layout: Layout { mode, partition_bytes: vec![256 * MIB; 4], shared_bytes: 128 * MIB },
            boot_bytes: Some(256 * MIB),
            limit_bytes: None,
            cpus: 2,
            hypervisor: HypervisorChoice::Firecracker(PathBuf::from(peer)),
            accelerator: AcceleratorChoice::Auto,
            image,
            code: None,
            backing: Backing::Anonymous,
            reports_free_memory: true,
            append: format!("peer.log={} {words}", folder.path().join("log").display()),
            patience: PATIENCE,
        };
        Setup { settings, folder }
    }

    fn boot(&self) -> Vm {
        Vm::boot(&self.settings).unwrap()
    }

    /// Lines of the peer's log that begin with this word.
    fn log(&self, about: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line[0] == about).collect()
    }

    /// Fails if the driver's device was broken.
    fn check_device(&self) {
        let broken: Vec<_> = self.log("device").into_iter().filter(|line| line[1] == "broken").collect();
        assert!(broken.is_empty(), "the guest's device is broken: {broken:?}");
    }
}

/// A bzImage with this content, compressed as Linux compresses it.
fn bzimage(elf: &[u8]) -> Vec<u8> {
    let payload = ruzstd::encoding::compress_to_vec(elf, ruzstd::encoding::CompressionLevel::Fastest);
    let mut image = vec![0; 1024];
    image[0x1f1] = 1;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image.extend(payload);
    image
}

fn spawn(vm: &Vm, instance: &str, partition: u32, argv: &[&str]) -> Result<(), Error> {
    let spawn = Spawn {
        instance: instance.to_string(),
        partition: None,
        more: Vec::new(),
        argv: argv.iter().map(ToString::to_string).collect(),
        env: BTreeMap::new(),
        cwd: None,
        cpus: Vec::new(),
        vcpus_milli: None,
        waits_for_reader: false,
        beginning: Beginning::Command,
        confinement: None,
    };
    vm.spawn(MemorySource::Partition(PartitionNumber(partition)), spawn).map(drop)
}

fn plug(vm: &Vm, number: u32) -> Result<(), Error> {
    vm.plug(Some(PartitionNumber(number))).map(drop)
}

fn unplug(vm: &Vm, number: u32) -> Result<(), Error> {
    vm.unplug(PartitionNumber(number)).map(drop)
}

fn wait_for(vm: &Vm, what: &str, condition: impl Fn(&[State]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(&vm.status().partitions) {
        assert!(Instant::now() < deadline, "never: {what}; {:?}", vm.status());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn send(vm: &Vm, signal: Signal) {
    kill_process(Pid::from_raw(vm.qemu_pid() as i32).unwrap(), signal).unwrap();
}

#[test]
fn partitions_are_plugged_and_unplugged_in_any_order() {
    let setup = Setup::new(Mode::Ranges, "");
    let vm = setup.boot();
    assert_eq!(vm.status().accelerator, "kvm");
    // The third is far behind the end of what is plugged.
    plug(&vm, 2).unwrap();
    plug(&vm, 0).unwrap();
    let blocks: Vec<_> = setup.log("device").into_iter().filter(|line| line[1] == "plugged").collect();
    let offsets: Vec<_> = blocks.iter().rev().take(4).rev().map(|line| line[2].as_u64().unwrap()).collect();
    assert_eq!(offsets, [640, 768, 128, 256]);
    spawn(&vm, "a", 2, &["true"]).unwrap();
    assert!(matches!(unplug(&vm, 2), Err(Error::Used { .. })));
    assert_eq!(vm.stop("a", Duration::ZERO).unwrap(), ExitReason::Signal { signal: 15 });
    for number in [2, 0] {
        unplug(&vm, number).unwrap();
    }
    for number in [1, 3, 0, 2] {
        plug(&vm, number).unwrap();
    }
    for number in [3, 0, 2, 1] {
        unplug(&vm, number).unwrap();
    }
    assert_eq!(vm.status().partitions, [State::Absent, State::Absent, State::Absent, State::Absent]);
    setup.check_device();
    assert!(vm.console().contains("Linux version peer"), "{}", vm.console());
    assert!(vm.take_relay().is_none());
    vm.shut_down();
    let end = vm.wait_for_end(Instant::now()).unwrap();
    assert_eq!(end, "the guest powered off or rebooted");
}

#[test]
fn the_configuration_follows_the_settings() {
    let setup = Setup::new(Mode::Ranges, "");
    drop(setup.boot());
    let requests = setup.log("api");
    let body = |path: &str| requests.iter().find(|line| line[1] == format!("PUT {path}")).unwrap()[2].clone();
    assert_eq!(body("/machine-config"), json!({"vcpu_count": 2, "mem_size_mib": 256}));
    assert_eq!(
        body("/hotplug/memory"),
        json!({"total_size_mib": 1152, "block_size_mib": 2, "slot_size_mib": 128})
    );
    let drive = body("/drives/root");
    assert_eq!((&drive["is_read_only"], &drive["is_root_device"]), (&json!(true), &json!(false)));
    let words = body("/boot-source")["boot_args"].as_str().unwrap().to_string();
    let sizes = ["hotmem.range=268435456", "hotmem.shared_range=134217728"];
    for word in ["reboot=k", "hotmem.partitions=4", sizes[0], sizes[1]] {
        assert!(words.split(' ').any(|one| one == word), "{word} is not in {words}");
    }
    assert_eq!(requests.last().unwrap()[1], "GET /hotplug/memory");
}

#[test]
fn the_size_is_not_lowered_while_the_guest_plugs() {
    // Boot plugs the shared partition's block and the first partition's four. Four more take longer than the
    // patience.
    let mut setup = Setup::new(Mode::Ranges, "peer.slow_ms=1000 peer.quick=5");
    setup.settings.layout.partition_bytes = vec![512 * MIB; 2];
    setup.settings.patience = Duration::from_secs(3);
    let vm = setup.boot();
    assert!(matches!(plug(&vm, 1), Err(Error::TimedOut { .. })));
    wait_for(&vm, "the partition is absent", |states| states[1] == State::Absent);
    setup.check_device();
    assert_eq!(setup.log("device").last().unwrap()[1], "unplugged");
}

#[test]
fn a_stopped_firecracker_goes_on() {
    let setup = Setup::new(Mode::Ranges, "");
    let vm = setup.boot();
    plug(&vm, 0).unwrap();
    for number in 1..4 {
        send(&vm, Signal::STOP);
        std::thread::scope(|scope| {
            let plugging = scope.spawn(|| plug(&vm, number));
            let unplugging = scope.spawn(|| unplug(&vm, 0));
            std::thread::sleep(Duration::from_millis(300));
            assert!(!plugging.is_finished() && !unplugging.is_finished());
            send(&vm, Signal::CONT);
            plugging.join().unwrap().unwrap();
            unplugging.join().unwrap().unwrap();
        });
        plug(&vm, 0).unwrap();
        unplug(&vm, number).unwrap();
    }
    setup.check_device();
}

#[test]
fn an_agents_death_ends_its_instances_and_nothing_else() {
    let setup = Setup::new(Mode::Ranges, "");
    let vm = setup.boot();
    for number in 0..3 {
        plug(&vm, number).unwrap();
    }
    spawn(&vm, "a", 0, &["true"]).unwrap();
    assert!(matches!(spawn(&vm, "b", 1, &["kill", "agent"]), Err(Error::AgentLost(_) | Error::GuestDown(_))));
    wait_for(&vm, "all are ready", |states| states[..3].iter().all(|state| *state == State::Ready));
    assert_eq!(vm.wait("a", Instant::now()).unwrap(), Some(ExitReason::AgentLost));
    assert!(setup.log("agent").len() >= 2);
    spawn(&vm, "c", 0, &["true"]).unwrap();
    vm.stop("c", Duration::ZERO).unwrap();
    for number in 0..3 {
        unplug(&vm, number).unwrap();
    }
    setup.check_device();
}

#[test]
fn a_killed_firecracker_is_the_end() {
    let setup = Setup::new(Mode::Ranges, "");
    let vm = setup.boot();
    plug(&vm, 0).unwrap();
    send(&vm, Signal::KILL);
    let end = vm.wait_for_end(Instant::now() + PATIENCE).unwrap();
    assert_eq!(end, "Firecracker was killed by signal 9");
    assert!(matches!(plug(&vm, 1), Err(Error::Ended(_))));
    assert_eq!(vm.status().partitions[0], State::Absent);
}

#[test]
fn other_modes_have_one_device_or_none() {
    let setup = Setup::new(Mode::Plain, "");
    let vm = setup.boot();
    plug(&vm, 3).unwrap();
    plug(&vm, 1).unwrap();
    unplug(&vm, 3).unwrap();
    unplug(&vm, 1).unwrap();
    drop(vm);
    setup.check_device();
    let setup = Setup::new(Mode::Static, "");
    let vm = setup.boot();
    plug(&vm, 3).unwrap();
    unplug(&vm, 3).unwrap();
    assert!(!setup.log("api").iter().any(|line| line[1] == "PUT /hotplug/memory"));
}

#[test]
fn refusals_are_one_line() {
    let refusal = |setup: &Setup| {
        let line = Vm::boot(&setup.settings).err().expect("it is refused").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    };
    let line = refusal(&Setup::new(Mode::Ranges, "peer.fault=no_kvm"));
    assert!(line.starts_with("Firecracker refuses PUT /actions: Start microvm error: Kvm error: "), "{line}");
    let line = refusal(&Setup::new(Mode::Ranges, "peer.fault=old"));
    assert_eq!(
        line,
        "Firecracker refuses PUT /hotplug/memory: Invalid request method and/or path: PUT hotplug."
    );
    let mut setup = Setup::new(Mode::Ranges, "");
    setup.settings.hypervisor = HypervisorChoice::Firecracker(PathBuf::from("/no/such/program"));
    assert!(refusal(&setup).starts_with("cannot start /no/such/program: "));
    setup.settings.hypervisor = HypervisorChoice::Firecracker(PathBuf::from("/bin/false"));
    assert_eq!(refusal(&setup), "the VM has ended: Firecracker exited with code 1");
}
