//! An instance's partition: plugged before it starts, unplugged when nothing of it is left (HotMem §4.1).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vm::Error;
use vm::protocol::PartitionNumber;
use worker_page::data::Event;

use super::{PartitionedVm, Running};
use crate::sandbox::history;
use crate::sandbox::interface::Order;

/// How long a start waits for a partition that an ending instance still has.
const PLUG_PATIENCE: Duration = Duration::from_secs(30);
/// The pause before another attempt to unplug a partition.
const UNPLUG_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a blocking call to the VM on a thread that may block.
pub(super) async fn ask<T: Send + 'static>(
    running: &Arc<Running>,
    what: impl FnOnce(&vm::Vm) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let running = running.clone();
    let asked = tokio::task::spawn_blocking(move || what(&running.vm)).await;
    asked.unwrap_or_else(|_| Err(Error::Failed("the thread that asked the VM panicked".into())))
}

/// An event of this instance and its partition.
fn event(kind: &str, order: &Order, partition: PartitionNumber) -> Event {
    Event { partition: Some(partition.0.into()), ..history::of_instance(kind, &order.deployment, order.id) }
}

pub(super) async fn plug(
    vm: &PartitionedVm,
    running: &Arc<Running>,
    order: &Order,
) -> Result<PartitionNumber, Error> {
    let plugged = patiently(PLUG_PATIENCE, || ask(running, |vm| vm.plug(None))).await?;
    lock(&running.holders).insert(plugged.partition, order.id);
    vm.host.history.note(Event {
        ms: history::ms(Duration::from_nanos(plugged.total_ns)),
        device_ms: history::ms(Duration::from_nanos(plugged.device_ns)),
        bytes: Some(running.vm.layout().bytes_of(plugged.partition)),
        ..event("plug", order, plugged.partition)
    });
    Ok(plugged.partition)
}

/// Tries to plug a partition for as long as `patience`: an ending instance may still have its partition,
/// or an operation on one may not be done.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(
    patience: Duration,
    mut plug: impl FnMut() -> F,
) -> Result<T, Error> {
    let deadline = Instant::now() + patience;
    loop {
        match plug().await {
            Err(error)
                if (error.is_temporary() || matches!(error, Error::AllPlugged(_)))
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Tries to unplug until the partition is the host's again or the VM has ended. A partition that stayed
/// plugged without an instance would be lost: others plug absent ones only.
pub(super) async fn unplug(
    vm: &PartitionedVm,
    running: &Arc<Running>,
    order: &Order,
    partition: PartitionNumber,
) {
    let mut failed = false;
    loop {
        match ask(running, move |vm| vm.unplug(partition)).await {
            Ok(unplugged) => {
                return vm.host.history.note(Event {
                    ms: history::ms(Duration::from_nanos(unplugged.total_ns)),
                    device_ms: history::ms(Duration::from_nanos(unplugged.device_ns)),
                    bytes: Some(unplugged.host_before_bytes.saturating_sub(unplugged.host_after_bytes)),
                    ..event("unplug", order, partition)
                });
            }
            // The VM's recovery thread was faster.
            Err(Error::Absent(_)) if failed => return,
            Err(error) if !failed => {
                failed = true;
                vm.host
                    .history
                    .note(Event { message: Some(error.to_string()), ..event("fail", order, partition) });
            }
            Err(_) => {}
        }
        // The VM's recovery thread tries, too: after its success the next instance may plug this
        // partition.
        let is_over = || {
            let is_anothers = lock(&running.holders).get(&partition) != Some(&order.id);
            !vm.is_running(running) || vm.is_closing() || is_anothers
        };
        if is_over() {
            return;
        }
        tokio::time::sleep(UNPLUG_AGAIN_AFTER).await;
        if is_over() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a start that finds all partitions plugged for the first `times`.
    async fn plugged_after(times: u32, patience: Duration) -> (Result<u32, Error>, u32) {
        let mut asked = 0;
        let outcome = patiently(patience, || {
            asked += 1;
            std::future::ready(if asked > times { Ok(7) } else { Err(Error::AllPlugged(8)) })
        });
        (outcome.await, asked)
    }

    #[tokio::test]
    async fn a_start_waits_for_the_partition_of_an_instance_that_is_ending() {
        let (outcome, asked) = plugged_after(3, PLUG_PATIENCE).await;
        assert_eq!((outcome.unwrap(), asked), (7, 4));
    }

    #[tokio::test]
    async fn a_start_does_not_wait_for_ever() {
        let (outcome, asked) = plugged_after(u32::MAX, Duration::from_millis(60)).await;
        assert!(matches!(outcome, Err(Error::AllPlugged(8))) && asked > 1, "asked {asked} times");
    }

    #[tokio::test]
    async fn start_does_not_wait_for_a_partition_in_use() {
        let mut asked = 0;
        let outcome: Result<u32, Error> = patiently(PLUG_PATIENCE, || {
            asked += 1;
            std::future::ready(Err(Error::Failed("no".into())))
        })
        .await;
        assert!(matches!(outcome, Err(Error::Failed(_))) && asked == 1, "asked {asked} times");
    }
}
