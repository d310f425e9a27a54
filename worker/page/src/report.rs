//! The file that `mayfly report` writes: runs beside one another, in a table and as charts. One file, no
//! network.

use std::fmt::Write;

use crate::chart::{Chart, Series, Span};
use crate::data::Sample;
use crate::errors::errors;
use crate::events::event_lanes;
use crate::figures::{Memory, instances_chart, latency, memory, memory_of_each, requests};
use crate::page::{POINTER, STYLE, layer_states};
use crate::run::Run;
use crate::text::{Unit, escape};

/// Colours of runs, in their order; more runs begin again.
const COLOURS: [&str; 5] = ["plain", "mayfly", "plugged", "busy", "p50"];
const STRING: &str = "strings take all";

/// The whole page.
pub fn report(runs: &[Run]) -> String {
    let runs: Vec<Run> = runs.iter().map(Run::trimmed).collect();
    let title = runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut sections = String::new();
    for run in &runs {
        sections += &details(run);
    }
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <link rel=icon href=\"data:,\"><title>Mayfly report: {0}</title><style>{STYLE}</style>\n<body><main>\
         <header><h1>Mayfly <span>report: {0}</span></h1></header>{1}\n<section class=charts>{2}{3}</section>\n{sections}\
         <footer>Memory is the proportional set size of all instances and the page store, each shared page counted \
         once.</footer></main>\n<script>{POINTER}</script></html>\n",
        escape(&title),
        table(&runs),
        together(&runs, "Memory of all instances", Unit::Bytes, |sample| Memory::of(sample).used),
        together(&runs, "Instances", Unit::Count, |sample| {
            sample.functions.values().map(|f| f.starting + f.idle + f.busy + f.stopping).sum::<u64>() as f64
        }),
    )
}

/// One row per fact that some run has, one column per run; from the second on with the ratio to the first.
fn table(runs: &[Run]) -> String {
    let facts: Vec<_> = runs.iter().map(Run::facts).collect();
    let mut rows = String::new();
    for number in 0..facts.first().map_or(0, Vec::len) {
        let first = &facts[0][number];
        if facts.iter().all(|of_run| of_run[number].value.is_none()) {
            continue;
        }
        write!(rows, "<tr data-fact=\"{}\"><th scope=row>{}", first.key, escape(first.label)).expect(STRING);
        for (place, of_run) in facts.iter().enumerate() {
            let value = of_run[number].value;
            write!(rows, "<td>{}", value.map_or_else(|| "–".into(), |value| first.unit.format(value)))
                .expect(STRING);
            if place > 0 {
                write!(rows, "<td class=ratio>{}", ratio(first.value, value)).expect(STRING);
            }
        }
    }
    let mut heads = "<th scope=col>".to_string();
    for (place, run) in runs.iter().enumerate() {
        let ratio =
            if place > 0 { format!("<th scope=col>/ {}", escape(&runs[0].name)) } else { String::new() };
        write!(heads, "<th scope=col>{}{ratio}", escape(&run.name)).expect(STRING);
    }
    format!(
        "<section class=card><h2>In numbers</h2><div class=table><table id=facts><thead><tr>{heads}<tbody>{rows}</table></div></section>"
    )
}

/// The ratio of the second to the first.
pub fn ratio(first: Option<f64>, second: Option<f64>) -> String {
    match (first, second) {
        (Some(first), Some(second)) if first > 0.0 => format!("{:.2}×", second / first),
        _ => String::new(),
    }
}

/// One line per run in one chart.
fn together(runs: &[Run], title: &str, unit: Unit, value: impl Fn(&Sample) -> f64) -> String {
    let to_ms = runs.iter().map(Run::end_ms).max().unwrap_or(0).max(1000);
    // Lines share the moments of the run with most of them; a run that has ended is at zero.
    let longest = runs.iter().max_by_key(|run| run.history.samples.len());
    let at_ms: Vec<u64> =
        longest.map_or_else(Vec::new, |run| run.history.samples.iter().map(|s| s.at_ms).collect());
    let line = |(place, run): (usize, &Run)| Series {
        name: run.name.clone(),
        colour: COLOURS[place % COLOURS.len()],
        values: at_ms.iter().map(|at| nearest(&run.history.samples, *at).map_or(0.0, &value)).collect(),
    };
    let lines = runs.iter().enumerate().map(line).collect();
    let note = "All runs beside one another, from a second before their first request.".into();
    let span = Span { from_ms: 0, to_ms, live: false };
    Chart { title: title.into(), note, unit, span, at_ms, areas: vec![], lines, logarithmic: false }.html()
}

/// The last sample taken by then, if the run had not ended.
fn nearest(samples: &[Sample], at_ms: u64) -> Option<&Sample> {
    let after = samples.partition_point(|sample| sample.at_ms <= at_ms);
    if after == samples.len() && samples.last().is_some_and(|last| last.at_ms + 2000 < at_ms) {
        return None;
    }
    samples.get(after.checked_sub(1)?)
}

/// A run by itself.
fn details(run: &Run) -> String {
    let (samples, layers) = (&run.history.samples[..], &run.history.layers);
    let span = Span { from_ms: 0, to_ms: run.end_ms().max(1000), live: false };
    let mut chips = String::new();
    for (name, on) in layer_states(layers) {
        write!(chips, "<li class={}>{}", if on { "on" } else { "off" }, escape(&name)).expect(STRING);
    }
    format!(
        "<header><h1>{}</h1><ul class=chips>{chips}</ul></header><section class=charts>{}{}{}{}{}{}{}</section>{}\n",
        escape(&run.name),
        memory(samples, layers, span).html(),
        memory_of_each(samples, span).html(),
        instances_chart(samples, span).html(),
        requests(samples, span).html(),
        errors(samples, span).html(),
        latency(samples, span).html(),
        event_lanes(&run.events.events, span),
        functions(run),
    )
}

/// How the load of each function was answered.
fn functions(run: &Run) -> String {
    let names = run.load.keys().filter_map(|key| key.strip_suffix(".sent"));
    let mut rows = String::new();
    for name in names {
        let cell = |key: &str, unit: Unit| {
            run.load
                .get(&format!("{name}.{key}"))
                .map_or_else(|| "–".to_string(), |value| unit.format(*value))
        };
        write!(rows, "<tr><th scope=row>{}", escape(name)).expect(STRING);
        for key in ["sent", "failed", "throttled", "refused"] {
            write!(rows, "<td>{}", cell(key, Unit::Count)).expect(STRING);
        }
        for key in ["latency.p50_ms", "latency.p90_ms", "latency.p99_ms", "latency.p99_9_ms"] {
            write!(rows, "<td>{}", cell(key, Unit::Milliseconds)).expect(STRING);
        }
    }
    if rows.is_empty() {
        return rows;
    }
    let heads = ["function", "sent", "failed", "throttled", "refused", "P50", "P90", "P99", "P99.9"];
    let heads: String = heads.iter().map(|head| format!("<th scope=col>{head}")).collect();
    format!(
        "<section class=card><h2>Load</h2><div class=table><table><thead><tr>{heads}<tbody>{rows}</table></div></section>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Event, FunctionSample};

    fn run(name: &str, mib: u64) -> Run {
        let function = FunctionSample {
            idle: 2,
            pss_bytes: mib << 20,
            private_bytes: mib << 20,
            ..FunctionSample::default()
        };
        let samples = (0..5).map(|n| Sample {
            at_ms: n * 1000,
            functions: [("f".into(), function.clone())].into(),
            ..Sample::default()
        });
        let mut run = Run { name: name.into(), ..Run::default() };
        run.history.samples = samples.collect();
        run.events.events = vec![Event { kind: "ready".into(), at_ms: 1000, ..Event::default() }];
        run.load = [("f.sent".to_string(), 3.0), ("all.sent".to_string(), 3.0)].into();
        run
    }

    #[test]
    fn a_report_compares_with_the_first_and_needs_no_network() {
        let html = report(&[run("plain <1>", 100), run("mayfly", 40)]);
        let row = html.split("data-fact=\"memory.peak_bytes\"").nth(1).unwrap().split("<tr").next().unwrap();
        assert!(row.contains("<td>100 MiB<td>40 MiB<td class=ratio>0.40×"), "{row}");
        assert!(html.contains("plain &lt;1&gt;") && !html.contains("plain <1>"));
        assert!(!html.contains("://") && !html.contains("NaN") && !html.contains("src="));
        assert!(!html.contains("data-fact=\"latency.p99_ms\""), "a fact that no run has is no row");
    }

    #[test]
    fn a_run_without_samples_renders() {
        assert!(report(&[Run::default()]).contains("In numbers"));
    }
}
