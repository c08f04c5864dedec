//! A cursor copies one parent partition into one child. It runs while there is something to copy and ends when there is not; a publish,
//! a new attachment or a restart starts it again.
//!
//! The position moves only after the child has committed the slab. While records wait for their delay, the cursor sleeps until the first
//! is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tracing::{debug, error, warn};
use veena_contract::{ChildLink, Offset, OwnershipEpoch, PartitionIndex, TopicId, TopicRecord, limits};
use veena_storage::partition::{NewRecord, ReadError, StoredRecord};

use crate::core::Core;
use crate::fanout::delay::{self, Gate};
use crate::fanout::local::{self, Sent, Target};
use crate::fanout::position::{self, Position};
use crate::fanout::slab;
use crate::metrics::Counter;
use crate::owners::stream::OwnerCalls;
use crate::partition::Partition;
use crate::produce::request::CommitError;
use crate::settle;
use crate::streams::{SenderWindow, Source, StreamKey};
use crate::tasks::OnExit;
use crate::topics::Topic;

const RETRY: Duration = Duration::from_millis(200);
const SLEEP_MAX: Duration = Duration::from_secs(30);

/// One (attachment, parent partition).
pub struct Cursor {
    /// The parent's incarnation.
    pub parent: TopicId,
    /// Which of its partitions.
    pub index: PartitionIndex,
    /// The attachment.
    pub link: ChildLink,
    /// Records copied since the process began.
    pub committed: Counter,
    state: Mutex<State>,
    windows: tokio::sync::Mutex<BTreeMap<PartitionIndex, Window>>,
}

/// The window into one partition of the child, and the ownership under which it was opened.
struct Window {
    sender: SenderWindow,
    epoch: OwnershipEpoch,
}

#[derive(Default)]
struct State {
    position: Option<Position>,
    /// What must be on the disk before more is sent is there: the count that records are routed with, and that lost ones were passed.
    is_durable: bool,
    /// The last parent offset that may have been sent, to any partition of the child: by this life, and by former ones once the child was
    /// asked.
    sent_through: Option<u64>,
    /// Where the parent ended when this life first looked, if a former one may have sent what lies below; known from the first round on.
    former_end: Option<Offset>,
    is_running: bool,
    /// Kicked while running: look once more before ending.
    is_kicked: bool,
    is_ended: bool,
}

/// What one round achieved.
enum Round {
    Advanced { is_full: bool },
    Idle,
    Wait(Duration),
    End,
}

impl Cursor {
    /// A cursor that has not looked yet. `sent_through` is the last parent offset that it may have sent where it was before, if it comes from
    /// another node.
    #[must_use]
    pub fn new(parent: TopicId, index: PartitionIndex, link: ChildLink, sent_through: Option<u64>) -> Self {
        let state = Mutex::new(State { sent_through, ..State::default() });
        Self { parent, index, link, committed: Counter::default(), state, windows: tokio::sync::Mutex::default() }
    }

    /// Is its attachment one of this parent's?
    #[must_use]
    pub fn is_of(&self, parent: &TopicRecord) -> bool {
        parent.children.iter().any(|link| link.epoch == self.link.epoch)
    }

    /// Ends it here, to go on elsewhere: its place, and the last parent offset that it may have sent.
    pub fn stop(&self, core: &Core) -> (Option<Position>, Option<u64>) {
        self.end();
        (self.kept(core), self.state.lock().sent_through)
    }

    /// The next parent offset to copy, and how many records were dropped; known before the first round.
    #[must_use]
    pub fn progress(&self, core: &Core) -> (Offset, u64) {
        self.kept(core).map_or((self.attach_point(), 0), |position| (position.next, position.dropped))
    }

    /// There may be something to copy.
    pub fn kick(self: &Arc<Self>, core: &Arc<Core>) {
        {
            let mut state = self.state.lock();
            if state.is_ended {
                return;
            }
            if state.is_running {
                state.is_kicked = true;
                return;
            }
            state.is_running = true;
        }
        let (cursor, core_for_run) = (Arc::clone(self), Arc::clone(core));
        core.ports.tasks.spawn("fanout", OnExit::Shutdown, async move { cursor.run(&core_for_run).await });
    }

    /// The attachment has ended: from here on the cursor sends and keeps nothing.
    pub fn end(&self) {
        self.state.lock().is_ended = true;
    }

    /// Has it ended, with nothing it sent under way?
    pub fn is_at_rest(&self) -> bool {
        self.state.lock().is_ended && self.windows.try_lock().is_ok()
    }

    async fn run(self: Arc<Self>, core: &Arc<Core>) {
        let token = core.ports.tasks.token();
        let linger = Duration::from_millis(core.config.fanout.linger_ms);
        loop {
            self.state.lock().is_kicked = false;
            let pause = match self.round(core).await {
                Round::Advanced { is_full: true } => Duration::ZERO,
                Round::Advanced { is_full: false } => linger,
                Round::Wait(pause) => pause.min(SLEEP_MAX),
                Round::Idle | Round::End => {
                    let mut state = self.state.lock();
                    if state.is_kicked && !state.is_ended && !token.is_cancelled() {
                        continue;
                    }
                    state.is_running = false;
                    return;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = token.cancelled() => {}
            }
            if token.is_cancelled() {
                self.state.lock().is_running = false;
                return;
            }
        }
    }

    /// Reads a slab and commits it in the child.
    async fn round(&self, core: &Arc<Core>) -> Round {
        if self.state.lock().is_ended {
            return Round::End;
        }
        let Some((parent, child)) = self.topics(core) else {
            return Round::End;
        };
        let Ok(serving) = parent.open(core).await else {
            return Round::Wait(RETRY);
        };
        let partitions = child.record.load().partitions;
        let end = serving.reader.high_watermark();
        let mut position = self.position(core, partitions, end);
        if position.next > end {
            error!(parent = %parent.dir.display(), next = position.next.0, end = end.0, "a cursor lies beyond the log's end: the log has lost data");
            position.next = end;
        }
        if position.next == end {
            self.store(core, position);
            return Round::Idle;
        }
        if position.routed_with != partitions && !self.change_routing(core, &child, &mut position, partitions).await {
            return Round::Wait(RETRY);
        }
        if !self.make_durable(core, &position).await {
            return Round::Wait(RETRY);
        }
        let slab = match self.read(core, &parent, &serving.reader, &mut position, end).await {
            Ok(slab) => slab,
            Err(round) => return round,
        };
        // Without a delay the clock has no say: one that steps back must not hold records up.
        let gate = match self.link.delay_ms {
            0 => Gate::Open { count: slab.len() },
            delay_ms => delay::judge(&slab, delay_ms, core.ports.clock.now_ms()),
        };
        let count = match gate {
            Gate::Open { count } => count,
            Gate::Closed { wait_ms } => return Round::Wait(Duration::from_millis(wait_ms)),
        };
        parent.touch(core.now_ms());
        self.copy(core, &child, &serving.reader.oldest(), position, &slab[..count]).await
    }

    fn topics(&self, core: &Arc<Core>) -> Option<(Arc<Partition>, Arc<Topic>)> {
        let view = core.ports.catalog.view();
        let record = view.topic_by_id(self.parent)?;
        let child = view.topic_by_id(self.link.child_id).filter(|_| self.is_of(record))?;
        let parent = core.topics.of(core, record).partition(self.index)?;
        Some((parent, core.topics.of(core, child)))
    }

    fn position(&self, core: &Core, partitions: u32, end: Offset) -> Position {
        // Nothing was ever sent before a position was durable.
        let has_former = || core.settle.cursor(&position::key(self.link.epoch, self.index)).is_some();
        self.state.lock().former_end.get_or_insert_with(|| if has_former() { end } else { Offset(0) });
        self.kept(core).unwrap_or_else(|| Position {
            next: self.attach_point(),
            routed_with: partitions,
            dropped: 0,
            confirmed: BTreeMap::new(),
        })
    }

    fn attach_point(&self) -> Offset {
        let index = usize::try_from(self.index.get()).ok();
        index.and_then(|index| self.link.attach_offsets.get(index).copied()).unwrap_or(Offset(0))
    }

    /// The position of this life, else that of an earlier one.
    fn kept(&self, core: &Core) -> Option<Position> {
        let mut state = self.state.lock();
        if let Some(position) = &state.position {
            return Some(position.clone());
        }
        match position::decode(&core.settle.cursor(&position::key(self.link.epoch, self.index))?) {
            Ok(position) => {
                state.is_durable = true;
                state.position = Some(position.clone());
                Some(position)
            }
            Err(_) => {
                error!(child = %self.link.child, "a cursor's kept position cannot be read: it starts at its attach point, the child knows what it has");
                None
            }
        }
    }

    fn store(&self, core: &Core, position: Position) {
        let mut state = self.state.lock();
        // Once it has ended, its position may be forgotten at any moment, and must not come back.
        if state.is_ended || state.position.as_ref() == Some(&position) {
            return;
        }
        core.settle.keep_cursor(&position::key(self.link.epoch, self.index), position::encode(&position));
        state.position = Some(position);
    }

    /// The child has grown. What may have been sent with the old count is finished with it, also what former lives sent: it may still be
    /// under way.
    async fn change_routing(&self, core: &Arc<Core>, child: &Arc<Topic>, position: &mut Position, partitions: u32) -> bool {
        let former_end = self.state.lock().former_end.unwrap_or(Offset(0));
        if position.next < former_end {
            let Ok(committed) = self.committed_in(core, child, position.routed_with).await else { return false };
            let mut state = self.state.lock();
            state.sent_through = state.sent_through.max(position::sent_by_former(committed, position.next, former_end));
            state.former_end = Some(Offset(0));
        }
        let mut state = self.state.lock();
        if state.sent_through.is_none_or(|sent| sent < position.next.0) {
            position.routed_with = partitions;
            state.is_durable = false;
        }
        true
    }

    /// A count is durable before anything is routed with it, so that a resend never takes another way; and a position behind lost records is
    /// before what comes next is sent, so that it can be told how far a life may have come.
    async fn make_durable(&self, core: &Arc<Core>, position: &Position) -> bool {
        if self.state.lock().is_durable {
            return true;
        }
        self.store(core, position.clone());
        let worker = Arc::clone(core);
        let is_durable = core.ports.write_io.run(move || settle::flush(&worker)).await;
        self.state.lock().is_durable = is_durable;
        is_durable
    }

    /// The last parent offset that a former life brought into any of the child's first `partitions` partitions: the child knows.
    async fn committed_in(&self, core: &Arc<Core>, child: &Arc<Topic>, partitions: u32) -> Result<Option<u64>, CommitError> {
        let key = StreamKey { stream: self.link.stream, source: self.index.get() };
        let mut most = None;
        for index in (0..partitions).map(PartitionIndex) {
            let partition = child.partition(index).ok_or(CommitError::NotOpen)?;
            most = most.max(OwnerCalls::to(core, child, &partition).open(key).await?.committed);
        }
        Ok(most)
    }

    async fn read(
        &self,
        core: &Arc<Core>,
        parent: &Partition,
        reader: &veena_storage::partition::LogReader,
        position: &mut Position,
        end: Offset,
    ) -> Result<Vec<StoredRecord>, Round> {
        let (config, from, reader) = (core.config.fanout, position.next, reader.clone());
        let records_max = batch_records_max(core);
        let lane = core.usage.lane_of(&parent.usage);
        let read = core
            .ports
            .read_io
            .run_in(lane, config.batch_bytes_max, move || reader.read_range(from, end, records_max, config.batch_bytes_max))
            .await;
        let resume_at = match read {
            Ok(slab) if slab.is_empty() => return Err(Round::Wait(RETRY)),
            Ok(slab) => return Ok(slab),
            Err(ReadError::BelowOldest { oldest }) => oldest,
            Err(ReadError::Unreadable { next }) => next,
            // It is opened anew by its next commit, its next reader or the sweep.
            Err(ReadError::Closed) => return Err(Round::Wait(RETRY)),
            Err(failed) => {
                debug!(child = %self.link.child, error = %failed, "a cursor cannot read its parent now");
                return Err(Round::Wait(RETRY));
            }
        };
        let dropped = resume_at.0.saturating_sub(position.next.0);
        warn!(child = %self.link.child, from = position.next.0, to = resume_at.0, "records were lost before they could be copied");
        core.metrics.fanout_records_dropped.add(dropped);
        position.dropped += dropped;
        position.next = resume_at;
        self.state.lock().is_durable = false;
        self.store(core, position.clone());
        Err(Round::Wait(Duration::ZERO))
    }

    async fn copy(&self, core: &Arc<Core>, child: &Arc<Topic>, oldest: &Offset, mut position: Position, slab: &[StoredRecord]) -> Round {
        let (parts, unreadable) = slab::split(slab, position.routed_with);
        let end = slab.last().map_or(position.next, |record| record.offset.next());
        if veena_contract::sabotage::is("cursor_before_child_commit") {
            position.next = end;
            self.store(core, position.clone());
        }
        let begin = usize::try_from(self.index.get()).ok().and_then(|index| self.link.attach_offsets.get(index)).map_or(0, |o| o.0);
        let retained_from = oldest.0.max(begin);
        let source =
            Source { begin, owed_from: position.next.0.max(begin), retained_from: retained_from.min(position.next.0), end: u64::MAX };
        if let Some(last) = slab.last() {
            let mut state = self.state.lock();
            state.sent_through = state.sent_through.max(Some(last.offset.0));
        }
        let mut windows = self.windows.lock().await;
        if self.state.lock().is_ended {
            return Round::End;
        }
        let mut outcomes = Vec::with_capacity(parts.len());
        let sends = parts.into_iter().map(|(index, records)| {
            let confirmed = position.confirmed.get(&index).copied();
            let window = windows
                .remove(&index)
                .unwrap_or_else(|| Window { sender: SenderWindow::new(confirmed, None), epoch: OwnershipEpoch::default() });
            self.send(core, child, index, source, window, records)
        });
        for (index, window, sent) in join_all(sends).await {
            windows.insert(index, window);
            outcomes.push((index, sent));
        }
        drop(windows);
        let mut go_back = None;
        let mut is_done = true;
        for (index, sent) in outcomes {
            match sent {
                Sent::Committed { through } => {
                    let confirmed = position.confirmed.entry(index).or_insert(through);
                    *confirmed = through.max(*confirmed);
                }
                Sent::GoBack { from } => go_back = go_back.min(Some(from)).or(Some(from)),
                Sent::Retry | Sent::Stopped => is_done = false,
            }
        }
        if let Some(from) = go_back {
            position.next = position.next.min(Offset(from));
            position.confirmed.clear();
            self.store(core, position);
            return Round::Wait(Duration::ZERO);
        }
        if !is_done {
            self.store(core, position);
            return Round::Wait(RETRY);
        }
        position.next = end;
        position.dropped += unreadable;
        if unreadable > 0 {
            self.state.lock().is_durable = false;
        }
        self.committed.add(slab.len() as u64 - unreadable);
        core.metrics.fanout_records_committed.add(slab.len() as u64 - unreadable);
        core.metrics.fanout_records_dropped.add(unreadable);
        self.store(core, position);
        Round::Advanced { is_full: slab.len() >= batch_records_max(core) }
    }

    async fn send(
        &self,
        core: &Arc<Core>,
        child: &Arc<Topic>,
        index: PartitionIndex,
        source: Source,
        mut window: Window,
        records: Vec<NewRecord>,
    ) -> (PartitionIndex, Window, Sent) {
        let key = StreamKey { stream: self.link.stream, source: self.index.get() };
        let Some(partition) = child.partition(index) else {
            return (index, window, Sent::Retry);
        };
        let target = Target { owner: OwnerCalls::to(core, child, &partition), key, source };
        if std::mem::replace(&mut window.epoch, target.owner.epoch()) != target.owner.epoch() {
            window.sender.on_lost();
        }
        let sent = local::send(&target, &mut window.sender, records).await;
        (index, window, sent)
    }
}

/// How many records one slab holds: not more than a commit may carry to another node.
fn batch_records_max(core: &Core) -> usize {
    core.config.fanout.batch_records_max.min(limits::COMMIT_RECORDS_MAX)
}
