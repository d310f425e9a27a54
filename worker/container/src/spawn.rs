//! The worker's side of a sandbox: starting the monitor, its messages, its end.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpSocket;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use worker_system::lock::lock;

use super::launcher::{CONNECT, CONNECTS, EXITED, FAILED, LISTENS, REACHES, TERMINATE};
use super::{Ending, LAUNCHER_VERB, Spec, syscalls};

/// The longest that the namespaces and mounts of one sandbox may take.
const PREPARATION: Duration = Duration::from_secs(20);
/// How long the monitor may take to end everything before it is killed, which ends everything as well.
const GRACE: Duration = Duration::from_secs(3);

/// How long the worker waits for a message that was sent before the monitor ended.
const LAST_MESSAGE: Duration = Duration::from_millis(100);

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

    /// Starts a sandbox; the function's runtime runs when this returns. `disk` is the mount that its /tmp
    /// is, `handed` what [`Spec::beginning`] asks for. Where the order wants a network, `connect` makes it,
    /// for the namespace of the process that it is given; what it returns lives as long as the sandbox.
    ///
    /// # Errors
    /// What could not be set up.
    pub async fn spawn(
        &self,
        spec: &Spec,
        disk: Option<OwnedFd>,
        handed: &[BorrowedFd<'_>],
        connect: impl AsyncFnOnce(u32) -> Result<Network>,
    ) -> Result<(Container, std::net::TcpListener)> {
        let (ours, theirs) = UnixStream::pair().context("no socket for a new sandbox")?;
        let (commands, obeyed) = UnixStream::pair().context("no socket for a new sandbox")?;
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
            user: spec.user,
            control: None,
            commands: Arc::new(Commands(tokio::sync::Mutex::new(tokio::net::UnixStream::from_std(
                commands,
            )?))),
            ends: Mutex::default(),
            output: Some(output),
            of_extensions: Some(of_extensions),
            network: None,
            extensions: Vec::new(),
            listening: Vec::new(),
        };
        if let Err(error) = sandbox.order(&ours, spec, disk, obeyed, handed) {
            sandbox.end().await;
            return Err(error);
        }
        sandbox.control = Some(tokio::net::UnixStream::from_std(ours)?);
        if spec.resolvers.is_some()
            && let Err(error) = sandbox.connect(connect).await
        {
            sandbox.end().await;
            return Err(error);
        }
        let mut listening = Vec::new();
        let prepared = async {
            loop {
                match sandbox.message().await? {
                    (REACHES, _, Some(socket)) => listening.push(std::net::TcpListener::from(socket)),
                    other => return anyhow::Ok(other),
                }
            }
        };
        let preparation = tokio::time::timeout(PREPARATION, prepared);
        match preparation.await.unwrap_or_else(|_| Err(anyhow!("the sandbox was not ready in time"))) {
            Ok((LISTENS, names, Some(socket))) => {
                sandbox.listening = listening;
                sandbox.extensions = String::from_utf8_lossy(&names).lines().map(String::from).collect();
                Ok((sandbox, std::net::TcpListener::from(socket)))
            }
            Ok((FAILED, text, _)) => {
                sandbox.end().await;
                bail!("{}", String::from_utf8_lossy(&text))
            }
            Ok(_) => {
                sandbox.end().await;
                bail!("the sandbox's monitor ended at once")
            }
            Err(error) => {
                sandbox.end().await;
                Err(error)
            }
        }
    }
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
    /// The extensions that start with the runtime.
    pub extensions: Vec<String>,
    /// The sockets of [`Spec::listen`], in their order.
    pub listening: Vec<std::net::TcpListener>,
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
    /// Makes the network when the monitor waits for it, and has it go on.
    async fn connect(&mut self, connect: impl AsyncFnOnce(u32) -> Result<Network>) -> Result<()> {
        match self.message().await? {
            (CONNECTS, ..) => {}
            (FAILED, text, _) => bail!("{}", String::from_utf8_lossy(&text)),
            _ => bail!("the sandbox's monitor ended at once"),
        }
        self.network = Some(connect(self.child.id()).await.context("no network for the sandbox")?);
        let control = self.control.as_mut().context("the control socket is there until the end")?;
        tokio::io::AsyncWriteExt::write_all(control, &[0])
            .await
            .context("the sandbox's monitor ended at once")
    }

    /// Sends the monitor its order.
    fn order(
        &self,
        control: &UnixStream,
        spec: &Spec,
        disk: Option<OwnedFd>,
        commands: UnixStream,
        handed: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let text = serde_json::to_vec(spec)?;
        let mut order = (text.len() as u32).to_le_bytes().to_vec();
        order.extend(text);
        // The monitor reads it at once, so this does not block for long.
        let disk = disk.as_ref().map(AsRawFd::as_raw_fd);
        let with = |file: RawFd| syscalls::send_with(control.as_raw_fd(), &[0], Some(file));
        syscalls::send_with(control.as_raw_fd(), &order, disk)
            .and_then(|()| with(commands.as_raw_fd()))
            .and_then(|()| handed.iter().try_for_each(|file| with(file.as_raw_fd())))
            .context("the sandbox's monitor ended at once")?;
        Ok(control.set_nonblocking(true)?)
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
        let mut buffer = [0; 2048];
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
