//! The owner's commit: waiting commits of one partition share frames, a sync and a check, and are answered when they are visible.
//!
//! One group at a time per partition. What waits for one writer is of one tenant, as the partition is; so it is first come, first served. Groups
//! of all partitions share a pool of threads, where tenants take turns: one with a thousand partitions is one of them. Nothing is answered as committed before it is below the high watermark (design 4).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, warn};
use veena_contract::{Offset, limits};
use veena_storage::partition::{AppendError, NewRecord, PartitionLog, Section, Visible};

use crate::core::Core;
use crate::fanout::marks;
use crate::metrics::BrokerMetrics;
use crate::partition::{Owner, OwnerSlot, Partition};
use crate::produce::keyed::{DueKey, Judge, KeyedAnswer, KeyedBody, KeyedRequest, KeyedResult, Stored, nth_placed};
use crate::produce::request::{Caller, CommitAnswer, CommitError, CommitRequest, Placed};
use crate::streams::{Offer, Origin, Refusal, Standing, StreamKey, StreamTable, Verdict};
use crate::tasks::OnExit;
use crate::topics::Topic;
use crate::usage::TenantUsage;

/// Commits waiting for a partition's writer.
#[derive(Default)]
pub struct Inbox {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    is_running: bool,
}

impl Inbox {
    /// Is nothing waiting, and no group under way?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_running
    }

    /// The next group: as many as one commit takes, at least one.
    fn take_group(&mut self) -> Vec<Waiting> {
        let (mut bytes, mut records) = (0, 0);
        let mut group = Vec::new();
        while let Some(next) = self.waiting.front() {
            bytes += next.ask.bytes();
            records += next.ask.records();
            if !group.is_empty() && (bytes > limits::COMMIT_BYTES_MAX || records > limits::COMMIT_RECORDS_MAX) {
                break;
            }
            self.bytes -= next.ask.bytes();
            group.extend(self.waiting.pop_front());
        }
        group
    }
}

struct Waiting {
    ask: Ask,
    caller: Option<Caller>,
}

/// What is asked of the writer, and who waits for the answer.
enum Ask {
    Commit(CommitRequest, oneshot::Sender<CommitAnswer>),
    Keyed(KeyedRequest, oneshot::Sender<KeyedResult>),
}

impl Ask {
    fn records(&self) -> usize {
        match self {
            Self::Commit(request, _) => request.records(),
            Self::Keyed(request, _) => request.records(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Commit(request, _) => request.bytes(),
            Self::Keyed(request, _) => request.bytes(),
        }
    }

    /// Does a client wait for it, so that it is refused when too much waits already? A stream has its own bounds.
    fn is_refusable(&self) -> bool {
        !matches!(self, Self::Commit(CommitRequest::Stream(_), _))
    }

    fn fail(self, error: CommitError) {
        match self {
            Self::Commit(_, answer) => send(answer, CommitAnswer::Failed(error)),
            Self::Keyed(_, answer) => send(answer, Err(error)),
        }
    }
}

/// Asks the owner what its log knows of a stream.
///
/// # Errors
/// [`CommitError::NotOpen`] while the log cannot be opened.
pub async fn open_stream(core: &Arc<Core>, partition: &Arc<Partition>, key: StreamKey) -> Result<Standing, CommitError> {
    partition.open(core).await.map_err(|_| CommitError::NotOpen)?;
    let mut slot = Arc::clone(&partition.owner).lock_owned().await;
    if !matches!(&*slot, OwnerSlot::Open(_)) {
        let lane = core.usage.lane_of(&partition.usage);
        let (partition, core_for_open) = (Arc::clone(partition), Arc::clone(core));
        slot = core
            .ports
            .write_io
            .run_in(lane, 0, move || partition.open_slot(&core_for_open, &mut slot).map(|_| slot))
            .await
            .map_err(|_| CommitError::NotOpen)?;
    }
    match &*slot {
        OwnerSlot::Open(owner) => Ok(owner.table.open(&key)),
        OwnerSlot::Closed | OwnerSlot::Failed { .. } | OwnerSlot::Frozen { .. } | OwnerSlot::Gone => Err(CommitError::NotOpen),
    }
}

/// Hands a request to the owner, which is this node, and waits for the outcome. Once handed over it is carried out even if the future is
/// dropped; unless it is that of a caller on another node who gives up before it is begun.
pub async fn commit(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    request: CommitRequest,
    caller: Option<Caller>,
) -> CommitAnswer {
    let (answer, outcome) = oneshot::channel();
    hand_over(core, topic, partition, Waiting { ask: Ask::Commit(request, answer), caller });
    outcome.await.unwrap_or(CommitAnswer::Failed(CommitError::LogFailed))
}

/// The same for what is asked about idempotency keys. In line with all commits: what is asked later sees what was asked before.
pub async fn commit_keyed(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    partition: &Arc<Partition>,
    request: KeyedRequest,
    caller: Option<Caller>,
) -> KeyedResult {
    let (answer, outcome) = oneshot::channel();
    hand_over(core, topic, partition, Waiting { ask: Ask::Keyed(request, answer), caller });
    outcome.await.unwrap_or(Err(CommitError::LogFailed))
}

fn hand_over(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>, waiting: Waiting) {
    let must_start = {
        let mut inbox = partition.inbox.lock();
        let bytes = waiting.ask.bytes();
        if waiting.ask.is_refusable() && inbox.bytes + bytes > limits::COMMIT_INBOX_BYTES_MAX {
            return waiting.ask.fail(CommitError::Busy);
        }
        inbox.bytes += bytes;
        inbox.waiting.push_back(waiting);
        !std::mem::replace(&mut inbox.is_running, true)
    };
    if must_start {
        let (core_for_run, topic, partition) = (Arc::clone(core), Arc::clone(topic), Arc::clone(partition));
        core.ports.tasks.spawn("owner-commit", OnExit::Shutdown, async move { run(&core_for_run, &topic, &partition).await });
    }
}

/// Commits group after group until nothing waits.
async fn run(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>) {
    loop {
        let group = {
            let mut inbox = partition.inbox.lock();
            let group = inbox.take_group();
            if group.is_empty() {
                inbox.is_running = false;
                return;
            }
            group
        };
        let slot = Arc::clone(&partition.owner).lock_owned().await;
        let (core_for_group, partition_for_group, usage) = (Arc::clone(core), Arc::clone(partition), Arc::clone(&topic.usage));
        let (lane, bytes) = (core.usage.lane_of(&usage), group.iter().map(|waiting| waiting.ask.bytes()).sum());
        let visible = core
            .ports
            .write_io
            .run_in(lane, bytes, move || {
                let mut slot = slot;
                commit_group(&core_for_group, &partition_for_group, &usage, &mut slot, group)
            })
            .await;
        if let Some(visible) = visible {
            let count = visible.end.0 - visible.first.0;
            topic.wake(partition.id.index, usize::try_from(count).unwrap_or(usize::MAX));
            core.fanout.on_published(core, partition.id);
        }
    }
}

/// What is to be answered once the group is on disk, and to whom.
enum Due {
    /// The request's records are in this section.
    Section(oneshot::Sender<CommitAnswer>, usize),
    /// The log held everything; the answer waits for the watermark like the others.
    Known { answer: oneshot::Sender<CommitAnswer>, key: StreamKey, last: u64 },
    /// What came under idempotency keys.
    Keyed(oneshot::Sender<KeyedResult>, Vec<DueKey>),
}

impl Due {
    fn fail(self, error: CommitError) {
        match self {
            Self::Section(answer, _) | Self::Known { answer, .. } => send(answer, CommitAnswer::Failed(error)),
            Self::Keyed(answer, _) => send(answer, Err(error)),
        }
    }
}

/// Blocking. Commits one group and answers its requests.
fn commit_group(
    core: &Core,
    partition: &Arc<Partition>,
    usage: &TenantUsage,
    slot: &mut OwnerSlot,
    group: Vec<Waiting>,
) -> Option<Visible> {
    if partition.open_slot(core, slot).is_err() {
        let error = if matches!(slot, OwnerSlot::Gone) { CommitError::Gone } else { CommitError::NotOpen };
        group.into_iter().for_each(|waiting| waiting.ask.fail(error));
        return None;
    }
    let OwnerSlot::Open(owner) = slot else {
        group.into_iter().for_each(|waiting| waiting.ask.fail(CommitError::NotOpen));
        return None;
    };
    let commit_ms = core.ports.clock.now_ms().max(owner.log.last_commit_ms());
    let Judged { mut due, sections } = judge_group(core, partition, owner, group, commit_ms);
    if veena_contract::sabotage::is("appended_as_committed") {
        for due in due.extract_if(.., |due| matches!(due, Due::Section(_, i) if sections[*i].is_tracked)) {
            if let Due::Section(answer, _) = due {
                send(answer, CommitAnswer::Committed(None));
            }
        }
    }
    let outcome = write(core, owner, &sections, commit_ms);
    core.metrics.commits.add(1);
    match outcome {
        Ok(visible) => {
            if visible.is_some() {
                usage.on_committed(&sections);
                partition.queue_settle(core);
            }
            owner.table.on_all_committed();
            answer_due(&owner.table, due, &sections, visible);
            visible
        }
        Err(error) => {
            core.metrics.commits_failed.add(1);
            if error == CommitError::NoSpace {
                core.on_no_space();
                owner.table.rollback();
            } else {
                error!(partition = %partition.dir.display(), "an owner commit failed; the log is opened anew, its senders ask where it stands");
                partition.fail_slot(core, slot);
            }
            due.into_iter().for_each(|due| due.fail(error));
            None
        }
    }
}

/// A group before it is written.
struct Judged {
    due: Vec<Due>,
    sections: Vec<Section>,
}

/// Finds out what of a group is to be written, and answers what does not depend on that.
fn judge_group(core: &Core, partition: &Partition, owner: &mut Owner, group: Vec<Waiting>, commit_ms: u64) -> Judged {
    let Owner { log, table, counted } = owner;
    let view = core.ports.catalog.view();
    let record = view.topic_by_id(partition.id.topic);
    let window_ms = record.map_or(0, |record| record.dedup_window_ms);
    if let Some(record) = record {
        log.forget_keys(commit_ms.saturating_sub(window_ms));
        counted.know(record.partitions, log.last_commit_ms());
    }
    let mut keys = Judge::new(log.keys(), *counted, window_ms, core.config.dedup_keys_max, commit_ms);
    let mut judged = Judged { due: Vec::new(), sections: Vec::new() };
    let Judged { due, sections } = &mut judged;
    for Waiting { ask, caller } in group {
        if let Some(refused) = refused_unseen(core, partition, &ask, caller.as_ref()) {
            ask.fail(refused);
            continue;
        }
        match ask {
            Ask::Commit(request, answer) => match judge(core, partition, table, request) {
                Ok(Ok(section)) => {
                    if section.is_tracked {
                        let hash = section.records.last().filter(|r| r.sequence == section.last).map_or(0, |r| crc32c::crc32c(&r.body));
                        table.on_appended(section.key, section.origin, section.last, hash);
                    }
                    due.push(Due::Section(answer, sections.len()));
                    sections.push(section);
                }
                Ok(Err((key, last))) => due.push(Due::Known { answer, key, last }),
                Err(refusal) => send(answer, CommitAnswer::Refused(refusal)),
            },
            Ask::Keyed(request, answer) => match (keys.check_count(&request), request) {
                _ if record.is_none() => send(answer, Err(CommitError::Gone)),
                (Err(grown), _) => send(answer, Err(grown)),
                (Ok(()), KeyedRequest::LookUp { keys: asked, .. }) => send(answer, Ok(keys.looked_up(&asked))),
                (Ok(()), KeyedRequest::Produce { bodies, .. }) => {
                    let (outcomes, stored) = keys.produce(bodies, sections.len());
                    if !stored.is_empty() {
                        sections.push(direct_section(core, partition, stored));
                    }
                    match outcomes.iter().any(DueKey::is_of_group) {
                        true => due.push(Due::Keyed(answer, outcomes)),
                        // What this repeats has long been visible: it does not fail with what others write now.
                        false => answer_keyed(answer, outcomes, |_| unreachable!("invariant: nothing of it is of the group")),
                    }
                }
            },
        }
    }
    judged
}

/// Why a request is not even looked at. Asked while the writer is held.
fn refused_unseen(core: &Core, partition: &Partition, ask: &Ask, caller: Option<&Caller>) -> Option<CommitError> {
    if caller.is_some_and(Caller::has_given_up) {
        return Some(CommitError::TooLate);
    }
    let Ask::Commit(CommitRequest::Stream(commit), _) = ask else { return None };
    // A cursor may run on another node, where it has not ended yet: once its mark is forgotten here, it would come in as a new one.
    let is_of_cursor = core.ports.peers.is_some() && commit.origin.id == 0;
    (is_of_cursor && !marks::is_attached(core, partition.id.topic, commit.key.stream)).then_some(CommitError::NotAttached)
}

/// The section to append for a request; or what the log holds already; or a refusal.
fn judge(
    core: &Core,
    partition: &Partition,
    table: &StreamTable,
    request: CommitRequest,
) -> Result<Result<Section, (StreamKey, u64)>, Refusal> {
    let mut commit = match request {
        CommitRequest::Direct(bodies) => {
            let bodies = bodies.into_iter().map(|body| KeyedBody { key: None, body }).collect();
            return Ok(Ok(direct_section(core, partition, bodies)));
        }
        CommitRequest::Stream(commit) => commit,
    };
    let sequences: Vec<u64> = commit.records.iter().map(|record| record.sequence).collect();
    let last_hash = commit.records.last().filter(|r| r.sequence == commit.last).map_or(0, |r| crc32c::crc32c(&r.body));
    let offer = Offer {
        key: commit.key,
        origin: commit.origin,
        log_id: commit.log_id,
        prev: commit.prev,
        sequences: &sequences,
        last: commit.last,
        last_hash,
    };
    match table.judge(&offer) {
        Verdict::Append { skip, .. } => {
            commit.records.drain(..skip);
            if commit.is_gap {
                warn!(partition = %partition.dir.display(), stream = %commit.key.stream, through = commit.last, "a source declared a gap");
                core.metrics.stream_gaps.add(1);
                partition.counts.gaps.add(1);
            }
            Ok(Ok(Section { key: commit.key, origin: commit.origin, is_tracked: true, last: commit.last, records: commit.records }))
        }
        Verdict::Known => Ok(Err((commit.key, commit.last))),
        Verdict::Refuse(refusal) => Err(refusal),
    }
}

fn direct_section(core: &Core, partition: &Partition, bodies: Vec<KeyedBody>) -> Section {
    let first = core.take_direct_sequences(bodies.len() as u64);
    let record = |(sequence, KeyedBody { key, body })| NewRecord { sequence, id: None, key, body };
    let records: Vec<NewRecord> = (first..).zip(bodies).map(record).collect();
    let last = records.last().map_or(first, |record| record.sequence);
    let key = StreamKey { stream: core.direct_stream, source: partition.id.index.get() };
    Section { key, origin: Origin::default(), is_tracked: false, last, records }
}

/// Append, sync, read back, publish: the only way into a partition.
fn write(core: &Core, owner: &mut Owner, sections: &[Section], commit_ms: u64) -> Result<Option<Visible>, CommitError> {
    if sections.is_empty() {
        return Ok(None);
    }
    let Owner { log, table, .. } = owner;
    let visible = write_verified(&core.metrics, log, sections, commit_ms, table)?;
    core.metrics.messages_committed.add(visible.end.0 - visible.first.0);
    Ok(Some(visible))
}

fn write_verified(
    metrics: &BrokerMetrics,
    log: &mut PartitionLog,
    sections: &[Section],
    commit_ms: u64,
    table: &StreamTable,
) -> Result<Visible, CommitError> {
    let began = Instant::now();
    let appended = log.append(sections, commit_ms, &|| table.committed_marks()).map_err(|error| match error {
        AppendError::NoSpace => CommitError::NoSpace,
        other => {
            error!(error = %other, "a partition log could not be written");
            CommitError::LogFailed
        }
    })?;
    let written = Instant::now();
    metrics.log_append_seconds.observe(written - began);
    let synced = log.sync(appended).map_err(|error| {
        error!(%error, "a partition log could not be synced");
        CommitError::LogFailed
    })?;
    metrics.log_sync_seconds.observe(written.elapsed());
    let verified = log.verify(synced).map_err(|error| {
        error!(%error, "a partition log read back something else than was written");
        CommitError::LogFailed
    })?;
    Ok(log.publish(verified))
}

fn answer_due(table: &StreamTable, due: Vec<Due>, sections: &[Section], visible: Option<Visible>) {
    let mut firsts = Vec::with_capacity(sections.len());
    let mut next = visible.map_or(Offset(0), |visible| visible.first);
    for section in sections {
        firsts.push(next);
        next = Offset(next.0 + section.records.len() as u64);
    }
    let commit_ms = visible.map_or(0, |visible| visible.commit_ms);
    let placed = |index: usize| {
        let section = &sections[index];
        let sequence = section.records.first().map_or(section.last, |record| record.sequence);
        Placed { first: firsts[index], commit_ms, stream: section.key.stream, sequence }
    };
    for due in due {
        match due {
            Due::Section(answer, index) => send(answer, CommitAnswer::Committed(Some(placed(index)))),
            Due::Known { answer, key, last } if table.is_committed(&key, last) => send(answer, CommitAnswer::Committed(None)),
            Due::Known { answer, .. } => send(answer, CommitAnswer::Failed(CommitError::LogFailed)),
            Due::Keyed(answer, outcomes) => answer_keyed(answer, outcomes, |at| nth_placed(placed(at.section), at.nth)),
        }
    }
}

fn answer_keyed(answer: oneshot::Sender<KeyedResult>, outcomes: Vec<DueKey>, placed: impl Fn(Stored) -> Placed) {
    let outcomes = outcomes.into_iter().map(|due| due.outcome(&placed)).collect();
    send(answer, Ok(KeyedAnswer { outcomes, has_ended: false }));
}

/// A caller that has left misses its answer; the outcome stands all the same.
fn send<T>(answer: oneshot::Sender<T>, outcome: T) {
    drop(answer.send(outcome));
}
