//! Settle a lease: ack, extend, hand back. Never waits for I/O; for another node only if that has granted the lease.

use std::sync::Arc;

use veena_contract::{TenantId, TopicName};

use crate::consume::reserve;
use crate::core::Core;
use crate::errors::SettleError;
use crate::message::{ReceiptHandle, Settle};
use crate::owners::Place;
use crate::owners::settle::Away;
use crate::partition::Partition;
use crate::topics::Topic;

/// A lease was settled here, or another node has to be asked.
pub(crate) enum Settled {
    /// Here.
    Here(Result<(), SettleError>),
    /// There.
    Away(Away),
    /// Nowhere now: the partition is on its way to another node. It is not settled.
    Moving,
}

/// Why a lease of this node was not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSettled {
    /// There is no such lease.
    LeaseLost,
    /// The partition is on its way to another node, or from one: whoever has it in the end knows.
    Moving,
}

/// Settles one lease, if this node owns its partition. A handle of another topic, of a partition the topic lacks or of a former life is a lost
/// lease.
pub(crate) fn settle(core: &Arc<Core>, tenant: &TenantId, name: &TopicName, handle: ReceiptHandle, how: Settle) -> Settled {
    let Some(topic) = reserve::resolve(core, tenant, name) else {
        return Settled::Here(Err(SettleError::TopicNotFound));
    };
    let Some(partition) = topic.partition(handle.partition) else {
        return Settled::Here(Err(SettleError::LeaseLost));
    };
    match core.place_of(&topic.record.load(), handle.partition) {
        Place::Mine => match settle_here(core, &topic, &partition, handle, how) {
            Ok(()) => Settled::Here(Ok(())),
            Err(NotSettled::LeaseLost) => Settled::Here(Err(SettleError::LeaseLost)),
            Err(NotSettled::Moving) => Settled::Moving,
        },
        Place::At { addr, epoch } => Settled::Away(Away { addr, epoch, topic: partition.id.topic, handle }),
        Place::Nowhere => Settled::Here(Err(SettleError::OwnerDown)),
    }
}

/// Settles one lease of a partition of this node.
///
/// # Errors
/// [`NotSettled`]; then nothing was done.
pub(crate) fn settle_here(
    core: &Arc<Core>,
    topic: &Topic,
    partition: &Arc<Partition>,
    handle: ReceiptHandle,
    how: Settle,
) -> Result<(), NotSettled> {
    // Asked before the log is looked for: one that has come here is opened with its leases.
    if partition.is_arriving() {
        return Err(NotSettled::Moving);
    }
    let Some(serving) = partition.serving() else {
        return Err(if core.may_serve(partition.id) { NotSettled::LeaseLost } else { NotSettled::Moving });
    };
    let now = core.now_ms();
    let outcome = {
        let mut leases = serving.leases.lock();
        if leases.is_frozen() {
            return Err(NotSettled::Moving);
        }
        match how {
            Settle::Ack => leases.ack(now, handle.offset, handle.nonce),
            Settle::Extend => leases.extend(now, handle.offset, handle.nonce, topic.record.load().visibility_timeout_ms),
            Settle::Nack => leases.release(now, handle.offset, handle.nonce),
        }
    };
    outcome.map_err(|_| NotSettled::LeaseLost)?;
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
