//! `GET /metrics`: one short request, one answer, bounded in bytes and time.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use prometheus_text::CONTENT_TYPE;
use rustix::event::PollFlags;

const MAX_REQUEST_BYTES: usize = 4096;

/// Where metrics are served.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A TCP address.
    Address(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Address(address) => address.fmt(f),
            Endpoint::Socket(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        if text.starts_with('/') {
            return Ok(Endpoint::Socket(text.into()));
        }
        let address: SocketAddr = text
            .parse()
            .map_err(|_| format!("`{text}` is neither ADDRESS:PORT nor a path that begins with /"))?;
        if !address.ip().is_loopback() {
            return Err(format!("{address} is not a loopback address, and the metrics are not protected"));
        }
        Ok(Endpoint::Address(address))
    }
}

/// Removes a socket that an ended process has left behind, and no other file.
pub fn remove_socket(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => std::fs::remove_file(path),
        Ok(_) => Err(std::io::Error::new(ErrorKind::AlreadyExists, "it exists and is no socket")),
        Err(_) => Ok(()),
    }
}

/// A listening endpoint.
pub enum Listener {
    /// On TCP.
    Tcp(TcpListener),
    /// On a Unix socket.
    Unix(UnixListener),
}

impl Listener {
    /// Begins to listen.
    pub fn new(endpoint: &Endpoint) -> std::io::Result<Listener> {
        Ok(match endpoint {
            Endpoint::Address(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listener::Tcp(listener)
            }
            Endpoint::Socket(path) => {
                remove_socket(path)?;
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Listener::Unix(listener)
            }
        })
    }

    /// For the event loop.
    pub fn file(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    /// The next connection, if there is one.
    pub fn accept(&self) -> Option<ScrapeConnection> {
        let stream = match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(true).ok()?;
                Stream::Tcp(stream)
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().ok()?;
                stream.set_nonblocking(true).ok()?;
                Stream::Unix(stream)
            }
        };
        Some(ScrapeConnection { stream, request: Vec::new(), answer: Vec::new(), since: Instant::now() })
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection to the endpoint.
pub struct ScrapeConnection {
    stream: Stream,
    request: Vec<u8>,
    /// The part of the answer that is not written yet.
    answer: Vec<u8>,
    /// When it was accepted.
    pub since: Instant,
}

impl ScrapeConnection {
    /// For the event loop.
    pub fn file(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    /// The event that it waits for.
    pub fn waits_for(&self) -> PollFlags {
        if self.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT }
    }

    /// Reads what has arrived, or writes as much as the socket has room for: metrics of many domains do not
    /// fit at once. True when the connection is finished.
    pub fn serve(&mut self, metrics: impl FnOnce() -> String) -> bool {
        if self.answer.is_empty() {
            let mut piece = [0; 1024];
            let read = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut piece),
                Stream::Unix(stream) => stream.read(&mut piece),
            };
            match read {
                Err(error) if is_early(&error) => return false,
                Ok(0) | Err(_) => return true,
                Ok(n) => self.request.extend(&piece[..n]),
            }
            let is_whole = self.request.windows(4).any(|end| end == b"\r\n\r\n");
            if !is_whole && self.request.len() < MAX_REQUEST_BYTES {
                return false;
            }
            self.answer = respond(&self.request, is_whole, metrics).into_bytes();
        }
        while !self.answer.is_empty() {
            let written = match &mut self.stream {
                Stream::Tcp(stream) => stream.write(&self.answer),
                Stream::Unix(stream) => stream.write(&self.answer),
            };
            match written {
                Err(error) if is_early(&error) => return false,
                Ok(0) | Err(_) => return true,
                Ok(n) => drop(self.answer.drain(..n)),
            }
        }
        true
    }
}

fn is_early(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The answer to a request that has arrived whole, for `fuzz/`.
#[cfg(fuzzing)]
pub fn answer_to(request: &[u8]) -> String {
    respond(request, request.windows(4).any(|end| end == b"\r\n\r\n"), || "metrics\n".to_owned())
}

fn respond(request: &[u8], is_whole: bool, metrics: impl FnOnce() -> String) -> String {
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (status, body) = match (is_whole, words.next(), words.next()) {
        (true, Some("GET"), Some("/metrics")) => ("200 OK", metrics()),
        (true, Some("GET"), Some("/healthz")) => ("200 OK", "ok\n".to_owned()),
        (true, Some("GET"), _) => ("404 Not Found", "GET /metrics or /healthz\n".to_owned()),
        (true, ..) => ("405 Method Not Allowed", "GET /metrics or /healthz\n".to_owned()),
        (false, ..) => ("431 Request Header Fields Too Large", String::new()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_metrics_and_refuses_other_requests() {
        let ask = |text: &str, whole| respond(text.as_bytes(), whole, || "metrics\n".into());
        assert!(ask("GET /metrics HTTP/1.1\r\n\r\n", true).ends_with("\r\n\r\nmetrics\n"));
        assert!(ask("GET / HTTP/1.1\r\n\r\n", true).starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n", true).starts_with("HTTP/1.1 405"));
        assert!(ask("GET /metrics", false).starts_with("HTTP/1.1 431"));
    }

    #[test]
    fn serves_a_long_answer_whole() {
        let folder = std::env::temp_dir().join(format!("mayfly-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let listener = Listener::new(&Endpoint::Socket(path.clone())).unwrap();
        let reader = std::thread::spawn(move || {
            let (mut stream, mut text) = (UnixStream::connect(path).unwrap(), String::new());
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream.read_to_string(&mut text).unwrap();
            text
        });
        let mut scrape = loop {
            match listener.accept() {
                Some(scrape) => break scrape,
                None => std::thread::yield_now(),
            }
        };
        while !scrape.serve(|| "metric 1\n".repeat(1 << 18)) {
            std::thread::yield_now();
        }
        drop(scrape);
        let text = reader.join().unwrap();
        assert_eq!(text.split_once("\r\n\r\n").unwrap().1.len(), 9 << 18);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn endpoint_accepts_local_addresses_only() {
        assert!("127.0.0.1:9100".parse::<Endpoint>().is_ok());
        assert!("/run/x".parse::<Endpoint>().is_ok());
        assert!("0.0.0.0:9100".parse::<Endpoint>().unwrap_err().contains("loopback"));
        assert!("nonsense".parse::<Endpoint>().is_err());
    }
}
