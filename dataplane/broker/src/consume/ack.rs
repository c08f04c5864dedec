//! Settle a lease: ack, extend, hand back. Never waits for I/O.

use std::sync::Arc;

use veena_contract::{TenantId, TopicName};

use crate::consume::reserve;
use crate::core::Core;
use crate::errors::SettleError;
use crate::message::{ReceiptHandle, Settle};

/// Settles one lease.
///
/// # Errors
/// [`SettleError`]. A handle of another topic, of a partition the topic lacks or of a former life is a lost lease.
pub fn settle(core: &Arc<Core>, tenant: &TenantId, name: &TopicName, handle: ReceiptHandle, how: Settle) -> Result<(), SettleError> {
    let topic = reserve::resolve(core, tenant, name).ok_or(SettleError::TopicNotFound)?;
    let partition = topic.partition(handle.partition).ok_or(SettleError::LeaseLost)?;
    let serving = partition.serving().ok_or(SettleError::LeaseLost)?;
    let now = core.now_ms();
    let outcome = {
        let mut leases = serving.leases.lock();
        match how {
            Settle::Ack => leases.ack(now, handle.offset, handle.nonce),
            Settle::Extend => leases.extend(now, handle.offset, handle.nonce, topic.record.load().visibility_timeout_ms),
            Settle::Nack => leases.release(now, handle.offset, handle.nonce),
        }
    };
    outcome.map_err(|_| SettleError::LeaseLost)?;
    match how {
        Settle::Ack => {
            core.metrics.leases_acked.add(1);
            partition.queue_settle(core);
        }
        Settle::Extend => {
            core.metrics.leases_extended.add(1);
            partition.counts.extended.add(1);
        }
        Settle::Nack => {
            core.metrics.leases_returned.add(1);
            partition.counts.returned.add(1);
        }
    }
    // A freed slot, or a message handed back, may be what somebody waits for.
    if how != Settle::Extend && topic.waiters.lock().parked() > 0 && reserve::is_takeable(core, &topic.record.load(), &serving) {
        topic.wake(handle.partition, 1);
    }
    Ok(())
}
