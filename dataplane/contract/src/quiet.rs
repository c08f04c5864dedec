//! Log lines about one thing, bounded: a fault that every request meets must not fill a disk with what is said of it.

use std::time::{Duration, Instant};

use crate::limits;

const WINDOW: Duration = Duration::from_millis(limits::FAILURE_LINES_WINDOW_MS);

/// Lets a few lines through in each window and counts the others.
#[derive(Debug, Default)]
pub struct Quiet {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Quiet {
    /// May a line be written now? If so: how many were left out since the last one.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            self.since = Some(now);
            self.written = 0;
        }
        if self.written == limits::FAILURE_LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any point in time")]
    fn a_few_lines_go_through_and_the_next_window_tells_how_many_did_not() {
        let (mut quiet, begin) = (Quiet::default(), Instant::now());
        let through = (0..1000).filter(|_| quiet.admit(begin).is_some()).count();
        assert_eq!(through, 10);
        assert_eq!(quiet.admit(begin + WINDOW), Some(990));
        assert_eq!(quiet.admit(begin + WINDOW), Some(0));
    }
}
