//! One file over HTTP or HTTPS, whose hash is known.
//!
//! The proxy is that of the environment (`HTTPS_PROXY`, ...), trusted certificates are the system's.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha512};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Error};

/// The largest file.
const LIMIT: u64 = 1 << 30;
/// How often a file is asked for that a server broke off, or that it did not answer for.
const TRIES: usize = 3;
/// How long until the second request; twice as long until the third.
const PAUSE: Duration = Duration::from_millis(500);
/// How long until a line says how far it is, and then the next.
const PROGRESS: Duration = Duration::from_secs(5);

/// A file of a registry.
pub struct Wanted<'a> {
    /// Its address.
    pub url: &'a str,
    /// `Authorization`, if the registry wants it.
    pub authorization: Option<&'a str>,
    /// `sha512-` and the hash in base64, as npm's lock files have it.
    pub integrity: &'a str,
    /// What it is, in lines of the log; without any, nothing is said.
    pub label: Option<&'a str>,
}

/// What downloads.
pub fn agent() -> Agent {
    let certificates = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_recv_body(Some(Duration::from_secs(900)))
        .tls_config(certificates)
        .user_agent("mayfly")
        .build()
        .into()
}

/// An address without the password that it may have.
pub fn shown(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or(host))
        }
        None => url.into(),
    }
}

/// Writes the file to `path`.
///
/// # Errors
/// The server cannot be reached or refuses it, or it is another file.
pub fn fetch(agent: &Agent, wanted: &Wanted, path: &Path) -> Result<()> {
    let mut pause = PAUSE;
    for left in (0..TRIES).rev() {
        match attempt(agent, wanted, path) {
            Err(Failure::Passing(error)) if left > 0 => {
                tracing::info!("{}: {error:#}; once more", shown(wanted.url));
                thread::sleep(pause);
                pause *= 2;
            }
            Err(Failure::Passing(error) | Failure::Final(error)) => {
                return Err(error).with_context(|| shown(wanted.url));
            }
            Ok(()) => return Ok(()),
        }
    }
    unreachable!("the last try returns")
}

/// Whether the same request may succeed a moment later.
enum Failure {
    Passing(anyhow::Error),
    Final(anyhow::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Passing(error) | Failure::Final(error)) = self;
        write!(f, "{error:#}")
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Final(error)
    }
}

fn attempt(agent: &Agent, wanted: &Wanted, path: &Path) -> Result<(), Failure> {
    let mut request = agent.get(wanted.url);
    if let Some(authorization) = wanted.authorization {
        request = request.header("Authorization", authorization);
    }
    let mut response = request.call().map_err(|error| match error {
        Error::StatusCode(status) if status >= 500 || status == 429 => {
            Failure::Passing(anyhow::anyhow!("the server answered with status {status}"))
        }
        Error::StatusCode(status) => {
            Failure::Final(anyhow::anyhow!("the server answered with status {status}"))
        }
        // A connection that fails, of the hundreds that an installation makes, says little of the next one.
        Error::Io(_) | Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed => {
            Failure::Passing(error.into())
        }
        other => Failure::Final(other.into()),
    })?;
    let all = response.body().content_length();
    let mut body = response.body_mut().with_config().limit(LIMIT).reader();
    let mut file = File::create(path).context("cannot make a file").map_err(Failure::Final)?;
    let mut digest = Sha512::new();
    let mut buffer = vec![0; 256 << 10];
    let (mut bytes, mut said) = (0_u64, Instant::now());
    loop {
        let read = body.read(&mut buffer).map_err(|error| Failure::Passing(error.into()))?;
        if read == 0 {
            break;
        }
        digest.update(&buffer[..read]);
        let written = file.write_all(&buffer[..read]);
        written.with_context(|| format!("cannot write {}", path.display()))?;
        bytes += read as u64;
        if let Some(label) = wanted.label.filter(|_| said.elapsed() > PROGRESS) {
            let of = all.map_or(String::new(), |all| format!(" of {}", all >> 20));
            tracing::info!("{label}: {}{of} MiB", bytes >> 20);
            said = Instant::now();
        }
    }
    if all.is_some_and(|all| bytes < all) {
        return Err(Failure::Passing(anyhow::anyhow!("the server broke off")));
    }
    check(wanted.integrity, &digest.finalize())?;
    Ok(())
}

fn check(integrity: &str, digest: &[u8]) -> Result<()> {
    let Some(expected) = integrity.strip_prefix("sha512-") else {
        bail!("'{integrity}' is no hash that can be checked")
    };
    let found = BASE64.encode(digest);
    ensure!(found == expected, "it is another file: its SHA-512 is {found} in place of {expected}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// A server that gives these answers, one for each connection.
    fn server(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a.tgz", listener.local_addr().unwrap());
        let serve = move || {
            let mut heads = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
                heads.push(lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join("\n"));
                stream.write_all(answer.as_bytes()).unwrap();
            }
            heads
        };
        (url, std::thread::spawn(serve))
    }

    /// Closes the connection.
    const SILENCE: &str = "";

    fn answer(status: &str, length: usize, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    #[test]
    fn a_file_comes_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        let hash = format!("sha512-{}", BASE64.encode(Sha512::digest("hello")));
        let get = |answers: Vec<String>, integrity: &str| {
            let (url, served) = server(answers);
            let wanted = Wanted { url: &url, authorization: Some("Bearer key"), integrity, label: None };
            let outcome = fetch(&agent(), &wanted, &path).map_err(|error| format!("{error:#}"));
            (outcome, served.join().unwrap())
        };
        let whole = || answer("200 OK", 5, "hello");
        let broken = || answer("200 OK", 5, "hel");
        let (outcome, _) = get(vec![SILENCE.into(), SILENCE.into(), whole()], &hash);
        assert_eq!(outcome, Ok(()));
        let (outcome, heads) = get(vec![broken(), answer("503 Busy", 0, ""), whole()], &hash);
        assert_eq!(outcome, Ok(()));
        assert!(heads[2].to_lowercase().contains("authorization: bearer key"), "{heads:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
        let refusal = |answers, integrity: &str| get(answers, integrity).0.unwrap_err();
        assert!(refusal(vec![broken(), broken(), broken()], &hash).contains("/a.tgz: "));
        assert!(refusal(vec![SILENCE.into(); TRIES], &hash).contains("/a.tgz: "));
        assert!(refusal(vec![answer("404 Not Found", 0, "")], &hash).ends_with("status 404"));
        assert!(refusal(vec![answer("200 OK", 5, "other")], &hash).contains("it is another file"));
        assert!(refusal(vec![whole()], "md5-x").contains("no hash that can be checked"));
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(shown("https://me:secret@host/a@b"), "https://host/a@b");
        assert_eq!(shown("http://host"), "http://host");
    }
}
