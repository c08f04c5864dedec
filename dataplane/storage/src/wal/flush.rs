//! Writing groups: when one is begun, where it is written, and the threads that do it. What happens to it then is [`landing`](super::landing).
//!
//! A group is what was staged while others were under way. It is written in order of sequence, into one segment with all that are in flight,
//! and synced by one of a few flushers. While syncs are fast there is one group in flight, so that each sync serves as many records as it
//! can; a disk that takes long gets several, so that few wait for much more than one sync. Groups land in order: a record is told durable only after
//! everything before it is, and a failed sync fails every group that is still in flight. Each flusher syncs through a handle of its own: an
//! error of the device is reported once per handle, and must reach all of them.
//!
//! This module must never tell anyone of a group that an earlier one in flight could still undo, and never write after a failed sync.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::warn;

use super::append::{Call, Shared, Staging};
use super::format::SEGMENT_HEADER_BYTES;
use super::landing::Written;
use super::segments::{Active, NoSegment, Segment, begin, is_no_space};
use super::{AppendError, WalIoError};
use crate::disk::write_all_at;
use veena_contract::sabotage;

/// How many bytes one group write takes at most, unless one call alone is larger.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The encode buffer is given back when it grew over this.
const BUFFER_KEPT_BYTES: usize = GROUP_BYTES_MAX + SEGMENT_HEADER_BYTES;
/// How many groups may be in flight at once, on the slowest disk. One more is written while one lands.
pub(super) const FLIGHTS_MAX: usize = 8;
/// Each time a sync takes this much longer, one more group may be in flight. Below it a second sync costs more than the wait it saves.
const SYNC_US_PER_FLIGHT: u64 = 400;
/// The newest sync counts one part of this many in the average.
const SYNC_AVERAGE_OVER: u64 = 8;

/// When a group is begun.
#[derive(Clone, Copy)]
pub(super) enum Turn {
    /// Something was staged.
    Staged,
    /// A group was synced that still counts as in flight: the disk has room for another.
    Synced,
}

/// What became of the wish to write a group.
enum Begun {
    /// Nothing is staged, or nothing more may be in flight.
    Nothing,
    /// The group was refused.
    Refused,
    Written(Written),
}

/// Why there is no place for a group.
enum NoSeat {
    /// It needs a new segment, and others are still in flight in this one.
    MustDrain,
    /// It is refused, with this answer.
    Refused(AppendError),
}

impl Shared {
    /// May one more group be begun? Beside others, only one of a fair share of all that is on its way: if not, the first few that arrive
    /// would take every place, and the many behind them would wait for a whole sync.
    pub fn may_begin(&self, staging: &Staging, turn: Turn) -> bool {
        if staging.in_flight == 0 || staging.must_drain {
            return staging.in_flight == 0;
        }
        let allowed = self.flights_allowed();
        let staged = staging.calls.len();
        match turn {
            Turn::Staged => staging.in_flight < allowed && staged * allowed >= staged + staging.calls_in_flight,
            Turn::Synced => staging.in_flight <= allowed,
        }
    }

    fn flights_allowed(&self) -> usize {
        if !self.has_threads.load(Ordering::Relaxed) {
            return FLIGHTS_MAX;
        }
        let more = self.sync_us.load(Ordering::Relaxed) / SYNC_US_PER_FLIGHT;
        usize::try_from(more).map_or(FLIGHTS_MAX, |more| (1 + more).min(FLIGHTS_MAX))
    }

    pub(super) fn note_sync(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let average = self.sync_us.load(Ordering::Relaxed);
        self.sync_us.store(average - average / SYNC_AVERAGE_OVER + took / SYNC_AVERAGE_OVER, Ordering::Relaxed);
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes what is staged for one group; it counts as in flight from here on.
    fn take_group(&self, turn: Turn) -> VecDeque<Call> {
        let mut staging = self.staging.lock();
        if staging.calls.is_empty() || !self.may_begin(&staging, turn) {
            return VecDeque::new();
        }
        staging.in_flight += 1;
        staging.must_drain = false;
        let taken = staging.calls.take(GROUP_BYTES_MAX);
        staging.calls_in_flight += taken.len();
        if !staging.calls.is_empty() && self.may_begin(&staging, Turn::Staged) {
            // Nobody was woken for the rest.
            self.wake_one();
        }
        taken
    }

    /// Calls that were taken and not written go before everything that was staged since.
    fn put_back(&self, calls: VecDeque<Call>, staging: &mut Staging) {
        // less is in flight than this when a panic has failed it all
        staging.calls_in_flight = staging.calls_in_flight.saturating_sub(calls.len());
        staging.calls.put_back(calls);
    }

    /// So many groups are no longer in flight. Before anyone is told: whoever is answered finds the room that is free again.
    pub(super) fn landed(&self, groups: usize, calls: usize, bytes: usize) {
        let mut staging = self.staging.lock();
        // less is in flight than this when a panic has failed it all
        staging.in_flight = staging.in_flight.saturating_sub(groups);
        staging.calls_in_flight = staging.calls_in_flight.saturating_sub(calls);
        staging.bytes = staging.bytes.saturating_sub(bytes);
        if staging.is_closing {
            self.staged.notify_all();
            self.staged_inline.notify_waiters();
        }
    }

    fn refuse(&self, calls: VecDeque<Call>, error: AppendError) {
        self.landed(1, calls.len(), calls.iter().map(|call| call.bytes).sum());
        for call in calls {
            let _ = call.done.send(Err(error));
        }
    }

    /// Writes and syncs groups, one after the other, as long as there are any. Answers whether there was anything to do.
    pub fn flush_round(&self, slot: usize) -> bool {
        let mut begun = self.write_next(slot, Turn::Staged);
        if matches!(begun, Begun::Nothing) {
            return false;
        }
        while let Begun::Written(written) = begun {
            begun = self.land_and_go_on(&written, slot);
        }
        true
    }

    /// A panic latches the log: the callers of all groups in flight are told that nothing is known, everybody behind them that nothing was
    /// stored, and the thread lives on to tell them.
    pub(super) fn guarded<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let done = catch_unwind(AssertUnwindSafe(step)).ok();
        if done.is_none() {
            self.latch_panicked("the writer panicked");
            self.flights.lock().abandon();
            let mut staging = self.staging.lock();
            staging.bytes = staging.calls.bytes();
            (staging.in_flight, staging.calls_in_flight) = (0, 0);
        }
        done
    }

    fn write_next(&self, slot: usize, turn: Turn) -> Begun {
        self.guarded(|| self.write_group(slot, turn)).unwrap_or(Begun::Refused)
    }

    /// As [`write_next`](Self::write_next), for whoever lands the group later.
    pub fn write_one(&self, slot: usize) -> Option<Written> {
        match self.write_next(slot, Turn::Staged) {
            Begun::Written(written) => Some(written),
            Begun::Nothing | Begun::Refused => None,
        }
    }

    /// 1 written   2 synced   3 told   4 tickets completed    — a crash before 2 ends leaves a group nobody was told about
    fn write_group(&self, slot: usize, turn: Turn) -> Begun {
        let mut buffer = self.buffer.lock();
        let mut calls = self.take_group(turn);
        let Some(first) = calls.front() else { return Begun::Nothing };
        let active = match self.seat(first.bytes) {
            Ok(active) => active,
            Err(NoSeat::Refused(error)) => {
                self.refuse(calls, error);
                return Begun::Refused;
            }
            Err(NoSeat::MustDrain) => {
                let mut staging = self.staging.lock();
                self.put_back(calls, &mut staging);
                staging.in_flight = staging.in_flight.saturating_sub(1);
                staging.must_drain = true;
                return Begun::Nothing;
            }
        };
        let mut group = self.encode_group(&mut buffer, &active, &mut calls);
        if !calls.is_empty() {
            self.put_back(calls, &mut self.staging.lock());
        }
        if sabotage::is("ack_before_sync") {
            self.landed(0, group.calls(), group.staged_bytes());
            group.complete(self.flights.lock().on_durable.as_ref());
        }
        if let Err(error) = self.write(&buffer, &active) {
            self.landed(1, group.calls(), group.staged_bytes());
            group.refuse(error);
            return Begun::Refused;
        }
        let written = self.lift(slot, &active, group, buffer.len() as u64);
        if buffer.capacity() > BUFFER_KEPT_BYTES {
            *buffer = Vec::new();
        }
        Begun::Written(written)
    }

    /// The segment that has room for `bytes`, begun now if need be.
    fn seat(&self, bytes: usize) -> Result<Active, NoSeat> {
        if self.is_latched() {
            return Err(NoSeat::Refused(AppendError::Refused));
        }
        let (generation, previous, first) = {
            let log = self.log.lock();
            if let Some(active) = &log.active {
                let start = active.position.max(SEGMENT_HEADER_BYTES as u64);
                if !active.is_closing && start + bytes as u64 <= active.capacity {
                    return Ok(active.clone());
                }
            }
            (log.next_generation, log.segments.back().map_or(0, |segment| segment.generation), log.next_seq)
        };
        // Whatever stands in a sealed segment is durable: that is what the next open trusts.
        if !self.flights.lock().is_empty() {
            return Err(NoSeat::MustDrain);
        }
        let begun = self.spares.take().map_err(NoSegment::Unavailable).and_then(|spare| {
            begin(&*self.disk, &self.dir, &spare, generation, previous, first).inspect_err(|why| {
                if matches!(why, NoSegment::Unavailable(_)) {
                    self.spares.put(spare.clone());
                }
            })
        });
        let active = begun.map_err(|why| match why {
            NoSegment::Unavailable(reason) => {
                warn!(err = &reason as &dyn std::error::Error, "no segment for new records: they are refused, the next are tried again");
                NoSeat::Refused(AppendError::NoSpace)
            }
            NoSegment::Failed(reason) => {
                self.latch(&reason);
                NoSeat::Refused(AppendError::Refused)
            }
        })?;
        let mut log = self.log.lock();
        log.next_generation = generation + 1;
        log.segments.push_back(Segment { generation, first, path: active.path.clone(), used: 0, is_durable: false });
        log.active = Some(active.clone());
        Ok(active)
    }

    fn write(&self, buffer: &[u8], active: &Active) -> Result<(), AppendError> {
        match write_all_at(&*active.handles[0], buffer, active.position) {
            Ok(()) => Ok(()),
            Err(error) if is_no_space(&error) => {
                // Bytes may be left behind, so nothing is written here again: the next segment begins at the sequence where these would
                // stand, and so they are not records.
                self.log.lock().active = None;
                Err(AppendError::NoSpace)
            }
            Err(error) => {
                self.latch(&WalIoError::new(&active.path, "write", error));
                Err(AppendError::Latched)
            }
        }
    }

    /// As [`land`](Self::land). On a slow disk, writes the next group before anybody is told, so that the disk has it before all who were
    /// told are back with more.
    fn land_and_go_on(&self, written: &Written, slot: usize) -> Begun {
        let Some(outcome) = self.sync(written) else { return Begun::Nothing };
        if outcome.is_ok() {
            self.mark_synced(written);
        }
        let may_go_on = outcome.is_ok() && self.flights_allowed() > 1;
        let next = if may_go_on { self.write_next(slot, Turn::Synced) } else { Begun::Nothing };
        self.guarded(|| self.settle(written, outcome));
        next
    }

    /// Lands whatever is in flight and writes whatever is staged. For a log whose flushers have stopped.
    pub fn flush_rest(&self) {
        loop {
            let in_flight = self.flights.lock().written();
            in_flight.iter().for_each(|written| self.land(written));
            if !self.flush_round(0) {
                break;
            }
        }
    }

    pub fn run_flusher(&self, slot: usize) {
        loop {
            if self.flush_round(slot) {
                continue;
            }
            let mut staging = self.staging.lock();
            if !staging.calls.is_empty() && self.may_begin(&staging, Turn::Staged) {
                continue;
            }
            if staging.is_closing && staging.calls.is_empty() {
                break;
            }
            self.staged.wait(&mut staging);
        }
        self.leave();
    }

    pub async fn run_inline(&self, slot: usize) {
        loop {
            let mut begun = self.write_next(slot, Turn::Staged);
            let is_idle = matches!(begun, Begun::Nothing);
            while let Begun::Written(written) = begun {
                // others may write their groups before this one is synced, as on a slow disk
                tokio::task::yield_now().await;
                begun = self.land_and_go_on(&written, slot);
            }
            if !is_idle {
                tokio::task::yield_now().await;
                continue;
            }
            let staged = self.staged_inline.notified();
            {
                let staging = self.staging.lock();
                if staging.is_closing && staging.calls.is_empty() {
                    break;
                }
            }
            staged.await;
        }
        self.leave();
    }

    /// A flusher ends. The last one lets go of whom it told.
    fn leave(&self) {
        let is_last = {
            let mut staging = self.staging.lock();
            staging.flushers -= 1;
            staging.flushers == 0
        };
        if is_last {
            self.flights.lock().on_durable = None;
        }
    }

    pub fn run_maker(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.spares.run_maker())).is_err() {
            self.latch_panicked("the thread that prepares segments panicked");
            self.spares.lose_maker();
        }
    }
}
