//! Who is let in with messages: everybody, until this node is taken out of its cluster. Then it has to become empty, and stay so.

use std::sync::atomic::{AtomicUsize, Ordering, fence};

use veena_contract::DrainMark;

use crate::core::Core;
use crate::errors::ProduceError;

/// How many produces are under way.
#[derive(Debug, Default)]
pub struct Intake {
    under_way: AtomicUsize,
}

impl Intake {
    /// How many produces are under way; on a node alone nobody counts them.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// A produce that was let in.
pub struct Entered<'a>(Option<&'a Intake>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(intake) = self.0 {
            intake.under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Lets a produce in.
///
/// # Errors
/// [`ProduceError::Draining`] when this node is being taken out of its cluster.
pub fn enter(core: &Core) -> Result<Entered<'_>, ProduceError> {
    if core.ports.peers.is_none() {
        return Ok(Entered(None));
    }
    // Counted before the look: who sees that this node drains, and nobody counted, knows that nobody else comes.
    core.intake.under_way.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let entered = Entered(Some(&core.intake));
    if is_draining(core) { Err(ProduceError::Draining) } else { Ok(entered) }
}

/// Is this node being taken out of its cluster, as far as it knows?
#[must_use]
pub fn is_draining(core: &Core) -> bool {
    core.ports.peers.as_ref().is_some_and(|peers| core.ports.catalog.view().draining.contains(&peers.me))
}

/// Does this node take no messages any more, and are all that it took committed at their owners? Then others have everything that came in
/// here. Says under which mark that is so: as long as the node has that mark it stays so. Under the next one it has to be found out anew, since
/// there may have been messages in between.
#[must_use]
pub fn drained(core: &Core) -> Option<DrainMark> {
    // Before all others: what was let in under a later mark, or between the two, is none of this one's.
    let mark = *core.ports.catalog.view().marks.get(&core.ports.peers.as_ref()?.me)?;
    fence(Ordering::SeqCst);
    if core.intake.under_way.load(Ordering::SeqCst) > 0 {
        return None;
    }
    // In the order of their way, so that none slips by: staged, synced, queued or in a file; the checkpoint of what is in none of them.
    let status = core.wal.status();
    let is_empty = status.staged_bytes == 0 && core.dispatch.done_below(&core.orphans) >= status.durable_end && core.dispatch.queued() == 0;
    is_empty.then_some(mark)
}
