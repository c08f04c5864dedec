//! Reserve: lease the lowest unresolved messages, read them, and hold the leases until the answer is written.
//!
//! A reservation that does not reach its client (the client left, the answer was too large, a read failed) is released at once and not
//! counted. No ack ever waits for what happens here: reads run outside the lease table's lock.

use std::sync::Arc;

use tracing::{error, warn};
use veena_contract::{Offset, PartitionIndex, TenantId, TopicName, TopicRecord};
use veena_storage::envelope::Envelope;
use veena_storage::partition::{LogReader, ReadError, StoredRecord};

use crate::consume::deliver::{Deliveries, Held};
use crate::consume::lease::{Granted, LeaseCaps};
use crate::consume::park;
use crate::consume::waiters::Wanted;
use crate::core::Core;
use crate::errors::{ConsumeError, ReplayError};
use crate::message::{ConsumeRequest, Delivery, Leased, ReceiptHandle};
use crate::owners::wire::Tenure;
use crate::owners::{Place, elsewhere, look};
use crate::partition::{Partition, Serving};
use crate::topics::Topic;

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// At most this many messages.
    pub messages_max: usize,
    /// At most this many bytes of keys and payloads (the first message is always taken).
    pub bytes_max: usize,
}

impl From<&ConsumeRequest> for Demand {
    fn from(request: &ConsumeRequest) -> Self {
        Self { messages_max: request.messages_max, bytes_max: request.bytes_max }
    }
}

/// Leases messages; waits for a first one at most as long as asked. Empty when the wait ran out. Cancel-safe: dropping the future releases
/// everything.
///
/// # Errors
/// [`ConsumeError`].
pub async fn consume(core: &Arc<Core>, request: &ConsumeRequest) -> Result<Deliveries, ConsumeError> {
    let topic = resolve(core, &request.tenant, &request.topic).ok_or(ConsumeError::TopicNotFound)?;
    let wanted = match request.partition {
        None => Wanted::Any,
        Some(index) => {
            let count = topic.record.load().partitions;
            if index.get() >= count {
                return Err(ConsumeError::NoSuchPartition { partition: index.get(), count });
            }
            Wanted::Only(index)
        }
    };
    let found = attempt(core, &topic, request.into(), candidates(core, &topic, wanted), wanted, false).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    if core.ports.peers.is_some() {
        return Box::pin(elsewhere::consume(core, &topic, request, wanted)).await;
    }
    if request.wait.is_zero() || core.is_stopping() {
        return Ok(found);
    }
    park::wait(core, &topic, request, wanted).await
}

/// Would a reservation succeed? Not while the log is closed after a failure: whoever was woken would find nothing and ask at once again.
pub fn is_takeable(core: &Core, record: &TopicRecord, serving: &Serving) -> bool {
    !serving.reader.is_closed() && serving.leases.lock().has_candidate(core.now_ms(), serving.reader.high_watermark(), caps(record))
}

fn caps(record: &TopicRecord) -> LeaseCaps {
    LeaseCaps { in_flight_max: record.max_in_flight_per_partition, acked_ahead_max: record.max_acked_ahead_per_partition }
}

/// The topic of this name, while it lives.
pub fn resolve(core: &Core, tenant: &TenantId, name: &TopicName) -> Option<Arc<Topic>> {
    let view = core.ports.catalog.view();
    let record = view.topic(tenant, name)?;
    Some(core.topics.of(core, record)).filter(|topic| !topic.is_gone())
}

/// One pass over the partitions given. A newcomer leaves those alone that others stand in line for.
pub(crate) async fn attempt(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    demand: Demand,
    partitions: Vec<Arc<Partition>>,
    wanted: Wanted,
    is_in_line: bool,
) -> Result<Deliveries, ConsumeError> {
    let mut found = Deliveries::none(core, topic);
    let mut bytes = 0;
    for partition in partitions {
        let serving = match partition.serving() {
            Some(serving) => serving,
            None if partition.is_asleep_and_empty() => continue,
            None => match partition.open(core).await {
                Ok(serving) => serving,
                // One that is on its way to another node is waited for there.
                Err(_) if matches!(wanted, Wanted::Only(_)) && core.may_serve(partition.id) => return Err(ConsumeError::OwnerDown),
                Err(_) => continue,
            },
        };
        if !is_in_line && topic.waiters.lock().is_claimed(partition.id.index) {
            if is_takeable(core, &topic.record.load(), &serving) {
                topic.wake(partition.id.index, 1);
            }
            continue;
        }
        let taken = take(core, topic, &partition, serving, demand, &mut found, &mut bytes).await;
        match taken {
            Err(ConsumeError::OwnerDown) if wanted == Wanted::Any || !core.may_serve(partition.id) => continue,
            Err(error) if found.is_empty() => return Err(error),
            Err(_) | Ok(()) => {}
        }
        if found.messages().len() >= demand.messages_max || bytes >= demand.bytes_max {
            break;
        }
    }
    Ok(found)
}

/// The partitions of this node that a consumer asks for.
pub(crate) fn candidates(core: &Core, topic: &Topic, wanted: Wanted) -> Vec<Arc<Partition>> {
    let mut candidates = Vec::new();
    match wanted {
        Wanted::Only(index) => candidates.extend(topic.partition(index).filter(|_| core.is_mine(&topic.record.load(), index))),
        Wanted::Any => topic.scan(|partition| {
            candidates.push(Arc::clone(partition));
            true
        }),
    }
    candidates
}

/// Takes from one partition what fits.
async fn take(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    mut serving: Arc<Serving>,
    demand: Demand,
    found: &mut Deliveries,
    bytes: &mut usize,
) -> Result<(), ConsumeError> {
    let record = topic.record.load_full();
    let mut has_reopened = false;
    while found.messages().len() < demand.messages_max && (*bytes < demand.bytes_max || found.is_empty()) {
        let granted = {
            let nonce = (core.ports.entropy.next_u64() & i64::MAX.cast_unsigned()).max(1);
            let high_watermark = serving.reader.high_watermark();
            serving.leases.lock().reserve(core.now_ms(), high_watermark, caps(&record), record.visibility_timeout_ms, nonce)
        };
        let Some(granted) = granted else {
            return Ok(());
        };
        partition.touch(core.now_ms());
        let hold = Held { partition: Arc::clone(partition), serving: Arc::clone(&serving), offset: granted.offset, nonce: granted.nonce };
        let guard = Unread { core, topic, held: Some(hold) };
        match read(core, partition, &serving.reader, granted.offset).await {
            Ok(stored) => match delivery(partition.id.index, &stored, granted) {
                Some(delivery) => {
                    *bytes += delivery.payload.len() + delivery.key.as_ref().map_or(0, bytes::Bytes::len);
                    guard.keep(found, delivery);
                }
                None => skip(core, guard, partition, granted.offset.next()),
            },
            Err(ReadError::Unreadable { next }) => skip(core, guard, partition, next),
            Err(ReadError::BelowOldest { oldest }) => {
                drop(guard);
                let dropped = serving.leases.lock().jump_to(oldest);
                core.metrics.messages_retention_dropped.add(dropped);
                partition.counts.retention_dropped.add(dropped);
                partition.queue_settle(core);
            }
            Err(ReadError::Closed) if !has_reopened => {
                drop(guard);
                has_reopened = true;
                serving = partition.reopen(core).await.map_err(|_| ConsumeError::OwnerDown)?;
            }
            Err(ReadError::Closed) => return Err(ConsumeError::OwnerDown),
            Err(ReadError::NotYet) => return Ok(()),
            Err(failed) => {
                error!(partition = %partition.dir.display(), offset = granted.offset.0, error = %failed, "a message cannot be read now");
                return Err(ConsumeError::ReadFailed);
            }
        }
    }
    Ok(())
}

/// A lease whose message is not read yet: released when dropped.
struct Unread<'a> {
    core: &'a Arc<Core>,
    topic: &'a Arc<Topic>,
    held: Option<Held>,
}

impl Unread<'_> {
    fn keep(mut self, found: &mut Deliveries, delivery: Delivery) {
        if let Some(held) = self.held.take() {
            found.keep(held, delivery);
        }
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.release(self.core, self.topic);
        }
    }
}

/// What can never be read is settled, counted and passed.
fn skip(core: &Arc<Core>, mut guard: Unread<'_>, partition: &Arc<Partition>, next: Offset) {
    let Some(held) = guard.held.take() else {
        return;
    };
    let skipped = held.serving.leases.lock().skip(held.offset, next.max(held.offset.next()));
    warn!(partition = %partition.dir.display(), first = held.offset.0, next = next.0, "unreadable messages are skipped");
    core.metrics.messages_corrupt_skipped.add(skipped);
    partition.counts.corrupt_skipped.add(skipped);
    partition.queue_settle(core);
}

async fn read(core: &Core, partition: &Partition, reader: &LogReader, offset: Offset) -> Result<StoredRecord, ReadError> {
    if let Some(stored) = reader.cached(offset) {
        return Ok(stored);
    }
    let reader = reader.clone();
    core.ports.read_io.run_in(core.usage.lane_of(&partition.usage), 0, move || reader.read(offset)).await
}

/// `None` when the stored body is not an envelope.
fn delivery(partition: PartitionIndex, stored: &StoredRecord, granted: Granted) -> Option<Delivery> {
    let lease = Leased {
        handle: ReceiptHandle { partition, offset: granted.offset, nonce: granted.nonce },
        delivery_count: granted.deliveries_before.saturating_add(1),
    };
    message(partition, stored, Some(lease))
}

fn message(partition: PartitionIndex, stored: &StoredRecord, lease: Option<Leased>) -> Option<Delivery> {
    let envelope = Envelope::decode(&stored.body).ok()?;
    Some(Delivery {
        partition,
        offset: stored.offset,
        id: stored.id,
        key: envelope.key,
        headers: envelope.headers,
        payload: envelope.payload,
        commit_ms: stored.commit_ms,
        lease,
    })
}

/// Reads one message without a lease, wherever it is; `None` at or above the high watermark.
///
/// # Errors
/// [`ReplayError`].
pub async fn replay(
    core: &Arc<Core>,
    tenant: &TenantId,
    name: &TopicName,
    index: PartitionIndex,
    offset: Offset,
) -> Result<Option<Delivery>, ReplayError> {
    let topic = resolve(core, tenant, name).ok_or(ReplayError::TopicNotFound)?;
    let record = topic.record.load_full();
    let partition = topic.partition(index).filter(|_| index.get() < record.partitions);
    let partition = partition.ok_or(ReplayError::NoSuchPartition { partition: index.get(), count: record.partitions })?;
    match core.place_of(&record, index) {
        Place::Mine => replay_here(core, &partition, offset).await,
        Place::At { addr, epoch } => Box::pin(look::read(core, &addr, &Tenure { partition: partition.id, epoch }, offset)).await,
        Place::Nowhere => Err(ReplayError::OwnerDown),
    }
}

/// Reads one message of a partition of this node without a lease; `None` at or above the high watermark.
///
/// # Errors
/// [`ReplayError`].
pub async fn replay_here(core: &Arc<Core>, partition: &Arc<Partition>, offset: Offset) -> Result<Option<Delivery>, ReplayError> {
    let mut serving = partition.open(core).await.map_err(|_| ReplayError::OwnerDown)?;
    partition.touch(core.now_ms());
    let mut outcome = read(core, partition, &serving.reader, offset).await;
    if matches!(outcome, Err(ReadError::Closed)) {
        serving = partition.reopen(core).await.map_err(|_| ReplayError::OwnerDown)?;
        outcome = read(core, partition, &serving.reader, offset).await;
    }
    match outcome {
        Ok(stored) => message(partition.id.index, &stored, None).map(Some).ok_or(ReplayError::Unreadable { offset }),
        Err(ReadError::NotYet) => Ok(None),
        Err(ReadError::BelowOldest { oldest }) => Err(ReplayError::AgedOut { offset, oldest }),
        Err(ReadError::Unreadable { .. }) => Err(ReplayError::Unreadable { offset }),
        Err(ReadError::Closed) => Err(ReplayError::OwnerDown),
        Err(failed) => {
            error!(partition = %partition.dir.display(), offset = offset.0, error = %failed, "a message cannot be read now");
            Err(ReplayError::ReadFailed)
        }
    }
}
