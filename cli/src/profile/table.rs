//! A profile as a table for people, and its totals as JSON.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use lifetime::code::symbols::Symbols;
use lifetime::profile::contents::{Context, Profile};
use lifetime::profile::label::{CLASS_NAMES, lifetime, t95};
use serde_json::{Value, json};

use crate::profile::rows::{line_of, rows};
use crate::quantity::{bytes, count, duration};

fn sum(profile: &Profile, of: impl Fn(&Context) -> u64) -> u64 {
    profile.contexts.iter().map(of).sum()
}

/// The totals under `profile.*`.
pub fn as_json(profile: &Profile) -> Value {
    let mut totals = json!({
        "profile.processes": profile.processes,
        "profile.duration_s": profile.duration_ns as f64 / 1e9,
        "profile.mean_bytes": profile.mean_bytes,
        "profile.contexts": profile.contexts.len(),
        "profile.sampled": sum(profile, |context| context.sampled),
        "profile.freed": sum(profile, |context| context.freed),
        "profile.live": sum(profile, |context| context.live),
        "profile.left": sum(profile, |context| context.censored().iter().sum()),
        "profile.unwatched": sum(profile, |context| context.unwatched),
        "profile.lost": profile.lost,
        "profile.allocations": profile.contexts.iter().map(|context| context.allocations).sum::<f64>(),
        "profile.bytes": profile.bytes(),
        "profile.live_bytes": profile.contexts.iter().map(Context::live_bytes).sum::<f64>(),
    });
    for (class, name) in CLASS_NAMES.iter().enumerate() {
        let of_class = profile.contexts.iter().filter(|context| t95(context) == Some(class));
        totals[format!("profile.t95_{name}.bytes")] =
            of_class.map(|context| context.bytes).sum::<f64>().into();
    }
    totals
}

/// The contexts that allocate most, with the lifetimes of their objects.
pub fn described(profile: &Profile, symbols: &mut Symbols, top: usize) -> String {
    let contexts = &profile.contexts;
    let total = profile.bytes();
    let mut text = format!(
        "{} samples of {} contexts in {}{}, one every {}: they represent {} in {} allocations\n",
        count(sum(profile, |context| context.sampled)),
        count(contexts.len() as u64),
        duration(profile.duration_ns as f64),
        if profile.processes > 1 { format!(" of {} processes", profile.processes) } else { String::new() },
        bytes(profile.mean_bytes as f64),
        bytes(total),
        count(contexts.iter().map(|context| context.allocations).sum::<f64>() as u64),
    );
    for (number, fault) in [
        (sum(profile, |context| context.unwatched), "have no lifetime: at most two of a span are watched"),
        (profile.lost, "were lost: a table of the profile is full"),
    ] {
        if number > 0 {
            text += &format!("note: {} of the samples {fault}; sample less often (--every)\n", count(number));
        }
    }
    text +=
        &format!("{:>9} {:>6}  {:>8} {:>8}  {:>9}  context\n", "bytes", "share", "size", "lifetime", "mean");
    for (line, context) in rows(profile, symbols, |context| context.bytes).iter().take(top) {
        let mean = match context.freed {
            0 => "-".to_owned(),
            freed => duration(context.lifetime_ns.sum / freed as f64),
        };
        text += &format!(
            "{:>9} {:>5.1}%  {:>8} {:>8}  {:>9}  {line}\n",
            bytes(context.bytes),
            context.bytes / total * 100.0,
            bytes(context.size.sum / context.sampled as f64),
            lifetime(context).map_or("?".to_owned(), |lifetime| lifetime.to_string()),
            mean,
        );
    }
    text
}

/// The contexts with most live bytes at the end: for a program that has ended, objects that it never freed.
pub fn leaks(profile: &Profile, symbols: &mut Symbols, top: usize) -> String {
    let mut contexts = rows(profile, symbols, Context::live_bytes);
    contexts.retain(|(_, context)| context.live > 0);
    let total: f64 = contexts.iter().map(|(_, context)| context.live_bytes()).sum();
    let left = sum(profile, |context| context.censored().iter().sum());
    let when = if left > 0 { "were not freed when the profile ended" } else { "were never freed" };
    let mut text = format!("{} of {} {when}\n", bytes(total), bytes(profile.bytes()));
    text += &format!(
        "{:>9} {:>6}  {:>9} {:>9}  {:>9}  context\n",
        "live", "share", "objects", "of its", "oldest"
    );
    for (line, context) in contexts.iter().take(top) {
        let oldest = context.alive.iter().map(|object| object.age_ns).max().unwrap_or(0);
        text += &format!(
            "{:>9} {:>5.1}%  {:>9} {:>8.1}%  {:>9}  {line}\n",
            bytes(context.live_bytes()),
            context.live_bytes() / total * 100.0,
            count(context.live_allocations().round() as u64),
            context.live as f64 / (context.freed + context.live) as f64 * 100.0,
            duration(oldest as f64),
        );
    }
    text
}

/// Callers of free that are shown for a context.
const FREEING: usize = 3;

/// The callers that free the objects of the contexts that allocate most (LLAMA §4).
pub fn frees(profile: &Profile, symbols: &mut Symbols, top: usize) -> String {
    let mut contexts = rows(profile, symbols, |context| context.bytes);
    contexts.retain(|(_, context)| !context.frees.is_empty());
    let mut text =
        format!("{:>9} {:>8}  {:>9}  context, and where its objects are freed\n", "bytes", "freed", "mean");
    for (line, context) in contexts.iter().take(top) {
        text += &format!(
            "{:>9} {:>8}  {:>9}  {line}\n",
            bytes(context.bytes),
            count(context.freed),
            duration(context.lifetime_ns.sum / context.freed.max(1) as f64),
        );
        // Callers that differ only in lines of code are one for people.
        let mut places: Vec<(String, u64)> = Vec::new();
        for frees in &context.frees {
            let line = line_of(&frees.frames, symbols).words;
            match places.iter_mut().find(|(known, _)| *known == line) {
                Some((_, objects)) => *objects += frees.objects,
                None => places.push((line, frees.objects)),
            }
        }
        places.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let all: u64 = places.iter().map(|(_, objects)| objects).sum();
        for (line, objects) in places.iter().take(FREEING) {
            text += &format!("{:>29.1}%  freed by {line}\n", *objects as f64 / all as f64 * 100.0);
        }
        if places.len() > FREEING {
            text += &format!("{:>30}  and in {} others\n", "", places.len() - FREEING);
        }
    }
    if contexts.is_empty() {
        text +=
            "no frees were recorded: the profile is of an older heap, or of one linked into the program\n";
    }
    text
}

/// A stack's values in one profile.
#[derive(Clone, Default)]
struct Side {
    bytes: f64,
    lifetime: String,
}

/// Contexts by the words of their row, which are the same in another build; places are not.
fn by_words(profile: &Profile, symbols: &mut Symbols) -> HashMap<String, Side> {
    let mut found: HashMap<String, Context> = HashMap::new();
    for context in profile.contexts.iter().cloned() {
        match found.entry(line_of(&context.frames, symbols).words) {
            Entry::Occupied(mut known) => known.get_mut().add(context),
            Entry::Vacant(new) => _ = new.insert(context),
        }
    }
    let side = |(words, context): (String, Context)| {
        let lifetime = lifetime(&context).map_or("?".to_owned(), |lifetime| lifetime.to_string());
        (words, Side { bytes: context.bytes, lifetime })
    };
    found.into_iter().map(side).collect()
}

/// The changes since `before`: the contexts that allocate more or less, most first.
pub fn difference(now: (&Profile, &mut Symbols), before: (&Profile, &mut Symbols), top: usize) -> String {
    let times = [now.0.duration_ns, before.0.duration_ns].map(|ns| duration(ns as f64));
    let totals = [now.0.bytes(), before.0.bytes()];
    let (now, before) = (by_words(now.0, now.1), by_words(before.0, before.1));
    let mut rows: Vec<(Side, Side, &str)> = Vec::new();
    for (line, side) in &now {
        rows.push((side.clone(), before.get(line).cloned().unwrap_or_default(), line));
    }
    let removed = before.iter().filter(|(line, _)| !now.contains_key(*line));
    rows.extend(removed.map(|(line, side)| (Side::default(), side.clone(), line.as_str())));
    let change = |row: &(Side, Side, &str)| row.0.bytes - row.1.bytes;
    rows.sort_by(|a, b| change(b).abs().total_cmp(&change(a).abs()).then(a.2.cmp(b.2)));
    let mut text = format!(
        "{} in {}, before {} in {}: {}\n",
        bytes(totals[0]),
        times[0],
        bytes(totals[1]),
        times[1],
        signed(totals[0] - totals[1])
    );
    text += &format!(
        "{:>10}  {:>9}  {:>9}  {:>8} {:>8}  context\n",
        "change", "now", "before", "lifetime", "before"
    );
    for row in rows.iter().take(top) {
        let shown =
            |side: &Side| if side.lifetime.is_empty() { "-".to_owned() } else { side.lifetime.clone() };
        text += &format!(
            "{:>10}  {:>9}  {:>9}  {:>8} {:>8}  {}\n",
            signed(change(row)),
            bytes(row.0.bytes),
            bytes(row.1.bytes),
            shown(&row.0),
            shown(&row.1),
            row.2
        );
    }
    text
}

fn signed(value: f64) -> String {
    format!("{}{}", if value < 0.0 { '-' } else { '+' }, bytes(value.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifetime::profile::contents::{Alive, Frame, Frees, Module};

    fn context(offset: u64, bytes: f64, freed: u64, ages_s: &[u64]) -> Context {
        let alive =
            ages_s.iter().map(|age| Alive { age_ns: age * 1_000_000_000, never_freed: true }).collect();
        let mut classes = [0; 7];
        classes[0] = freed;
        Context {
            frames: vec![Frame { module: Some(0), offset }],
            sampled: freed + ages_s.len() as u64,
            allocations: bytes / 64.0,
            bytes,
            freed,
            classes,
            live: ages_s.len() as u64,
            alive,
            ..Context::default()
        }
    }

    fn profile(contexts: Vec<Context>) -> Profile {
        let server = Module { path: "server".into(), build_id: Vec::new(), addresses: 0..9, load_address: 0 };
        Profile { modules: vec![server], contexts, duration_ns: 1_000_000_000, ..Profile::default() }
    }

    #[test]
    fn leaks_are_ordered_by_live_bytes_not_by_allocated_bytes() {
        let profile = profile(vec![
            context(1, 8192.0 * 1024.0, 99, &[1]),
            context(2, 1024.0 * 1024.0, 1, &[5, 3, 7]),
            context(3, 1e9, 50, &[]),
        ]);
        let text = leaks(&profile, &mut Symbols::new(&profile), 10);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("were never freed"), "{text}");
        assert_eq!(lines.len(), 4, "a context with all objects freed is no leak: {text}");
        assert!(
            lines[2].contains("768") && lines[2].contains("75.0%") && lines[2].ends_with("server+0x2"),
            "{text}"
        );
        assert!(lines[3].ends_with("server+0x1"), "{text}");
    }

    #[test]
    fn places_of_frees_are_ordered_by_objects() {
        let mut one = context(1, 4096.0, 9, &[]);
        let freed = |offset, objects| Frees { frames: vec![Frame { module: Some(0), offset }], objects };
        one.frees = vec![freed(7, 1), freed(8, 3)];
        let profile = profile(vec![context(2, 1e9, 9, &[]), one]);
        let text = frees(&profile, &mut Symbols::new(&profile), 10);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 3, "the other one has no recorded frees: {text}");
        assert!(lines[0].ends_with("server+0x1"), "{text}");
        assert!(lines[1].ends_with("75.0%  freed by server+0x8"), "{text}");
        assert!(lines[2].ends_with("25.0%  freed by server+0x7"), "{text}");
    }

    #[test]
    fn contexts_with_the_same_words_are_one_row() {
        let mut deep = context(1, 1024.0, 9, &[]);
        // A recursion: the same function again and again, at other depths.
        let [caller, outer] = [2, 3].map(|offset| Frame { module: Some(0), offset });
        let at = |depth: usize| {
            let mut frames = vec![caller; depth];
            frames.push(outer);
            Context { frames, ..deep.clone() }
        };
        let contexts = vec![at(1), at(2), at(20), at(60)];
        deep.bytes = 100.0;
        let profile = profile([contexts, vec![deep]].concat());
        let text = described(&profile, &mut Symbols::new(&profile), 10);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("4.0 KiB") && lines[0].ends_with("server+0x2 < server+0x3"), "{text}");
    }

    #[test]
    fn a_difference_has_new_and_removed_contexts() {
        let now = profile(vec![context(1, 4096.0, 9, &[]), context(2, 9000.0, 9, &[])]);
        let before = profile(vec![context(2, 8999.0, 0, &[1]), context(3, 2048.0, 9, &[])]);
        let text = difference((&now, &mut Symbols::new(&now)), (&before, &mut Symbols::new(&before)), 10);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].contains("+4") && lines[0].ends_with("server+0x1"), "{text}");
        assert!(lines[1].contains("-2") && lines[1].ends_with("server+0x3"), "{text}");
        assert!(lines[2].contains("10ms      inf") && lines[2].ends_with("server+0x2"), "{text}");
    }
}
