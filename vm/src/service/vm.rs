//! A VM: QEMU, the line to its agent, its partitions, and the keeper.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;
use vm_protocol::{Answer, ErrorKind, ExitReason, InstanceInfo, Layout, Mode, Operation, Spawn};

use crate::base::cache;
use crate::base::error::Error;
use crate::base::host_memory::{HostMemory, resident_bytes};
use crate::base::settings::Settings;
use crate::hypervisor::accelerator::Accelerator;
use crate::hypervisor::agent_client::Guest;
use crate::hypervisor::qemu;
use crate::model::device::Device;
use crate::model::hypervisor::{Hypervisor, News};
use crate::model::partitions::{AskError, Machine, MemorySource, Partitions};
use crate::model::record::{Line, Record};
use crate::model::recovery;
use crate::model::report::{GuestStatus, Memory, Plugged, Spawned, Status, Unplugged};
use crate::service::control::Output;

/// Linux patches its own code while it runs: a breakpoint goes over the instruction, then the new one over the
/// breakpoint. QEMU's multi-threaded translation may still run the breakpoint after it is gone; Linux then knows of none at
/// that place and dies. It patches most while it boots: about one boot in 40 ends so under translation. The guest is not at
/// fault.
const SLIP: &str = "Oops: int3";

/// QEMU's monitor closes before QEMU has ended, which takes a moment: the kernel frees the guest's memory first.
const LAST_WORDS: Duration = Duration::from_secs(60);

/// A guest that was asked to power off gets so long.
const POWER_OFF: Duration = Duration::from_secs(10);

struct Running {
    hypervisor: Box<dyn Hypervisor>,
    guest: Arc<Guest>,
}

impl Machine for Running {
    fn request(&self, device: Device, bytes: u64) -> Result<(), Error> {
        self.hypervisor.request(device, bytes)
    }

    fn size(&self, device: Device) -> Result<u64, Error> {
        self.hypervisor.size(device)
    }

    fn ask(&self, op: Operation, timeout: Duration) -> Result<Answer, AskError> {
        self.guest.ask(op, timeout)
    }

    fn require_memory(&self, what: &str, bytes: u64) -> Result<(), Error> {
        HostMemory::require(what, bytes)
    }

    fn resident_bytes(&self) -> u64 {
        resident_bytes(self.hypervisor.pid())
    }
}

/// A VM that runs. Dropping it kills it.
pub struct Vm {
    name: String,
    accelerator: Accelerator,
    boot: Duration,
    partitions: Arc<Partitions<Running>>,
    relay: Mutex<Option<UnixStream>>,
    console: Arc<Mutex<Vec<u8>>>,
    /// The image in the cache, if it is there.
    _image: Option<cache::Held>,
}

impl Vm {
    /// Starts a VM and waits until its agent answers and the shared partition is plugged (HotMem §4: it is the only one
    /// populated at boot).
    ///
    /// # Errors
    /// A setting is wrong, something is missing, the host has not enough memory, or the guest does not come up.
    pub fn boot(settings: &Settings) -> Result<Vm, Error> {
        settings.check()?;
        // An image of somebody else's cannot be marked as used; nor does anybody remove it.
        let image = settings.image.kernel.parent().and_then(|folder| cache::hold(folder).ok());
        let program = qemu::find()?;
        let accelerator = Accelerator::choose(settings.accelerator, &program, &settings.image.kernel)?;
        let mut vm = match Vm::boot_once(settings, &program, accelerator) {
            Err(Error::Ended(why)) if accelerator == Accelerator::Tcg && why.contains(SLIP) => {
                warn!("the translation ran a breakpoint that was gone ({why}): booting once more");
                Vm::boot_once(settings, &program, accelerator)
            }
            other => other,
        }?;
        vm._image = image;
        Ok(vm)
    }

    fn boot_once(settings: &Settings, program: &Path, accelerator: Accelerator) -> Result<Vm, Error> {
        let started = Instant::now();
        let record = Arc::new(Record::new(settings.layout.partitions()));
        let told = Arc::clone(&record);
        let qemu::Started { process, agent, relay, console } =
            qemu::start(program, settings, accelerator, move |why| told.ended(why))?;
        let told = Arc::clone(&record);
        let guest = Guest::new(agent, move |event| told.agent_event(event));
        let guest = Arc::new(guest.map_err(|error| Error::Failed(format!("the agent's port: {error}")))?);
        let (told, line) = (Arc::clone(&record), Arc::clone(&guest));
        let hypervisor = process.greet(move |news| match news {
            News::AgentCame => told.agent_came(),
            News::AgentLost => {
                told.agent_lost();
                line.lose_requests();
            }
        });
        let hypervisor = Box::new(hypervisor.map_err(|error| why_it_ended(&record).unwrap_or(error))?);
        let machine = Running { hypervisor, guest };
        let limit = settings.limit_bytes();
        let partitions = Arc::new(Partitions::new(
            machine,
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
            relay: Mutex::new(Some(relay)),
            console,
            _image: None,
        };
        // Each partition's node and device takes part of a second of boot under translation.
        vm.wait_for_agent(
            started + settings.patience + Duration::from_secs(settings.layout.partitions().into()),
        )?;
        vm.boot = started.elapsed();
        let kept = Arc::downgrade(&partitions);
        std::thread::Builder::new()
            .name("vm-keeper".to_string())
            .spawn(move || recovery::keep(&record, &kept))
            .map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
        vm.plug_shared(settings)?;
        Ok(vm)
    }

    fn wait_for_agent(&self, deadline: Instant) -> Result<(), Error> {
        let met = self.partitions.record.wait(deadline, |known| match &known.line {
            Line::New | Line::Up(_) => Some(Ok(())),
            Line::Ended(why) => Some(Err(Error::Ended(why.clone()))),
            _ => None,
        });
        match met {
            Some(met) => met.and_then(|()| self.partitions.greet()),
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
            Mode::Plain => Device::All,
            Mode::Nodes | Mode::Hotmem => Device::Shared,
        };
        self.partitions.plug_device(device, None, bytes, Instant::now() + settings.patience).map(drop)
    }

    /// Gives a partition memory: the one of that number, or the first absent one.
    ///
    /// # Errors
    /// It is plugged already, the guest is down, or there is not enough memory. What came is given back.
    pub fn plug(&self, partition: Option<u32>) -> Result<Plugged, Error> {
        self.partitions.plug(partition)
    }

    /// Starts an instance in a partition, all its threads and children included (HotMem §4, "Handling forks").
    ///
    /// # Errors
    /// The partition is not ready, or the program cannot be started.
    pub fn spawn(&self, memory: MemorySource, spawn: Spawn) -> Result<Spawned, Error> {
        self.partitions.spawn(memory, spawn)
    }

    /// Ends an instance: SIGTERM, and SIGKILL after `grace`. Its partition is ready for the next one, or to be unplugged.
    ///
    /// # Errors
    /// No such instance, or the guest does not do it in time. Then the keeper goes on.
    pub fn stop(&self, instance: &str, grace: Duration) -> Result<ExitReason, Error> {
        self.partitions.stop(instance, grace)
    }

    /// Stops all that runs in an instance, or lets it go on.
    ///
    /// # Errors
    /// No such instance, or the guest does not do it.
    pub fn freeze(&self, instance: &str, frozen: bool) -> Result<(), Error> {
        let op = Operation::Freeze { instance: instance.to_string(), frozen };
        self.ask(op, "freeze an instance").map(drop)
    }

    /// Takes the memory of an empty partition back.
    ///
    /// # Errors
    /// It is used, absent, or the guest does not give it back in time. Then it is whole again, or the keeper goes on.
    pub fn unplug(&self, partition: u32) -> Result<Unplugged, Error> {
        self.partitions.unplug(partition)
    }

    /// Waits until an instance has ended; `None` at the deadline.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn wait(&self, instance: &str, deadline: Instant) -> Result<Option<ExitReason>, Error> {
        self.partitions.wait(instance, deadline)
    }

    /// What an instance wrote, from a byte on.
    ///
    /// # Errors
    /// No such instance was started.
    pub fn output(&self, instance: &str, from: u64) -> Result<Output, Error> {
        match self
            .ask(Operation::Output { instance: instance.to_string(), from }, "tell an instance's output")?
        {
            Answer::Output { text, from, next, ended } => Ok(Output { text, from, next, ended }),
            other => Err(unexpected(&other)),
        }
    }

    /// Writes to an instance's standard input, and closes it if asked to.
    ///
    /// # Errors
    /// No such instance runs.
    pub fn input(&self, instance: &str, text: &str, close: bool) -> Result<(), Error> {
        let op = Operation::Input { instance: instance.to_string(), text: text.to_string(), close };
        // Not twice: the text would come twice.
        match self.partitions.machine.ask(op, self.partitions.patience) {
            Ok(_) => Ok(()),
            Err(AskError::Refused(refusal)) => Err(Error::Refused(refusal)),
            Err(AskError::Unsendable(why)) => Err(Error::Failed(why)),
            Err(AskError::Lost) => Err(Error::AgentLost("write to an instance".to_string())),
            Err(AskError::TimedOut) => Err(Error::TimedOut {
                what: format!("writing to {instance}"),
                after: self.partitions.patience,
                consequence: "",
            }),
        }
    }

    /// The instances that run, as the agent sees them.
    ///
    /// # Errors
    /// The guest is down.
    pub fn instances(&self) -> Result<Vec<InstanceInfo>, Error> {
        match self.ask(Operation::List, "list its instances")? {
            Answer::Instances { instances } => Ok(instances),
            other => Err(unexpected(&other)),
        }
    }

    /// Memory on both sides.
    ///
    /// # Errors
    /// The guest is down.
    pub fn memory(&self) -> Result<Memory, Error> {
        match self.ask(Operation::Stats, "tell its memory")? {
            Answer::Stats(guest) => {
                Ok(Memory { host_resident_bytes: resident_bytes(self.qemu_pid()), guest })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The host's end of what confined instances connect to ([`vm_protocol::relay`]); there is one, for one taker.
    pub fn take_relay(&self) -> Option<UnixStream> {
        self.relay.lock().expect("no panic under this lock").take()
    }

    /// The state of everything, without asking the guest.
    pub fn status(&self) -> Status {
        let known = self.partitions.record.read();
        Status {
            name: self.name.clone(),
            qemu_pid: self.qemu_pid(),
            accelerator: self.accelerator.to_string(),
            layout: self.partitions.layout.clone(),
            guest: known.guest_status(),
            boot_ns: self.boot.as_nanos() as u64,
            host_resident_bytes: resident_bytes(self.qemu_pid()),
            partitions: known.partitions.iter().map(|partition| partition.state.clone()).collect(),
            outside: known.outside.iter().cloned().collect(),
        }
    }

    /// What was fixed when it was made.
    pub fn layout(&self) -> &Layout {
        &self.partitions.layout
    }

    /// QEMU's process, for those who measure it.
    pub fn qemu_pid(&self) -> u32 {
        self.partitions.machine.hypervisor.pid()
    }

    /// From QEMU's start to the agent's first answer.
    pub fn boot_time(&self) -> Duration {
        self.boot
    }

    /// The last of the guest's console.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&self.console.lock().expect("no panic under this lock")).into_owned()
    }

    /// Waits until QEMU has ended; says how, or `None` at the deadline.
    pub fn wait_for_end(&self, deadline: Instant) -> Option<String> {
        self.partitions.record.wait(deadline, |known| match &known.line {
            Line::Ended(why) => Some(why.clone()),
            _ => None,
        })
    }

    /// Stops all instances and powers the VM off: politely, then not.
    pub fn shut_down(&self) {
        let guest = self.partitions.record.read().guest_status();
        if let GuestStatus::Up { .. } = guest {
            let _ = self.partitions.machine.ask(Operation::Shutdown, POWER_OFF);
            self.wait_for_end(Instant::now() + POWER_OFF);
        }
        self.kill();
        self.wait_for_end(Instant::now() + POWER_OFF);
    }

    /// Kills QEMU. [`Vm::wait_for_end`] says when it has ended.
    pub fn kill(&self) {
        self.partitions.machine.hypervisor.kill();
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

fn unexpected(answer: &Answer) -> Error {
    Error::Failed(format!("the agent's answer is {answer:?}"))
}

/// Why QEMU has ended, whose monitor is closed.
fn why_it_ended(record: &Record) -> Option<Error> {
    record.wait(Instant::now() + LAST_WORDS, |known| match &known.line {
        Line::Ended(why) => Some(Error::Ended(why.clone())),
        _ => None,
    })
}

impl Error {
    /// Whether trying the same again later may work.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Moving { .. } | Error::NoneReady | Error::HostMemory { .. } | Error::GuestDown(_) => true,
            Error::AgentLost(_) | Error::TimedOut { .. } | Error::Held { .. } => true,
            other => other.is_refusal(ErrorKind::Busy),
        }
    }
}
