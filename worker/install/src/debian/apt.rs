//! apt in a folder of its own: it reads the index of any suite, checks its signatures with Debian's keys, and
//! downloads packages. The host's own packages, lists and caches are neither read nor changed.

use std::env;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::PROCESSOR;
use crate::download::shown;

/// Where packages come from unless apt or the operator names another place.
const PUBLIC: &str = "http://deb.debian.org/debian";
/// `MIRROR [MIRROR OF SECURITY UPDATES]`.
const VARIABLE: &str = "MAYFLY_DEBIAN_MIRROR";
/// Keys of all suites, of the package debian-archive-keyring, by the names of older and newer releases.
const KEYS: [&str; 2] = ["debian-archive-keyring.gpg", "debian-archive-keyring.pgp"];
/// Settings of the host's apt that say how it reaches the network.
const OF_HOST: [&str; 6] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::Retries",
    "Acquire::ForceIPv",
    "Acquire::Proxy-Auto-Detect",
    "Acquire::Check-Valid-Until",
];
/// Suites that receive updates without archives for them.
const ROLLING: [&str; 3] = ["forky", "testing", "sid"];

/// apt for one suite. While this exists, no other worker uses its folder.
pub struct Apt {
    folder: PathBuf,
    lock: File,
    /// For people.
    pub mirror: String,
}

impl Apt {
    /// Reads the suite's index, below `place`.
    ///
    /// # Errors
    /// This host has no apt, or the suite cannot be had.
    pub fn of_suite(suite: &str, place: &Path) -> Result<Apt> {
        let mirrors = Mirrors::configured()?;
        let folder = place.join(suite);
        for below in ["lists/partial", "archives/partial"] {
            let made = folder.join(below);
            fs::create_dir_all(&made).with_context(|| format!("cannot make {}", made.display()))?;
        }
        let lock = File::create(folder.join("lock"))?;
        lock.lock().context("cannot wait for another worker")?;
        let keys = KEYS.iter().map(|name| Path::new("/usr/share/keyrings").join(name));
        let keys = keys.into_iter().find(|path| path.is_file());
        let keys = keys.context("this host lacks Debian's keys: apt install debian-archive-keyring")?;
        fs::write(folder.join("sources.list"), sources(suite, &mirrors, &keys))?;
        fs::write(folder.join("status"), "")?;
        let of_host = String::from_utf8(run(Command::new("apt-config").args(["dump", "Acquire"]))?.stdout)?;
        fs::write(folder.join("apt.conf"), settings(&folder, &of_host)?)?;
        let apt = Apt { folder, lock, mirror: shown(&mirrors.main) };
        apt.run(&["update"]).with_context(|| {
            format!("{} (where it cannot be reached, set {VARIABLE} to a mirror)", apt.mirror)
        })?;
        Ok(apt)
    }

    /// The archives of packages and of all that they need.
    ///
    /// # Errors
    /// The suite lacks one, or it cannot be downloaded.
    pub fn download(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        self.clean();
        let words = ["--yes", "--download-only", "--no-install-recommends", "install"];
        self.run(&[&words[..], packages].concat())?;
        let entries = fs::read_dir(self.folder.join("archives"))?.flatten().map(|entry| entry.path());
        let mut archives: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|it| it == "deb")).collect();
        archives.sort();
        ensure!(!archives.is_empty(), "apt has downloaded nothing");
        Ok(archives)
    }

    /// Removes downloaded archives.
    pub fn clean(&self) {
        let _ = self.run(&["clean"]);
    }

    /// A worker that is killed leaves apt behind, which then keeps the lock as its input.
    fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new("apt-get");
        command.arg("--quiet").args(words).stdin(Stdio::from(self.lock.try_clone()?));
        run(command.env("APT_CONFIG", self.folder.join("apt.conf")))
    }
}

/// Runs a program of apt's; what it complains about is the error.
fn run(command: &mut Command) -> Result<Output> {
    let output = match command.env("LC_ALL", "C").output() {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "this host has no apt (it is no Debian or Ubuntu): use an image (PackageType: Image), or install the \
             runtime on the host"
        ),
        output => output?,
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.starts_with("E: ")).or(text.lines().last());
        bail!("apt: {}", line.unwrap_or("no reason given").trim_start_matches("E: ").trim());
    }
    Ok(output)
}

/// Archives of Debian.
#[derive(Debug, PartialEq, Eq)]
struct Mirrors {
    main: String,
    security: Option<String>,
}

impl Mirrors {
    /// Those that the operator names, else those of the host's apt, else the public ones.
    fn configured() -> Result<Mirrors> {
        if let Ok(named) = env::var(VARIABLE) {
            let mut words = named.split_whitespace().map(|word| word.trim_end_matches('/').to_string());
            if let Some(main) = words.next() {
                return Ok(Mirrors { main, security: words.next() });
            }
        }
        let format = "$(REPO_URI) $(RELEASE)";
        let filter = ["Created-By: Packages", "Origin: Debian"];
        let output = run(Command::new("apt-get").args(["indextargets", "--format", format]).args(filter))?;
        Ok(Mirrors::of_targets(&String::from_utf8_lossy(&output.stdout)))
    }

    fn of_targets(lines: &str) -> Mirrors {
        let find = |of_security: bool| {
            let mut lines = lines.lines().filter_map(|line| line.split_once(' '));
            let (url, _) = lines.find(|(_, suite)| suite.contains("security") == of_security)?;
            Some(url.trim_end_matches('/').to_string())
        };
        let main = find(false).unwrap_or_else(|| PUBLIC.into());
        let security = find(true).unwrap_or_else(|| format!("{main}-security"));
        Mirrors { main, security: Some(security) }
    }
}

/// The text of sources.list.
fn sources(suite: &str, Mirrors { main, security }: &Mirrors, keys: &Path) -> String {
    let mut places = vec![(main, suite.to_string())];
    if !ROLLING.contains(&suite) {
        places.push((main, format!("{suite}-updates")));
        places.extend(security.as_ref().map(|security| (security, format!("{suite}-security"))));
    }
    let keys = keys.display();
    places.iter().map(|(url, suite)| format!("deb [signed-by={keys}] {url} {suite} main\n")).collect()
}

/// The text of apt.conf, with what the host's says of the network.
fn settings(folder: &Path, of_host: &str) -> Result<String> {
    let folder = folder.to_str().filter(|folder| !folder.contains(['"', '\n']));
    let folder = folder.context("the cache's name cannot be written into apt's configuration")?;
    let mut text: String = of_host
        .lines()
        .filter(|line| OF_HOST.iter().any(|start| line.starts_with(start)))
        .fold(String::new(), |text, line| text + line + "\n");
    let processor = PROCESSOR.0;
    for (name, value) in [
        ("Dir", folder),
        ("Dir::Etc::main", "/dev/null"),
        ("Dir::Etc::parts", "/dev/null"),
        ("Dir::Etc::sourceparts", "/dev/null"),
        ("Dir::Etc::preferences", "/dev/null"),
        ("Dir::Etc::preferencesparts", "/dev/null"),
        ("Dir::Etc::trusted", "/dev/null"),
        ("Dir::Etc::trustedparts", "/dev/null"),
        ("Dir::Etc::sourcelist", &format!("{folder}/sources.list")),
        ("Dir::State::status", &format!("{folder}/status")),
        ("Dir::State::lists", &format!("{folder}/lists")),
        ("Dir::Cache::archives", &format!("{folder}/archives")),
        ("Dir::Cache::pkgcache", ""),
        ("Dir::Cache::srcpkgcache", ""),
        ("APT::Architecture", processor),
        ("APT::Architectures", processor),
        ("APT::Sandbox::User", ""),
        ("APT::Update::Error-Mode", "any"),
        ("Acquire::Languages", "none"),
    ] {
        writeln!(text, "{name} \"{value}\";")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirrors_are_those_of_the_hosts_apt() {
        let of = |lines| Mirrors::of_targets(lines);
        let own = of("http://m/debian-security/ bookworm-security\nhttp://m/debian/ bookworm\n");
        assert_eq!(
            own,
            Mirrors { main: "http://m/debian".into(), security: Some("http://m/debian-security".into()) }
        );
        assert_eq!(of("").main, PUBLIC);
        let text = sources("trixie", &own, Path::new("/k"));
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.ends_with("deb [signed-by=/k] http://m/debian-security trixie-security main\n"),
            "{text}"
        );
        assert_eq!(
            sources("forky", &own, Path::new("/k")),
            "deb [signed-by=/k] http://m/debian forky main\n"
        );
    }

    #[test]
    fn of_the_hosts_settings_those_of_the_network_hold() {
        let of_host =
            "Acquire \"\";\nAcquire::http::Proxy \"http://p\";\nAcquire::AllowInsecureRepositories \"1\";\n";
        let text = settings(Path::new("/c"), of_host).unwrap();
        assert!(text.starts_with("Acquire::http::Proxy \"http://p\";\nDir \"/c\";"), "{text}");
        assert!(!text.contains("Insecure") && text.contains("Dir::State::lists \"/c/lists\";"));
        assert!(settings(Path::new("/a\"b"), "").is_err());
    }
}
