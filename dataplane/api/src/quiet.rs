//! Log lines about one thing, bounded: a fault that every request meets must not fill a disk with what is said of it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use veena_contract::limits;

const WINDOW: Duration = Duration::from_millis(limits::FAILURE_LINES_WINDOW_MS);

/// Lets a few lines through in each window and counts the others.
#[derive(Default)]
pub(crate) struct Quiet(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Quiet {
    /// May a line be written now? If so: how many were left out since the last one.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        if lines.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            lines.since = Some(now);
            lines.written = 0;
        }
        if lines.written == limits::FAILURE_LINES_MAX {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_few_lines_go_through_and_the_next_window_tells_how_many_did_not() {
        let (quiet, begin) = (Quiet::default(), Instant::now());
        let through = (0..1000).filter(|_| quiet.admit(begin).is_some()).count();
        assert_eq!(through, 10);
        assert_eq!(quiet.admit(begin + WINDOW), Some(990));
        assert_eq!(quiet.admit(begin + WINDOW), Some(0));
    }
}
