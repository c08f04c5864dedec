//! Owner-synchronous produce: answered once each message is committed at its owner; no WAL is involved. With idempotency keys, a message is
//! stored once however often it is sent.
//!
//! When a topic has grown, a key may lead to another partition than before. The partitions that it led to are asked first, until their owners
//! say that they remember nothing of that time. Their answer holds for good: see [`keyed`](crate::produce::keyed).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};
use veena_contract::{MessageId, PartitionIndex, TenantId, TopicName, limits};
use veena_storage::partition::RecordKey;

use crate::core::Core;
use crate::errors::{BatchError, ProduceError};
use crate::message::{Committed, NewMessage};
use crate::owners::stream::OwnerCalls;
use crate::partition::Partition;
use crate::produce::accept::{Target, body, choose, resolve, routed_by};
use crate::produce::digest::record_key;
use crate::produce::keyed::{KeyOutcome, KeyedBody, KeyedRequest, nth_placed};
use crate::produce::partitioner::partition_of_key;
use crate::produce::request::{CommitAnswer, CommitError, Placed};
use crate::topics::Topic;

/// What becomes of one message.
type Outcome = Result<Committed, ProduceError>;

/// The messages of one request that go to one partition.
struct Group {
    partition: Arc<Partition>,
    /// Which of the request they are.
    indexes: Vec<usize>,
    bodies: Vec<KeyedBody>,
    /// Did a hash choose the partition for a message with an idempotency key?
    is_counted: bool,
}

/// Commits messages at their owners.
///
/// # Errors
/// [`BatchError`] when the whole batch is refused before anything is handed to an owner.
pub async fn produce_committed(
    core: &Arc<Core>,
    tenant: &TenantId,
    name: &TopicName,
    messages: Vec<NewMessage>,
) -> Result<Vec<Outcome>, BatchError> {
    let bytes = messages.iter().map(NewMessage::counted_bytes).sum();
    let mut target = resolve(core, tenant, name, bytes).map_err(|error| BatchError { index: 0, error })?;
    let keys: Vec<Option<RecordKey>> =
        messages.iter().map(|message| message.idempotency_key.as_ref().map(|key| record_key(key, message))).collect();
    let mut request = Request { messages, keys, outcomes: BTreeMap::new() };
    request.check(&target)?;
    request.send(core, &target).await;
    // What was led by a count that its owner knows to be outdated was not stored: it is led anew once this node knows as well.
    while request.is_open() && has_grown(core, &target).await {
        // They are counted already.
        target = match resolve(core, tenant, name, 0) {
            Ok(target) => target,
            Err(error) => {
                request.close(&error);
                break;
            }
        };
        request.send(core, &target).await;
    }
    request.close(&ProduceError::OwnerDown);
    let repeats = request.outcomes.values().filter(|outcome| outcome.as_ref().is_ok_and(|committed| committed.is_replayed));
    core.metrics.idempotent_repeats.add(repeats.count() as u64);
    Ok(request.outcomes.into_values().collect())
}

/// Waits a moment until this node knows of more partitions.
async fn has_grown(core: &Core, target: &Target) -> bool {
    let until = Instant::now() + Duration::from_millis(limits::OWNER_CATCH_UP_MS_MAX);
    loop {
        let view = core.ports.catalog.view();
        match view.topic_by_id(target.record.id) {
            Some(record) if record.partitions == target.record.partitions => {}
            // Or of none: then that is to be told.
            _ => return true,
        }
        if timeout_at(until, core.ports.catalog.changed(view.applied)).await.is_err() {
            return false;
        }
    }
}

/// A request on its way.
struct Request {
    messages: Vec<NewMessage>,
    keys: Vec<Option<RecordKey>>,
    /// Of the messages of which it is known.
    outcomes: BTreeMap<usize, Outcome>,
}

impl Request {
    fn is_open(&self) -> bool {
        self.outcomes.len() < self.messages.len()
    }

    fn open(&self) -> Vec<usize> {
        (0..self.messages.len()).filter(|index| !self.outcomes.contains_key(index)).collect()
    }

    /// Ends what is still open.
    fn close(&mut self, error: &ProduceError) {
        for index in self.open() {
            self.outcomes.insert(index, Err(error.clone()));
        }
    }

    /// A batch is checked whole before any of it is sent.
    fn check(&self, target: &Target) -> Result<(), BatchError> {
        let missing = self.messages.iter().enumerate().find_map(|(index, message)| {
            let partition = message.partition.filter(|partition| partition.get() >= target.record.partitions)?;
            let error = ProduceError::NoSuchPartition { partition: partition.get(), count: target.record.partitions };
            Some(BatchError { index, error })
        });
        missing.map_or(Ok(()), Err)
    }

    /// Sends everything that is open to where it belongs. What is still open then was led by a count that is outdated.
    async fn send(&mut self, core: &Arc<Core>, target: &Target) {
        let held_back = self.look_up_earlier(core, target).await;
        let mut groups: BTreeMap<PartitionIndex, Group> = BTreeMap::new();
        for index in self.open().into_iter().filter(|index| !held_back.contains(index)) {
            let (message, key) = (&self.messages[index], self.keys[index]);
            match choose(target, message) {
                Ok(partition) => {
                    let new = |partition| Group { partition, indexes: Vec::new(), bodies: Vec::new(), is_counted: false };
                    let group = groups.entry(partition.id.index).or_insert_with(|| new(partition));
                    group.indexes.push(index);
                    group.bodies.push(KeyedBody { key, body: body(message) });
                    group.is_counted |= key.is_some() && message.partition.is_none();
                }
                Err(error) => drop(self.outcomes.insert(index, Err(error))),
            }
        }
        let count = target.record.partitions;
        let commits = groups.into_values().map(|Group { partition, indexes, bodies, is_counted }| async move {
            let counted = is_counted.then_some(count);
            let outcomes = commit(core, &target.topic, &partition, counted, bodies).await;
            (partition, indexes, outcomes)
        });
        for (partition, indexes, outcomes) in join_all(commits).await {
            let outcomes = match outcomes {
                Ok(outcomes) => outcomes.into_iter().map(|outcome| told(partition.id.index, outcome)).collect(),
                Err(CommitError::Grown) => continue,
                Err(error) => vec![Err(failed(error)); indexes.len()],
            };
            for (index, outcome) in indexes.into_iter().zip(outcomes) {
                if outcome.as_ref().is_ok_and(|committed| !committed.is_replayed) {
                    partition.counts.on_produced(self.messages[index].payload.len());
                }
                self.outcomes.insert(index, outcome);
            }
        }
    }

    /// Asks the owners of the partitions that keys led to before the topic grew. What they know, or may know, is not sent anywhere else; what
    /// they do not answer, since they know of a later count, is not sent now.
    async fn look_up_earlier(&mut self, core: &Arc<Core>, target: &Target) -> BTreeSet<usize> {
        let counted = target.record.partitions;
        let mut asked: BTreeMap<PartitionIndex, (Vec<usize>, Vec<RecordKey>)> = BTreeMap::new();
        for index in self.open() {
            let Some(key) = self.keys[index] else { continue };
            for earlier in earlier_partitions(target, &self.messages[index]) {
                let (indexes, keys) = asked.entry(earlier).or_default();
                indexes.push(index);
                keys.push(key);
            }
        }
        let look_ups = asked.into_iter().filter_map(|(index, (indexes, keys))| {
            let partition = target.topic.partition(index)?;
            Some(async move {
                let asked = KeyedRequest::LookUp { counted, keys };
                let answer = OwnerCalls::to(core, &target.topic, &partition).keyed(asked).await;
                (index, indexes, answer)
            })
        });
        let mut held_back = BTreeSet::new();
        for (partition, indexes, answer) in join_all(look_ups).await {
            match answer {
                Ok(answer) => {
                    if answer.has_ended {
                        target.topic.keys_ended.lock().note(counted, partition);
                    }
                    for (index, outcome) in indexes.into_iter().zip(answer.outcomes) {
                        if outcome != KeyOutcome::Unknown {
                            self.outcomes.insert(index, told(partition, outcome));
                        }
                    }
                }
                Err(CommitError::Grown) => held_back.extend(indexes),
                Err(error) => {
                    for index in indexes {
                        self.outcomes.entry(index).or_insert_with(|| Err(failed(error)));
                    }
                }
            }
        }
        held_back
    }
}

/// Commits bodies at one owner; those without any key in the way that every version knows.
async fn commit(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    counted: Option<u32>,
    bodies: Vec<KeyedBody>,
) -> Result<Vec<KeyOutcome>, CommitError> {
    let owner = OwnerCalls::to(core, topic, partition);
    if bodies.iter().any(|keyed| keyed.key.is_some()) {
        return owner.keyed(KeyedRequest::Produce { counted, bodies }).await.map(|answer| answer.outcomes);
    }
    let count = bodies.len();
    match owner.produce(bodies.into_iter().map(|keyed| keyed.body).collect()).await {
        CommitAnswer::Committed(Some(first)) => Ok((0..count).map(|nth| KeyOutcome::Stored(nth_placed(first, nth))).collect()),
        CommitAnswer::Committed(None) | CommitAnswer::Refused(_) => Err(CommitError::OwnerSilent),
        CommitAnswer::Failed(error) => Err(error),
    }
}

/// Where a message's idempotency key led before the topic grew, but for where it leads now, and for those that have nothing of that time.
fn earlier_partitions(target: &Target, message: &NewMessage) -> BTreeSet<PartitionIndex> {
    let Target { topic, record } = target;
    let routed = routed_by(message).filter(|_| message.partition.is_none() && record.dedup_window_ms > 0);
    let Some(routed) = routed else { return BTreeSet::new() };
    let now = partition_of_key(routed, record.partitions);
    let ended = topic.keys_ended.lock();
    let earlier = record.earlier_partitions.iter().map(|count| partition_of_key(routed, *count));
    earlier.filter(|index| *index != now && !ended.has(record.partitions, *index)).collect()
}

/// The partitions of a topic of which it is known that they remember nothing of the time before it grew to so many.
#[derive(Default)]
pub struct KeysEnded {
    counted: u32,
    partitions: BTreeSet<PartitionIndex>,
}

impl KeysEnded {
    fn has(&self, counted: u32, index: PartitionIndex) -> bool {
        self.counted == counted && self.partitions.contains(&index)
    }

    fn note(&mut self, counted: u32, index: PartitionIndex) {
        if self.counted < counted {
            *self = Self { counted, partitions: BTreeSet::new() };
        }
        if self.counted == counted {
            self.partitions.insert(index);
        }
    }
}

fn told(partition: PartitionIndex, outcome: KeyOutcome) -> Outcome {
    let committed = |Placed { first, commit_ms, stream, sequence }, is_replayed| Committed {
        id: MessageId { stream, sequence },
        partition,
        offset: first,
        commit_ms,
        is_replayed,
    };
    match outcome {
        KeyOutcome::Stored(placed) => Ok(committed(placed, false)),
        KeyOutcome::Repeated(placed) => Ok(committed(placed, true)),
        KeyOutcome::Reused => Err(ProduceError::KeyReused),
        KeyOutcome::Full { wait_ms } => Err(ProduceError::DedupWindowFull { wait_ms }),
        // An owner answers this to look-ups alone.
        KeyOutcome::Unknown => Err(ProduceError::OutcomeUnknown),
    }
}

fn failed(error: CommitError) -> ProduceError {
    match error {
        CommitError::NotOpen | CommitError::OwnerAway | CommitError::NotAttached | CommitError::TooLate | CommitError::Grown => {
            ProduceError::OwnerDown
        }
        CommitError::NoSpace => ProduceError::DiskFull,
        CommitError::Busy => ProduceError::Overloaded { detail: "owner-synchronous messages waiting for the partition" },
        CommitError::Gone => ProduceError::TopicNotFound,
        CommitError::Stopping => ProduceError::Stopping,
        CommitError::LogFailed | CommitError::OwnerSilent => ProduceError::OutcomeUnknown,
    }
}
