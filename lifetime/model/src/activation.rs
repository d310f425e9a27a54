//! The logistic and hyperbolic functions, written so that a compiler turns them into any width of vectors and
//! the result is the same bits in each: no fused operations, no tables, no calls.

/// Adding and subtracting it rounds to an integer, whose two's complement is then in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// e^(2x) to within a few units of the last place, |x| <= 10.
#[inline(always)]
fn exp_of_twice(x: f32) -> f32 {
    let doublings = x * (2.0 * core::f32::consts::LOG2_E);
    let shifted = doublings + ROUND;
    let rest = doublings - (shifted - ROUND);
    // 2^rest = e^(rest ln 2), by its series, |rest| <= 1/2.
    let y = rest * core::f32::consts::LN_2;
    let mut sum = 1.0 / 5040.0;
    for inverse in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * y + inverse;
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    sum * power
}

/// tanh, within 1e-6.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let exp = exp_of_twice(x.clamp_to(10.0));
    (exp - 1.0) / (exp + 1.0)
}

/// The logistic function, within 1e-6.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    tanh(x * 0.5) * 0.5 + 0.5
}

/// A number from -1 to 1 in steps of 1/127.
#[inline(always)]
pub fn to_i8(x: f32) -> i8 {
    (x * 127.0 + ROUND).to_bits() as i8
}

trait ClampTo {
    fn clamp_to(self, most: f32) -> f32;
}

impl ClampTo for f32 {
    /// From -most to most; -most for NaN.
    #[inline(always)]
    fn clamp_to(self, most: f32) -> f32 {
        let from_below = if self > -most { self } else { -most };
        if from_below < most { from_below } else { most }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_the_exact_functions() {
        for i in -4_000_000..=4_000_000i32 {
            let x = i as f32 / 300_000.0;
            let exact = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - exact).abs() < 1e-6, "tanh {x}");
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - exact).abs() < 1e-6, "sigmoid {x}");
        }
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (tanh(10.0), tanh(-10.0)));
        assert!(tanh(f32::NAN).is_finite());
    }

    #[test]
    fn rounds_to_the_nearest_step() {
        for step in -127..=127i8 {
            let x = f32::from(step) / 127.0;
            assert_eq!([to_i8(x), to_i8(x + 0.003), to_i8(x - 0.003)], [step; 3]);
        }
    }
}
