//! The queue of a destination under its lock, and what of it counts towards its tenant: known at any time without a look at other queues.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::produce::queue::DestinationQueue;
use crate::usage::TenantUsage;

/// A destination's queue. Whatever is done to it while it is held, its tenant's count is right when it is let go.
pub struct WaitingRecords {
    queue: Mutex<DestinationQueue>,
    usage: Arc<TenantUsage>,
}

/// The queue, held.
pub struct Held<'a> {
    queue: MutexGuard<'a, DestinationQueue>,
    usage: &'a TenantUsage,
    bytes_before: u64,
}

impl WaitingRecords {
    /// An empty one, of a tenant that uses this.
    pub(crate) fn of(usage: Arc<TenantUsage>) -> Self {
        Self { queue: Mutex::default(), usage }
    }

    /// Holds it.
    pub fn lock(&self) -> Held<'_> {
        let queue = self.queue.lock();
        Held { bytes_before: queue.bytes(), queue, usage: &self.usage }
    }
}

impl Drop for WaitingRecords {
    fn drop(&mut self) {
        self.usage.on_queued(self.queue.get_mut().bytes(), 0);
    }
}

impl Deref for Held<'_> {
    type Target = DestinationQueue;

    fn deref(&self) -> &DestinationQueue {
        &self.queue
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut DestinationQueue {
        &mut self.queue
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.usage.on_queued(self.bytes_before, self.queue.bytes());
    }
}
