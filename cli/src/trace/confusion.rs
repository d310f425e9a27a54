//! Wrong predictions for `mayfly replay`: their effect on pages.

use lifetime::profile::label::CLASS_NAMES;

/// Of the objects that live in one class, a share is predicted to live in another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confusion {
    lived: u8,
    predicted: u8,
    share: f64,
}

impl Confusion {
    /// `10ms=inf:10`: ten percent of the objects that die within 10 ms are predicted to live for ever.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let class = |name: &str| CLASS_NAMES.iter().position(|known| *known == name).map(|class| class as u8);
        let parts = text.split_once('=').and_then(|(lived, rest)| Some((lived, rest.split_once(':')?)));
        let parsed = parts.and_then(|(lived, (predicted, percent))| {
            let percent = percent.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
            Some(Self { lived: class(lived)?, predicted: class(predicted)?, share: percent / 100.0 })
        });
        parsed.ok_or_else(|| format!("as in 10ms=inf:10 (percent); classes are {}", CLASS_NAMES.join(", ")))
    }
}

/// The predicted class of a thread's n-th object, which lives in `lived`: the same in every replay.
pub fn predicted(confusions: &[Confusion], thread: u32, sequence: u32, lived: u8) -> u8 {
    let number = (u64::from(thread) << 32 | u64::from(sequence)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let chance = (number ^ number >> 32) as u32 as f64 / 2f64.powi(32);
    let mut below = 0.0;
    for confusion in confusions.iter().filter(|confusion| confusion.lived == lived) {
        below += confusion.share;
        if chance < below {
            return confusion.predicted;
        }
    }
    lived
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_class_is_predicted_as_another() {
        let confusions =
            ["10ms=inf:10", "10ms=1s:20", "1s=10ms:100"].map(|text| Confusion::parse(text).unwrap());
        let of = |lived: u8, wanted: u8| {
            (0..40_000).filter(|&n| predicted(&confusions, n % 4, n / 4, lived) == wanted).count() as f64
                / 400.0
        };
        assert!(
            (of(0, 6) - 10.0).abs() < 1.0 && (of(0, 2) - 20.0).abs() < 1.0 && (of(0, 0) - 70.0).abs() < 1.0
        );
        assert_eq!((of(2, 0), of(5, 5)), (100.0, 100.0));
    }

    #[test]
    fn refuses_other_forms() {
        for text in ["", "10ms=inf", "10ms:inf=10", "1h=inf:10", "10ms=inf:101", "10ms=inf:x"] {
            assert!(Confusion::parse(text).is_err(), "{text}");
        }
    }
}
