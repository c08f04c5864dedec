//! Reroute: records that wait for an owner that is away are accepted anew for a partition of the same topic whose owner is there.
//!
//! 1 `moved` records staged and synced   2 they are in the sibling's queue   3 the originals leave theirs    — a crash before 1 leaves the
//! originals; after it a next life finds both, and leaves the originals out
//!
//! What must never happen: anything is sent to the sibling before the `moved` record is durable; a record is moved that was ever sent, by this
//! life or an earlier one; a record is in a file and moved.

use std::sync::Arc;

use tracing::{debug, error, info, warn};
use veena_contract::{MessageId, NodeId, Reroute, TopicRecord, WalSeq, limits};
use veena_storage::wal::moved::{Moved, MovedFrom};
use veena_storage::wal::{AppendError, Destination, RecordKind, WalEntries, WalEntry, WalRecord};

use crate::core::Core;
use crate::owners::stream::OwnerCalls;
use crate::partition::Partition;
use crate::ports::Peers;
use crate::produce::dispatch;
use crate::produce::moved::message_of;
use crate::produce::queue::DestinationQueue;
use crate::streams::StreamKey;
use crate::topics::Topic;

/// Accepts anew what waits for an owner that is away, if a sibling's owner is there. Says whether anything left the queue. Called by whoever
/// dispatches to the partition, so that nothing is being sent meanwhile.
pub async fn run(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>) -> bool {
    let record = topic.record.load_full();
    let Some(away) = owner_away(core, &record, partition).filter(|_| !topic.is_gone()) else { return false };
    let Some(sibling) = living_sibling(core, topic, &record, partition, &away).await else {
        debug!(partition = %partition.dir.display(), owner = %away, "an owner is away, and no other partition of the topic takes its records");
        return false;
    };
    move_some(core, topic, partition, &sibling).await
}

/// May an answer of the owner be waited for only shortly? Asking has no effect, and records that could go elsewhere wait for it.
pub fn is_probe(core: &Core, record: &TopicRecord, queue: &DestinationQueue) -> bool {
    record.reroute == Reroute::Auto && core.ports.peers.is_some() && queue.failed_passes() >= limits::REROUTE_AFTER_PASSES
}

/// The partition's owner, if its records should go elsewhere.
fn owner_away(core: &Core, record: &TopicRecord, partition: &Partition) -> Option<NodeId> {
    let peers = core.ports.peers.as_ref().filter(|_| record.reroute == Reroute::Auto)?;
    let owner = &record.owner_of(partition.id.index).filter(|owner| owner.node != peers.me)?.node;
    let queue = partition.queue.lock();
    let has_failed = queue.failed_passes() >= limits::REROUTE_AFTER_PASSES && core.reach.is_away(owner);
    let is_due = queue.has_movable(core.wal_stream()) && (has_failed || is_known_away(peers, owner));
    is_due.then(|| owner.clone())
}

/// Need nobody ask a node to know that it is away? Of one that is dead somebody has found out. One that is no member, since it was forgotten or
/// has not come into this life of the metadata yet, cannot be called, and nobody knows when it comes: an owner was a member when it was named, and
/// whoever has read that it is the owner has read before that it is a member.
fn is_known_away(peers: &Peers, node: &NodeId) -> bool {
    peers.directory.is_dead(node) || peers.directory.address_of(node).is_none()
}

/// The next partition, by index, whose owner is another and takes this node's stream, or has just said where it stands: so that the records of
/// one partition stay together as long as it lives.
async fn living_sibling(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    record: &TopicRecord,
    partition: &Partition,
    away: &NodeId,
) -> Option<Arc<Partition>> {
    let peers = core.ports.peers.as_ref()?;
    let key = StreamKey { stream: core.wal_stream(), source: 0 };
    let mut siblings = topic.partitions();
    let own = siblings.iter().position(|sibling| sibling.id == partition.id)?;
    siblings.rotate_left(own);
    for sibling in siblings {
        let Some(owner) = record.owner_of(sibling.id.index).filter(|owner| owner.node != *away) else { continue };
        let is_silent = owner.node != peers.me && (core.reach.is_away(&owner.node) || is_known_away(peers, &owner.node));
        let (is_full, is_taken) = {
            let queue = sibling.queue.lock();
            (queue.bytes() >= core.config.undispatched_partition_bytes_max as u64, queue.is_taken(key.stream))
        };
        if !is_silent && !is_full && (is_taken || OwnerCalls::to(core, topic, &sibling).probe(key).await.is_ok()) {
            return Some(sibling);
        }
    }
    None
}

async fn move_some(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>, sibling: &Arc<Partition>) -> bool {
    let Ok(_turn) = core.reroutes.acquire().await else { return false };
    let stream = core.wal_stream();
    let bytes_max = limits::REROUTE_BYTES_MAX.min(usize::try_from(core.config.wal.segment_bytes / 4).unwrap_or(usize::MAX));
    let Some((mut records, behind)) = partition.queue.lock().begin_move(stream, bytes_max) else { return false };
    let entries = entries(&mut records, behind, sibling.id.index.get());
    if veena_contract::sabotage::is("reroute_without_moved") {
        let to = Destination { group: partition.id.topic.0, partition: sibling.id.index.get() };
        records.iter().for_each(|record| dispatch::enqueue_at(core, topic, sibling, WalRecord { destination: to, ..record.clone() }));
        return finish(core, partition, sibling, &records, behind);
    }
    let staged = core.wal.stage(entries);
    let outcome = match staged {
        Ok(staged) => staged.await,
        Err(refused) => {
            debug!(partition = %partition.dir.display(), reason = %refused, "records cannot be accepted anew for another partition now");
            partition.queue.lock().end_move();
            return false;
        }
    };
    match outcome {
        Ok(_) => finish(core, partition, sibling, &records, behind),
        Err(AppendError::Refused | AppendError::NoSpace) => {
            partition.queue.lock().end_move();
            false
        }
        Err(AppendError::Latched) => {
            error!(
                partition = %partition.dir.display(), records = records.len(),
                "the WAL failed while records were accepted anew for another partition: until a restart has read what was written, this partition \
                 gets none of this node's"
            );
            partition.queue.lock().hold();
            false
        }
    }
}

/// The records to write. Those that cannot be read stay, and what is behind them.
fn entries(records: &mut Vec<WalRecord>, mut behind: Option<WalSeq>, to: u32) -> WalEntries {
    let mut entries = WalEntries::new();
    for record in records.iter() {
        let (id, body) = match message_of(record) {
            Ok(message) => message,
            Err(unread) => {
                warn!(seq = record.seq.0, reason = %unread, "a record cannot be read, and stays where it is");
                break;
            }
        };
        let id = id.unwrap_or(MessageId { stream: record.stream, sequence: record.seq.0 });
        let from = MovedFrom { stream: record.stream, seq: record.seq, partition: record.destination.partition };
        let destination = Destination { group: record.destination.group, partition: to };
        entries.push(WalEntry { kind: RecordKind::Moved, destination, body: Moved { id, from, behind, body }.encode() });
        behind = Some(record.seq);
    }
    records.truncate(entries.len());
    entries
}

/// The `moved` records are durable, and in the sibling's queue.
fn finish(core: &Core, partition: &Partition, sibling: &Partition, records: &[WalRecord], mut behind: Option<WalSeq>) -> bool {
    let is_first = behind.is_none();
    for record in records {
        let from = MovedFrom { stream: record.stream, seq: record.seq, partition: record.destination.partition };
        core.moved.add(record.destination.group, from, behind);
        behind = Some(record.seq);
    }
    let bytes = partition.queue.lock().take_moved(records);
    core.dispatch.sub_bytes(bytes);
    core.dispatch.note_progress();
    core.metrics.records_rerouted.add(records.len() as u64);
    let (from, to, count) = (partition.dir.display(), sibling.id.index.get(), records.len());
    if is_first {
        info!(partition = %from, to, records = count, "the owner of a partition is away: records that were never sent go to another, until it is back");
    } else {
        debug!(partition = %from, to, records = count, "more records go to another partition");
    }
    !records.is_empty()
}
