//! From written to told: what is in flight, and who learns that it is durable.
//!
//! Groups are synced by different threads and land in order of sequence.
//!
//! This module must never tell anyone of a group that an earlier one in flight could still undo.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use veena_contract::WalSeq;

use super::append::Shared;
use super::group::Group;
use super::segments::Active;
use super::{AppendError, OnDurable, WalIoError};
use crate::disk::DiskFile;

/// What is between write and answer, oldest first.
#[derive(Default)]
pub(super) struct Flights {
    groups: VecDeque<Flight>,
    next_turn: u64,
    pub on_durable: Option<OnDurable>,
    pub has_started: bool,
}

struct Flight {
    written: Written,
    group: Group,
    is_synced: bool,
    generation: u64,
    bytes: u64,
    /// Where it ends in its segment.
    end_at: u64,
}

/// A group that is written and not synced yet.
#[derive(Clone)]
pub struct Written {
    turn: u64,
    /// The handle it is synced through.
    file: Arc<dyn DiskFile>,
    path: PathBuf,
}

impl Flights {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// What is in flight, oldest first.
    pub fn written(&self) -> Vec<Written> {
        self.groups.iter().map(|flight| flight.written.clone()).collect()
    }

    /// Lets everything in flight go; who waits for it learns nothing.
    pub fn abandon(&mut self) {
        self.groups.clear();
    }
}

impl Shared {
    /// The group is written: it is in flight until it is synced.
    pub(super) fn lift(&self, slot: usize, active: &Active, group: Group, bytes: u64) -> Written {
        let end_at = active.position + bytes;
        {
            let mut log = self.log.lock();
            log.next_seq = group.end;
            if let Some(now) = log.active.as_mut() {
                now.position = end_at;
                now.is_header_written = true;
            }
        }
        let mut flights = self.flights.lock();
        let written = Written { turn: flights.next_turn, file: Arc::clone(&active.handles[slot]), path: active.path.clone() };
        flights.next_turn += 1;
        let generation = active.generation;
        flights.groups.push_back(Flight { written: written.clone(), group, is_synced: false, generation, bytes, end_at });
        written
    }

    /// Syncs a written group, and completes every group that has become durable by it, in order.
    pub fn land(&self, written: &Written) {
        if let Some(outcome) = self.sync(written) {
            self.guarded(|| self.settle(written, outcome));
        }
    }

    /// Syncs a written group; nothing if it is not in flight any more.
    pub(super) fn sync(&self, written: &Written) -> Option<Result<(), WalIoError>> {
        self.guarded(|| {
            let is_there = self.flights.lock().groups.iter().any(|flight| flight.written.turn == written.turn);
            is_there.then(|| {
                let began = Instant::now();
                let outcome = written.file.sync_data();
                self.note_sync(began.elapsed());
                outcome.map_err(|error| WalIoError::new(&written.path, "sync", error))
            })
        })
        .flatten()
    }

    pub(super) fn settle(&self, written: &Written, outcome: Result<(), WalIoError>) {
        let mut flights = self.flights.lock();
        let Flights { groups, on_durable, .. } = &mut *flights;
        match &outcome {
            Err(reason) => self.latch(reason),
            Ok(()) => set_synced(groups, written),
        }
        while let Some(mut flight) = groups.pop_front_if(|flight| flight.is_synced) {
            self.account(&flight);
            self.landed(1, flight.group.calls(), flight.group.staged_bytes());
            flight.group.complete(on_durable.as_ref());
        }
        if self.is_latched() {
            // What the failed sync concerned is not known, and nothing behind a lost group may be promised.
            for flight in groups.drain(..) {
                self.landed(1, flight.group.calls(), flight.group.staged_bytes());
                flight.group.refuse(AppendError::Latched);
            }
        }
    }

    pub(super) fn mark_synced(&self, written: &Written) {
        set_synced(&mut self.flights.lock().groups, written);
    }

    /// Everything below this is synced, told or not: what a group that is written now proves.
    pub fn proven_end(&self) -> WalSeq {
        let flights = self.flights.lock();
        let synced = flights.groups.iter().take_while(|flight| flight.is_synced).last();
        synced.map_or_else(|| self.durable_end(), |flight| flight.group.end)
    }

    fn account(&self, flight: &Flight) {
        let mut log = self.log.lock();
        log.durable_at = (flight.generation, flight.end_at);
        if let Some(segment) = log.segments.back_mut().filter(|segment| segment.generation == flight.generation) {
            segment.used += flight.bytes;
            segment.is_durable = true;
        }
        self.records.fetch_add(flight.group.records(), Ordering::Relaxed);
        self.live_bytes.fetch_add(flight.bytes, Ordering::Relaxed);
        self.durable_end.store(flight.group.end.0, Ordering::Release);
    }
}

fn set_synced(groups: &mut VecDeque<Flight>, written: &Written) {
    if let Some(flight) = groups.iter_mut().find(|flight| flight.written.turn == written.turn) {
        flight.is_synced = true;
    }
}
