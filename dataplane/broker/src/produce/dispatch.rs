//! The dispatcher: brings what the WAL holds to the owner of each partition. Every destination is independent: one that fails or stalls
//! holds up nobody else. A record leaves its queue only when its owner has committed it, so the oldest queued record bounds the checkpoint.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, warn};
use veena_contract::{StreamId, WalSeq, limits};
use veena_storage::partition::NewRecord;
use veena_storage::wal::WalRecord;

use crate::core::Core;
use crate::partition::Partition;
use crate::produce::backlog::is_lost;
use crate::produce::commit::{self, CommitAnswer, CommitError, CommitRequest, StreamCommit};
use crate::streams::{SenderWindow, Start, StreamKey, Ticket};
use crate::tasks::OnExit;
use crate::topics::Topic;

/// A destination under load is sent to at most this often, so that records share frames, syncs and checks; one that was quiet is sent to at
/// once.
const PACE: Duration = Duration::from_millis(1);
/// A destination with this many records waiting is not paced.
const PACED_RECORDS_MAX: usize = limits::DISPATCH_PACED_RECORDS_MAX;
/// How long a destination waits for records of a former life that are still being read.
const FORMER_PAUSE: Duration = Duration::from_millis(10);
const BACKOFF_MS_MIN: u64 = 50;
const BACKOFF_MS_MAX: u64 = 1000;

/// Records accepted on this node for one partition and not yet committed there, oldest first.
#[derive(Default)]
pub struct DestinationQueue {
    /// Of former lives of the node: they go first, so that no later record of a key overtakes an earlier one.
    former: VecDeque<WalRecord>,
    /// Of this life.
    records: VecDeque<WalRecord>,
    bytes: usize,
    is_running: bool,
    last_sent: Option<Instant>,
    windows: BTreeMap<StreamId, SenderWindow>,
}

/// What a destination does next.
enum Next {
    /// These records, of one stream.
    Send(Vec<WalRecord>),
    /// Nothing yet.
    Wait(Duration),
}

impl DestinationQueue {
    /// Is nothing queued, and nothing under way?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.has_nothing() && !self.is_running
    }

    fn push(&mut self, record: WalRecord, is_former: bool) {
        self.bytes += record.body.len();
        if is_former {
            self.former.push_back(record);
        } else {
            self.records.push_back(record);
        }
    }

    /// Bytes of bodies queued.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many records are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.former.len() + self.records.len()
    }

    fn has_nothing(&self) -> bool {
        self.former.is_empty() && self.records.is_empty()
    }

    /// The oldest record that is not known to be committed.
    #[must_use]
    pub fn front(&self) -> Option<WalSeq> {
        let oldest = |records: &VecDeque<WalRecord>| records.front().map(|record| record.seq);
        [oldest(&self.former), oldest(&self.records)].into_iter().flatten().min()
    }

    /// Takes everything out (the topic is gone).
    pub fn drain(&mut self) -> Vec<WalRecord> {
        self.bytes = 0;
        self.windows.clear();
        self.former.drain(..).chain(self.records.drain(..)).collect()
    }

    /// What to send now, or how long to wait for company first.
    fn next(&mut self, now: Instant, may_former_come: bool) -> Next {
        if self.former.is_empty() && may_former_come {
            return Next::Wait(FORMER_PAUSE);
        }
        let due = self.last_sent.map_or(now, |last| last + PACE);
        if self.records.len() < PACED_RECORDS_MAX && due > now {
            return Next::Wait(due - now);
        }
        self.last_sent = Some(now);
        Next::Send(self.head())
    }

    /// Records of one stream from the front, as many as one commit takes, or what stands for lost ones, alone. Bodies are shared, not
    /// copied.
    fn head(&self) -> Vec<WalRecord> {
        let records = if self.former.is_empty() { &self.records } else { &self.former };
        let Some(first) = records.front() else {
            return Vec::new();
        };
        if is_lost(first) {
            return vec![first.clone()];
        }
        let mut bytes = 0;
        records
            .iter()
            .take(limits::COMMIT_RECORDS_MAX)
            .take_while(|record| {
                bytes += record.body.len();
                record.stream == first.stream && !is_lost(record) && (bytes <= limits::COMMIT_BYTES_MAX || record.seq == first.seq)
            })
            .cloned()
            .collect()
    }

    /// Everything of `stream` up to `through` is committed.
    fn settle(&mut self, stream: StreamId, through: u64) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for records in [&mut self.former, &mut self.records] {
            while records.front().is_some_and(|record| record.stream == stream && record.seq.0 <= through) {
                if let Some(record) = records.pop_front() {
                    count += 1;
                    bytes += record.body.len();
                }
            }
        }
        self.bytes -= bytes;
        (count, bytes)
    }
}

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
    let Some((topic, partition)) = core.destination(record.destination) else {
        core.orphans.add(core, record);
        return;
    };
    let bytes = record.body.len();
    let is_former = record.stream != core.wal_stream();
    core.dispatch.add_bytes(bytes);
    if is_former {
        core.dispatch.add_former(bytes);
    }
    let must_start = {
        let mut queue = partition.queue.lock();
        queue.push(record, is_former);
        let must_start = !std::mem::replace(&mut queue.is_running, true);
        if must_start {
            core.dispatch.activate(&partition);
        }
        must_start
    };
    if must_start {
        let core_for_run = Arc::clone(core);
        core.ports.tasks.spawn("dispatch", OnExit::Shutdown, async move { run(&core_for_run, &topic, &partition).await });
    }
}

/// Dispatches to one partition until its queue is empty, or the topic is gone, or the node stops.
async fn run(core: &Arc<Core>, topic: &Arc<Topic>, partition: &Arc<Partition>) {
    let token = core.ports.tasks.token();
    let mut backoff_ms = BACKOFF_MS_MIN;
    loop {
        let next = {
            let mut queue = partition.queue.lock();
            if queue.has_nothing() || token.is_cancelled() || topic.is_gone() {
                queue.is_running = false;
                if queue.has_nothing() {
                    core.dispatch.deactivate(partition);
                }
                break;
            }
            queue.next(Instant::now(), core.dispatch.may_former_come())
        };
        let head = match next {
            Next::Send(head) => head,
            Next::Wait(pause) => {
                tokio::time::sleep(pause).await;
                continue;
            }
        };
        match step(core, topic, partition, head).await {
            Ok(()) => backoff_ms = BACKOFF_MS_MIN,
            Err(error) => {
                if error == CommitError::Gone {
                    continue;
                }
                debug!(partition = %partition.dir.display(), %error, "a dispatch failed; its records stay queued");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(backoff_ms)) => {}
                    () = token.cancelled() => {}
                }
                backoff_ms = (backoff_ms * 2).min(BACKOFF_MS_MAX);
            }
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
    let needs_open = {
        let mut queue = partition.queue.lock();
        queue.windows.entry(stream).or_insert_with(|| SenderWindow::new(None, None)).needs_open()
    };
    if needs_open {
        let standing = commit::open_stream(core, partition, key).await?;
        let mut queue = partition.queue.lock();
        let source = core.stream_source(stream, first);
        let start = with_window(&mut queue, stream, |window, hash_of| window.on_opened(&standing, &source, hash_of));
        return start.map_or(Ok(()), |start| on_start(core, partition, &mut queue, stream, start));
    }
    let prepared = {
        let mut queue = partition.queue.lock();
        prepare(core, &mut queue, key, head)
    };
    let Some(request) = prepared else {
        return Err(CommitError::NotOpen);
    };
    let last = request.last;
    match commit::commit(core, topic, partition, CommitRequest::Stream(request)).await {
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
    let records = head.into_iter().filter(|record| !is_lost(record));
    let records: Vec<NewRecord> = records.map(|record| NewRecord { sequence: record.seq.0, id: None, body: record.body }).collect();
    let sequences: Vec<u64> = records.iter().map(|record| record.sequence).collect();
    let Ticket { log_id, prev, last } = window.next_offer(&sequences, last)?;
    Some(StreamCommit { key, origin, log_id, prev, last, is_gap, records })
}

fn with_window(
    queue: &mut DestinationQueue,
    stream: StreamId,
    act: impl FnOnce(&mut SenderWindow, &dyn Fn(u64) -> Option<u32>) -> Start,
) -> Option<Start> {
    let DestinationQueue { former, records, windows, .. } = queue;
    let hash_of = |sequence: u64| {
        let found = former.iter().chain(records.iter()).find(|record| record.stream == stream && record.seq.0 >= sequence);
        found.filter(|record| record.seq.0 == sequence).map(|record| crc32c::crc32c(&record.body))
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
    let (count, bytes) = queue.settle(stream, through);
    core.dispatch.sub_bytes(bytes);
    if stream != core.wal_stream() {
        core.dispatch.sub_former(bytes);
    }
    if count > 0 {
        core.dispatch.note_progress();
    }
    let is_finished = stream != core.wal_stream() && queue.former.front().is_none_or(|record| record.stream != stream);
    if is_finished {
        queue.windows.remove(&stream);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use veena_storage::wal::{Destination, RecordKind};

    use super::*;

    fn record(stream: u128, seq: u64) -> WalRecord {
        let destination = Destination { group: 1, partition: 0 };
        WalRecord { seq: WalSeq(seq), stream: StreamId(stream), kind: RecordKind::Accept, destination, body: Bytes::from_static(b"x") }
    }

    #[test]
    fn the_oldest_record_bounds_the_checkpoint_wherever_it_stands() {
        let mut queue = DestinationQueue::default();
        for (stream, seq) in [(2, 100), (1, 50), (1, 51), (2, 101)] {
            queue.push(record(stream, seq), stream == 1);
        }
        assert_eq!(queue.front(), Some(WalSeq(50)), "a record of a former life came after a newer one");
        assert_eq!(queue.head().iter().map(|record| record.seq.0).collect::<Vec<_>>(), [50, 51], "and goes first");
        queue.settle(StreamId(2), 100);
        assert_eq!(queue.front(), Some(WalSeq(50)));
        queue.settle(StreamId(1), 51);
        assert_eq!(queue.front(), Some(WalSeq(101)));
        queue.settle(StreamId(2), 101);
        assert!(queue.is_empty());
        queue.push(record(2, 102), false);
        assert!(matches!(queue.next(Instant::now(), true), Next::Wait(_)), "records of a former life may still come");
        assert!(matches!(queue.next(Instant::now(), false), Next::Send(_)));
    }
}
