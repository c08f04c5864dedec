//! A bound on bytes in memory. Full means refuse, not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A node-wide number of bytes.
#[derive(Clone)]
pub(crate) struct Budget {
    free: Arc<AtomicUsize>,
}

/// A part of a budget, given back when dropped.
pub(crate) struct Reserved {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { free: Arc::new(AtomicUsize::new(bytes)) }
    }

    /// A reservation of nothing yet, to be grown.
    pub(crate) fn empty(&self) -> Reserved {
        Reserved { budget: self.clone(), bytes: 0 }
    }

    /// Bytes that are not reserved.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }
}

impl Reserved {
    /// Makes the reservation at least `total` bytes large; `false`, and unchanged, when the budget does not hold that.
    pub(crate) fn grow_to(&mut self, total: usize) -> bool {
        let more = total.saturating_sub(self.bytes);
        let taken = self.budget.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(more)).is_ok();
        if taken {
            self.bytes += more;
        }
        taken
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.free.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_budget_refuses_and_a_dropped_reservation_returns() {
        let budget = Budget::new(10);
        let mut first = budget.empty();
        assert!(first.grow_to(6) && first.grow_to(8));
        let mut second = budget.empty();
        assert!(!second.grow_to(3) && second.grow_to(2));
        assert_eq!(budget.free(), 0);
        drop(first);
        assert!(second.grow_to(10));
        drop(second);
        assert_eq!(budget.free(), 10);
    }
}
