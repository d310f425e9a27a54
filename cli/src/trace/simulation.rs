//! Replays a trace at its recorded addresses: live bytes and live pages over time (Fig. 1), lifetimes (Fig.
//! 2).

use std::path::Path;

use anyhow::{Result, anyhow};

use crate::trace::distribution::Distribution;
use crate::trace::file::Reader;
use crate::trace::live_objects::{Totals, walk};
use crate::trace::pages::LivePages;
use crate::trace::timeline::Timeline;

/// One curve: a name, its points and their summary.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Key of the curve: `live`, `recorded.4KiB`, `mayfly.2MiB`.
    pub name: String,
    /// Time in ns and value in bytes, in order of time.
    pub points: Vec<(u64, f64)>,
    /// Mean over time; `None` for a trace without duration.
    pub average_bytes: Option<f64>,
    /// At the end of the trace.
    pub final_bytes: u64,
    /// The maximum.
    pub peak_bytes: u64,
}

/// The results for the recorded addresses.
pub struct Recorded {
    /// Sums over the trace.
    pub totals: Totals,
    /// How long objects lived.
    pub lifetimes: Distribution,
    /// Interval between the points of the curves.
    pub interval_ns: u64,
    /// First the live bytes, then one curve for each page size.
    pub curves: Vec<Curve>,
}

/// Simulates the trace at `path` with pages of each of `page_sizes`. `progress` receives the bytes read.
///
/// # Errors
/// The trace cannot be read, or the interval is too short for its length.
pub fn simulate(
    path: &Path,
    page_sizes: &[u64],
    interval_ms: Option<u64>,
    progress: impl FnMut(u64),
) -> Result<Recorded> {
    let mut pages: Vec<_> = page_sizes.iter().map(|&page_bytes| LivePages::new(page_bytes)).collect();
    let mut timeline = Timeline::new(1 + pages.len(), interval_ms);
    let mut lifetimes = Distribution::default();
    let mut values = vec![0u64; 1 + pages.len()];
    let mut peaks = values.clone();
    let refuse = |reason| anyhow!("{}: {reason}", path.display());
    let (totals, alive) = walk(Reader::open(path)?, progress, |change, live_bytes| {
        timeline.advance(change.time_ns, &values).map_err(refuse)?;
        if let Some(object) = change.died {
            lifetimes.freed(change.time_ns.saturating_sub(object.born_ns), object.size_bytes);
        }
        for pages in &mut pages {
            if let Some(object) = change.died {
                pages.died(object.address, object.size_bytes);
            }
            if let Some(object) = change.born {
                pages.born(object.address, object.size_bytes);
            }
        }
        values[0] = live_bytes;
        for (value, pages) in values[1..].iter_mut().zip(&pages) {
            *value = pages.bytes();
        }
        for (peak, value) in peaks.iter_mut().zip(&values) {
            *peak = (*peak).max(*value);
        }
        anyhow::Ok(())
    })?;
    timeline.advance(totals.duration_ns, &values).map_err(refuse)?;
    alive.iter().for_each(|object| lifetimes.never_freed(object.size_bytes));
    let names = std::iter::once("live".to_string())
        .chain(page_sizes.iter().map(|&size| format!("recorded.{}", crate::quantity::page_name(size))));
    let curves = names
        .enumerate()
        .map(|(series, name)| Curve {
            name,
            points: timeline.points(series),
            average_bytes: timeline.mean(series),
            final_bytes: values[series],
            peak_bytes: peaks[series],
        })
        .collect();
    Ok(Recorded { totals, lifetimes, interval_ns: timeline.interval_ns(), curves })
}

/// The least pages that could hold the live objects: the live bytes, rounded up to whole pages at each point.
pub fn packed(live: &Curve, page_bytes: u64) -> Curve {
    let whole = |bytes: f64| (bytes / page_bytes as f64).ceil() * page_bytes as f64;
    let points: Vec<_> = live.points.iter().map(|&(time_ns, bytes)| (time_ns, whole(bytes))).collect();
    Curve {
        name: format!("packed.{}", crate::quantity::page_name(page_bytes)),
        average_bytes: (!points.is_empty())
            .then(|| points.iter().map(|&(_, bytes)| bytes).sum::<f64>() / points.len() as f64),
        points,
        final_bytes: live.final_bytes.next_multiple_of(page_bytes),
        peak_bytes: live.peak_bytes.next_multiple_of(page_bytes),
    }
}
