//! Values over time, for the curves of Figs. 1 and 9: each point is the mean over one interval.
//!
//! Without a given interval the timeline starts with 1 ms and doubles it whenever the points become too many,
//! so that a trace of any length gives a curve of 1024 to 2048 points.

/// Most points of a timeline without a given interval.
const AUTOMATIC_POINTS: usize = 2048;
/// Most points of a timeline whose interval was given.
const GIVEN_POINTS: u64 = 1_000_000;

/// Some values ("series") that change at moments, averaged over equal intervals and over all time.
pub struct Timeline {
    series: usize,
    interval_ns: u64,
    automatic: bool,
    now_ns: u64,
    /// Integral (value x ns) of each series over each interval, row after row.
    sums: Vec<f64>,
    totals: Vec<f64>,
}

impl Timeline {
    /// A timeline of `series` values; with `None` it chooses its interval as time passes.
    pub fn new(series: usize, interval_ms: Option<u64>) -> Self {
        let interval_ns = interval_ms.unwrap_or(1).max(1).saturating_mul(1_000_000);
        let automatic = interval_ms.is_none();
        Timeline { series, interval_ns, automatic, now_ns: 0, sums: Vec::new(), totals: vec![0.0; series] }
    }

    /// Advances the time to `until_ns`, with these values until then.
    ///
    /// # Errors
    /// The given interval is too short for a trace of this length.
    pub fn advance(&mut self, until_ns: u64, values: &[u64]) -> Result<(), String> {
        if until_ns <= self.now_ns {
            return Ok(());
        }
        self.make_room(until_ns)?;
        for (total, &value) in self.totals.iter_mut().zip(values) {
            *total += (until_ns - self.now_ns) as f64 * value as f64;
        }
        while self.now_ns < until_ns {
            let row = (self.now_ns / self.interval_ns) as usize;
            let end_ns = until_ns.min((row as u64 + 1) * self.interval_ns);
            let length = (row + 1) * self.series;
            if self.sums.len() < length {
                self.sums.resize(length, 0.0);
            }
            let elapsed = (end_ns - self.now_ns) as f64;
            for (sum, &value) in self.sums[row * self.series..].iter_mut().zip(values) {
                *sum += elapsed * value as f64;
            }
            self.now_ns = end_ns;
        }
        Ok(())
    }

    fn make_room(&mut self, until_ns: u64) -> Result<(), String> {
        if !self.automatic && until_ns / self.interval_ns >= GIVEN_POINTS {
            let seconds = until_ns as f64 / 1e9;
            let least_ms = until_ns / GIVEN_POINTS / 1_000_000 + 1;
            return Err(format!(
                "the trace lasts {seconds:.0} s or more: an interval of at least {least_ms} ms is needed"
            ));
        }
        while self.automatic && until_ns / self.interval_ns >= AUTOMATIC_POINTS as u64 {
            self.interval_ns *= 2;
            let rows = (self.sums.len() / self.series).div_ceil(2);
            for row in 0..rows {
                for series in 0..self.series {
                    let sum_at =
                        |row: usize| self.sums.get(row * self.series + series).copied().unwrap_or(0.0);
                    let merged = sum_at(2 * row) + sum_at(2 * row + 1);
                    self.sums[row * self.series + series] = merged;
                }
            }
            self.sums.truncate(rows * self.series);
        }
        Ok(())
    }

    /// The interval between points.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// Mean of one series over all time; `None` when no time passed.
    pub fn mean(&self, series: usize) -> Option<f64> {
        (self.now_ns > 0).then(|| self.totals[series] / self.now_ns as f64)
    }

    /// The middle of each interval and the mean of one series over it.
    pub fn points(&self, series: usize) -> Vec<(u64, f64)> {
        let rows = self.sums.len() / self.series.max(1);
        (0..rows)
            .map(|row| {
                let start_ns = row as u64 * self.interval_ns;
                let length_ns = self.interval_ns.min(self.now_ns - start_ns);
                (start_ns + length_ns / 2, self.sums[row * self.series + series] / length_ns.max(1) as f64)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_point_is_the_mean_over_its_interval() {
        let mut timeline = Timeline::new(1, Some(10));
        timeline.advance(5 * MS, &[100]).unwrap();
        timeline.advance(20 * MS, &[300]).unwrap();
        timeline.advance(22 * MS, &[8]).unwrap();
        assert_eq!(timeline.points(0), [(5 * MS, 200.0), (15 * MS, 300.0), (21 * MS, 8.0)]);
        assert_eq!(timeline.mean(0), Some((500.0 + 4500.0 + 16.0) / 22.0));
    }

    #[test]
    fn an_interval_too_short_is_refused_and_a_chosen_one_grows() {
        let error = Timeline::new(1, Some(1)).advance(4_000_000 * MS, &[1]).unwrap_err();
        assert_eq!(error, "the trace lasts 4000 s or more: an interval of at least 5 ms is needed");
        let mut timeline = Timeline::new(1, None);
        timeline.advance(1 << 61, &[1]).unwrap();
        assert!((1024..=2048).contains(&timeline.points(0).len()));
    }

    proptest! {
        #[test]
        fn merging_intervals_keeps_the_mean(steps in prop::collection::vec((1u64..400 * MS, 0u64..1 << 40), 1..100)) {
            let mut timeline = Timeline::new(1, None);
            let (mut now, mut area) = (0, 0.0);
            for &(length, value) in &steps {
                now += length;
                area += length as f64 * value as f64;
                timeline.advance(now, &[value]).unwrap();
            }
            let points = timeline.points(0);
            prop_assert!(points.len() <= AUTOMATIC_POINTS);
            let last = points.len() - 1;
            let drawn: f64 = points.iter().enumerate().map(|(i, &(_, mean))| {
                let start = i as u64 * timeline.interval_ns();
                mean * if i == last { now - start } else { timeline.interval_ns() } as f64
            }).sum();
            prop_assert!((drawn - area).abs() <= 1e-9 * area.max(1.0), "{drawn} {area}");
        }
    }
}
