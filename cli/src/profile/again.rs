//! `mayfly profile --again`: profiles a server for a minute, now and then, until a signal ends it (LLAMA §4:
//! "periodically connects to servers"). Each profile is a file of a partitioned data set, which
//! `mayfly train` reads:
//!
//! ```text
//! program=server/build=4f0c…/HOST.PID.TIME.parquet, .symbols.parquet, .pb.gz
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use lifetime::code::root::Root;
use lifetime::code::symbols::{Symbols, hexadecimal};
use lifetime::profile::contents::Profile;

use crate::profile::files::{self, Checkpoints, with_suffix};
use crate::profile::tree::Observer;
use crate::quantity::count;

/// The files of a profile that are kept; the table last, since readers find the others by it.
const KEPT: [&str; 3] = ["symbols.parquet", "pb.gz", "parquet"];
const PAUSE: Duration = Duration::from_millis(100);

/// Takes profiles repeatedly, each `pause` after the last one began; `take` returns one, and the root of its
/// process.
///
/// # Errors
/// The first profile fails, or files cannot be written. Later failures are only logged: the server may run
/// again.
pub fn repeat(
    dataset: &Path,
    pause: Duration,
    checkpoints: &mut Checkpoints,
    mut take: impl FnMut(&mut Checkpoints) -> Result<(Profile, Root)>,
) -> Result<()> {
    std::fs::create_dir_all(dataset).with_context(|| format!("cannot make {}", dataset.display()))?;
    let mut taken = 0;
    while !checkpoints.is_stopped() {
        let began = Instant::now();
        match take(checkpoints) {
            Ok((profile, root)) => {
                taken += 1;
                match put(&profile, &root, dataset)? {
                    Some(table) => eprintln!(
                        "mayfly: {}: {} contexts",
                        table.display(),
                        count(profile.contexts.len() as u64)
                    ),
                    None => eprintln!("mayfly: it allocated less than one sample: no profile was written"),
                }
            }
            Err(_) if checkpoints.is_stopped() => break,
            Err(why) if taken == 0 => return Err(why),
            Err(why) => eprintln!("mayfly: {why:#}"),
        }
        while !checkpoints.is_stopped() && began.elapsed() < pause {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Adds a profile to the data set by renames; returns the path of its table. `None` if it is empty.
fn put(profile: &Profile, root: &Root, dataset: &Path) -> Result<Option<PathBuf>> {
    if profile.contexts.is_empty() {
        return Ok(None);
    }
    // Readers ignore names that begin with a dot.
    let fresh = tempfile::Builder::new().prefix(".taking-").tempdir_in(dataset);
    let fresh = fresh.with_context(|| format!("cannot write in {}", dataset.display()))?;
    let stem = fresh.path().join("profile");
    files::write(profile, &mut Symbols::below(root, profile), &stem)?;
    let target = dataset.join(key(profile));
    let folder = target.parent().unwrap_or(dataset);
    let cannot = || format!("cannot write {}", target.display());
    std::fs::create_dir_all(folder).with_context(cannot)?;
    for suffix in KEPT {
        std::fs::rename(with_suffix(&stem, suffix), with_suffix(&target, suffix)).with_context(cannot)?;
    }
    Ok(Some(with_suffix(&target, "parquet")))
}

/// A profile's path in a data set: by program and build, then by host, process and time.
fn key(profile: &Profile) -> PathBuf {
    let program = profile.program().map(|number| &profile.modules[number]);
    let name = program.and_then(|program| program.path.file_name()).unwrap_or_default();
    let build = program.map(|program| hexadecimal(&program.build_id)).unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let or = |text: &str, other: &str| escaped(if text.is_empty() { other } else { text });
    PathBuf::from(format!("program={}", or(&name.to_string_lossy(), "unknown")))
        .join(format!("build={}", or(&build, "none")))
        .join(format!("{}.{}.{}", or(host.trim(), "host"), profile.pid, now.as_millis()))
}

/// A name that is no path, no partition and not hidden: other characters are escaped as in URLs.
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-+".contains(&byte);
    let bytes = name.bytes().take(100).enumerate();
    bytes
        .map(|(at, byte)| match byte {
            b'.' | b'_' if at > 0 => char::from(byte).to_string(),
            _ if plain(byte) => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// `90s`, `30m`, `1h`, `1d`, or seconds.
///
/// # Errors
/// It is none of these.
pub fn parse_pause(text: &str) -> Result<Duration> {
    let (number, unit_s) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1.0),
        Some((at, 'm')) => (&text[..at], 60.0),
        Some((at, 'h')) => (&text[..at], 3600.0),
        Some((at, 'd')) => (&text[..at], 86_400.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().map(|number| number * unit_s).unwrap_or(-1.0);
    ensure!((0.1..1e8).contains(&seconds), "90s, 30m, 1h or 1d, from 0.1s");
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifetime::profile::contents::Module;

    #[test]
    fn a_profile_lies_below_its_program_and_build() {
        let module = |path: &str| Module {
            path: path.into(),
            build_id: vec![0x4f, 0x0c],
            addresses: 0..1,
            load_address: 0,
        };
        let modules = vec![module("/lib/libc.so.6"), module("/opt/my=server")];
        let profile = Profile { modules, pid: 7, ..Profile::default() };
        let key = key(&profile).to_string_lossy().into_owned();
        assert!(key.starts_with("program=my%3Dserver/build=4f0c/"), "{key}");
        assert!(key.contains(".7."), "{key}");
        assert_eq!(escaped("../.x"), "%2E.%2F.x");
    }

    #[test]
    fn pauses_have_units() {
        let seconds = |text: &str| parse_pause(text).map(|pause| pause.as_secs_f64()).ok();
        let texts = ["90", "90s", "1.5m", "1h", "1d", "h", "", "-1s", "1w", "0s"];
        let found: Vec<_> = texts.iter().map(|text| seconds(text)).collect();
        let wanted = [90.0, 90.0, 90.0, 3600.0, 86_400.0].map(Some).into_iter().chain([None; 5]);
        assert_eq!(found, wanted.collect::<Vec<_>>());
    }
}
