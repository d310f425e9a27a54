//! What an instance in the VM prints. The guest keeps it; a task fetches it in pieces, regularly and whenever
//! it is asked to.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use vm::Error;
use vm::control::Output;

use super::Running;
use super::partition::ask;

/// How often the guest is asked for it.
const EVERY: Duration = Duration::from_millis(250);

/// Reads an instance's output in the guest from a position on.
pub type Read = fn(&vm::Vm, &str, u64) -> Result<Output, Error>;

/// Fetches one output of an instance until that ends, or this is dropped.
pub struct Fetching {
    task: JoinHandle<()>,
    orders: mpsc::Sender<oneshot::Sender<()>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fetching {
    /// Begins to write what `read` returns for this instance, which runs, to a pipe.
    pub fn new(running: &Arc<Running>, instance: &str, read: Read, pipe: pipe::Sender) -> Fetching {
        let (orders, received) = mpsc::channel(1);
        let task = tokio::spawn(fetch(running.clone(), instance.to_string(), read, pipe, received));
        Fetching { task, orders }
    }

    /// Waits until what was printed by now has arrived. False if that was all.
    pub async fn now(&self) -> bool {
        let (done, fetched) = oneshot::channel();
        let is_asked = self.orders.send(done).await.is_ok();
        let _ = fetched.await;
        is_asked
    }

    /// Waits until all has arrived, as the instance has ended.
    pub async fn rest(&self) {
        while self.now().await {}
    }
}

async fn fetch(
    running: Arc<Running>,
    instance: String,
    read: Read,
    pipe: pipe::Sender,
    mut orders: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut from = 0;
    loop {
        let order = tokio::time::timeout(EVERY, orders.recv()).await.ok().flatten();
        let wanted = instance.clone();
        let Ok(piece) = ask(&running, move |vm| read(vm, &wanted, from)).await else { return };
        if write(&pipe, &piece.bytes).await.is_err() {
            return;
        }
        from = piece.next;
        if piece.ended {
            return;
        }
        // Dropping it wakes the task that waits.
        drop(order);
    }
}

async fn write(pipe: &pipe::Sender, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match pipe.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => pipe.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
