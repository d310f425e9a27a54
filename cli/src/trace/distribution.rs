//! Lifetimes: the seven classes (LLAMA §1: 10 ms, 100 ms, 1 s, ...) and the distribution of Fig. 2.

use lifetime::profile::label::CLASS_NAMES;

/// The class of objects that are never freed.
pub const CLASS_INF: u8 = CLASS_NAMES.len() as u8 - 1;

/// The class of an object that lived `lifetime_ns`; objects of class c live less than 10^(c+1) ms.
pub fn class_of(lifetime_ns: u64) -> u8 {
    let mut bound_ns = 10_000_000;
    let mut class = 0;
    while class < CLASS_INF && lifetime_ns >= bound_ns {
        bound_ns *= 10;
        class += 1;
    }
    class
}

/// Bins a decade of the histogram is divided into.
pub const BINS_PER_DECADE: usize = 10;
/// The histogram's first bin begins here; shorter lifetimes count in it.
pub const FIRST_BIN_NS: f64 = 100.0;
/// From 100 ns to 10,000 s; longer lifetimes count in the last bin.
const BINS: usize = 11 * BINS_PER_DECADE;

/// A number of objects and of the bytes they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Objects.
    pub objects: u64,
    /// Their requested bytes.
    pub bytes: u64,
}

impl Amount {
    /// Counts one object of `size_bytes`.
    pub fn add(&mut self, size_bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(size_bytes);
    }
}

/// How long objects lived, on a logarithmic scale.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Freed objects by lifetime; `bin_start_ns` is the begin of a bin.
    pub bins: Vec<Amount>,
    /// All objects by class; those never freed are in `inf`.
    pub classes: [Amount; CLASS_NAMES.len()],
    /// Objects alive at the end of the trace.
    pub never_freed: Amount,
    /// All objects.
    pub total: Amount,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            bins: vec![Amount::default(); BINS],
            classes: Default::default(),
            never_freed: Amount::default(),
            total: Amount::default(),
        }
    }
}

impl Distribution {
    /// Counts an object that was freed.
    pub fn freed(&mut self, lifetime_ns: u64, size_bytes: u64) {
        let decades = (lifetime_ns.max(1) as f64 / FIRST_BIN_NS).log10();
        let bin = (decades * BINS_PER_DECADE as f64).max(0.0) as usize;
        self.bins[bin.min(BINS - 1)].add(size_bytes);
        self.classes[class_of(lifetime_ns) as usize].add(size_bytes);
        self.total.add(size_bytes);
    }

    /// Counts an object that was alive when the trace ended.
    pub fn never_freed(&mut self, size_bytes: u64) {
        self.never_freed.add(size_bytes);
        self.classes[CLASS_INF as usize].add(size_bytes);
        self.total.add(size_bytes);
    }

    /// The begin of bin `index`.
    pub fn bin_start_ns(index: usize) -> f64 {
        FIRST_BIN_NS * 10f64.powf(index as f64 / BINS_PER_DECADE as f64)
    }

    /// Share of all objects that were freed within the bounds of `class` or sooner, in percent.
    pub fn percent_within(&self, class: u8) -> Option<f64> {
        let within: u64 = self.classes[..=class as usize].iter().map(|amount| amount.objects).sum();
        (self.total.objects > 0).then(|| 100.0 * within as f64 / self.total.objects as f64)
    }

    /// The lifetime that `share` (0 to 1) of all objects do not reach, to the precision of a bin; `None`
    /// where so many were not freed.
    pub fn percentile_ns(&self, share: f64) -> Option<f64> {
        let wanted = share * self.total.objects as f64;
        let mut seen = 0;
        for (index, bin) in self.bins.iter().enumerate() {
            seen += bin.objects;
            if seen > 0 && seen as f64 >= wanted {
                return Some(Self::bin_start_ns(index + 1));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_begin_at_powers_of_ten() {
        let ms = 1_000_000;
        assert_eq!(class_of(0), 0);
        for (class, bound_ms) in [10u64, 100, 1000, 10_000, 100_000, 1_000_000].into_iter().enumerate() {
            assert_eq!(class_of(bound_ms * ms - 1), class as u8);
            assert_eq!(class_of(bound_ms * ms), class as u8 + 1);
        }
        assert_eq!(class_of(u64::MAX), CLASS_INF);
    }

    #[test]
    fn distribution_counts_and_ranks() {
        let mut lifetimes = Distribution::default();
        (0..90).for_each(|_| lifetimes.freed(2_000, 10));
        (0..5).for_each(|_| lifetimes.freed(5_000_000_000, 10));
        (0..5).for_each(|_| lifetimes.never_freed(10));
        assert_eq!(lifetimes.total, Amount { objects: 100, bytes: 1000 });
        assert_eq!(lifetimes.percent_within(2), Some(90.0));
        assert_eq!(lifetimes.percent_within(CLASS_INF), Some(100.0));
        let median = lifetimes.percentile_ns(0.5).unwrap();
        assert!((2_000.0..2_600.0).contains(&median), "{median}");
        let late = lifetimes.percentile_ns(0.95).unwrap();
        assert!((5e9..6.4e9).contains(&late), "{late}");
        assert_eq!(lifetimes.percentile_ns(0.99), None);
    }

    #[test]
    fn extreme_lifetimes_have_a_bin() {
        let mut lifetimes = Distribution::default();
        lifetimes.freed(0, 1);
        lifetimes.freed(u64::MAX, 1);
        assert_eq!((lifetimes.bins[0].objects, lifetimes.bins[BINS - 1].objects), (1, 1));
    }
}
