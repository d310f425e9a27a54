//! A chart over time as HTML: stacked areas, and lines over them.
//!
//! The browser stretches the SVG to the room it has; labels are HTML beside it, so that they keep their size.
//! Colours are classes (`c-private`), which the style sheet defines for a light and a dark page.

use std::fmt::Write;

use crate::text::{Unit, escape};

/// The most points of a chart: more would not be visible.
const POINTS: usize = 240;
/// The SVG's own width and height; the screen's differ.
const WIDE: f64 = 1000.0;
const HIGH: f64 = 100.0;

/// Values over time.
pub struct Series {
    /// In the legend.
    pub name: String,
    /// The class of its colour in the style sheet.
    pub colour: &'static str,
    /// One for each moment of the chart; NaN where a line has none yet.
    pub values: Vec<f64>,
}

/// The stretch of time that a chart shows, in milliseconds since the worker began.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its left edge.
    pub from_ms: u64,
    /// Its right edge, later than the left.
    pub to_ms: u64,
    /// Whether the right edge is now: then labels count backwards from there.
    pub live: bool,
}

impl Span {
    /// The place of a moment, from 0 to 1.
    pub fn place(&self, at_ms: f64) -> f64 {
        (at_ms - self.from_ms as f64) / (self.to_ms - self.from_ms) as f64
    }

    /// Labels below a chart, with their places.
    fn labels(&self) -> Vec<(f64, String)> {
        let seconds = (self.to_ms - self.from_ms) as f64 / 1e3;
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0];
        let step = steps.into_iter().find(|step| seconds / step <= 6.0).unwrap_or(7200.0);
        let label = |value: f64| match step {
            short if short < 60.0 => format!("{value:.0} s"),
            _ => format!("{:.0} min", value / 60.0),
        };
        let mut labels = Vec::new();
        for number in 0..=(seconds / step) as u32 {
            let value = f64::from(number) * step;
            match (self.live, number) {
                (true, 0) => labels.push((1.0, "now".into())),
                (true, _) => labels.push((1.0 - value / seconds, format!("−{}", label(value)))),
                (false, _) => labels.push((value / seconds, label(value))),
            }
        }
        labels
    }
}

/// Values over time, drawn.
pub struct Chart {
    /// A few words.
    pub title: String,
    /// A sentence on how to read it.
    pub note: String,
    /// The unit of the values.
    pub unit: Unit,
    /// The time that is shown.
    pub span: Span,
    /// Moments, in milliseconds since the worker began, in order.
    pub at_ms: Vec<u64>,
    /// Stacked, the first at the bottom.
    pub areas: Vec<Series>,
    /// Drawn over them, each from zero.
    pub lines: Vec<Series>,
    /// Whether the scale is logarithmic: ten times as much is one step up.
    pub logarithmic: bool,
}

impl Chart {
    /// The chart as HTML.
    pub fn html(&self) -> String {
        let kept = self.kept();
        let at: Vec<f64> = kept.iter().map(|group| self.span.place(self.at_ms[group.1] as f64)).collect();
        let reduce = |series: &Series| -> Vec<f64> {
            kept.iter()
                .map(|&(first, last)| series.values[first..=last].iter().copied().fold(f64::NAN, f64::max))
                .collect()
        };
        let areas: Vec<Vec<f64>> = self.areas.iter().map(reduce).collect();
        let lines: Vec<Vec<f64>> = self.lines.iter().map(reduce).collect();
        let sums = (0..at.len()).map(|n| areas.iter().map(|values| values[n]).sum::<f64>());
        let most = lines.iter().flatten().copied().chain(sums).fold(0.0, f64::max);
        let scale = match self.logarithmic {
            true => {
                let positive = lines.iter().flatten().copied().filter(|value| *value > 0.0);
                Scale::logarithmic(self.unit, positive.fold(most.max(1.0), f64::min), most)
            }
            false => Scale::linear(self.unit, most),
        };

        let mut legend = String::new();
        let all = self.areas.iter().zip(&areas).map(|pair| (pair, "area"));
        let over = self.lines.iter().zip(&lines).map(|pair| (pair, "line"));
        for ((series, values), kind) in all.clone().chain(over.clone()) {
            let last = values.last().filter(|value| !value.is_nan());
            let shown = last.map_or_else(|| "–".into(), |value| self.unit.format(*value));
            let numbers: Vec<String> = values.iter().map(|value| short(*value)).collect();
            write!(
                legend,
                "<li class=\"{kind} c-{}\" data-values=\"{}\"><i></i>{} <b>{shown}</b>",
                series.colour,
                numbers.join(" "),
                escape(&series.name)
            )
            .expect("strings take all");
        }
        let mut drawing = String::new();
        for (_, place) in &scale.ticks {
            write!(drawing, "<path class=grid d=\"M0 {0}H{WIDE}\"/>", short(HIGH - place * HIGH))
                .expect("strings take all");
        }
        let mut below = vec![0.0; at.len()];
        for ((series, values), _) in all {
            let above: Vec<f64> = below.iter().zip(values).map(|(low, value)| low + value).collect();
            let upper = points(&at, &above, &scale);
            let lower: Vec<String> = points(&at, &below, &scale).into_iter().rev().collect();
            if !at.is_empty() {
                let outline = format!("M{}L{}Z", upper.join("L"), lower.join("L"));
                write!(drawing, "<path class=\"area c-{}\" d=\"{outline}\"/>", series.colour)
                    .expect("strings take all");
            }
            below = above;
        }
        for ((series, values), _) in over {
            let outline = polyline(&at, values, &scale);
            if !outline.is_empty() {
                write!(drawing, "<path class=\"line c-{}\" d=\"{outline}\"/>", series.colour)
                    .expect("strings take all");
            }
        }
        let mut labels = String::new();
        for (label, place) in &scale.ticks {
            write!(labels, "<span class=y style=\"bottom:{}%\">{label}</span>", short(place * 100.0))
                .expect("strings take all");
        }
        labels += &time_labels(&self.span);
        let moments: Vec<String> = at.iter().map(|place| short(*place)).collect();
        format!(
            "<figure class=card><figcaption><h2>{}</h2><p>{}</p><ul class=legend>{legend}</ul></figcaption>\
             <div class=plot data-unit={} data-at=\"{}\"><svg viewBox=\"0 0 {WIDE} {HIGH}\" preserveAspectRatio=none \
             role=img aria-label=\"{}\">{drawing}</svg>{labels}</div></figure>\n",
            escape(&self.title),
            escape(&self.note),
            self.unit.name(),
            moments.join(" "),
            escape(&self.title),
        )
    }

    /// Neighbouring moments that become one point, first and last of each: its value is their highest.
    fn kept(&self) -> Vec<(usize, usize)> {
        let shown: Vec<usize> = (0..self.at_ms.len())
            .filter(|n| (self.span.from_ms..=self.span.to_ms).contains(&self.at_ms[*n]))
            .collect();
        shown
            .chunks(shown.len().div_ceil(POINTS).max(1))
            .map(|group| (group[0], group[group.len() - 1]))
            .collect()
    }
}

/// From values to heights, and the labels at the left.
struct Scale {
    top: f64,
    /// The lowest value that a logarithmic scale shows.
    bottom: Option<f64>,
    ticks: Vec<(String, f64)>,
}

impl Scale {
    /// From zero to a round number.
    fn linear(unit: Unit, most: f64) -> Scale {
        let step = step(unit, most);
        let top = (most / step).ceil().max(1.0) * step;
        let mut scale = Scale { top, bottom: None, ticks: Vec::new() };
        for number in 0..=(top / step).round() as u32 {
            let value = f64::from(number) * step;
            scale.ticks.push((unit.format(value), scale.place(value)));
        }
        scale
    }

    /// From the power of ten below the least to the one above the most, two at least.
    fn logarithmic(unit: Unit, least: f64, most: f64) -> Scale {
        let low = least.max(1e-3).log10().floor() as i32;
        let high = (most.max(1e-3).log10().ceil() as i32).max(low + 2);
        let mut scale = Scale { top: 10_f64.powi(high), bottom: Some(10_f64.powi(low)), ticks: Vec::new() };
        for exponent in low..=high {
            let value = 10_f64.powi(exponent);
            scale.ticks.push((unit.format(value), scale.place(value)));
        }
        scale
    }

    fn place(&self, value: f64) -> f64 {
        match self.bottom {
            Some(bottom) => (value.max(bottom) / bottom).log10() / (self.top / bottom).log10(),
            None => value / self.top,
        }
    }
}

/// A round distance between labels, so that there are at most five: powers of two for bytes, 1, 2 or 5 for
/// others.
fn step(unit: Unit, most: f64) -> f64 {
    let mut step = if unit == Unit::Bytes { f64::from(1 << 20) } else { 1.0 };
    let factors: &[f64] = if unit == Unit::Bytes { &[2.0] } else { &[2.0, 2.5, 2.0] };
    let mut turns = factors.iter().cycle();
    while most / step > 5.0 {
        step *= turns.next().expect("it never ends");
    }
    step
}

fn points(at: &[f64], values: &[f64], scale: &Scale) -> Vec<String> {
    at.iter()
        .zip(values)
        .map(|(place, value)| format!("{} {}", short(place * WIDE), short(HIGH - scale.place(*value) * HIGH)))
        .collect()
}

/// A line with gaps where there are no values.
fn polyline(at: &[f64], values: &[f64], scale: &Scale) -> String {
    let (mut path, mut continues) = (String::new(), false);
    for (point, value) in points(at, values, scale).into_iter().zip(values) {
        if !value.is_nan() {
            path.push(if continues { 'L' } else { 'M' });
            path += &point;
        }
        continues = !value.is_nan();
    }
    path
}

pub(crate) fn time_labels(span: &Span) -> String {
    let mut labels = String::new();
    for (place, label) in span.labels() {
        write!(labels, "<span class=x style=\"left:{}%\">{label}</span>", short(place * 100.0))
            .expect("strings take all");
    }
    labels
}

/// As few digits as a screen can show.
pub(crate) fn short(value: f64) -> String {
    if value.is_nan() {
        return "-".into();
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(at_ms: Vec<u64>, values: Vec<f64>, unit: Unit) -> Chart {
        let span = Span { from_ms: 0, to_ms: 10_000, live: true };
        let areas = vec![Series { name: "<mine>".into(), colour: "private", values }];
        Chart {
            title: "t".into(),
            note: "n".into(),
            unit,
            span,
            at_ms,
            areas,
            lines: vec![],
            logarithmic: false,
        }
    }

    #[test]
    fn an_area_spans_zero_to_its_value() {
        let html = chart(vec![0, 10_000], vec![4.0, 2.0], Unit::Count).html();
        assert!(html.contains("d=\"M0 0L1000 50L1000 100L0 100Z\""), "{html}");
        assert!(
            html.contains("&lt;mine&gt; <b>2</b>") && html.contains("style=\"bottom:100%\">4<"),
            "{html}"
        );
    }

    #[test]
    fn many_moments_become_few_points_and_the_highest_stays() {
        let mut values = vec![1.0; 5000];
        values[1234] = 77.0;
        let html = chart((0..5000).map(|n| n * 2).collect(), values, Unit::Count).html();
        assert!(
            html.split("data-at=\"").nth(1).unwrap().split('"').next().unwrap().split(' ').count() <= POINTS
        );
        assert!(html.contains(" 77 "), "{html}");
    }

    #[test]
    fn a_chart_without_moments_is_empty_but_there() {
        let html = chart(vec![], vec![], Unit::Bytes).html();
        assert!(html.contains("–") && html.contains("1 MiB") && !html.contains("NaN"), "{html}");
    }

    #[test]
    fn at_most_six_labels_whatever_the_values() {
        for exponent in 0..50 {
            let most = 1.7_f64.powi(exponent);
            for unit in [Unit::Bytes, Unit::Count, Unit::Milliseconds] {
                let scale = Scale::linear(unit, most);
                assert!((2..=6).contains(&scale.ticks.len()) && scale.top >= most, "{most}");
            }
        }
    }

    #[test]
    fn a_logarithmic_scale_has_a_label_for_each_power_of_ten() {
        let scale = Scale::logarithmic(Unit::Milliseconds, 0.3, 430.0);
        let labels: Vec<&str> = scale.ticks.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert!((scale.place(1.0) - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_line_is_only_where_its_values_are() {
        let mut late = chart(vec![0, 2000, 4000, 5000, 10_000], vec![], Unit::Count);
        late.areas.clear();
        late.lines =
            vec![Series { name: "l".into(), colour: "p99", values: vec![1.0, 1.0, f64::NAN, 1.0, 2.0] }];
        let html = late.html();
        assert!(
            html.contains("d=\"M0 50L200 50M500 50L1000 0\"") && html.contains("data-values=\"1 1 - 1 2\""),
            "{html}"
        );
    }
}
