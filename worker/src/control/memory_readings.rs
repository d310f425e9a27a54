//! The memory of all instances, read from the kernel at most once a second for any number of readers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::base::process_memory::Memory;
use crate::instance::Instance;
use crate::sandbox::history::INTERVAL;
use crate::sandbox::interface::{Maker, Overall};
use worker_pool::InstanceId;
use worker_system::lock::lock;

/// At most this part of the time is spent on readings.
pub(crate) const PART: u32 = 20;

/// The last reading.
#[derive(Default)]
pub(crate) struct Readings(Mutex<Option<Last>>);

struct Last {
    at: Instant,
    took: Duration,
    overall: Overall,
    memory: BTreeMap<InstanceId, Memory>,
}

impl Last {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < INTERVAL.max(self.took * PART)
    }
}

/// Memory as it was last read.
pub(crate) struct Reading {
    pub overall: Overall,
    pub instances: Vec<(Arc<Instance>, Memory)>,
}

impl Readings {
    /// These instances, each with what was last read of it; nothing yet of one that has just started.
    pub fn of(&self, maker: &dyn Maker, instances: Vec<Arc<Instance>>) -> Reading {
        let mut last = lock(&self.0);
        let reading = match last.take().filter(Last::is_fresh) {
            Some(reading) => reading,
            None => read(maker, &instances),
        };
        let memory_of = |instance: &Instance| reading.memory.get(&instance.id).copied().unwrap_or_default();
        let instances =
            instances.into_iter().map(|instance| (instance.clone(), memory_of(&instance))).collect();
        let overall = reading.overall.clone();
        *last = Some(reading);
        Reading { overall, instances }
    }
}

fn read(maker: &dyn Maker, instances: &[Arc<Instance>]) -> Last {
    let at = Instant::now();
    // First: it brings the guests' reports, which instances in VMs use.
    let overall = maker.memory();
    let memory = instances.iter().map(|instance| (instance.id, instance.memory())).collect();
    Last { at, took: at.elapsed(), overall, memory }
}
