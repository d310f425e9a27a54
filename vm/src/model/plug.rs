//! Plug and unplug (HotMem §4.1): the host sets a device's size in QEMU, waits until the guest has followed,
//! and has the agent confirm it. The agent must confirm because a device's size changes before plugged memory
//! is online, and before the guest has finished with unplugged memory.

use std::time::{Duration, Instant};

use vm_protocol::{ErrorKind, Mode, Operation, PartitionNumber, Refusal};

use crate::base::error::Error;
use crate::model::device::Device;
use crate::model::hypervisor::Hypervisor;
use crate::model::partition::{Event, State};
use crate::model::partitions::{Partitions, elapsed_ns};
use crate::model::report::{Plugged, Unplugged};

impl<H: Hypervisor + ?Sized> Partitions<H> {
    /// Plugs the partition of that number, or the first absent one.
    pub(crate) fn plug(&self, number: Option<PartitionNumber>) -> Result<Plugged, Error> {
        let guard = self.begin(|state| {
            state.require_guest()?;
            let absent = || state.partitions.iter().find(|partition| partition.state == State::Absent);
            let number = match number {
                Some(number) => number,
                None => absent()
                    .map(|partition| partition.number)
                    .ok_or(Error::AllPlugged(self.layout.partitions()))?,
            };
            let there = state.partitions.iter().filter(|partition| partition.state != State::Absent);
            let has_bytes = self.layout.shared_bytes
                + there.map(|partition| self.layout.bytes_of(partition.number)).sum::<u64>();
            let bytes = self.layout.bytes_of(number);
            if state.partition(number)?.state == State::Absent && has_bytes + bytes > self.limit_bytes {
                return Err(Error::Limit { limit_bytes: self.limit_bytes, has_bytes });
            }
            Ok((number, Event::Plug))
        })?;
        let number = guard.number;
        let deadline = Instant::now() + self.patience;
        let outcome = match self.layout.mode {
            Mode::Static => Ok((0, 0)),
            _ => self
                .hypervisor
                .require_host_memory(&format!("partition {number}"), self.layout.bytes_of(number))
                .and_then(|()| self.grow(number, deadline)),
        };
        match outcome {
            Ok((device_ns, total_ns)) => {
                guard.apply(Event::Plugged);
                Ok(Plugged { partition: number, device_ns, total_ns })
            }
            Err(error) => {
                guard.apply(Event::PlugFailed);
                if self.shrink(number, Instant::now() + self.patience).is_ok() {
                    guard.apply(Event::Unplugged);
                }
                Err(error)
            }
        }
    }

    /// Unplugs an empty partition. A used one is refused without a request to the guest.
    pub(crate) fn unplug(&self, number: PartitionNumber) -> Result<Unplugged, Error> {
        let guard = self.begin(|state| {
            state.require_guest()?;
            state.partition(number)?;
            Ok((number, Event::Unplug))
        })?;
        let deadline = Instant::now() + self.patience;
        let host_before_bytes = self.hypervisor.resident_bytes();
        let started = Instant::now();
        if self.has_nodes() {
            match self.ask_until(
                Operation::PrepareUnplug { partition: number },
                deadline,
                "check a partition",
            ) {
                Ok(_) => {}
                Err(Error::Refused(refusal)) => {
                    if !guard.resumed || self.replug(number).is_ok() {
                        guard.apply(Event::UnplugGivenUp);
                        guard.apply_if_held(&refusal);
                    }
                    return Err(Error::refused(number, refusal));
                }
                Err(error) => return Err(error),
            }
        }
        let prepare_ns = elapsed_ns(started);
        match self.shrink(number, deadline) {
            Ok(shrink_ns) => {
                // In mode `nodes` the agent takes memory offline; elsewhere the device's driver does, within
                // `shrink_ns`.
                let offline_ns = if self.layout.mode == Mode::Nodes { prepare_ns } else { 0 };
                let device_ns = offline_ns + shrink_ns;
                let total_ns = elapsed_ns(started);
                let host_after_bytes = self.hypervisor.resident_bytes();
                guard.apply(Event::Unplugged);
                Ok(Unplugged {
                    partition: number,
                    prepare_ns,
                    device_ns,
                    total_ns,
                    host_before_bytes,
                    host_after_bytes,
                })
            }
            Err(error) if is_timeout(&error) => {
                let replugged = self.replug(number);
                if replugged.is_ok() {
                    guard.apply(Event::UnplugGivenUp);
                }
                let consequence = match replugged {
                    Ok(()) => "; it was given up and the partition is whole again",
                    Err(_) => "; it is tried again in the background",
                };
                Err(Error::TimedOut {
                    what: format!("unplugging partition {number}"),
                    after: self.patience,
                    consequence,
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Plugs a whole partition. Returns the time until QEMU had it plugged, and until the agent saw it
    /// online.
    fn grow(&self, number: PartitionNumber, deadline: Instant) -> Result<(u64, u64), Error> {
        if self.has_nodes() {
            return self.plug_device(
                Device::Partition(number),
                Some(number),
                self.layout.bytes_of(number),
                deadline,
            );
        }
        let mut parts = self.plain.lock().expect("no panic under this lock");
        parts[number.index()] = true;
        self.plug_device(Device::All, None, self.plain_bytes(&parts), deadline)
    }

    /// Plugs a device up to `bytes`.
    pub(crate) fn plug_device(
        &self,
        device: Device,
        partition: Option<PartitionNumber>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(u64, u64), Error> {
        let started = Instant::now();
        self.hypervisor.request_size(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::PlugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "bring memory online")?;
        Ok((device_ns, elapsed_ns(started)))
    }

    /// Unplugs a partition. Returns the time until QEMU had all of it back.
    fn shrink(&self, number: PartitionNumber, deadline: Instant) -> Result<u64, Error> {
        match self.layout.mode {
            Mode::Static => Ok(0),
            Mode::Plain => {
                let mut parts = self.plain.lock().expect("no panic under this lock");
                parts[number.index()] = false;
                self.unplug_device(Device::All, None, self.plain_bytes(&parts), deadline)
            }
            _ => self.unplug_device(Device::Partition(number), Some(number), 0, deadline),
        }
    }

    fn unplug_device(
        &self,
        device: Device,
        partition: Option<PartitionNumber>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let started = Instant::now();
        self.hypervisor.request_size(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::UnplugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "take memory offline")?;
        Ok(device_ns)
    }

    /// Undoes an unplug that the guest did not finish: plugs all of the partition again.
    fn replug(&self, number: PartitionNumber) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        self.grow(number, deadline)?;
        if self.has_nodes() {
            self.ask_until(Operation::CancelUnplug { partition: number }, deadline, "open a partition")?;
        }
        Ok(())
    }

    fn plain_bytes(&self, parts: &[bool]) -> u64 {
        let plugged = parts.iter().zip(&self.layout.partition_bytes).filter(|(part, _)| **part);
        self.layout.shared_bytes + plugged.map(|(_, bytes)| bytes).sum::<u64>()
    }

    /// Polls, because QEMU reports a device's size once a second at most.
    fn wait_for_size(&self, device: Device, bytes: u64, deadline: Instant) -> Result<(), Error> {
        let mut pause = Duration::from_micros(500);
        while self.hypervisor.plugged_size(device)? != bytes {
            if Instant::now() >= deadline {
                let what = format!("the guest, asked to bring {} to {} MiB,", device.id(), bytes >> 20);
                return Err(Error::TimedOut { what, after: self.patience, consequence: "" });
            }
            std::thread::sleep(pause);
            pause = (pause + pause / 8).min(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::TimedOut { .. } | Error::Refused(Refusal { kind: ErrorKind::TimedOut, .. }))
}

fn left_ms(deadline: Instant) -> u64 {
    deadline.saturating_duration_since(Instant::now()).as_millis() as u64
}
