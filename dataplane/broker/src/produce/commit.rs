//! The owner's commit: waiting commits of one partition share frames, a sync and a check, and are answered when they are visible.
//!
//! One group at a time per partition. Nothing is answered as committed before it is below the high watermark (design 4).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{error, warn};
use veena_contract::{Offset, limits};
use veena_storage::partition::{AppendError, NewRecord, PartitionLog, Section, Visible};

use crate::core::Core;
use crate::fanout::marks;
use crate::metrics::BrokerMetrics;
use crate::partition::{Owner, OwnerSlot, Partition};
use crate::produce::request::{Caller, CommitAnswer, CommitError, CommitRequest, Placed};
use crate::streams::{Offer, Origin, Refusal, Standing, StreamKey, StreamTable, Verdict};
use crate::tasks::OnExit;
use crate::topics::Topic;

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
            bytes += next.request.bytes();
            records += next.request.records();
            if !group.is_empty() && (bytes > limits::COMMIT_BYTES_MAX || records > limits::COMMIT_RECORDS_MAX) {
                break;
            }
            self.bytes -= next.request.bytes();
            group.extend(self.waiting.pop_front());
        }
        group
    }
}

struct Waiting {
    request: CommitRequest,
    caller: Option<Caller>,
    answer: oneshot::Sender<CommitAnswer>,
}

/// Asks the owner what its log knows of a stream.
///
/// # Errors
/// [`CommitError::NotOpen`] while the log cannot be opened.
pub async fn open_stream(core: &Arc<Core>, partition: &Arc<Partition>, key: StreamKey) -> Result<Standing, CommitError> {
    partition.open(core).await.map_err(|_| CommitError::NotOpen)?;
    let mut slot = Arc::clone(&partition.owner).lock_owned().await;
    if !matches!(&*slot, OwnerSlot::Open(_)) {
        let (partition, core_for_open) = (Arc::clone(partition), Arc::clone(core));
        slot = core
            .ports
            .write_io
            .run(move || partition.open_slot(&core_for_open, &mut slot).map(|_| slot))
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
    let must_start = {
        let mut inbox = partition.inbox.lock();
        let bytes = request.bytes();
        if matches!(request, CommitRequest::Direct(_)) && inbox.bytes + bytes > limits::COMMIT_INBOX_BYTES_MAX {
            return CommitAnswer::Failed(CommitError::Busy);
        }
        inbox.bytes += bytes;
        inbox.waiting.push_back(Waiting { request, caller, answer });
        !std::mem::replace(&mut inbox.is_running, true)
    };
    if must_start {
        let (core_for_run, topic, partition) = (Arc::clone(core), Arc::clone(topic), Arc::clone(partition));
        core.ports.tasks.spawn("owner-commit", OnExit::Shutdown, async move { run(&core_for_run, &topic, &partition).await });
    }
    outcome.await.unwrap_or(CommitAnswer::Failed(CommitError::LogFailed))
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
        let (core_for_group, partition_for_group) = (Arc::clone(core), Arc::clone(partition));
        let visible = core
            .ports
            .write_io
            .run(move || {
                let mut slot = slot;
                commit_group(&core_for_group, &partition_for_group, &mut slot, group)
            })
            .await;
        if let Some(visible) = visible {
            let count = visible.end.0 - visible.first.0;
            topic.wake(partition.id.index, usize::try_from(count).unwrap_or(usize::MAX));
            core.fanout.on_published(core, partition.id);
        }
    }
}

/// What is to be answered once the group is on disk.
enum Due {
    /// The request's records are in this section.
    Section(usize),
    /// The log held everything; the answer waits for the watermark like the others.
    Known { key: StreamKey, last: u64 },
}

/// Blocking. Commits one group and answers its requests.
fn commit_group(core: &Core, partition: &Arc<Partition>, slot: &mut OwnerSlot, group: Vec<Waiting>) -> Option<Visible> {
    if partition.open_slot(core, slot).is_err() {
        let error = if matches!(slot, OwnerSlot::Gone) { CommitError::Gone } else { CommitError::NotOpen };
        answer_all(group.into_iter().map(|waiting| waiting.answer), error);
        return None;
    }
    let OwnerSlot::Open(owner) = slot else {
        answer_all(group.into_iter().map(|waiting| waiting.answer), CommitError::NotOpen);
        return None;
    };
    let mut sections = Vec::new();
    let mut due = Vec::new();
    for Waiting { request, caller, answer } in group {
        if let Some(refused) = refused_unseen(core, partition, &request, caller.as_ref()) {
            send(answer, CommitAnswer::Failed(refused));
            continue;
        }
        match judge(core, partition, &owner.table, request) {
            Ok(Ok(section)) => {
                if section.is_tracked {
                    let hash = section.records.last().filter(|r| r.sequence == section.last).map_or(0, |r| crc32c::crc32c(&r.body));
                    owner.table.on_appended(section.key, section.origin, section.last, hash);
                }
                due.push((answer, Due::Section(sections.len())));
                sections.push(section);
            }
            Ok(Err((key, last))) => due.push((answer, Due::Known { key, last })),
            Err(refusal) => send(answer, CommitAnswer::Refused(refusal)),
        }
    }
    if veena_storage::sabotage::is("appended_as_committed") {
        for (answer, _) in due.extract_if(.., |(_, due)| matches!(due, Due::Section(i) if sections[*i].is_tracked)) {
            send(answer, CommitAnswer::Committed(None));
        }
    }
    let outcome = write(core, owner, &sections);
    core.metrics.commits.add(1);
    match outcome {
        Ok(visible) => {
            if visible.is_some() {
                partition.queue_settle(core);
            }
            owner.table.on_all_committed();
            answer_due(&owner.table, due, &sections, visible);
            visible
        }
        Err(error) => {
            core.metrics.commits_failed.add(1);
            if error == CommitError::NoSpace {
                owner.table.rollback();
            } else {
                error!(partition = %partition.dir.display(), "an owner commit failed; the log is opened anew, its senders ask where it stands");
                partition.fail_slot(core, slot);
            }
            answer_all(due.into_iter().map(|(answer, _)| answer), error);
            None
        }
    }
}

/// Why a request is not even looked at. Asked while the writer is held.
fn refused_unseen(core: &Core, partition: &Partition, request: &CommitRequest, caller: Option<&Caller>) -> Option<CommitError> {
    if caller.is_some_and(Caller::has_given_up) {
        return Some(CommitError::TooLate);
    }
    let CommitRequest::Stream(commit) = request else { return None };
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
        CommitRequest::Direct(bodies) => return Ok(Ok(direct_section(core, partition, bodies))),
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

fn direct_section(core: &Core, partition: &Partition, bodies: Vec<Bytes>) -> Section {
    let first = core.take_direct_sequences(bodies.len() as u64);
    let records: Vec<NewRecord> = (first..).zip(bodies).map(|(sequence, body)| NewRecord { sequence, id: None, body }).collect();
    let last = records.last().map_or(first, |record| record.sequence);
    let key = StreamKey { stream: core.direct_stream, source: partition.id.index.get() };
    Section { key, origin: Origin::default(), is_tracked: false, last, records }
}

/// Append, sync, read back, publish: the only way into a partition.
fn write(core: &Core, owner: &mut Owner, sections: &[Section]) -> Result<Option<Visible>, CommitError> {
    if sections.is_empty() {
        return Ok(None);
    }
    let Owner { log, table } = owner;
    let commit_ms = core.ports.clock.now_ms().max(log.last_commit_ms());
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

fn answer_due(table: &StreamTable, due: Vec<(oneshot::Sender<CommitAnswer>, Due)>, sections: &[Section], visible: Option<Visible>) {
    let mut firsts = Vec::with_capacity(sections.len());
    let mut next = visible.map_or(Offset(0), |visible| visible.first);
    for section in sections {
        firsts.push(next);
        next = Offset(next.0 + section.records.len() as u64);
    }
    for (answer, due) in due {
        match due {
            Due::Section(index) => {
                let section = &sections[index];
                let sequence = section.records.first().map_or(section.last, |record| record.sequence);
                let commit_ms = visible.map_or(0, |visible| visible.commit_ms);
                send(
                    answer,
                    CommitAnswer::Committed(Some(Placed { first: firsts[index], commit_ms, stream: section.key.stream, sequence })),
                );
            }
            Due::Known { key, last } if table.is_committed(&key, last) => send(answer, CommitAnswer::Committed(None)),
            Due::Known { .. } => send(answer, CommitAnswer::Failed(CommitError::LogFailed)),
        }
    }
}

fn answer_all(answers: impl Iterator<Item = oneshot::Sender<CommitAnswer>>, error: CommitError) {
    for answer in answers {
        send(answer, CommitAnswer::Failed(error));
    }
}

/// A caller that has left misses its answer; the outcome stands all the same.
fn send(answer: oneshot::Sender<CommitAnswer>, outcome: CommitAnswer) {
    drop(answer.send(outcome));
}
