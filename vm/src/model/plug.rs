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
        if self.layout.mode.has_nodes() {
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
        let bytes = self.layout.bytes_of(number);
        match self.layout.mode {
            Mode::Plain | Mode::Ranges => {
                self.resize_one_device(number, true, deadline, |all_bytes, part| {
                    let bytes = if part.is_some() { bytes } else { all_bytes };
                    self.plug_device(Device::All, part, all_bytes, bytes, deadline)
                })
            }
            _ => self.plug_device(Device::Partition(number), Some(number), bytes, bytes, deadline),
        }
    }

    /// Resizes the one device for a partition: `resize` gets its new size, and the partition if the guest
    /// knows where that lies.
    fn resize_one_device<T>(
        &self,
        number: PartitionNumber,
        plugged: bool,
        deadline: Instant,
        resize: impl FnOnce(u64, Option<PartitionNumber>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut device = self.one_device.lock().expect("no panic under this lock");
        let knows_partitions = self.layout.mode == Mode::Ranges;
        if knows_partitions {
            // The device's size is one number: what was requested for another partition comes first.
            if let Some(other) = device.unsettled.filter(|other| *other != number) {
                let all_bytes = self.bytes_of(&device.plugged);
                self.name_range(other, deadline)?;
                self.hypervisor.request_size(Device::All, all_bytes)?;
                self.wait_for_size(Device::All, all_bytes, deadline)?;
                device.unsettled = None;
            }
            self.name_range(number, deadline)?;
        }
        device.plugged[number.index()] = plugged;
        device.unsettled = Some(number);
        let resized = resize(self.bytes_of(&device.plugged), knows_partitions.then_some(number))?;
        device.unsettled = None;
        Ok(resized)
    }

    /// Plugs a device up to `device_bytes`, and waits until `bytes` of the partition are online.
    pub(crate) fn plug_device(
        &self,
        device: Device,
        partition: Option<PartitionNumber>,
        device_bytes: u64,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(u64, u64), Error> {
        let started = Instant::now();
        self.hypervisor.request_size(device, device_bytes)?;
        self.wait_for_size(device, device_bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::PlugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "bring memory online")?;
        Ok((device_ns, elapsed_ns(started)))
    }

    /// Mode `ranges`: the device's driver plugs and unplugs this partition next.
    fn name_range(&self, number: PartitionNumber, deadline: Instant) -> Result<(), Error> {
        self.ask_until(Operation::NameRange { partition: number }, deadline, "name a partition").map(drop)
    }

    /// Unplugs a partition. Returns the time until QEMU had all of it back.
    fn shrink(&self, number: PartitionNumber, deadline: Instant) -> Result<u64, Error> {
        match self.layout.mode {
            Mode::Static => Ok(0),
            Mode::Plain | Mode::Ranges => {
                self.resize_one_device(number, false, deadline, |all_bytes, part| {
                    let bytes = if part.is_some() { 0 } else { all_bytes };
                    self.unplug_device(Device::All, part, all_bytes, bytes, deadline)
                })
            }
            _ => self.unplug_device(Device::Partition(number), Some(number), 0, 0, deadline),
        }
    }

    /// Unplugs a device down to `device_bytes`, and waits until at most `bytes` of the partition are online.
    fn unplug_device(
        &self,
        device: Device,
        partition: Option<PartitionNumber>,
        device_bytes: u64,
        bytes: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let started = Instant::now();
        self.hypervisor.request_size(device, device_bytes)?;
        self.wait_for_size(device, device_bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::UnplugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "take memory offline")?;
        Ok(device_ns)
    }

    /// Undoes an unplug that the guest did not finish: plugs all of the partition again.
    fn replug(&self, number: PartitionNumber) -> Result<(), Error> {
        let deadline = Instant::now() + self.patience;
        self.grow(number, deadline)?;
        if self.layout.mode.has_nodes() {
            self.ask_until(Operation::CancelUnplug { partition: number }, deadline, "open a partition")?;
        }
        Ok(())
    }

    /// The size of the one device when these partitions are plugged.
    fn bytes_of(&self, plugged: &[bool]) -> u64 {
        let plugged = plugged.iter().zip(&self.layout.partition_bytes).filter(|(plugged, _)| **plugged);
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
