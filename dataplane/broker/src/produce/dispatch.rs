//! The dispatcher: brings what the WAL holds to the owner of each partition. Every destination is independent: one that fails or stalls
//! holds up nobody else. A record leaves memory only when its owner has committed it, or a file has it; so the oldest one in memory bounds the
//! checkpoint.
//!
//! Tenants beside each other: a queue and its task are one partition's, so one tenant's, and have one commit under way. What is accepted comes
//! in groups of the WAL, where tenants take turns, and is queued without a wait. Where commits of all tenants meet they take turns by tenant:
//! at the pool of partition writes (`commit`), and for the calls to another node (`owners::call_in_turn`). What one tenant keeps in queues is
//! bounded, and the end of the room is left to others (`accept`).

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{debug, error, warn};
use veena_contract::StreamId;
use veena_storage::partition::NewRecord;
use veena_storage::wal::WalRecord;

use crate::core::Core;
use crate::owners::stream::OwnerCalls;
use crate::partition::Partition;
use crate::produce::backlog::is_lost;
use crate::produce::moved::message_of;
use crate::produce::queue::{DestinationQueue, Next};
use crate::produce::request::{CommitAnswer, CommitError, StreamCommit};
use crate::produce::{park, reroute};
use crate::streams::{Prev, SenderWindow, Start, StreamKey, Ticket};
use crate::tasks::OnExit;
use crate::topics::Topic;

/// Durable records arrive, in WAL order: each goes to the queue of its destination, and destinations that stood still are started.
pub fn enqueue(core: &Arc<Core>, records: Vec<WalRecord>) {
    let Some(last) = records.last().map(|record| record.seq) else {
        return;
    };
    for record in records {
        enqueue_one(core, record);
    }
    core.dispatch.set_enqueued_end(last.next());
}

/// Queues one record that is durable in the WAL.
pub fn enqueue_one(core: &Arc<Core>, record: WalRecord) {
    // Behind those of its topic that still wait to be known, if there are any.
    let Some(record) = core.orphans.follow(core, record) else {
        return;
    };
    match core.destination(record.destination) {
        Some((topic, partition)) => enqueue_at(core, &topic, &partition, record),
        None => core.orphans.add(core, record),
    }
}

/// Queues a record at its destination.
pub fn enqueue_at(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>, record: WalRecord) {
    let bytes = record.body.len();
    let is_former = record.stream != core.wal_stream();
    let mut queue = partition.queue.lock();
    if is_former && queue.parked.covers(record.stream, record.seq) {
        return;
    }
    core.dispatch.add_bytes(bytes);
    if is_former {
        core.dispatch.add_former(bytes);
    }
    queue.push(record, is_former);
    start(core, topic, partition, &mut queue);
}

/// Starts what is not running.
pub fn start(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>, queue: &mut DestinationQueue) {
    if std::mem::replace(&mut queue.is_running, true) {
        return;
    }
    core.dispatch.activate(partition);
    let (core_for_run, topic, partition) = (Arc::clone(core), Arc::clone(topic), Arc::clone(partition));
    core.ports.tasks.spawn("dispatch", OnExit::Shutdown, async move { run(&core_for_run, &topic, &partition).await });
}

/// Dispatches to one partition until its queue is empty, or the topic is gone, or the node stops.
async fn run(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>) {
    let token = core.ports.tasks.token();
    loop {
        if reroute::run(core, topic, partition).await {
            continue;
        }
        let next = {
            let mut queue = partition.queue.lock();
            if queue.has_nothing() || token.is_cancelled() || topic.is_gone() {
                queue.is_running = false;
                if queue.has_nothing() {
                    core.dispatch.deactivate(partition);
                }
                break;
            }
            let next = queue.next(Instant::now(), core.dispatch.may_former_come(), core.moved.is_known());
            queue.pass_began = matches!(next, Next::Send(_) | Next::Load(..)).then(Instant::now);
            next
        };
        let outcome = match next {
            Next::Send(head) => step(core, topic, partition, head).await,
            Next::Load(file, from) => park::load(core, topic, partition, file, from).await,
            Next::Discard(done) => {
                park::discard(core, done).await;
                continue;
            }
            Next::Wait(pause) => {
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        let pause = {
            let mut queue = partition.queue.lock();
            queue.pass_began = None;
            match outcome {
                Ok(()) | Err(CommitError::Gone) => continue,
                Err(error) => debug!(partition = %partition.dir.display(), %error, "a dispatch failed; its records stay queued"),
            }
            let (pause, unloaded) = queue.on_failed_pass();
            core.dispatch.sub_bytes(unloaded);
            pause
        };
        if reroute::run(core, topic, partition).await {
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = token.cancelled() => {}
        }
    }
    if topic.is_gone() {
        core.orphans.take_over(core, partition);
    }
}

/// One step for the stream at the head of the queue: ask where it stands, or commit what comes next.
async fn step(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>, head: Vec<WalRecord>) -> Result<(), CommitError> {
    let (stream, first) = (head[0].stream, head[0].seq);
    let key = StreamKey { stream, source: 0 };
    let owner = OwnerCalls::to(core, topic, partition);
    let (needs_open, is_probe) = {
        let mut queue = partition.queue.lock();
        queue.note_owner(owner.epoch(), !owner.is_here());
        let needs_open = queue.windows.entry(stream).or_insert_with(|| SenderWindow::new(None, None)).needs_open();
        (needs_open, reroute::is_probe(core, &topic.record.load(), &queue))
    };
    if needs_open {
        let standing = if is_probe { owner.probe(key).await? } else { owner.open(key).await? };
        let mut queue = partition.queue.lock();
        let source = core.stream_source(stream, first);
        let start = with_window(&mut queue, stream, |window, hash_of| window.on_opened(&standing, &source, hash_of));
        return start.map_or(Ok(()), |start| on_start(core, partition, &mut queue, stream, start));
    }
    let prepared = {
        let mut queue = partition.queue.lock();
        let position = queue.windows.get(&stream).and_then(SenderWindow::position).and_then(Prev::mark);
        if let Some(through) = position.filter(|position| *position >= first.0) {
            // Read again, from a file or from the WAL, after it was committed.
            settle(core, &mut queue, stream, through);
            return Ok(());
        }
        prepare(core, &mut queue, key, head)
    };
    let Some(request) = prepared else {
        return Err(CommitError::NotOpen);
    };
    let last = request.last;
    match owner.commit(request).await {
        CommitAnswer::Committed(_) => {
            let mut queue = partition.queue.lock();
            let is_ours = queue.windows.get_mut(&stream).is_some_and(|window| window.on_committed(last));
            if is_ours {
                settle(core, &mut queue, stream, last);
            }
            Ok(())
        }
        CommitAnswer::Refused(refusal) => {
            warn!(partition = %partition.dir.display(), %stream, refusal = ?refusal, "an owner refused a commit; the sender asks where it stands");
            let mut queue = partition.queue.lock();
            let source = core.stream_source(stream, first);
            let start = with_window(&mut queue, stream, |window, hash_of| window.on_refused(&refusal, &source, hash_of));
            start.map_or(Ok(()), |start| on_start(core, partition, &mut queue, stream, start))?;
            Err(CommitError::NotOpen)
        }
        CommitAnswer::Failed(error) => {
            let mut queue = partition.queue.lock();
            if let Some(window) = queue.windows.get_mut(&stream) {
                match error.effect() {
                    veena_contract::Effect::None => window.on_not_sent(),
                    veena_contract::Effect::Possible => window.on_lost(),
                }
            }
            Err(error)
        }
    }
}

/// The next commit of a stream: a gap that must be declared first, or the records at hand.
fn prepare(core: &Core, queue: &mut DestinationQueue, key: StreamKey, head: Vec<WalRecord>) -> Option<StreamCommit> {
    let origin = core.wal_origin(key.stream);
    let window = queue.windows.get_mut(&key.stream)?;
    if let Some(Ticket { log_id, prev, last }) = window.gap_offer() {
        return Some(StreamCommit { key, origin, log_id, prev, last, is_gap: true, records: Vec::new() });
    }
    let last = head.last()?.seq.0;
    let is_gap = head.iter().any(is_lost);
    let mut records = Vec::with_capacity(head.len());
    for record in head.iter().filter(|record| !is_lost(record)) {
        match message_of(record) {
            Ok((id, body)) => records.push(NewRecord { sequence: record.seq.0, id, key: None, body }),
            Err(unread) => {
                error!(seq = record.seq.0, reason = %unread, "a record of the WAL is intact and cannot be read; it stays, and what is behind it");
                return None;
            }
        }
    }
    let sequences: Vec<u64> = records.iter().map(|record| record.sequence).collect();
    let Ticket { log_id, prev, last } = window.next_offer(&sequences, last)?;
    Some(StreamCommit { key, origin, log_id, prev, last, is_gap, records })
}

fn with_window(
    queue: &mut DestinationQueue,
    stream: StreamId,
    act: impl FnOnce(&mut SenderWindow, &dyn Fn(u64) -> Option<u32>) -> Start,
) -> Option<Start> {
    let DestinationQueue { parked, former, records, windows, .. } = queue;
    let hash_of = |sequence: u64| {
        let found =
            parked.loaded().chain(former.iter()).chain(records.iter()).find(|record| record.stream == stream && record.seq.0 >= sequence);
        let found = found.filter(|record| record.seq.0 == sequence);
        found.and_then(|record| message_of(record).ok()).map(|(_, body)| crc32c::crc32c(&body))
    };
    windows.get_mut(&stream).map(|window| act(window, &hash_of))
}

/// The sender knows where it stands: what the log holds leaves the queue.
fn on_start(core: &Core, partition: &Partition, queue: &mut DestinationQueue, stream: StreamId, start: Start) -> Result<(), CommitError> {
    match start {
        Start::Resume { after, .. } | Start::Gap { after, .. } => {
            if let Some(through) = after.mark() {
                settle(core, queue, stream, through);
            }
            Ok(())
        }
        Start::Stopped(stop) => {
            error!(partition = %partition.dir.display(), %stream, reason = %stop, "a stream into a partition stands still until an operator looks");
            core.metrics.streams_forked.add(1);
            Err(CommitError::NotOpen)
        }
    }
}

fn settle(core: &Core, queue: &mut DestinationQueue, stream: StreamId, through: u64) {
    let settled = queue.settle(stream, through);
    core.dispatch.sub_bytes(settled.bytes);
    core.dispatch.sub_former(settled.former_bytes);
    if settled.has_moved {
        core.dispatch.note_progress();
    }
    let has_more = !queue.parked.is_empty() || queue.former.front().is_some_and(|record| record.stream == stream);
    if stream != core.wal_stream() && !has_more {
        queue.windows.remove(&stream);
    }
}
