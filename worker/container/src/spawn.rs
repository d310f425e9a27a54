//! The worker's side of a sandbox: starting the monitor, its messages, its end.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpSocket;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use worker_system::lock::lock;

use super::launcher::{CONNECT, EXITED, FAILED, REACHES, READY, STARTS, TERMINATE};
use super::steps::Steps;
use super::{Ending, LAUNCHER_VERB, Preparation, Spec, order, syscalls};

/// The longest that the namespaces and mounts of one sandbox may take.
const PREPARATION: Duration = Duration::from_secs(20);
/// How long the monitor may take to end everything before it is killed, which ends everything as well.
const GRACE: Duration = Duration::from_secs(3);

/// How long the worker waits for a message that was sent before the monitor ended.
const LAST_MESSAGE: Duration = Duration::from_millis(100);

/// An empty sandbox was killed, or its monitor failed.
#[derive(Debug)]
pub struct Ended;

impl std::fmt::Display for Ended {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        text.write_str("the sandbox's monitor ended at once")
    }
}

impl std::error::Error for Ended {}

/// Kept for as long as the sandbox has its network.
pub type Network = Box<dyn Send + Sync>;

type Order = (Command, oneshot::Sender<std::io::Result<Child>>);

/// Starts monitors, on a thread that lasts as long as the worker: a monitor dies with the *thread* that
/// started it.
#[derive(Clone)]
pub struct Spawner {
    orders: mpsc::Sender<Order>,
    program: PathBuf,
}

impl Spawner {
    /// `program` is `mayfly`, which becomes the monitor.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(program: PathBuf) -> Result<Spawner> {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::Builder::new().name("spawner".into()).spawn(move || {
            for (mut command, reply) in inbox {
                // If the send fails, the caller has given up; then the control socket is closed, too.
                let _ = reply.send(command.spawn());
            }
        })?;
        Ok(Spawner { orders, program })
    }

    /// Starts another program of the worker's, which ends with it if it has asked for that.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn run(&self, command: Command) -> Result<Child> {
        let (reply, answer) = oneshot::channel();
        self.orders.send((command, reply)).ok().context("the spawner has ended")?;
        Ok(answer.await.context("the spawner has ended")??)
    }

    /// Makes an empty sandbox, in which no program of a function runs.
    ///
    /// # Errors
    /// What could not be set up.
    pub async fn prepare(&self, preparation: &Preparation) -> Result<Empty> {
        let (ours, theirs) = pair()?;
        let (commands, obeyed) = pair()?;
        let (orders, order) = pair()?;
        commands.set_nonblocking(true)?;
        let (output, output_in) = pipe_pair().context("no pipe for a new sandbox")?;
        let (of_extensions, extensions_in) = pipe_pair().context("no pipe for a new sandbox")?;
        let mut command = Command::new(&self.program);
        command
            .arg(LAUNCHER_VERB)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::from(output_in))
            .stderr(Stdio::from(extensions_in));
        let child = self.run(command).await.context("cannot start a sandbox's monitor")?;
        let mut sandbox = Container {
            ended: syscalls::ending_of(&child)?,
            child,
            user: 0,
            control: None,
            commands: Arc::new(Commands(tokio::sync::Mutex::new(tokio::net::UnixStream::from_std(
                commands,
            )?))),
            ends: Mutex::default(),
            output: Some(output),
            of_extensions: Some(of_extensions),
            network: None,
            steps: Steps::default(),
            extensions: Vec::new(),
            listening: Vec::new(),
        };
        // The monitor reads it at once, so this does not block for long.
        let sent = order::send(&ours, preparation, Some(order.as_fd()), &[obeyed.as_fd()]);
        drop((order, obeyed));
        let prepared = async {
            sent.context(Ended)?;
            ours.set_nonblocking(true)?;
            sandbox.control = Some(tokio::net::UnixStream::from_std(ours)?);
            match sandbox.expected(&mut Vec::new()).await? {
                (READY, steps, _) => Ok(steps),
                _ => bail!(Ended),
            }
        };
        match prepared.await {
            Ok(steps) => {
                sandbox.steps.append(&String::from_utf8_lossy(&steps));
                Ok(Empty { sandbox, orders })
            }
            Err(error) => {
                sandbox.end().await;
                Err(error)
            }
        }
    }
}

/// A sandbox in which no program of a function has run yet. Dropping it ends it, but only [`Empty::end`]
/// waits until it has.
pub struct Empty {
    sandbox: Container,
    /// To process 1.
    orders: UnixStream,
}

impl Empty {
    /// Makes it a function's, whose runtime runs when this returns. `disk` is the mount that its /tmp is,
    /// `handed` what [`Spec::beginning`] asks for. Where the order wants a network, `connect` makes it, for
    /// the namespace of the process that it is given; what it returns lives as long as the sandbox.
    ///
    /// # Errors
    /// What could not be set up. The sandbox has ended.
    pub async fn begin(
        self,
        spec: &Spec,
        disk: Option<OwnedFd>,
        handed: &[BorrowedFd<'_>],
        connect: impl AsyncFnOnce(u32) -> Result<Network>,
    ) -> Result<(Container, TcpListener)> {
        let Empty { mut sandbox, orders } = self;
        sandbox.user = spec.user;
        let mut listening = Vec::new();
        let begun = async {
            if spec.resolvers.is_some() {
                let network = connect(sandbox.child.id()).await;
                sandbox.network = Some(network.context("no network for the sandbox")?);
            }
            // Process 1 reads it at once, so this does not block for long.
            let disk = disk.as_ref().map(AsFd::as_fd);
            order::send(&orders, spec, disk, handed).context(Ended)?;
            drop(orders);
            match sandbox.expected(&mut listening).await? {
                (STARTS, text, Some(socket)) => Ok((text, TcpListener::from(socket))),
                _ => bail!(Ended),
            }
        };
        match begun.await {
            Ok((text, listener)) => {
                let text = String::from_utf8_lossy(&text);
                let (names, steps) = text.split_once('\0').unwrap_or((&text, ""));
                sandbox.extensions = names.lines().map(String::from).collect();
                sandbox.steps.append(steps);
                sandbox.listening = listening;
                Ok((sandbox, listener))
            }
            Err(error) => {
                sandbox.end().await;
                Err(error)
            }
        }
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(self.sandbox.ended.get_ref(), PollFlags::IN)];
        !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
    }

    /// Ends it and waits until it has.
    pub async fn end(self) {
        drop(self.orders);
        self.sandbox.end().await;
    }
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().context("no socket for a new sandbox")
}

/// Our end is read without blocking, the sandbox's blocks as programs expect.
fn pipe_pair() -> std::io::Result<(pipe::Receiver, OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?, OwnedFd::from(writer)))
}

/// A running sandbox. Dropping it ends it, but only [`Container::end`] waits until it has.
pub struct Container {
    child: Child,
    ended: AsyncFd<OwnedFd>,
    control: Option<tokio::net::UnixStream>,
    commands: Arc<Commands>,
    /// Ends of processes that arrived together with an earlier one.
    ends: Mutex<VecDeque<Ending>>,
    output: Option<pipe::Receiver>,
    of_extensions: Option<pipe::Receiver>,
    network: Option<Network>,
    /// [`Spec::user`].
    pub user: u32,
    /// What was done inside, when, until the runtime was started.
    pub steps: Steps,
    /// The extensions that start with the runtime.
    pub extensions: Vec<String>,
    /// The sockets of [`Spec::listen`], in their order.
    pub listening: Vec<TcpListener>,
}

/// What the worker has a sandbox's monitor do.
pub struct Commands(tokio::sync::Mutex<tokio::net::UnixStream>);

impl Commands {
    /// Ends the runtime by SIGTERM, and the next time by SIGKILL.
    pub async fn terminate(&self) {
        let mut socket = self.0.lock().await;
        // If it fails, the sandbox has ended.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut *socket, &[TERMINATE]).await;
    }

    /// A socket that can connect to servers inside.
    ///
    /// # Errors
    /// The sandbox has ended.
    pub async fn socket(&self) -> std::io::Result<TcpSocket> {
        let mut socket = self.0.lock().await;
        tokio::io::AsyncWriteExt::write_all(&mut *socket, &[CONNECT]).await?;
        let receive = || syscalls::receive_with(socket.as_raw_fd(), &mut [0]);
        match socket.async_io(Interest::READABLE, receive).await? {
            (_, Some(made)) => Ok(TcpSocket::from_std_stream(made.into())),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }
}

/// The ends of processes that a message of process 1 names, one after the other.
fn ends(mut message: &[u8]) -> VecDeque<Ending> {
    let mut found = VecDeque::new();
    while let [EXITED, a, b, c, d, length, rest @ ..] = message {
        let (name, others) = rest.split_at((*length as usize).min(rest.len()));
        let ending = Ending::of_wait_status(i32::from_le_bytes([*a, *b, *c, *d]));
        found.push_back(match String::from_utf8_lossy(name).into_owned() {
            name if name.is_empty() => ending,
            name => Ending::Extension(name, Box::new(ending)),
        });
        message = others;
    }
    found
}

impl Container {
    /// The next message that is no listener of [`Spec::listen`]: those are appended. An error, if it says
    /// that something has failed, or does not come in time.
    async fn expected(&self, listening: &mut Vec<TcpListener>) -> Result<(u8, Vec<u8>, Option<OwnedFd>)> {
        let message = async {
            loop {
                match self.message().await? {
                    (REACHES, _, Some(socket)) => listening.push(TcpListener::from(socket)),
                    (FAILED, text, _) => bail!("{}", String::from_utf8_lossy(&text)),
                    other => return Ok(other),
                }
            }
        };
        let timed = tokio::time::timeout(PREPARATION, message).await;
        timed.unwrap_or_else(|_| Err(anyhow!("the sandbox was not ready in time")))
    }

    /// What its extensions print, stdout and stderr in one.
    pub fn take_extensions_output(&mut self) -> Option<pipe::Receiver> {
        self.of_extensions.take()
    }

    /// What the function prints, stdout and stderr in one.
    pub fn take_output(&mut self) -> pipe::Receiver {
        self.output.take().expect("the output is taken once")
    }

    /// Its monitor's commands.
    pub fn commands(&self) -> Arc<Commands> {
        self.commands.clone()
    }

    /// Waits until the runtime or an extension has ended, or all have.
    pub async fn ending(&self) -> Ending {
        if let Some(ending) = lock(&self.ends).pop_front() {
            return ending;
        }
        let message = tokio::select! {
            biased;
            message = self.message() => message,
            // The monitor has ended. Process 1 may have been frozen, and then has sent no message.
            _ = self.ended.readable() => match tokio::time::timeout(LAST_MESSAGE, self.message()).await {
                Ok(message) => message,
                Err(_) => return Ending::Killed,
            },
        };
        match message {
            Ok((EXITED, rest, _)) => {
                let mut all = ends(&[&[EXITED], &rest[..]].concat());
                let first = all.pop_front().unwrap_or(Ending::Killed);
                lock(&self.ends).extend(all);
                first
            }
            Ok((FAILED, reason, _)) => Ending::NotStarted(String::from_utf8_lossy(&reason).into_owned()),
            _ => Ending::Killed,
        }
    }

    /// Ends everything inside and waits until it has.
    pub async fn end(mut self) {
        self.control = None;
        if tokio::time::timeout(GRACE, self.ended.readable()).await.is_err() {
            // Ignored: it can only fail because the monitor has ended meanwhile.
            let _ = self.child.kill();
            let _ = self.ended.readable().await;
        }
        if let Err(error) = self.child.wait() {
            tracing::warn!("cannot wait for a sandbox's monitor: {error}");
        }
    }

    /// The next message of the monitor or of process 1: its kind, the rest, a descriptor. Kind 0: there is
    /// none.
    async fn message(&self) -> Result<(u8, Vec<u8>, Option<OwnedFd>)> {
        let Some(control) = &self.control else { return Ok((0, Vec::new(), None)) };
        let mut buffer = [0; 4096];
        let (length, descriptor) = control
            .async_io(Interest::READABLE, || syscalls::receive_with(control.as_raw_fd(), &mut buffer))
            .await
            .or_else(|error: Error| match error.kind() {
                ErrorKind::ConnectionReset => Ok((0, None)),
                _ => Err(error),
            })?;
        let text = buffer.get(1..length).unwrap_or_default();
        Ok((if length == 0 { 0 } else { buffer[0] }, text.to_vec(), descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_processes_are_read_one_by_one() {
        let one = [&[EXITED][..], &256_i32.to_le_bytes(), &[2], b"ab"].concat();
        let both = [&one[..], &[EXITED], &15_i32.to_le_bytes(), &[0]].concat();
        let extension = Ending::Extension("ab".into(), Box::new(Ending::Exit(1)));
        assert_eq!(ends(&both), [extension.clone(), Ending::Signal(15)]);
        assert_eq!(ends(&one), [extension]);
        assert!(ends(&both[..3]).is_empty());
    }
}
