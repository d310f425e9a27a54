//! Figures computed from a worker's events: a chart of them, each in words, and the memory that was returned.

use crate::chart::Span;
use crate::data::Event;
use crate::lanes::{Lane, lanes};
use crate::text::Unit;

/// A lane's name, its colour, and the kinds of events on it.
const LANES: [(&str, &str, &[&str]); 6] = [
    ("started", "starting", &["ready", "restored"]),
    ("merged", "store", &["merge"]),
    ("rested", "idle", &["rest", "page_out"]),
    ("plugged", "plugged", &["plug"]),
    ("unplugged", "resident", &["unplug"]),
    ("ended", "stopping", &["gone", "ended"]),
];
/// Kinds of events that need the operator's attention.
pub const TROUBLE: [&str; 5] = ["refuse", "fail", "ended", "vm", "store"];

/// Events over time. Lanes without events are left out.
pub fn event_lanes(events: &[Event], span: Span) -> String {
    let lane = |name: &str, colour, kinds: &[&str]| {
        let own = events.iter().filter(|event| kinds.contains(&event.kind.as_str()) && !is_empty(event));
        Lane { name: name.into(), colour, events: own.map(|event| (event.at_ms, describe(event))).collect() }
    };
    let all = LANES.iter().map(|(name, colour, kinds)| lane(name, colour, kinds));
    let kept: Vec<Lane> =
        all.chain([lane("trouble", "trouble", &TROUBLE)]).filter(|lane| !lane.events.is_empty()).collect();
    lanes(
        "Merging, partitions, instances",
        "Each dot is an event, a larger one several; point at it to read it.",
        span,
        &kept,
    )
}

/// Whether an instance at rest found no memory to merge or return.
pub fn is_empty(event: &Event) -> bool {
    let amount = if event.kind == "merge" { event.merged_bytes } else { event.trimmed_bytes };
    amount == Some(0)
}

/// An event in a sentence.
pub fn describe(event: &Event) -> String {
    let ms = |value: Option<f64>| {
        value.map_or_else(String::new, |ms| format!(" in {}", Unit::Milliseconds.format(ms)))
    };
    let bytes = |value: Option<u64>| Unit::Bytes.format(value.unwrap_or(0) as f64);
    let subject = match (&event.function, event.instance) {
        (Some(function), Some(number)) => format!("{function} {number}"),
        (Some(function), None) => function.clone(),
        (None, Some(number)) => format!("instance {number}"),
        (None, None) => String::new(),
    };
    let partition =
        event.partition.map_or_else(|| "memory".to_string(), |number| format!("partition {number}"));
    let message = event.message.as_deref().or(event.reason.as_deref()).unwrap_or_default();
    let text = match event.kind.as_str() {
        "start" => format!("{subject} starts"),
        "ready" => format!("{subject} started{}", ms(event.ms)),
        "restored" => format!("{subject} was restored from its snapshot{}", ms(event.ms)),
        "rest" => format!("{subject} at rest returned {}{}", bytes(event.trimmed_bytes), ms(event.ms)),
        "merge" => {
            format!(
                "{subject} merged {} of {}{}",
                bytes(event.merged_bytes),
                bytes(event.bytes),
                ms(event.ms)
            )
        }
        "page_out" if message.is_empty() => {
            format!("{subject} paged out, {}{}", bytes(event.bytes), ms(event.ms))
        }
        "stop" => format!("{subject} is stopping"),
        "gone" => {
            format!("{subject} was removed after {}", Unit::Milliseconds.format(event.ms.unwrap_or(0.0)))
        }
        "ended" => format!("{subject} ended by itself: {message}"),
        "refuse" => format!("{subject}: a request was refused: {message}"),
        "fail" => format!("{subject} did not start: {message}"),
        "plug" => format!("{partition} plugged, {}{}", bytes(event.bytes), ms(event.ms)),
        "unplug" => format!("{partition} unplugged, {}{}", bytes(event.bytes), ms(event.ms)),
        "vm" => format!("virtual machine: {message}"),
        "store" => format!("page store: {message}"),
        kind => format!("{kind}: {subject} {message}"),
    };
    text.trim().to_string()
}

/// Memory returned to the machine, or to the host of the VM.
pub struct ReturnedMemory {
    /// By unplugging and by instances at rest.
    pub bytes: f64,
    /// How often a partition was unplugged.
    pub unplugs: usize,
    /// Half of them took at most this long.
    pub median_ms: f64,
}

/// Adds up returned memory.
pub fn returned_memory(events: &[Event]) -> ReturnedMemory {
    let of = |kind: &'static str| events.iter().filter(move |event| event.kind == kind);
    let mut times: Vec<f64> = of("unplug").filter_map(|event| event.ms).collect();
    times.sort_by(f64::total_cmp);
    let bytes: u64 =
        of("unplug").filter_map(|event| event.bytes).chain(of("rest").filter_map(|e| e.trimmed_bytes)).sum();
    ReturnedMemory {
        bytes: bytes as f64,
        unplugs: times.len(),
        median_ms: times.get(times.len() / 2).copied().unwrap_or(0.0),
    }
}

impl ReturnedMemory {
    /// In a few words.
    pub fn describe(&self) -> String {
        match self.unplugs {
            0 => "by instances at rest".into(),
            number => format!("{number} unplugs, half within {}", Unit::Milliseconds.format(self.median_ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_kind_of_event_has_its_own_description() {
        let kinds = [
            "start", "ready", "restored", "rest", "merge", "page_out", "stop", "gone", "ended", "refuse",
            "fail", "plug", "unplug", "vm", "store",
        ];
        let mut descriptions: Vec<String> = kinds
            .iter()
            .map(|kind| {
                let function = Some("page".into());
                describe(&Event {
                    kind: (*kind).into(),
                    function,
                    instance: Some(7),
                    ms: Some(2.0),
                    ..Event::default()
                })
            })
            .collect();
        assert!(
            descriptions.iter().all(|text| !text.is_empty() && !text.contains("None")),
            "{descriptions:?}"
        );
        descriptions.sort();
        descriptions.dedup();
        assert_eq!(descriptions.len(), kinds.len());
    }

    #[test]
    fn unplugged_and_rested_memory_is_added_up() {
        let unplug =
            |ms| Event { kind: "unplug".into(), bytes: Some(128 * MIB), ms: Some(ms), ..Event::default() };
        let rest = Event { kind: "rest".into(), trimmed_bytes: Some(MIB), ..Event::default() };
        let back = returned_memory(&[unplug(5.0), rest, unplug(9.0), unplug(7.0)]);
        assert_eq!((back.bytes, back.unplugs, back.median_ms), ((385 * MIB) as f64, 3, 7.0));
    }
}
