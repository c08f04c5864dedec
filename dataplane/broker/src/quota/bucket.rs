//! A token bucket over time that is passed in. Pure.

use std::time::Duration;

/// Millionths of a token: shares of a small limit are no whole numbers.
pub const MICRO: u64 = 1_000_000;
/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// Tokens that come back at a rate, up to those of one second. Whoever wants more than that at once waits until the bucket is full and leaves
/// it in debt: so what is taken within any time is at most what comes in it, and one second's or the largest request, whichever is more.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// In millionths; negative while in debt.
    level: i128,
    /// What has come and is no whole millionth yet; in millionths of it.
    rest: u64,
    at_us: u64,
}

/// Until when no bucket says anything: its rate is nothing.
pub const NEVER_US: u64 = u64::MAX;

impl Bucket {
    /// A full one, of a rate in millionths a second.
    #[must_use]
    pub fn full(rate: u64, now_us: u64) -> Self {
        Self { level: rate.into(), rest: 0, at_us: now_us }
    }

    /// Adds what has come since the last look. What is no whole millionth yet is not lost. A clock that stands still brings nothing.
    pub fn refill(&mut self, rate: u64, now_us: u64) {
        let elapsed = now_us.saturating_sub(self.at_us);
        let brought = u128::from(rate) * u128::from(elapsed) + u128::from(self.rest);
        let gained = brought / u128::from(SECOND_US);
        self.rest = u64::try_from(brought % u128::from(SECOND_US)).unwrap_or_default();
        self.level = self.level.saturating_add(i128::try_from(gained).unwrap_or(i128::MAX)).min(rate.into());
        self.at_us = self.at_us.max(now_us);
    }

    /// How long until so many tokens may be taken; 0 is now. Looks only, after a [`refill`](Self::refill).
    #[must_use]
    pub fn wait_us(&self, rate: u64, tokens: u64) -> u64 {
        if tokens == 0 {
            return 0;
        }
        let wanted = (u128::from(tokens) * u128::from(MICRO)).min(u128::from(rate));
        let missing = i128::try_from(wanted).unwrap_or(i128::MAX) - self.level;
        if rate == 0 {
            return NEVER_US;
        }
        let missing = u128::try_from(missing).unwrap_or_default();
        u64::try_from((missing * u128::from(SECOND_US)).div_ceil(u128::from(rate))).unwrap_or(NEVER_US)
    }

    /// In which time so many tokens come.
    #[must_use]
    pub fn takes(rate: u64, tokens: u64) -> Duration {
        let us = (u128::from(tokens) * u128::from(MICRO) * u128::from(SECOND_US)).checked_div(rate.into());
        Duration::from_micros(us.and_then(|us| u64::try_from(us).ok()).unwrap_or(NEVER_US))
    }

    /// Takes tokens, into debt if need be.
    pub fn take(&mut self, tokens: u64) {
        self.level -= i128::from(tokens) * i128::from(MICRO);
    }

    /// Gives tokens back that were taken for nothing.
    pub fn give_back(&mut self, rate: u64, tokens: u64) {
        self.level = (self.level + i128::from(tokens) * i128::from(MICRO)).min(rate.into());
    }

    /// Is it as good as new?
    #[must_use]
    pub fn is_full(&self, rate: u64) -> bool {
        self.level >= rate.into()
    }

    /// How many tokens are missing for a second's: what was used lately.
    #[must_use]
    pub fn used(&self, rate: u64) -> u64 {
        let missing = u128::try_from(i128::from(rate) - self.level).unwrap_or_default();
        u64::try_from(missing.div_ceil(u128::from(MICRO))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LARGEST: u64 = 1000;

    /// (pause in us, tokens, is it given back)
    fn steps() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
        let pause = prop_oneof![0..10_u64, 0..10_000_u64, 0..3_000_000_u64];
        proptest::collection::vec((pause, 1..=LARGEST, proptest::bool::weighted(0.1)), 1..200)
    }

    proptest! {
        #[test]
        fn no_more_is_taken_than_comes_and_a_burst(rate in prop_oneof![1..5_u64, 1..2_000_u64], thirds in 1..4_u64, steps in steps()) {
            let rate = rate * MICRO / thirds;
            let mut now = 77;
            let mut bucket = Bucket::full(rate, now);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (pause, tokens, is_given_back) in steps {
                now += pause;
                bucket.refill(rate, now);
                if bucket.wait_us(rate, tokens) == 0 {
                    bucket.take(tokens);
                    if is_given_back {
                        let before = bucket.level;
                        bucket.give_back(rate, tokens);
                        prop_assert!(bucket.level > before);
                    } else {
                        taken.push((now, tokens));
                    }
                }
            }
            // Between any two moments.
            for from in 0..taken.len() {
                let mut sum = 0;
                for &(at, tokens) in &taken[from..] {
                    sum += u128::from(tokens) * u128::from(MICRO);
                    let came = u128::from(rate) * u128::from(at - taken[from].0) / u128::from(SECOND_US);
                    let burst = u128::from(rate).max(u128::from(LARGEST * MICRO));
                    prop_assert!(sum <= came + burst + 1, "{sum} of {came} and {burst}");
                }
            }
        }

        #[test]
        fn whoever_waits_as_long_as_told_is_let_in_and_not_earlier(rate in 1..3_000_u64, thirds in 1..4_u64, steps in steps()) {
            let rate = rate * MICRO / thirds;
            // The wait is told for whole millionths: what has come of the next one is not counted, and takes this long at most; and it is rounded up.
            let slack = SECOND_US.div_ceil(rate) + 1;
            let mut now = 5;
            let mut bucket = Bucket::full(rate, now);
            for (pause, tokens, _) in steps {
                now += pause;
                bucket.refill(rate, now);
                let wait = bucket.wait_us(rate, tokens);
                if wait > 1 {
                    if wait > slack {
                        let mut early = bucket;
                        early.refill(rate, now + wait - slack - 1);
                        prop_assert!(early.wait_us(rate, tokens) > 0);
                    }
                    // What rounding may have lost is a microsecond's.
                    now += wait + 1;
                    bucket.refill(rate, now);
                }
                if wait != 1 {
                    prop_assert_eq!(bucket.wait_us(rate, tokens), 0);
                    bucket.take(tokens);
                }
            }
        }
    }

    #[test]
    fn a_slow_rate_that_is_looked_at_often_loses_nothing() {
        let rate = MICRO / 3;
        let mut bucket = Bucket::full(rate, 0);
        bucket.take(1);
        // A third of a token, rounded down.
        for now in 0..=3_000_004 {
            bucket.refill(rate, now);
        }
        assert_eq!(bucket.wait_us(rate, 1), 0, "{bucket:?}");
    }

    #[test]
    fn a_rate_of_nothing_lets_nobody_in() {
        let bucket = Bucket::full(0, 0);
        assert_eq!((bucket.wait_us(0, 1), bucket.wait_us(0, 0)), (NEVER_US, 0));
    }
}
