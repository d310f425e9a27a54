//! Calls that fail: how many over time, and why.

use std::fmt::Write;

use crate::chart::{Chart, Series, Span};
use crate::data::{Outcomes, Sample};
use crate::text::{Unit, escape, span as time_span};
use crate::view::{Function, Reason, View};

/// The most reasons that the page shows.
const SHOWN: usize = 15;

/// Failed and refused calls over time.
pub fn errors(samples: &[Sample], span: Span) -> Chart {
    let series = |name: &str, colour, count: fn(&Outcomes) -> u64| {
        let per_second = |pair: &[Sample]| {
            let seconds = (pair[1].at_ms - pair[0].at_ms).max(1) as f64 / 1e3;
            let calls = count(&pair[1].outcomes).saturating_sub(count(&pair[0].outcomes));
            (calls as f64 / seconds * 10.0).round() / 10.0
        };
        // What came before the first sample is not of one second.
        let mut values: Vec<f64> = samples.first().map(|_| 0.0).into_iter().collect();
        values.extend(samples.windows(2).map(per_second));
        Series { name: name.into(), colour, values }
    };
    Chart {
        title: "Errors".into(),
        note: "Calls per second that functions failed, and that were not run: for lack of room (throttled), or for another reason (refused).".into(),
        unit: Unit::Count,
        span,
        at_ms: samples.iter().map(|sample| sample.at_ms).collect(),
        areas: vec![
            series("failed", "trouble", |outcomes| outcomes.failed),
            series("throttled", "busy", |outcomes| outcomes.throttled),
            series("refused", "starting", |outcomes| outcomes.refused),
        ],
        lines: vec![],
        logarithmic: false,
    }
}

/// Why calls fail, the latest reason first.
pub fn reasons(view: &View) -> String {
    let of = |function: &'_ Function| {
        let name = function.name.clone();
        function.counts.reasons.clone().into_iter().map(move |reason| (name.clone(), reason))
    };
    let mut all: Vec<(String, Reason)> = view.functions.iter().flat_map(of).collect();
    all.sort_by_key(|(_, reason)| reason.ago_ms);
    let more = all.len().saturating_sub(SHOWN);
    let mut rows = String::new();
    for (name, reason) in all.iter().take(SHOWN) {
        let (name, times) =
            (escape(name), if reason.count == 1 { "once".into() } else { format!("{} times", reason.count) });
        write!(
            rows,
            "<tr class=trouble><th scope=row><a href=\"/log?function={name}\" title=\"its log\">{name}</a><td>{times}\
             <td>{} ago<td class=words>{}",
            time_span(reason.ago_ms),
            escape(&reason.text)
        )
        .expect("strings take all");
    }
    if rows.is_empty() {
        rows += "<tr><td class=words>No call has failed.";
    }
    if more > 0 {
        write!(rows, "<tr><td><td><td><td class=words>and {more} other reasons").expect("strings take all");
    }
    format!(
        "<section class=card><h2>Why calls fail</h2><div class=table><table id=reasons><tbody>{rows}</table></div></section>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_between_samples() {
        let sample = |at_ms, failed, refused| Sample {
            at_ms,
            outcomes: Outcomes { failed, refused, ..Outcomes::default() },
            ..Sample::default()
        };
        let samples = [sample(0, 5, 0), sample(1000, 5, 2), sample(3000, 9, 2)];
        let chart = errors(&samples, Span { from_ms: 0, to_ms: 3000, live: false });
        assert_eq!(chart.areas[0].values, [0.0, 0.0, 2.0]);
        assert_eq!(chart.areas[2].values, [0.0, 2.0, 0.0]);
        assert!(errors(&[], Span { from_ms: 0, to_ms: 1, live: false }).areas[0].values.is_empty());
    }
}
