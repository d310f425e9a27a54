//! One process that `mayfly profile --pid` is attached to (LLAMA §4).
//!
//! This process listens on a socket named after the other one, whose heap connects to it now and then
//! (`heap/src/observe/control.rs`). The heap receives a memory file and writes the profile into it. It stops
//! when this process requests that in the file's header, or has not updated the header for some seconds. So
//! either process survives the other's death.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lifetime::attach::{AGREED, ENDED, HAS_A_PROFILE, LEFT_AT, PHASE_AT, SEEN_AT};
use lifetime::profile::contents::Profile;
use lifetime::profile::file::now_ns;
use memmap2::MmapRaw;
use merge::channel;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_get_seals, memfd_create};
use rustix::net::SendFlags;

use crate::process;

/// How long the heap, once connected, may take to receive the file.
const ANSWER: Duration = Duration::from_secs(2);

/// An attached process.
pub struct Attachment {
    /// Its PID.
    pub pid: u32,
    every: u64,
    listener: UnixListener,
    _socket: Option<Named>,
    sampled: Option<Sampled>,
}

/// The memory file that its heap writes into.
struct Sampled {
    file: File,
    map: MmapRaw,
}

impl Attachment {
    /// Listens where the heap of process `pid` connects: in `control`, its folder for sockets, by the path in
    /// this process's file system; without one at an abstract name, in its network namespace. One object is
    /// sampled every `every` bytes.
    ///
    /// # Errors
    /// Another process listens there already, or there is no process `pid`.
    pub fn listen(pid: u32, control: Option<&Path>, every: u64) -> Result<Self> {
        let in_use = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                anyhow!("process {pid} is being profiled by another mayfly profile")
            }
            _ => anyhow!("cannot make a socket: {error}"),
        };
        let Some(folder) = control else {
            let name = SocketAddr::from_abstract_name(format!("mayfly-profile-{pid}"))?;
            let listener = UnixListener::bind_addr(&name).map_err(in_use)?;
            return Self::new(pid, every, listener, None);
        };
        // The heap uses its PID in its own namespace.
        let Some(own) = process::own_number(pid) else { bail!("there is no process {pid}") };
        let path = folder.join(own);
        if path.exists() && UnixStream::connect(&path).is_err() {
            let _ = std::fs::remove_file(&path); // left by a killed profiler
        }
        let listener = UnixListener::bind(&path).map_err(in_use)?;
        // Programs in containers may run as another user.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Self::new(pid, every, listener, Some(Named(path)))
    }

    fn new(pid: u32, every: u64, listener: UnixListener, socket: Option<Named>) -> Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { pid, every, listener, _socket: socket, sampled: None })
    }

    /// Whether the heap has agreed.
    pub fn is_sampled(&self) -> bool {
        self.sampled.is_some()
    }

    /// Accepts the heap's connection, if there is one: then the process is sampled. A second connection means
    /// that the process runs another program now (exec): the profile of the one before is returned.
    ///
    /// # Errors
    /// The heap refuses.
    pub fn accept(&mut self) -> Result<Option<Profile>> {
        let pid = self.pid;
        loop {
            let stream = match self.listener.accept() {
                // Any process may connect.
                Ok((stream, _))
                    if channel::peer(&stream).is_ok_and(|(peer, _)| peer == pid.cast_signed()) =>
                {
                    stream
                }
                Ok(_) => continue,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("cannot accept a connection"),
            };
            let before = self.read(true)?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(ANSWER))?;
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("mayfly-profile", flags).context("cannot make a memory file")?;
            let file = File::from(file);
            // The heap does not wait long, since it serves an allocation: on a busy machine it gives up, and
            // connects again.
            match send_file(&stream, &file, self.every) {
                Err(_) => return Ok(None),
                Ok(AGREED) => {
                    // Mayfly's heap has sealed the file. Without a seal it could shrink, and crash this
                    // process.
                    let seals = fcntl_get_seals(&file).context("the profile's memory file")?;
                    ensure!(
                        seals.contains(SealFlags::SHRINK),
                        "process {pid} made a profile that may shrink"
                    );
                    let map = MmapRaw::map_raw(&file).context("cannot map the profile")?;
                    ensure!(map.len() > LEFT_AT + 8, "process {pid} made a profile of {} bytes", map.len());
                    self.sampled = Some(Sampled { file, map });
                    return Ok(before);
                }
                Ok(HAS_A_PROFILE) => bail!("process {pid} is being profiled from its start"),
                Ok(_) => bail!("process {pid} cannot map the profile: is it short of memory?"),
            }
        }
    }

    /// Requests a phase from the heap, and shows it that this process is alive.
    pub fn request(&self, phase: u64) {
        let Some(sampled) = &self.sampled else { return };
        let now_ns = now_ns();
        sampled.word(PHASE_AT).store(phase, Relaxed);
        sampled.word(SEEN_AT).store(now_ns, Relaxed);
        if phase != ENDED {
            sampled.word(LEFT_AT).store(now_ns, Relaxed);
        }
    }

    /// The profile so far; `None` if the heap has not connected yet. If the process has ended, live objects
    /// were never freed.
    ///
    /// # Errors
    /// The heap wrote no valid profile.
    pub fn read(&self, has_ended: bool) -> Result<Option<Profile>> {
        let Some(sampled) = &self.sampled else { return Ok(None) };
        if has_ended {
            sampled.word(LEFT_AT).store(0, Relaxed);
        }
        let profile = Profile::of(&sampled.file, None);
        profile.map(Some).with_context(|| format!("process {} wrote no profile", self.pid))
    }
}

impl Sampled {
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the words lie in the mapping, aligned, and both processes use them as atomics. The file
        // cannot shrink.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<AtomicU64>() }
    }
}

/// A socket's file, removed when this is dropped.
struct Named(PathBuf);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sends the mean distance of samples and the file; returns the heap's answer.
fn send_file(stream: &UnixStream, file: &File, every: u64) -> std::io::Result<u64> {
    channel::send(stream, &every.to_le_bytes(), Some(file.as_fd()), SendFlags::empty())?;
    let mut answer = [0; 8];
    (&*stream).read_exact(&mut answer)?;
    Ok(u64::from_le_bytes(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::RecvFlags;
    use std::io::Write;

    #[test]
    fn refuses_a_file_that_the_process_may_shrink() {
        let pid = std::process::id();
        let mut attachment = Attachment::listen(pid, None, 1).unwrap();
        let liar = std::thread::spawn(move || {
            let name = SocketAddr::from_abstract_name(format!("mayfly-profile-{pid}")).unwrap();
            let mut stream = UnixStream::connect_addr(&name).unwrap();
            let received = channel::receive(&stream, &mut [0; 8], RecvFlags::empty(), true).unwrap();
            let file = File::from(received.file.unwrap());
            file.set_len(1 << 16).unwrap();
            stream.write_all(&AGREED.to_le_bytes()).unwrap();
        });
        let why = loop {
            match attachment.accept() {
                Err(why) => break why.to_string(),
                Ok(_) => assert!(!attachment.is_sampled(), "the file is accepted"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        liar.join().unwrap();
        assert_eq!(why, format!("process {pid} made a profile that may shrink"));
    }
}
