//! Accept: resolve the topic, check, choose the partition, append to the WAL. The answer waits for the sync. A message with an idempotency key
//! never goes this way: see [`committed`](crate::produce::committed).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use veena_contract::{TenantId, TopicName, TopicRecord, limits};
use veena_storage::envelope::Envelope;
use veena_storage::wal::format::RECORD_HEADER_BYTES;
use veena_storage::wal::moved::MOVED_BYTES_MAX;
use veena_storage::wal::{AppendError, RecordKind, StageError, WalEntry};

use crate::core::Core;
use crate::errors::{BatchError, ProduceError};
use crate::message::NewMessage;
use crate::partition::Partition;
use crate::produce::partitioner::partition_of_key;
use crate::quota::Records;
use crate::topics::Topic;

/// This part of the room for undispatched records is left to tenants that have less than as much of it.
const LIGHT_TENANTS_PART: usize = 8;

/// A topic that takes direct produce now.
pub(super) struct Target {
    pub(super) topic: Arc<Topic>,
    pub(super) record: Arc<TopicRecord>,
}

/// WAL-first: answers once the record is synced here.
///
/// # Errors
/// [`ProduceError`].
pub async fn produce(core: &Arc<Core>, tenant: &TenantId, name: &TopicName, message: NewMessage) -> Result<(), ProduceError> {
    let target = resolve(core, tenant, name, message.counted_bytes())?;
    let partition = choose(&target, &message)?;
    let entry = entry(core, &target, &partition, &message)?;
    append(core, &target, SmallVec::from_iter([entry])).await?;
    partition.counts.on_produced(message.payload.len());
    Ok(())
}

/// WAL-first, all or none.
///
/// # Errors
/// [`BatchError`] with the first message that is refused.
pub async fn produce_batch(core: &Arc<Core>, tenant: &TenantId, name: &TopicName, messages: Vec<NewMessage>) -> Result<(), BatchError> {
    let bytes = messages.iter().map(NewMessage::counted_bytes).sum();
    let target = resolve(core, tenant, name, bytes).map_err(|error| BatchError { index: 0, error })?;
    let mut entries = SmallVec::with_capacity(messages.len());
    let mut partitions = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let at = |error| BatchError { index, error };
        let partition = choose(&target, message).map_err(at)?;
        entries.push(entry(core, &target, &partition, message).map_err(at)?);
        partitions.push(partition);
    }
    append(core, &target, entries).await.map_err(|error| BatchError { index: 0, error })?;
    for (partition, message) in partitions.iter().zip(&messages) {
        partition.counts.on_produced(message.payload.len());
    }
    Ok(())
}

/// The topic of messages of so many bytes in all, if it takes them: they count towards what its tenant may store.
pub(super) fn resolve(core: &Core, tenant: &TenantId, name: &TopicName, bytes: u64) -> Result<Target, ProduceError> {
    let view = core.ports.catalog.view();
    let record = view.topic(tenant, name).ok_or(ProduceError::TopicNotFound)?;
    if record.parent.as_ref().is_some_and(|parent| parent.delay_ms > 0) {
        return Err(ProduceError::DelayedChild);
    }
    if core.is_disk_low.load(Ordering::Relaxed) {
        return Err(ProduceError::DiskFull);
    }
    let topic = core.topics.of(core, record);
    if topic.is_gone() {
        return Err(ProduceError::TopicNotFound);
    }
    if bytes > 0 && view.quotas.has(tenant) {
        core.stored.accept(&Records::of(&view, tenant, Some(name)), bytes).map_err(ProduceError::QuotaExceeded)?;
    }
    Ok(Target { topic, record: Arc::clone(record) })
}

/// The partition that a message goes to.
pub(super) fn choose(target: &Target, message: &NewMessage) -> Result<Arc<Partition>, ProduceError> {
    let count = target.record.partitions;
    let index = match (message.partition, routed_by(message)) {
        (Some(partition), _) => partition,
        (None, Some(routed)) => partition_of_key(routed, count),
        (None, None) => target.topic.rotation.next(count),
    };
    let missing = ProduceError::NoSuchPartition { partition: index.get(), count };
    if index.get() >= count { Err(missing) } else { target.topic.partition(index).ok_or(missing) }
}

/// What a hash chooses the partition of a message by, if the client does not name it.
pub(super) fn routed_by(message: &NewMessage) -> Option<&[u8]> {
    let key = message.key.as_ref().map(|key| key.as_bytes().as_ref());
    key.or_else(|| message.idempotency_key.as_ref().map(|key| key.as_str().as_bytes()))
}

/// A message as it is stored. Its idempotency key is no part of it: readers and children do not see it.
pub(super) fn body(message: &NewMessage) -> Bytes {
    let headers = message.headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.clone())).collect();
    Envelope { key: message.key.as_ref().map(|key| key.as_bytes().clone()), headers, payload: message.payload.clone() }.encode()
}

fn entry(core: &Core, target: &Target, partition: &Partition, message: &NewMessage) -> Result<WalEntry, ProduceError> {
    let tenant_bytes = target.topic.usage.queued();
    let (queued, queued_max) = (core.dispatch.bytes(), core.config.undispatched_bytes_max);
    // What is left of the room in the end is for tenants that have little of it.
    let kept = if core.usage.has_many() { queued_max / LIGHT_TENANTS_PART } else { 0 };
    if queued > queued_max || (queued > queued_max - kept && tenant_bytes > kept as u64) {
        return Err(ProduceError::Overloaded { detail: "undispatched records in memory" });
    }
    let (bytes, is_held_up) = {
        let queue = partition.queue.lock();
        (queue.bytes(), queue.failed_passes() > 0)
    };
    // What goes on empties by itself, and is refused nothing for what does not.
    let is_over = is_held_up && tenant_bytes > core.config.undispatched_tenant_bytes_max;
    if is_over || bytes > core.config.undispatched_partition_bytes_max as u64 {
        return Err(ProduceError::OwnerDown);
    }
    let destination = Core::destination_of(&target.record, partition.id.index);
    Ok(WalEntry { kind: RecordKind::Accept, destination, body: body(message) })
}

async fn append(core: &Core, target: &Target, entries: SmallVec<[WalEntry; 1]>) -> Result<(), ProduceError> {
    let count = entries.len() as u64;
    if core.is_wal_stalled() {
        return Err(ProduceError::Overloaded { detail: "the disk of the WAL does not answer" });
    }
    let lane = core.usage.lane_of(&target.topic.usage);
    let no_space = || {
        core.on_no_space();
        ProduceError::DiskFull
    };
    let staged = core.wal.stage_in(lane, entries).map_err(|error| match error {
        StageError::Full => ProduceError::Overloaded { detail: "unwritten records in the WAL" },
        StageError::Latched => ProduceError::LogLatched,
        StageError::NoSpace => no_space(),
        StageError::TooLarge => ProduceError::Overloaded { detail: "the record is larger than a WAL record may be" },
        StageError::Closed => ProduceError::Stopping,
    })?;
    // The record is carried through whatever happens here: who waits too long is told that it may be stored.
    let outcome = tokio::time::timeout(Duration::from_millis(limits::WAL_OUTCOME_WAIT_MS), staged).await;
    let outcome = outcome.map_err(|_| ProduceError::OutcomeUnknown)?;
    outcome.map_err(|error| match error {
        AppendError::Latched => ProduceError::LogPoisoned,
        AppendError::Refused => ProduceError::LogLatched,
        AppendError::NoSpace => no_space(),
    })?;
    core.metrics.messages_accepted.add(count);
    Ok(())
}

// What is accepted can be accepted anew.
const _: () = assert!(
    limits::MESSAGE_BYTES_MAX + limits::KEY_BYTES_MAX + 2 * limits::HEADERS_BYTES_MAX + MOVED_BYTES_MAX + RECORD_HEADER_BYTES
        < limits::WAL_RECORD_BYTES_MAX
);
