//! Plug and unplug (HotMem §4.1): the host asks QEMU, waits until the guest has done it, and has the agent confirm it,
//! for a device's size changes before memory is online and before the guest has finished with memory that goes.

use std::time::{Duration, Instant};

use vm_protocol::{ErrorKind, Mode, Operation, Refusal};

use crate::base::error::Error;
use crate::model::device::Device;
use crate::model::partition::{Event, State};
use crate::model::partitions::{Machine, Partitions, elapsed_ns};
use crate::model::report::{Plugged, Unplugged};

impl<M: Machine> Partitions<M> {
    /// Gives a partition memory: the one of that number, or the first absent one.
    pub(crate) fn plug(&self, number: Option<u32>) -> Result<Plugged, Error> {
        let guard = self.begin(|known| {
            known.require_guest()?;
            let absent = || known.partitions.iter().find(|partition| partition.state == State::Absent);
            let number = match number {
                Some(number) => number,
                None => absent()
                    .map(|partition| partition.number)
                    .ok_or(Error::AllPlugged(self.layout.partitions()))?,
            };
            let there = known.partitions.iter().filter(|partition| partition.state != State::Absent);
            let has_bytes = self.layout.shared_bytes
                + there.map(|partition| self.layout.bytes_of(partition.number)).sum::<u64>();
            let bytes = self.layout.bytes_of(number);
            if known.partition(number)?.state == State::Absent && has_bytes + bytes > self.limit_bytes {
                return Err(Error::Limit { limit_bytes: self.limit_bytes, has_bytes });
            }
            Ok((number, Event::Plug))
        })?;
        let number = guard.number;
        let deadline = Instant::now() + self.patience;
        let outcome = match self.layout.mode {
            Mode::Static => Ok((0, 0)),
            _ => self
                .machine
                .require_memory(&format!("partition {number}"), self.layout.bytes_of(number))
                .and_then(|()| self.grow(number, deadline)),
        };
        match outcome {
            Ok((device_ns, total_ns)) => {
                guard.enter(Event::Plugged);
                Ok(Plugged { partition: number, device_ns, total_ns })
            }
            Err(error) => {
                guard.enter(Event::PlugFailed);
                if self.shrink(number, Instant::now() + self.patience).is_ok() {
                    guard.enter(Event::Unplugged);
                }
                Err(error)
            }
        }
    }

    /// Takes an empty partition's memory back. A used one is refused before anybody is asked.
    pub(crate) fn unplug(&self, number: u32) -> Result<Unplugged, Error> {
        let guard = self.begin(|known| {
            known.require_guest()?;
            known.partition(number)?;
            Ok((number, Event::Unplug))
        })?;
        let deadline = Instant::now() + self.patience;
        let host_before_bytes = self.machine.resident_bytes();
        let started = Instant::now();
        if self.has_nodes() {
            match self.ask_until(
                Operation::PrepareUnplug { partition: number },
                deadline,
                "check a partition",
            ) {
                Ok(_) => {}
                Err(Error::Refused(refusal)) => {
                    if !guard.resumed || self.give_back(number).is_ok() {
                        guard.enter(Event::UnplugGivenUp);
                        guard.enter_if_held(&refusal);
                    }
                    return Err(Error::refused(number, refusal));
                }
                Err(error) => return Err(error),
            }
        }
        let prepare_ns = elapsed_ns(started);
        match self.shrink(number, deadline) {
            Ok(shrink_ns) => {
                // There the agent takes memory offline, which elsewhere is part of what the device waits for.
                let offline_ns = if self.layout.mode == Mode::Nodes { prepare_ns } else { 0 };
                let device_ns = offline_ns + shrink_ns;
                let total_ns = elapsed_ns(started);
                let host_after_bytes = self.machine.resident_bytes();
                guard.enter(Event::Unplugged);
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
                let back = self.give_back(number);
                if back.is_ok() {
                    guard.enter(Event::UnplugGivenUp);
                }
                let consequence = match back {
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

    /// Plugs a partition whole. Returns the time until QEMU had it plugged, and until the agent had it online.
    fn grow(&self, number: u32, deadline: Instant) -> Result<(u64, u64), Error> {
        if self.has_nodes() {
            return self.plug_device(
                Device::Partition(number),
                Some(number),
                self.layout.bytes_of(number),
                deadline,
            );
        }
        let mut parts = self.plain.lock().expect("no panic under this lock");
        parts[number as usize] = true;
        self.plug_device(Device::All, None, self.plain_bytes(&parts), deadline)
    }

    /// Plugs a device up to `bytes`.
    pub(crate) fn plug_device(
        &self,
        device: Device,
        partition: Option<u32>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(u64, u64), Error> {
        let started = Instant::now();
        self.machine.request(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::PlugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "bring memory online")?;
        Ok((device_ns, elapsed_ns(started)))
    }

    /// Unplugs a partition. Returns the time until QEMU had it back.
    fn shrink(&self, number: u32, deadline: Instant) -> Result<u64, Error> {
        match self.layout.mode {
            Mode::Static => Ok(0),
            Mode::Plain => {
                let mut parts = self.plain.lock().expect("no panic under this lock");
                parts[number as usize] = false;
                self.unplug_device(Device::All, None, self.plain_bytes(&parts), deadline)
            }
            _ => self.unplug_device(Device::Partition(number), Some(number), 0, deadline),
        }
    }

    fn unplug_device(
        &self,
        device: Device,
        partition: Option<u32>,
        bytes: u64,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let started = Instant::now();
        self.machine.request(device, bytes)?;
        self.wait_for_size(device, bytes, deadline)?;
        let device_ns = elapsed_ns(started);
        let op = Operation::UnplugConfirm { partition, bytes, timeout_ms: left_ms(deadline) };
        self.ask_until(op, deadline, "take memory offline")?;
        Ok(device_ns)
    }

    /// The guest does not give a partition back: it gets all of it again.
    fn give_back(&self, number: u32) -> Result<(), Error> {
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

    /// QEMU tells a device's size once a second at most, so it is asked.
    fn wait_for_size(&self, device: Device, bytes: u64, deadline: Instant) -> Result<(), Error> {
        let mut pause = Duration::from_micros(500);
        while self.machine.size(device)? != bytes {
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
