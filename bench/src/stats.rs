//! Percentiles of durations and medians of runs.

use std::time::Duration;

/// Durations of one kind of operation, in the order in which they were taken.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Add one.
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// Add all of another.
    pub fn extend(&mut self, other: Samples) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first `n` taken.
    pub fn first(&self, n: usize) -> Samples {
        Samples(self.0.iter().copied().take(n).collect())
    }

    /// The last `n` taken.
    pub fn last(&self, n: usize) -> Samples {
        Samples(self.0[self.0.len().saturating_sub(n)..].to_vec())
    }

    /// The sum.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// The value that `percent` of the samples do not exceed (nearest rank); zero if there are none.
    pub fn percentile(&self, percent: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        // 99.9 % of 1000 is 999, not the 999.0000000001 of floating point.
        let rank = (percent * sorted.len() as f64 / 100.0 - 1e-6).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// The median.
    pub fn p50(&self) -> Duration {
        self.percentile(50.0)
    }

    /// The median in milliseconds.
    pub fn p50_ms(&self) -> f64 {
        ms(self.p50())
    }
}

/// The usual percentiles in one line for a person.
pub fn summary(samples: &Samples) -> String {
    let [p50, p99, p999, max] = [50.0, 99.0, 99.9, 100.0].map(|percent| ms(samples.percentile(percent)));
    format!("p50 {p50:.3} ms, p99 {p99:.3}, p99.9 {p999:.3}, max {max:.3}")
}

/// A duration in milliseconds.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The median of a few runs; not a number if there are none.
pub fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples = Samples::default();
        for i in (1..=1000).rev() {
            samples.push(Duration::from_millis(i));
        }
        assert_eq!(samples.p50(), Duration::from_millis(500));
        assert_eq!(samples.percentile(99.9), Duration::from_millis(999));
        assert_eq!(samples.percentile(100.0), Duration::from_millis(1000));
        assert_eq!(samples.first(10).p50(), Duration::from_millis(995));
        assert_eq!(Samples::default().p50(), Duration::ZERO);
    }

    #[test]
    fn median_takes_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
