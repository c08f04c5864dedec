//! When this node last knew a leader. Without one nobody can tell how old its copy of the metadata is, and with it what it knows of rights.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The last contact, and whether it is too long ago.
pub(crate) struct Contact {
    last: Mutex<Instant>,
    is_lost: AtomicBool,
}

impl Default for Contact {
    fn default() -> Self {
        Self { last: Mutex::new(Instant::now()), is_lost: AtomicBool::new(false) }
    }
}

impl Contact {
    /// Is there a leader now? Zero is never too long.
    pub(crate) fn look(&self, has_leader: bool, too_long: Duration) {
        let now = Instant::now();
        let mut last = self.last.lock();
        if has_leader {
            *last = now;
        }
        self.is_lost.store(!too_long.is_zero() && now - *last >= too_long, Ordering::Relaxed);
    }

    /// Was it too long ago when it was last looked?
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn contact_is_lost_after_a_while_without_a_leader_and_found_at_once() {
        let (contact, minute) = (Contact::default(), Duration::from_secs(60));
        for (after_s, has_leader, is_lost) in [(100, true, false), (59, false, false), (1, false, true), (9, false, true), (0, true, false)]
        {
            tokio::time::advance(Duration::from_secs(after_s)).await;
            contact.look(has_leader, minute);
            assert_eq!(contact.is_lost(), is_lost, "{after_s}");
        }
        tokio::time::advance(minute * 100).await;
        contact.look(false, Duration::ZERO);
        assert!(!contact.is_lost(), "never, if so configured");
    }
}
