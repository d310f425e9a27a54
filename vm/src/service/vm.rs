//! A VM: its hypervisor, its partitions, and the recovery thread.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;
use vm_protocol::{
    Answer, ErrorKind, ExitReason, InstanceInfo, Layout, Mode, Operation, PartitionNumber, Spawn,
};

use crate::base::cache;
use crate::base::error::Error;
use crate::base::settings::{HypervisorChoice, Settings};
use crate::hypervisor::accelerator::Accelerator;
use crate::hypervisor::process::{Console, Started};
use crate::hypervisor::{firecracker, qemu};
use crate::model::device::Device;
use crate::model::hypervisor::{AskError, Hypervisor};
use crate::model::partitions::{MemorySource, Partitions};
use crate::model::record::{AgentLink, Record};
use crate::model::recovery;
use crate::model::report::{GuestStatus, Memory, Plugged, Spawned, Status, Unplugged};
use crate::service::control::Output;

/// Linux patches its own code while it runs: it writes a breakpoint over the instruction, then the new
/// instruction over the breakpoint. QEMU's multi-threaded translation may still run the breakpoint after it
/// was removed; Linux then finds none registered there and panics. It patches most during boot: about one
/// boot in 40 ends so under translation. The guest is not at fault.
const STALE_BREAKPOINT: &str = "Oops: int3";

/// How long a guest has to power off.
const POWER_OFF: Duration = Duration::from_secs(10);

/// A VM that runs. Dropping it kills it.
pub struct Vm {
    name: String,
    accelerator: Accelerator,
    boot: Duration,
    partitions: Arc<Partitions<dyn Hypervisor>>,
    relay: Mutex<Option<UnixStream>>,
    console: Console,
    /// Keeps the image in the cache, if it is there.
    _image: Option<cache::Held>,
}

impl Vm {
    /// Starts a VM and waits until its agent answers and the shared partition is plugged (HotMem §4: it is
    /// the only one populated at boot).
    ///
    /// # Errors
    /// A setting is wrong, something is missing, the host has too little memory, or the guest does not come
    /// up.
    pub fn boot(settings: &Settings) -> Result<Vm, Error> {
        settings.check()?;
        // Another user's image cannot be marked as used, and this user does not remove it.
        let image = settings.image.kernel.parent().and_then(|folder| cache::hold(folder).ok());
        let mut vm = match &settings.hypervisor {
            HypervisorChoice::Qemu => Vm::boot_qemu(settings),
            HypervisorChoice::Firecracker(program) => Vm::boot_once(settings, Accelerator::Kvm, |record| {
                firecracker::boot(program, settings, record)
            }),
        }?;
        vm._image = image;
        Ok(vm)
    }

    fn boot_qemu(settings: &Settings) -> Result<Vm, Error> {
        let program = qemu::find()?;
        let accelerator = Accelerator::choose(settings.accelerator, &program, &settings.image.kernel)?;
        let once = || {
            Vm::boot_once(settings, accelerator, |record| qemu::boot(&program, settings, accelerator, record))
        };
        match once() {
            Err(Error::Ended(why)) if accelerator == Accelerator::Tcg && why.contains(STALE_BREAKPOINT) => {
                warn!("the translation ran a removed breakpoint ({why}): booting once more");
                once()
            }
            other => other,
        }
    }

    fn boot_once<H: Hypervisor + 'static>(
        settings: &Settings,
        accelerator: Accelerator,
        start: impl FnOnce(&Arc<Record>) -> Result<Started<H>, Error>,
    ) -> Result<Vm, Error> {
        let started = Instant::now();
        let record = Arc::new(Record::new(&settings.layout));
        let Started { hypervisor, relay, console } = start(&record)?;
        let limit = settings.limit_bytes();
        let partitions: Arc<Partitions<dyn Hypervisor>> = Arc::new(Partitions::new(
            hypervisor,
            Arc::clone(&record),
            settings.layout.clone(),
            limit,
            settings.patience,
        ));
        let mut vm = Vm {
            name: settings.name.clone(),
            accelerator,
            boot: Duration::ZERO,
            partitions: Arc::clone(&partitions),
            relay: Mutex::new(relay),
            console,
            _image: None,
        };
        // Under translation each partition's node and device adds part of a second to the boot.
        vm.wait_for_agent(
            started + settings.patience + Duration::from_secs(settings.layout.partitions().into()),
        )?;
        vm.boot = started.elapsed();
        let weak = Arc::downgrade(&partitions);
        std::thread::Builder::new()
            .name("vm-recovery".to_string())
            .spawn(move || recovery::run(&record, &weak))
            .map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
        vm.plug_shared(settings)?;
        partitions.hypervisor.open_addresses(&settings.layout, Instant::now() + settings.patience)?;
        Ok(vm)
    }

    fn wait_for_agent(&self, deadline: Instant) -> Result<(), Error> {
        let found = self.partitions.record.wait(deadline, |state| match &state.agent {
            AgentLink::New | AgentLink::Up(_) => Some(Ok(())),
            AgentLink::Ended(why) => Some(Err(Error::Ended(why.clone()))),
            _ => None,
        });
        match found {
            Some(outcome) => outcome.and_then(|()| self.partitions.greet()),
            None => {
                let console = self.console();
                let last = console.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
                Err(Error::GuestDown(format!(
                    "its agent did not start in time; the last on its console: {last}"
                )))
            }
        }
    }

    fn plug_shared(&self, settings: &Settings) -> Result<(), Error> {
        let bytes = settings.layout.shared_bytes;
        let device = match settings.layout.mode {
            _ if bytes == 0 => return Ok(()),
            Mode::Static => return Ok(()),
            Mode::Plain | Mode::Ranges => Device::All,
            Mode::Nodes | Mode::Hotmem => Device::Shared,
        };
        self.partitions.plug_device(device, None, bytes, bytes, Instant::now() + settings.patience).map(drop)
    }

    /// Plugs the partition of that number, or the first absent one.
    ///
    /// # Errors
    /// It is plugged already, the guest is down, or there is too little memory. A part that was plugged is
    /// unplugged again.
    pub fn plug(&self, partition: Option<PartitionNumber>) -> Result<Plugged, Error> {
        self.partitions.plug(partition)
    }

    /// Starts an instance in a partition, all its threads and children included (HotMem §4, "Handling
    /// forks").
    ///
    /// # Errors
    /// The partition is not ready, or the program cannot be started.
    pub fn spawn(&self, memory: MemorySource, spawn: Spawn) -> Result<Spawned, Error> {
        self.partitions.spawn(memory, spawn)
    }

    /// Stops an instance: SIGTERM, and SIGKILL after `grace`. Then its partition is ready for the next one,
    /// or to be unplugged.
    ///
    /// # Errors
    /// No such instance, or the guest does not stop it in time. Then the recovery thread finishes the stop.
    pub fn stop(&self, instance: &str, grace: Duration) -> Result<ExitReason, Error> {
        self.partitions.stop(instance, grace)
    }

    /// Freezes all processes of an instance, or thaws them.
    ///
    /// # Errors
    /// No such instance, or the guest does not do it.
    pub fn freeze(&self, instance: &str, frozen: bool) -> Result<(), Error> {
        let op = Operation::Freeze { instance: instance.to_string(), frozen };
        self.ask(op, "freeze an instance").map(drop)
    }

    /// Unplugs an empty partition.
    ///
    /// # Errors
    /// It is used or absent, or the guest does not unplug it in time. Then it is plugged whole again, or the
    /// recovery thread finishes the unplug.
    pub fn unplug(&self, partition: PartitionNumber) -> Result<Unplugged, Error> {
        self.partitions.unplug(partition)
    }

    /// Waits until an instance has ended; `None` at the deadline.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn wait(&self, instance: &str, deadline: Instant) -> Result<Option<ExitReason>, Error> {
        self.partitions.wait(instance, deadline)
    }

    /// The output of an instance from a byte position on.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn output(&self, instance: &str, from: u64) -> Result<Output, Error> {
        self.read_output(Operation::Output { instance: instance.to_string(), from, of_extensions: false })
    }

    pub(super) fn read_output(&self, op: Operation) -> Result<Output, Error> {
        match self.ask(op, "return an instance's output")? {
            Answer::Output { bytes, from, next, ended } => Ok(Output { bytes, from, next, ended }),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes to an instance's standard input, and then closes it if `close` is set.
    ///
    /// # Errors
    /// No such instance runs.
    pub fn input(&self, instance: &str, text: &str, close: bool) -> Result<(), Error> {
        let op = Operation::Input { instance: instance.to_string(), text: text.to_string(), close };
        self.ask_once(op, "write to an instance", || format!("writing to {instance}")).map(drop)
    }

    /// The instances that run, as the agent reports them.
    ///
    /// # Errors
    /// The guest is down.
    pub fn instances(&self) -> Result<Vec<InstanceInfo>, Error> {
        match self.ask(Operation::List, "list its instances")? {
            Answer::Instances { instances } => Ok(instances),
            other => Err(unexpected(&other)),
        }
    }

    /// Memory of the hypervisor's process and in the guest.
    ///
    /// # Errors
    /// The guest is down.
    pub fn memory(&self) -> Result<Memory, Error> {
        match self.ask(Operation::Stats, "return its memory statistics")? {
            Answer::Stats(guest) => {
                Ok(Memory { host_resident_bytes: self.partitions.hypervisor.resident_bytes(), guest })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The host's end of the relay that confined instances connect to ([`vm_protocol::relay`]); `None` from
    /// the second call on, and where the hypervisor has none.
    pub fn take_relay(&self) -> Option<UnixStream> {
        self.relay.lock().expect("no panic under this lock").take()
    }

    /// The state of everything, without a request to the guest.
    pub fn status(&self) -> Status {
        let state = self.partitions.record.read();
        Status {
            name: self.name.clone(),
            qemu_pid: self.qemu_pid(),
            accelerator: self.accelerator.to_string(),
            layout: self.partitions.layout.clone(),
            guest: state.guest_status(),
            boot_ns: self.boot.as_nanos() as u64,
            host_resident_bytes: self.partitions.hypervisor.resident_bytes(),
            partitions: state.partitions.iter().map(|partition| partition.state.clone()).collect(),
            outside: state.outside.iter().cloned().collect(),
        }
    }

    /// Mode, partitions and sizes, fixed at boot.
    pub fn layout(&self) -> &Layout {
        &self.partitions.layout
    }

    /// The hypervisor's process, for measurements.
    pub fn qemu_pid(&self) -> u32 {
        self.partitions.hypervisor.pid()
    }

    /// From the hypervisor's start to the agent's first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// The end of the guest's console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&self.console.lock().expect("no panic under this lock")).into_owned()
    }

    /// Waits until the hypervisor has ended; returns how, or `None` at the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> Option<String> {
        self.partitions.record.wait(deadline, |state| match &state.agent {
            AgentLink::Ended(why) => Some(why.clone()),
            _ => None,
        })
    }

    /// Stops all instances and powers the VM off; kills it if the guest does not power off in time.
    pub fn shut_down(&self) {
        let guest = self.partitions.record.read().guest_status();
        if let GuestStatus::Up { .. } = guest {
            let _ = self.partitions.hypervisor.ask_agent(Operation::Shutdown, POWER_OFF);
            self.wait_for_end(Instant::now() + POWER_OFF);
        }
        self.kill();
        self.wait_for_end(Instant::now() + POWER_OFF);
    }

    /// Kills the hypervisor. [`Vm::wait_for_end`] waits for its end.
    pub fn kill(&self) {
        self.partitions.hypervisor.kill();
    }

    pub(super) fn partitions(&self) -> &Partitions<dyn Hypervisor> {
        &self.partitions
    }

    /// Whether its processors are emulated.
    pub fn is_emulated(&self) -> bool {
        self.accelerator == Accelerator::Tcg
    }

    /// As [`Vm::ask`], which may send the request again to the next agent.
    pub(super) fn ask_once(
        &self,
        op: Operation,
        what: &str,
        doing: impl FnOnce() -> String,
    ) -> Result<Answer, Error> {
        let after = self.partitions.patience;
        self.partitions.hypervisor.ask_agent(op, after).map_err(|error| match error {
            AskError::Refused(refusal) => Error::Refused(refusal),
            AskError::Unsendable(why) => Error::Failed(why),
            AskError::Lost => Error::AgentLost(what.to_string()),
            AskError::TimedOut => Error::TimedOut { what: doing(), after, consequence: "" },
        })
    }

    fn ask(&self, op: Operation, what: &str) -> Result<Answer, Error> {
        self.partitions.record.read().require_guest()?;
        self.partitions.ask_until(op, Instant::now() + self.partitions.patience, what)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
        self.wait_for_end(Instant::now() + POWER_OFF);
    }
}

pub(super) fn unexpected(answer: &Answer) -> Error {
    Error::Failed(format!("the agent's answer is {answer:?}"))
}

impl Error {
    /// Whether trying the same again later may work.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Moving { .. } | Error::NoneReady | Error::GuestDown(_) => true,
            Error::HostMemory { .. } | Error::HugePages { .. } => true,
            Error::AgentLost(_) | Error::TimedOut { .. } | Error::Held { .. } => true,
            other => other.is_refusal(ErrorKind::Busy),
        }
    }
}
