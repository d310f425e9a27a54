//! The page at `/`: functions, their memory and latency, events.

use std::fmt::Write;

use crate::chart::Span;
use crate::data::{Event, Instance, Layers, Sample};
use crate::errors::{errors, reasons};
use crate::events::{TROUBLE, describe, event_lanes, is_empty, returned_memory};
use crate::figures::{Memory, instances_chart, latency, memory, memory_of_each, requests};
use crate::text::{Unit, count, escape, span};
use crate::view::View;

/// The style of every page.
pub const STYLE: &str = include_str!("../assets/style.css");
/// Shows a chart's numbers under the pointer.
pub const POINTER: &str = include_str!("../assets/pointer.js");
/// Reloads the page.
const REFRESH: &str = include_str!("../assets/refresh.js");

/// The time spans that the page offers, in minutes.
pub const MINUTES: [u64; 4] = [1, 5, 15, 60];

/// The page. `nonce` lets its own style and scripts through a Content-Security-Policy.
pub fn page(view: &View, nonce: &str) -> String {
    let to_ms = view.uptime_ms.max(1);
    // A young worker's charts begin at its start.
    let from_ms = to_ms.saturating_sub(view.minutes * 60_000);
    let span = Span { from_ms, to_ms: to_ms.max(from_ms + 10_000), live: true };
    let charts = [
        memory(view.samples, view.layers, span).html(),
        memory_of_each(view.samples, span).html(),
        instances_chart(view.samples, span).html(),
        requests(view.samples, span).html(),
        errors(view.samples, span).html(),
        latency(view.samples, span).html(),
        event_lanes(view.events, span),
    ];
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <link rel=icon href=\"data:,\"><title>Mayfly worker</title><style nonce={nonce}>{STYLE}</style>\n\
         <body><main>{}{}\n<section class=charts>{}</section>{}{}{}{}{}\
         <footer>Figures for Prometheus: <a href=\"/metrics\">/metrics</a>. As JSON: <a href=\"/history\">/history</a>, \
         <a href=\"/events\">/events</a>, <a href=\"/instances\">/instances</a>.</footer></main>\n\
         <script nonce={nonce}>{POINTER}{REFRESH}</script></html>\n",
        header(view),
        tiles(view),
        charts.concat(),
        reasons(view),
        trouble(view),
        functions(view),
        last_events(view),
        instances(view.instances),
    )
}

fn header(view: &View) -> String {
    let mut chips = String::new();
    for (name, on) in layer_states(view.layers) {
        let state = if on { "on" } else { "off" };
        write!(chips, "<li class={state} title=\"{} is {state}\">{}", escape(&name), escape(&name))
            .expect(STRING);
    }
    let mut links = String::new();
    for minutes in MINUTES {
        let current = if minutes == view.minutes { " aria-current=true" } else { "" };
        write!(links, "<a href=\"/?minutes={minutes}\"{current}>{minutes} min</a>").expect(STRING);
    }
    format!(
        "<header><h1>Mayfly <span>worker</span></h1><p id=live>up for {}</p><ul class=chips>{chips}</ul>\
         <nav aria-label=\"time that is shown\">{links}</nav></header>",
        span(view.uptime_ms)
    )
}

const GIB: f64 = (1_u64 << 30) as f64;
const STRING: &str = "strings take all";

/// Each layer in a word or two, and whether it is on.
pub fn layer_states(layers: &Layers) -> Vec<(String, bool)> {
    let partitions = match layers.partitions.as_str() {
        "" | "none" => ("partitions".to_string(), false),
        kind => (format!("partitions: {kind}"), kind == "hotmem" || kind == "nodes"),
    };
    let sandbox = if layers.sandbox.is_empty() { "process" } else { &layers.sandbox };
    vec![
        ("heap".into(), layers.heap),
        ("merge".into(), layers.merge),
        ("snapshot".into(), layers.snapshot),
        ("ready".into(), layers.ready),
        partitions,
        (format!("sandbox: {sandbox}"), true),
    ]
}

fn tiles(view: &View) -> String {
    let phase = |name: &str| view.instances.iter().filter(|one| one.phase == name).count();
    let now = Memory::of(view.samples.last().unwrap_or(&Sample::default()));
    let counts = &view.counts;
    let time = |value: Option<f64>| value.map_or_else(|| "–".to_string(), |ms| Unit::Milliseconds.format(ms));
    let restored = match counts.restores {
        0 => String::new(),
        restores => format!(", {restores} restored (P50 {})", time(counts.restore.p50_ms)),
    };
    let ready = match view.samples.last().map_or(0, |sample| sample.ready.sandboxes) {
        0 => String::new(),
        sandboxes => format!("; {sandboxes} sandboxes ready"),
    };
    let p99 = time(counts.cold_start.p99_ms);
    let starts = format!("{} started, P99 {p99}{restored}{ready}", counts.cold_starts);
    let alive = phase("idle") + phase("busy");
    let density = if now.used > 0.0 && alive > 0 {
        format!("{} instances per GiB", count((alive as f64 / (now.used / GIB) * 10.0).round() / 10.0))
    } else {
        "no instance".into()
    };
    let saved = if now.without_merging > 0.0 { 100.0 * now.saved() / now.without_merging } else { 0.0 };
    let back = returned_memory(view.events);
    let tiles = [
        (
            "instances",
            count(view.instances.len() as f64),
            format!(
                "{} busy, {} idle, {} starting or stopping",
                phase("busy"),
                phase("idle"),
                phase("starting") + phase("stopping")
            ),
        ),
        (
            "answered",
            count((counts.succeeded + counts.failed) as f64),
            format!("{} failed, {} throttled, {} refused", counts.failed, counts.throttled, counts.refused),
        ),
        (
            "latency P99",
            time(counts.latency.p99_ms),
            format!(
                "P50 {}, P90 {}, P99.9 {}; since it began",
                time(counts.latency.p50_ms),
                time(counts.latency.p90_ms),
                time(counts.latency.p999_ms)
            ),
        ),
        ("cold start P50", time(counts.cold_start.p50_ms), starts),
        ("memory", Unit::Bytes.format(now.used), density),
        ("saved by merging", Unit::Bytes.format(now.saved()), format!("{saved:.0} % less than without")),
        ("returned", Unit::Bytes.format(back.bytes), back.describe()),
    ];
    let mut html = "<section class=tiles>".to_string();
    for (name, value, more) in tiles {
        write!(html, "<div class=card><h2>{name}</h2><strong>{value}</strong><p>{more}</p></div>")
            .expect(STRING);
    }
    html + "</section>"
}

fn functions(view: &View) -> String {
    let mut rows = String::new();
    for function in view.functions {
        let own: Vec<&Instance> = view.instances.iter().filter(|one| one.function == function.name).collect();
        let phase = |name: &str| own.iter().filter(|one| one.phase == name).count();
        let sum = |field: fn(&Instance) -> u64| own.iter().map(|one| field(one)).sum::<u64>() as f64;
        let each = |total: f64| {
            if own.is_empty() { "–".into() } else { Unit::Bytes.format(total / own.len() as f64) }
        };
        let reserved = function.reserved.map_or_else(|| "–".to_string(), |number| number.to_string());
        let time =
            |value: Option<f64>| value.map_or_else(|| "–".to_string(), |ms| Unit::Milliseconds.format(ms));
        let (name, requests) = (escape(&function.name), &function.counts);
        // Its requests wait, and no instance serves them.
        let starves = function.queued > 0 && phase("busy") + phase("idle") == 0;
        let (trouble, warning) = if starves {
            (" class=trouble", "<p class=words>starves: requests wait, and it has no instance</p>")
        } else {
            ("", "")
        };
        let refusal = requests.last_refusal.as_ref().map(|why| format!(" title=\"{}\"", escape(why)));
        write!(
            rows,
            "<tr{trouble}><th scope=row><a href=\"/log?function={name}\" title=\"its log\">{name}</a>{warning}\
             <td>{}<td>{}<td>{}<td>{}<td{}>{}<td>{}<td>{} MiB<td>{reserved}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            requests.answered,
            time(requests.latency.p50_ms),
            time(requests.latency.p99_ms),
            requests.failed,
            refusal.unwrap_or_default(),
            requests.refused,
            escape(&function.runtime),
            function.memory_mib,
            phase("busy"),
            phase("idle"),
            phase("starting") + phase("stopping"),
            function.queued,
            each(sum(|one| one.pss_bytes)),
            each(sum(|one| one.private_bytes)),
            each(sum(|one| one.mapped_shared_bytes)),
        )
        .expect(STRING);
    }
    let heads = [
        "function",
        "answered",
        "P50",
        "P99",
        "failed",
        "refused",
        "runtime",
        "limit",
        "reserved",
        "busy",
        "idle",
        "starting or stopping",
        "waiting",
        "PSS each",
        "own each",
        "mapped from store",
    ];
    table("Functions, and their requests since the worker began", "functions", &heads, &rows)
}

fn table(title: &str, id: &str, heads: &[&str], rows: &str) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=col>{head}")).collect();
    format!(
        "<section class=card><h2>{title}</h2><div class=table><table id={id}><thead><tr>{heads}<tbody>{rows}</table></div></section>\n"
    )
}

/// The last events that need the operator's attention, if there are any.
fn trouble(view: &View) -> String {
    let is_trouble = |event: &&Event| TROUBLE.contains(&event.kind.as_str());
    let rows = event_rows(view, is_trouble, " class=trouble");
    if rows.is_empty() { rows } else { event_table("Trouble", "trouble", &rows) }
}

/// The other events, apart from those that any request causes.
fn last_events(view: &View) -> String {
    let other = |event: &&Event| {
        let kind = event.kind.as_str();
        !matches!(kind, "start" | "stop") && !TROUBLE.contains(&kind) && !is_empty(event)
    };
    let mut rows = event_rows(view, other, "");
    if rows.is_empty() {
        rows += "<tr><td class=words>nothing yet";
    }
    event_table("Last events", "events", &rows)
}

/// The last events of a kind, the latest first.
fn event_rows(view: &View, wanted: impl Fn(&&Event) -> bool, class: &str) -> String {
    const SHOWN: usize = 12;
    let mut rows = String::new();
    for event in view.events.iter().rev().filter(wanted).take(SHOWN) {
        let ago = span(view.uptime_ms.saturating_sub(event.at_ms));
        write!(rows, "<tr{class}><td>{ago} ago<td class=words>{}", escape(&describe(event))).expect(STRING);
    }
    rows
}

fn event_table(title: &str, id: &str, rows: &str) -> String {
    format!(
        "<section class=card><h2>{title}</h2><div class=table><table id={id}><tbody>{rows}</table></div></section>\n"
    )
}

/// Live objects and the blocks that they are in.
fn heap(one: &Instance) -> String {
    match one.heap_held_bytes {
        0 => "–".into(),
        held => {
            let bytes = |value: u64| Unit::Bytes.format(value as f64);
            format!("{} of {}", bytes(one.heap_live_bytes), bytes(held))
        }
    }
}

fn instances(instances: &[Instance]) -> String {
    let mut rows = String::new();
    for one in instances {
        let bytes = |value: u64| Unit::Bytes.format(value as f64);
        write!(
            rows,
            "<tr><th scope=row>{} {}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escape(&one.function),
            one.id,
            escape(&one.phase),
            span(one.age_ms),
            one.init_ms.map_or_else(|| "–".into(), |ms| Unit::Milliseconds.format(ms)),
            one.partition.map_or_else(|| "–".into(), |number| number.to_string()),
            bytes(one.pss_bytes),
            bytes(one.private_bytes),
            bytes(one.mapped_shared_bytes),
            heap(one),
            bytes(one.peak_bytes),
        )
        .expect(STRING);
    }
    let heads = [
        "instance",
        "phase",
        "age",
        "start took",
        "partition",
        "PSS",
        "own",
        "mapped from store",
        "heap: live of held",
        "most ever",
    ];
    let inner = table("Instances", "instances", &heads, &rows);
    format!("<details><summary>All {} instances</summary>{inner}</details>\n", instances.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Counts, Function, Requests};

    #[test]
    fn trouble_is_not_hidden_by_instances_at_rest() {
        let (layers, event) =
            (Layers::default(), |kind: &str, at_ms| Event { kind: kind.into(), at_ms, ..Event::default() });
        let mut events = vec![event("fail", 0)];
        events.extend((1..500).map(|at_ms| Event { trimmed_bytes: Some(1 << 20), ..event("rest", at_ms) }));
        let view = View {
            uptime_ms: 500,
            minutes: 1,
            layers: &layers,
            samples: &[],
            events: &events,
            instances: &[],
            functions: &[],
            counts: Counts::default(),
        };
        assert!(trouble(&view).contains("did not start") && !trouble(&view).contains("at rest"));
        assert!(last_events(&view).contains("at rest") && !last_events(&view).contains("did not start"));
        assert_eq!(trouble(&View { events: &events[1..], ..view }), "");
    }

    #[test]
    fn a_waiting_function_without_instance_is_shown_as_starving() {
        let layers = Layers::default();
        let function = |name: &str, queued| Function {
            name: name.into(),
            runtime: "python3.11".into(),
            memory_mib: 128,
            reserved: None,
            queued,
            counts: Requests { last_refusal: Some("<no room>".into()), ..Requests::default() },
        };
        let of = |name: &str, phase: &str| Instance {
            function: name.into(),
            phase: phase.into(),
            ..Instance::default()
        };
        let view = View {
            uptime_ms: 1,
            minutes: 1,
            layers: &layers,
            samples: &[],
            events: &[],
            instances: &[of("busy", "busy"), of("hungry", "starting")],
            functions: &[function("busy", 3), function("hungry", 1), function("calm", 0)],
            counts: Counts::default(),
        };
        let html = functions(&view);
        let row = |name: &str| html.split("<tr").find(|row| row.contains(&format!(">{name}</a>"))).unwrap();
        assert!(row("hungry").contains("starves") && row("hungry").starts_with(" class=trouble"));
        assert!(!row("busy").contains("starves") && !row("calm").contains("starves"));
        assert!(row("calm").contains("title=\"&lt;no room"), "{}", row("calm"));
    }
}
