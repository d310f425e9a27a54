//! An instance as processes of this host, while it runs.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use worker_container::cgroup::Cgroup;
use worker_container::page_out;
use worker_container::page_store::PageStores;
use worker_container::spawn::{Commands, Container};
use worker_container::steps::Steps;
use worker_pool::FunctionId;
use worker_system::lock::lock;

use crate::base::process_memory::Memory;
use crate::http;
use crate::http::heads::{Heads, LongHeads};
use crate::sandbox::accept::accept;
use crate::sandbox::interface::{BoxFuture, Connection, Ended, Handler, RUNTIME_HEADER_BYTES, Sandbox};

/// An instance as processes of this host.
pub(super) struct Instance {
    pub label: String,
    /// Until it is ended.
    pub container: tokio::sync::Mutex<Option<Container>>,
    pub commands: Arc<Commands>,
    /// The socket inside the instance's network namespace.
    pub listener: TcpListener,
    pub output: Mutex<Option<pipe::Receiver>>,
    pub of_extensions: Mutex<Option<pipe::Receiver>>,
    pub cgroup: Cgroup,
    /// Of its processes, if it is not the worker's.
    pub user: Option<u32>,
    /// Empty for the worker: only the container sees the mounts there.
    pub mount_point: PathBuf,
    pub extensions: Vec<String>,
    pub long_heads: Arc<LongHeads>,
    /// Serve the sockets inside that lead to services of the host, until it is ended.
    pub relays: Mutex<JoinSet<()>>,
    /// All stores, and the function or tenant whose store it uses; none if it shares no pages.
    pub store: Option<(Arc<PageStores>, FunctionId)>,
    /// Whether its runtime was restored from a snapshot.
    pub restored: bool,
    /// What was done when, until its runtime was started or restored.
    pub steps: Steps,
    /// The most connections to the Runtime API at once.
    pub connections: usize,
}

impl Instance {
    async fn accept(&self, handler: Handler) -> std::io::Result<()> {
        let places = Arc::new(Semaphore::new(self.connections));
        let heads = Arc::new(Heads::new(self.long_heads.clone()));
        let serve = |stream: TcpStream| {
            let _ = stream.set_nodelay(true); // answers are short and waited for
            let _ = http::close_untaken(&stream, http::UNTAKEN);
            let (handler, heads) = (handler.clone(), heads.clone());
            async move {
                http::serve_instance(stream, RUNTIME_HEADER_BYTES, &heads, |request| handler(request)).await;
            }
        };
        accept(&self.listener, places, &self.label, serve).await
    }
}

impl Sandbox for Instance {
    fn take_output(&self) -> pipe::Receiver {
        let mut output = lock(&self.output);
        output.take().expect("the output is taken once")
    }

    fn serve(&self, handler: Handler) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.accept(handler).await {
                tracing::error!("{}: {error}", self.label);
            }
        })
    }

    fn extensions(&self) -> &[String] {
        &self.extensions
    }

    fn ending(&self) -> BoxFuture<'_, Ended> {
        Box::pin(async move {
            let container = self.container.lock().await;
            match container.as_ref() {
                Some(container) => {
                    let how = container.ending().await;
                    Ended { how, out_of_memory: self.cgroup.was_out_of_memory() }
                }
                None => std::future::pending().await,
            }
        })
    }

    fn take_extensions_output(&self) -> Option<pipe::Receiver> {
        lock(&self.of_extensions).take()
    }

    fn was_restored(&self) -> bool {
        self.restored
    }

    fn steps(&self) -> Steps {
        self.steps.clone()
    }

    fn has_way_inside(&self) -> bool {
        true
    }

    fn connect(&self, port: u16) -> BoxFuture<'_, std::io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let socket = self.commands.socket().await?;
            let stream = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
            Ok(Box::new(stream) as Box<dyn Connection>)
        })
    }

    fn ends_in_steps(&self) -> bool {
        true
    }

    fn terminate(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.commands.terminate())
    }

    fn memory(&self) -> Memory {
        let anonymous = || self.cgroup.group.anonymous_bytes();
        Memory::of_processes(self.cgroup.group.processes(), self.user, anonymous)
    }

    fn counted_bytes(&self) -> Option<u64> {
        self.cgroup.group.memory_bytes()
    }

    fn peak_bytes(&self) -> Option<u64> {
        self.cgroup.peak_bytes()
    }

    fn may_do_idle_work(&self) {
        if let Some((stores, function)) = &self.store {
            stores.begin(*function);
        }
    }

    fn freeze(&self) -> bool {
        self.cgroup.group.freeze().is_ok()
    }

    fn thaw(&self) {
        // Fails only if the cgroup is removed, or where there is no freezer.
        let _ = self.cgroup.group.thaw();
    }

    fn page_out(&self) -> BoxFuture<'_, u64> {
        let (processes, user) = (self.cgroup.group.processes(), self.user);
        let work = tokio::task::spawn_blocking(move || page_out::page_out(&processes, user));
        Box::pin(async { work.await.unwrap_or(0) })
    }

    fn give_way(&self, gives_way: bool) {
        self.cgroup.give_way(gives_way);
    }

    fn end(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            // With cgroup version 2 the monitor itself is frozen, and notices nothing.
            self.thaw();
            if let Some(container) = self.container.lock().await.take() {
                container.end().await;
            }
            lock(&self.relays).abort_all();
            if let Err(error) = std::fs::remove_dir(&self.mount_point) {
                tracing::error!("cannot remove {}: {error}", self.mount_point.display());
            }
            self.cgroup.remove_when_empty().await;
        })
    }
}
