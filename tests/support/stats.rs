//! Tests whether a distribution is even, by the chi-squared test of goodness of fit.
//!
//! Takes counts, and returns the probability that an even choice would look at least as uneven.

/// The p-value below which [`assert_even`] fails: an even choice fails once in a million times.
const LEAST_PROBABILITY: f64 = 1e-6;

/// Panics if the counts cannot be the result of an even choice among them.
pub(crate) fn assert_even(what: &str, counts: &[u32]) {
    let p = evenness(counts);
    assert!(p > LEAST_PROBABILITY, "{what}: {counts:?} is not even, p = {p:e}");
}

/// Takes counts, each with its weight. Panics if the counts cannot come from a choice in proportion to the weights.
pub(crate) fn assert_shares(what: &str, counts: &[(u32, u32)]) {
    let p = fit(counts);
    assert!(p > LEAST_PROBABILITY, "{what}: counts and weights {counts:?} do not fit, p = {p:e}");
}

/// Returns the p-value of the counts under an even distribution, in 0..=1.
pub(crate) fn evenness(counts: &[u32]) -> f64 {
    fit(&counts.iter().map(|count| (*count, 1)).collect::<Vec<_>>())
}

/// Takes counts, each with its weight. Returns the p-value, 0 to 1, for a choice in proportion to the weights.
fn fit(counts: &[(u32, u32)]) -> f64 {
    let cells = u32::try_from(counts.len()).expect("a handful of cells");
    let total: f64 = counts.iter().map(|(count, _)| f64::from(*count)).sum();
    assert!(cells > 0 && total > 0.0, "nothing was counted");
    let weights: f64 = counts.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let deviation = |(count, weight): &(u32, u32)| {
        let expected = total * f64::from(*weight) / weights;
        (f64::from(*count) - expected).powi(2) / expected
    };
    let statistic: f64 = counts.iter().map(deviation).sum();
    if cells == 1 { 1.0 } else { upper_gamma(f64::from(cells - 1) / 2.0, statistic / 2.0) }
}

/// Returns the regularised upper incomplete gamma function Q(a, x), for a > 0 and x >= 0.
pub(crate) fn upper_gamma(a: f64, x: f64) -> f64 {
    // Each expansion converges quickly on its own side of a + 1.
    if x < a + 1.0 { 1.0 - lower_series(a, x) } else { upper_fraction(a, x) }
}

/// Returns P(a, x) = 1 - Q(a, x), by its power series.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    while term > sum * f64::EPSILON {
        n += 1.0;
        term *= x / n;
        sum += term;
    }
    sum * (a * x.ln() - x - ln_gamma(a)).exp()
}

/// Returns Q(a, x) by its continued fraction, evaluated by Lentz's method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / f64::MIN_POSITIVE, 1.0 / b);
    let mut result = d;
    for n in (1..500).map(f64::from) {
        let factor = -n * (n - a);
        b += 2.0;
        d = 1.0 / (factor * d + b);
        c = b + factor / c;
        result *= c * d;
        if (c * d - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    result * (a * x.ln() - x - ln_gamma(a)).exp()
}

/// Returns ln Γ(x) for x > 0, by Stirling's series. Shifts x to 12 or more first: from there on, five terms of the series are as exact as
/// `f64`.
fn ln_gamma(x: f64) -> f64 {
    if x < 12.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let inverse = 1.0 / (x * x);
    let series =
        1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse * (1.0 / 1680.0 - inverse / 1188.0)));
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series / x
}
