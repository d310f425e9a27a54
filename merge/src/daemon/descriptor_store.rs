//! Segments that outlive the daemon: systemd's file descriptor store keeps them over a restart, SIGKILL
//! included. Each store also leaves a record there, a sealed file with its identity and secret, so that
//! clients recognise it. The restarted daemon hashes the contents again, so it needs nothing else.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::cmsg_space;
use rustix::io::{IoSlice, Result};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sendmsg_addr,
};

use crate::base::page::SECRET_BYTES;
use crate::base::segment;
use crate::daemon::trust_domain::TrustDomain;

const RECORD: &str = "mayfly-store";
const SEGMENT: &str = "mayfly-segment";

/// The connection to systemd, if it has started the daemon.
#[derive(Default)]
pub struct DescriptorStore(Option<(OwnedFd, SocketAddrUnix)>);

impl DescriptorStore {
    /// At the socket in `NOTIFY_SOCKET`, if it is set.
    pub fn from_environment() -> DescriptorStore {
        std::env::var_os("NOTIFY_SOCKET")
            .map_or_else(DescriptorStore::default, |path| DescriptorStore::at(Path::new(&path)))
    }

    /// At this socket; a path that begins with @ is abstract.
    pub fn at(path: &Path) -> DescriptorStore {
        let bytes = path.as_os_str().as_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name),
            None => SocketAddrUnix::new(path),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        DescriptorStore(socket.ok().zip(address.ok()))
    }

    fn notify(&self, text: &str, file: Option<BorrowedFd<'_>>) {
        let Some((socket, address)) = &self.0 else { return };
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let files;
        if let Some(file) = file {
            files = [file];
            beside.push(SendAncillaryMessage::ScmRights(&files));
        }
        let text = [IoSlice::new(text.as_bytes())];
        if let Err(errno) = sendmsg_addr(socket, address, &text, &mut beside, SendFlags::NOSIGNAL) {
            // Clients offer again what systemd did not keep.
            tracing::debug!("cannot notify the service manager: {errno}");
        }
    }

    /// Reports that the daemon serves.
    pub fn ready(&self) {
        self.notify("READY=1", None);
    }

    /// Hands a store's record to systemd.
    pub fn keep_record(&self, record: &StoreRecord) {
        if self.0.is_some()
            && let Ok(file) = record.to_file()
        {
            let name = format!("{RECORD}-{:016x}", record.identity);
            self.notify(&format!("FDSTORE=1\nFDNAME={name}"), Some(file.as_fd()));
        }
    }

    /// Hands a segment to systemd.
    pub fn keep_segment(&self, identity: u64, segment: u32, file: &OwnedFd) {
        self.notify(&format!("FDSTORE=1\nFDNAME={SEGMENT}-{identity:016x}-{segment}"), Some(file.as_fd()));
    }

    /// Removes a segment from systemd's store.
    pub fn drop_segment(&self, identity: u64, segment: u32) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={SEGMENT}-{identity:016x}-{segment}"), None);
    }

    /// Removes a record from systemd's store.
    pub fn drop_record(&self, identity: u64) {
        self.notify(&format!("FDSTOREREMOVE=1\nFDNAME={RECORD}-{identity:016x}"), None);
    }
}

/// The identity of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRecord {
    /// Its trust domain.
    pub domain: TrustDomain,
    /// See [`crate::base::protocol::Answer::Welcome`].
    pub identity: u64,
    /// The same.
    pub secret: [u8; SECRET_BYTES],
}

impl StoreRecord {
    fn to_file(&self) -> Result<OwnedFd> {
        let (kind, user, path) = match &self.domain {
            TrustDomain::User(user) => (1u32, *user, ""),
            TrustDomain::Cgroup(user, path) => (2, *user, &path[..]),
            TrustDomain::Everyone => (3, 0, ""),
        };
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(user.to_le_bytes());
        bytes.extend(self.identity.to_le_bytes());
        bytes.extend(self.secret);
        bytes.extend(path.as_bytes());
        let file = segment::create()?;
        rustix::io::pwrite(&file, &bytes, 0)?;
        segment::seal(&file)?;
        Ok(file)
    }

    fn from_file(file: &OwnedFd) -> Option<StoreRecord> {
        let mut bytes = [0; 8192];
        let length = rustix::io::pread(file, &mut bytes, 0).ok()?;
        let (kind, rest) = bytes[..length].split_first_chunk()?;
        let (user, rest) = rest.split_first_chunk()?;
        let (identity, rest) = rest.split_first_chunk()?;
        let (secret, path) = rest.split_first_chunk()?;
        let user = u32::from_le_bytes(*user);
        let domain = match u32::from_le_bytes(*kind) {
            1 => TrustDomain::User(user),
            2 => TrustDomain::Cgroup(user, String::from_utf8(path.to_vec()).ok()?),
            3 => TrustDomain::Everyone,
            _ => return None,
        };
        Some(StoreRecord { domain, identity: u64::from_le_bytes(*identity), secret: *secret })
    }
}

/// A store that systemd has kept: its record, its segments by number.
pub type SavedStore = (StoreRecord, BTreeMap<u32, OwnedFd>);

/// The stores that systemd has kept for this process.
pub fn saved_stores() -> Vec<SavedStore> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<usize>().ok());
    let for_us = number("LISTEN_PID") == Some(std::process::id() as usize);
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let files = number("LISTEN_FDS").filter(|_| for_us).unwrap_or(0);
    let named = names.split(':').take(files).enumerate().map(|(i, name)| {
        // SAFETY: systemd passes so many descriptors from 3 on, and no other code has taken them.
        let file = unsafe { OwnedFd::from_raw_fd(3 + i as i32) };
        // SAFETY: a flag of our own descriptor.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        (name.to_owned(), file)
    });
    sort(named)
}

fn sort(named: impl Iterator<Item = (String, OwnedFd)>) -> Vec<SavedStore> {
    let mut stores: BTreeMap<u64, (Option<StoreRecord>, BTreeMap<u32, OwnedFd>)> = BTreeMap::new();
    for (name, file) in named {
        let mut parts = name.rsplitn(3, '-').collect::<Vec<_>>();
        parts.reverse();
        match parts[..] {
            ["mayfly", "store", identity] => {
                if let Some(record) = StoreRecord::from_file(&file)
                    && format!("{:016x}", record.identity) == identity
                {
                    let store: &mut (_, _) = stores.entry(record.identity).or_default();
                    store.0 = Some(record);
                }
            }
            [SEGMENT, identity, number] => {
                if let (Ok(identity), Ok(number)) = (u64::from_str_radix(identity, 16), number.parse()) {
                    stores.entry(identity).or_default().1.insert(number, file);
                }
            }
            _ => {}
        }
    }
    stores.into_values().filter_map(|(record, segments)| Some((record?, segments))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::channel;

    #[test]
    fn record_and_segments_round_trip() {
        let folder = std::env::temp_dir().join(format!("mayfly-descriptors-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let manager = std::os::unix::net::UnixDatagram::bind(folder.join("notify")).unwrap();
        let descriptors = DescriptorStore::at(&folder.join("notify"));
        let domain = TrustDomain::Cgroup(7, "/a/b".into());
        let record = StoreRecord { domain, identity: 0xAB, secret: [9; SECRET_BYTES] };
        let page = segment::create().unwrap();
        descriptors.keep_record(&record);
        descriptors.keep_segment(0xAB, 12, &page);
        descriptors.keep_segment(0xCD, 1, &page);
        descriptors.drop_segment(0xAB, 12);
        let mut named = Vec::new();
        for _ in 0..3 {
            let mut buffer = [0; 256];
            let got = channel::receive(&manager, &mut buffer, rustix::net::RecvFlags::empty(), true).unwrap();
            let text = String::from_utf8_lossy(&buffer[..got.bytes]).into_owned();
            let name = text.strip_prefix("FDSTORE=1\nFDNAME=").unwrap().to_owned();
            named.push((name, got.file.unwrap()));
        }
        let mut buffer = [0; 256];
        let bytes = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..bytes], b"FDSTOREREMOVE=1\nFDNAME=mayfly-segment-00000000000000ab-12");
        let stores = sort(named.into_iter());
        assert_eq!(stores.len(), 1, "a segment without its store's record is of no use");
        assert_eq!(stores[0].0, record);
        assert_eq!(stores[0].1.keys().copied().collect::<Vec<_>>(), [12]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
