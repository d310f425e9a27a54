//! Configuration from environment variables. A program with more rights than its caller (setuid and the like)
//! gets the defaults. A value that cannot be parsed is reported on stderr, and the default is used.

use crate::entry::maintenance_thread;
use crate::lifetime::source::{self, LifetimeSource};
use crate::lifetime::{model, oracle, table_file};
use crate::observe::{control, profile, report, trace};
use crate::pages::page_life::Recycle;
use crate::pages::{decay, page_life, retained};
use crate::system::clock;
use crate::system::files;
use crate::system::os::{self, Pages};
use crate::system::text::{Text, warn};
use crate::thread::{lines, sample};
use crate::units::lifetime_class;

/// Reads the environment once, before the first allocation is served.
pub fn load() {
    let (mut recycle, mut retain) = (Recycle::Fill, retained::IN_PROPORTION);
    let (mut factor, mut old_factor) = (None, None);
    // SAFETY: always allowed.
    let trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    let mut spans = lines::Layout::Cells;
    let (mut source, mut model) = (None, false);
    if trusted {
        for_each_variable(|name, value| match name {
            b"LIFETIMES" => source = set_lifetimes(value),
            b"MODEL" => model = model::load(value),
            b"TABLE" => table_file::set_path(value),
            b"SPANS" => {
                spans =
                    choose(name, value, &[("cells", lines::Layout::Cells), ("lines", lines::Layout::Lines)])
            }
            b"RECYCLE" => {
                let known = [("fill", Recycle::Fill), ("longest", Recycle::Longest)];
                recycle = choose(name, value, &known);
            }
            b"DEADLINE_FACTOR" => factor = number(name, value, 1, 1000),
            // The old name, accepted for one release; the new one wins.
            b"K" => old_factor = number(name, value, 1, 1000),
            b"PAGES" => {
                let known =
                    [("thp", Pages::Transparent), ("hugetlb", Pages::Reserved), ("base", Pages::Base)];
                os::set_pages(choose(name, value, &known));
            }
            b"CLOCK" => {
                if choose(name, value, &[("runs", false), ("settled", true)]) {
                    clock::stand_still();
                }
            }
            b"RETAIN" => retain = number(name, value, 0, 1 << 20).unwrap_or(retain),
            b"DECAY" => match value {
                b"never" => decay::configure(decay::NEVER),
                _ => {
                    decay::configure(number(name, value, 0, 1 << 30).map_or(decay::DECAY_MS, |ms| ms as u64))
                }
            },
            b"THREAD" => {
                maintenance_thread::allow(choose(name, value, &[("on", true), ("off", false)]));
            }
            b"STATS" => report::set_path(value),
            b"TRACE" => trace::start(value),
            b"CONTROL" => match value {
                [b'/', ..] => control::start(text(value)),
                _ if choose(name, value, &[("off", false), ("on", true)]) => control::start(""),
                _ => {}
            },
            b"PROFILE" => profile::start(value),
            b"PROFILE_BYTES" => {
                profile::set_mean_bytes(number(name, value, 1, 1 << 40).unwrap_or(sample::MEAN_BYTES));
            }
            b"LIB" => {} // read by the command: where the library is
            _ => warn(format_args!("unknown variable MAYFLY_HEAP_{}, ignored", text(name))),
        });
    }
    match source.unwrap_or(if model {
        LifetimeSource::Model { online: true }
    } else {
        LifetimeSource::Online
    }) {
        LifetimeSource::Model { .. } if !model => {
            warn(format_args!(
                "MAYFLY_HEAP_LIFETIMES=model needs a file in MAYFLY_HEAP_MODEL; learning online"
            ));
            source::choose(LifetimeSource::Online);
        }
        source => source::choose(source),
    }
    table_file::read(); // a table belongs to one model, which is loaded now
    page_life::configure(recycle, factor.or(old_factor).map_or(2, |factor| factor as u32));
    retained::configure(retain);
    lines::configure(spans);
}

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap_or("(not UTF-8)")
}

fn set_lifetimes(value: &[u8]) -> Option<LifetimeSource> {
    match value {
        b"online" => return Some(LifetimeSource::Online),
        b"model" => return Some(LifetimeSource::Model { online: false }),
        b"model+online" => return Some(LifetimeSource::Model { online: true }),
        _ => {}
    }
    if let Some(class) = value.strip_prefix(b"fixed:").and_then(lifetime_class::of_name) {
        return Some(LifetimeSource::Fixed(class));
    }
    if let Some(path) = value.strip_prefix(b"oracle:") {
        return oracle::load(path).then_some(LifetimeSource::Oracle);
    }
    warn(format_args!(
        "MAYFLY_HEAP_LIFETIMES={} is not online, model, model+online, fixed:CLASS (10ms 100ms 1s 10s 100s 1000s inf) or oracle:FILE; using the default",
        text(value)
    ));
    None
}

fn choose<T: Copy>(name: &[u8], value: &[u8], known: &[(&str, T)]) -> T {
    if let Some((_, found)) = known.iter().find(|(word, _)| word.as_bytes() == value) {
        return *found;
    }
    let words = known.iter().map(|(word, _)| *word);
    let mut list = Text::<64>::default();
    for (i, word) in words.enumerate() {
        use core::fmt::Write;
        let _ = write!(list, "{}{word}", if i == 0 { "" } else { ", " });
    }
    let (name, value, list) = (text(name), text(value), text(list.bytes()));
    warn(format_args!("MAYFLY_HEAP_{name}={value} is none of: {list}; using {}", known[0].0));
    known[0].1
}

fn number(name: &[u8], value: &[u8], least: usize, most: usize) -> Option<usize> {
    let found = text(value).parse().ok().filter(|n| (least..=most).contains(n));
    if found.is_none() {
        warn(format_args!(
            "MAYFLY_HEAP_{}={} is not a number from {least} to {most}; using the default",
            text(name),
            text(value)
        ));
    }
    found
}

unsafe extern "C" {
    static environ: *const *const core::ffi::c_char;
}

/// Calls `f` with the part of each variable's name behind `MAYFLY_HEAP_`, and its value.
fn for_each_variable(mut f: impl FnMut(&[u8], &[u8])) {
    let mut visit = |line: &[u8]| {
        if let Some(rest) = line.strip_prefix(b"MAYFLY_HEAP_")
            && let Some(equals) = rest.iter().position(|&byte| byte == b'=')
        {
            f(&rest[..equals], &rest[equals + 1..]);
        }
    };
    // SAFETY: once it is set, the C library's environment is a NULL-terminated array of NUL-terminated
    // strings. A program that changes it during its first allocation has a race of its own with getenv.
    unsafe {
        if !environ.is_null() {
            let mut entry = environ;
            while !(*entry).is_null() {
                visit(core::ffi::CStr::from_ptr(*entry).to_bytes());
                entry = entry.add(1);
            }
            return;
        }
    }
    // The C library has no environment yet this early: read it from the kernel.
    if let Some((at, bytes)) = files::read_small_file(b"/proc/self/environ\0") {
        // SAFETY: a fresh mapping of that many bytes.
        let all = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
        all.split(|&byte| byte == 0).for_each(visit);
        os::unmap(at, files::SMALL_FILE_BYTES);
    }
}
