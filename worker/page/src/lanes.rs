//! Events over time as HTML: dots on lanes, one lane for each kind.

use std::fmt::Write;

use crate::chart::{Span, short, time_labels};
use crate::text::escape;

/// Events of one kind over time.
pub struct Lane {
    /// Shown at the left.
    pub name: String,
    /// Its class in the style sheet.
    pub colour: &'static str,
    /// Times, in milliseconds since the worker began, and descriptions.
    pub events: Vec<(u64, String)>,
}

/// Events as dots on lanes, with the time of `span` from left to right. Events close together become one
/// larger dot.
pub fn lanes(title: &str, note: &str, span: Span, lanes: &[Lane]) -> String {
    const PLACES: f64 = 120.0;
    let mut body = String::new();
    for lane in lanes {
        let mut dots: Vec<(u64, Vec<&(u64, String)>)> = Vec::new();
        for event in lane.events.iter().filter(|(at, _)| (span.from_ms..=span.to_ms).contains(at)) {
            let place = (span.place(event.0 as f64) * PLACES) as u64;
            match dots.last_mut() {
                Some((last, group)) if *last == place => group.push(event),
                _ => dots.push((place, vec![event])),
            }
        }
        write!(body, "<div class=lane><span class=name>{}</span>", escape(&lane.name))
            .expect("strings take all");
        for (_, group) in dots {
            let size = (6.0 + 1.5 * (group.len() as f64).log2()).min(12.0);
            let title = match &group[..] {
                [one] => one.1.clone(),
                [first, ..] => format!("{} times, first: {}", group.len(), first.1),
                [] => unreachable!("each dot has an event"),
            };
            write!(
                body,
                "<i class=c-{} style=\"left:{}%;width:{size:.0}px;height:{size:.0}px\" title=\"{}\"></i>",
                lane.colour,
                short(span.place(group[0].0 as f64) * 100.0),
                escape(&title)
            )
            .expect("strings take all");
        }
        body += "</div>";
    }
    format!(
        "<figure class=card><figcaption><h2>{}</h2><p>{}</p></figcaption><div class=lanes>{body}{}</div></figure>\n",
        escape(title),
        escape(note),
        time_labels(&span)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_close_together_are_one_dot() {
        let span = Span { from_ms: 0, to_ms: 100_000, live: false };
        let event = |at| (at, format!("at {at}"));
        let lane = Lane {
            name: "x".into(),
            colour: "merge",
            events: vec![event(10), event(20), event(50_000), event(200_000)],
        };
        let html = lanes("t", "n", span, &[lane]);
        assert_eq!(html.matches("<i ").count(), 2, "{html}");
        assert!(
            html.contains("2 times, first: at 10") && html.contains("left:50%") && !html.contains("200000")
        );
    }
}
