//! The figures as SVG: memory over time (LLAMA Figs. 1 and 9) and lifetimes (Fig. 2).

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::failure::plain_reason;
use crate::quantity;
use crate::trace::distribution::{Amount, Distribution};
use crate::trace::simulation::Curve;

const SIZE: (u32, u32) = (900, 480);
const FONT: &str = "sans-serif";

/// Draws memory over time, one line for each curve.
///
/// # Errors
/// The file cannot be written.
pub fn memory_over_time(path: &Path, curves: &[Curve]) -> Result<()> {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last_ns = points().map(|&(time_ns, _)| time_ns).max().unwrap_or(0).max(1) as f64;
    let most_bytes = points().map(|&(_, bytes)| bytes).fold(1.0, f64::max);
    let (per_unit_ns, time_unit) = if last_ns >= 2e9 { (1e9, "s") } else { (1e6, "ms") };
    let (per_unit_bytes, memory_unit) =
        if most_bytes >= 2.0 * 1048576.0 { (1048576.0, "MiB") } else { (1024.0, "KiB") };

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let ranges = (0.0..last_ns / per_unit_ns, 0.0..1.08 * most_bytes / per_unit_bytes);
        let mut chart = ChartBuilder::on(&area)
            .caption("Live memory and the pages that hold it", (FONT, 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(ranges.0, ranges.1)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .x_desc(format!("time [{time_unit}]"))
            .y_desc(format!("memory [{memory_unit}]"))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|value| axis_number(*value))
            .y_label_formatter(&|value| axis_number(*value))
            .draw()
            .map_err(drawing)?;
        // Narrow curves lie over wide ones: the live bytes come last.
        for (index, curve) in curves.iter().enumerate().rev() {
            let style = color(index).stroke_width(2);
            let points = curve
                .points
                .iter()
                .map(|&(time_ns, bytes)| (time_ns as f64 / per_unit_ns, bytes / per_unit_bytes));
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(drawing)?
                .label(legend(curve))
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 14))
            .draw()
            .map_err(drawing)?;
        area.present().map_err(drawing)?;
    }
    save(path, &svg)
}

fn legend(curve: &Curve) -> String {
    let average =
        curve.average_bytes.map_or(String::new(), |bytes| format!(", {} on average", quantity::bytes(bytes)));
    let label = match curve.name.split_once('.') {
        Some(("recorded", page)) => format!("{page} pages, recorded addresses"),
        Some(("mayfly", page)) => format!("{page} pages, Mayfly with true lifetimes"),
        Some(("packed", page)) => format!("{page} pages, least possible"),
        _ => "live objects".into(),
    };
    label + &average
}

fn color(index: usize) -> RGBColor {
    // Distinct in print and for the colour-blind.
    const COLORS: [(u8, u8, u8); 6] =
        [(0, 0, 0), (230, 159, 0), (204, 51, 17), (0, 119, 187), (0, 153, 136), (170, 51, 119)];
    let (red, green, blue) = COLORS[index % COLORS.len()];
    RGBColor(red, green, blue)
}

/// Draws how many objects lived how long, and the share of objects and bytes that had died by then.
///
/// # Errors
/// The file cannot be written.
pub fn lifetimes(path: &Path, lifetimes: &Distribution) -> Result<()> {
    let used: Vec<usize> = (0..lifetimes.bins.len()).filter(|&bin| lifetimes.bins[bin].objects > 0).collect();
    let (first, last) = (used.first().copied().unwrap_or(0), used.last().copied().unwrap_or(0));
    let start_ms = |bin: usize| Distribution::bin_start_ns(bin) / 1e6;
    let x = start_ms(first)..start_ms(last + 1);

    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (SIZE.0, 640)).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        let (upper, lower) = area.split_vertically(320);
        draw_histogram(&upper, lifetimes, x.clone(), first..last + 1).map_err(drawing)?;
        draw_shares(&lower, lifetimes, x, first..last + 1).map_err(drawing)?;
        area.present().map_err(drawing)?;
    }
    save(path, &svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn draw_histogram<'a>(
    area: &Area<'a>,
    lifetimes: &Distribution,
    x: Range<f64>,
    bins: Range<usize>,
) -> Drawn<'a> {
    let most = lifetimes.bins.iter().map(|bin| bin.objects).max().unwrap_or(0).max(1) as f64;
    let never = quantity::count(lifetimes.never_freed.objects);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("Lifetimes of objects ({never} were never freed)"), (FONT, 20))
        .margin(12)
        .x_label_area_size(26)
        .y_label_area_size(72)
        .build_cartesian_2d(x.log_scale(), (0.5..2.0 * most).log_scale())?;
    chart
        .configure_mesh()
        .y_desc("objects, ten bins a decade")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|ms| quantity::duration(*ms * 1e6).replace(".0 ", " "))
        .y_label_formatter(&|objects| axis_number(*objects))
        .draw()?;
    let bars = bins.filter(|&bin| lifetimes.bins[bin].objects > 0).map(|bin| {
        let (left, right) =
            (Distribution::bin_start_ns(bin) / 1e6, Distribution::bin_start_ns(bin + 1) / 1e6);
        Rectangle::new([(left, 0.5), (right, lifetimes.bins[bin].objects as f64)], color(3).filled())
    });
    chart.draw_series(bars)?;
    Ok(())
}

fn draw_shares<'a>(
    area: &Area<'a>,
    lifetimes: &Distribution,
    x: Range<f64>,
    bins: Range<usize>,
) -> Drawn<'a> {
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x.log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("lifetime (logarithmic)")
        .y_desc("freed within it [%]")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|ms| quantity::duration(*ms * 1e6).replace(".0 ", " "))
        .y_label_formatter(&|percent| axis_number(*percent))
        .draw()?;
    let mut curve = |label: &str, number: usize, amount: fn(&Amount) -> u64| {
        let total = amount(&lifetimes.total).max(1) as f64;
        let mut sum = 0;
        let points: Vec<_> = bins
            .clone()
            .map(|bin| {
                sum += amount(&lifetimes.bins[bin]);
                (Distribution::bin_start_ns(bin + 1) / 1e6, 100.0 * sum as f64 / total)
            })
            .collect();
        let style = color(number).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))
            .map(|series| {
                series.label(label).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 22, y)], style))
            })
            .map(|_| ())
    };
    curve("of the objects", 3, |amount| amount.objects)?;
    curve("of their bytes", 2, |amount| amount.bytes)?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 14))
        .draw()
}

/// "1500", "0.5", "2e6".
fn axis_number(value: f64) -> String {
    if value.abs() >= 1e6 {
        format!("{value:e}")
    } else if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{:.2}", value).trim_end_matches('0').to_string()
    }
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

fn save(path: &Path, svg: &str) -> Result<()> {
    std::fs::write(path, svg).map_err(|error| anyhow!("{}: {}", path.display(), plain_reason(&error)))
}
