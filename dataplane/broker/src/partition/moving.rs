//! A partition on its way to another node: stopped here, taken up again, let go, or arriving.
//!
//! Stopped is not closed: its log stays open for whoever reads it or copies it, but nothing is appended, leased or settled. What a caller wants
//! of a stopped partition waits until the catalog says whose it is.

use std::sync::Arc;

use veena_contract::{MoveToken, Offset};

use super::{NotOpen, OwnerSlot, Partition, Serving};
use crate::consume::lease::{MonoMs, MovedLease};
use crate::core::Core;

/// Leases that come with a partition, each with its deadline.
pub type Arrived = Vec<(MovedLease, MonoMs)>;

impl Partition {
    /// Blocking. Stops the partition under this move, opening its log if need be: from here on nothing of it changes. The caller holds the
    /// slot, so that no commit is under way. Says where the log ends.
    ///
    /// # Errors
    /// [`NotOpen`] when its log cannot be opened now: then nothing has changed.
    pub fn freeze_slot(self: &Arc<Self>, core: &Core, slot: &mut OwnerSlot, token: MoveToken) -> Result<(Arc<Serving>, Offset), NotOpen> {
        if !matches!(slot, OwnerSlot::Frozen { .. }) {
            self.open_own(core, slot)?;
        }
        let owner = match std::mem::replace(slot, OwnerSlot::Closed) {
            OwnerSlot::Open(owner) | OwnerSlot::Frozen { owner, .. } => owner,
            other => {
                *slot = other;
                return Err(NotOpen);
            }
        };
        let end = owner.log.log_end();
        *slot = OwnerSlot::Frozen { owner, token };
        let serving = self.serving().ok_or(NotOpen)?;
        serving.leases.lock().freeze();
        Ok((serving, end))
    }

    /// Opens the log anew, which steps over damage in its published end and begins a segment behind it. Leases go on.
    ///
    /// # Errors
    /// [`NotOpen`] when it cannot be opened now; it is tried again as after any failure of its writer.
    pub async fn open_anew(self: &Arc<Self>, core: &Arc<Core>) -> Result<Arc<Serving>, NotOpen> {
        let mut slot = Arc::clone(&self.owner).lock_owned().await;
        let (partition, worker) = (Arc::clone(self), Arc::clone(core));
        let work = move || {
            if matches!(*slot, OwnerSlot::Open(_)) {
                partition.fail_slot(&worker, &mut slot);
            }
            if let OwnerSlot::Failed { retry_at, .. } = &mut *slot {
                *retry_at = worker.now_ms();
            }
            partition.open_slot(&worker, &mut slot)
        };
        core.ports.write_io.run(work).await
    }

    /// The move has ended without effect: this node goes on. Says whether it was stopped.
    pub fn thaw_slot(&self, slot: &mut OwnerSlot) -> bool {
        match std::mem::replace(slot, OwnerSlot::Closed) {
            OwnerSlot::Frozen { owner, .. } => {
                *slot = OwnerSlot::Open(owner);
                if let Some(serving) = self.serving() {
                    serving.leases.lock().thaw();
                }
                true
            }
            other => {
                *slot = other;
                false
            }
        }
    }

    /// Another node owns the partition: nothing of its log stays in memory. Leases of it that are still in somebody's hands here stay frozen.
    pub fn let_go(&self, core: &Core, slot: &mut OwnerSlot) {
        if matches!(slot, OwnerSlot::Gone) {
            return;
        }
        *slot = OwnerSlot::Closed;
        if let Some(serving) = self.serving.swap(None) {
            serving.leases.lock().freeze();
            core.note_closed(self.id);
        }
        core.forget_failed(self.id);
        *self.asleep.lock() = None;
        *self.scrubbed.lock() = None;
        *self.arrived.lock() = None;
    }

    /// Its log and all that belongs to it are here, and this node may become its owner at any moment: with these leases.
    pub fn arrive(&self, leases: Arrived) {
        *self.arrived.lock() = Some(leases);
    }

    /// It has come here, and was not opened yet: what leases it has is not known to consumers.
    pub fn is_arriving(&self) -> bool {
        self.arrived.lock().is_some()
    }

    /// It is open here, with the leases that came, or it has not become this node's.
    pub fn has_arrived(&self) {
        *self.arrived.lock() = None;
    }
}
