//! Decoded frames of all partitions of a node, bounded in bytes: one buffer a frame, every record a slice of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use veena_contract::{LogId, Offset};

use super::StoredRecord;
use super::frame::DecodedFrame;

/// Decoded frames, found by log and offset. Only published, checked frames are in it. When it is full, frames that were not read since
/// they were last passed over go first.
///
/// It also remembers for this process which logs ended their last life with a failed sync, so that their next one does not trust the pages
/// of that sync.
pub struct FrameCache {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    frames: BTreeMap<(LogId, Offset), Entry>,
    order: VecDeque<(LogId, Offset)>,
    bytes: usize,
    latched: BTreeMap<LogId, LatchedAt>,
}

struct Entry {
    frame: Arc<DecodedFrame>,
    was_read: AtomicBool,
}

/// Where a log stood when it was latched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatchedAt {
    /// The segment that was active.
    pub(super) base: Offset,
    /// The position below which the last good sync has made it safe.
    pub(super) synced: u64,
}

impl FrameCache {
    /// An empty cache that keeps at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::new(State::default()) }
    }

    /// How many bytes it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// The frame that holds an offset.
    pub(super) fn frame(&self, log: LogId, offset: Offset) -> Option<Arc<DecodedFrame>> {
        self.look(log, offset, Arc::clone)
    }

    /// The record at an offset.
    pub(super) fn record(&self, log: LogId, offset: Offset) -> Option<StoredRecord> {
        self.look(log, offset, |frame| frame.record(offset))?
    }

    fn look<T>(&self, log: LogId, offset: Offset, take: impl FnOnce(&Arc<DecodedFrame>) -> T) -> Option<T> {
        let state = self.state.lock();
        let (_, entry) = state.frames.range((log, Offset(0))..=(log, offset)).next_back()?;
        if entry.frame.end() <= offset {
            return None;
        }
        entry.was_read.store(true, Ordering::Relaxed);
        Some(take(&entry.frame))
    }

    /// Keeps a frame, if it has records and fits.
    pub(super) fn insert(&self, log: LogId, frame: Arc<DecodedFrame>) {
        let (base, bytes) = (frame.base(), frame.memory_bytes());
        if frame.end() == base || bytes > self.bytes_max {
            return;
        }
        let mut state = self.state.lock();
        let is_known = state.frames.contains_key(&(log, base));
        if is_known {
            return;
        }
        while state.bytes + bytes > self.bytes_max {
            state.evict_one();
        }
        state.bytes += bytes;
        state.order.push_back((log, base));
        state.frames.insert((log, base), Entry { frame, was_read: AtomicBool::new(false) });
    }

    pub(super) fn remember_latched(&self, log: LogId, at: LatchedAt) {
        self.state.lock().latched.entry(log).or_insert(at);
    }

    pub(super) fn latched(&self, log: LogId) -> Option<LatchedAt> {
        self.state.lock().latched.get(&log).copied()
    }

    pub(super) fn forget_latched(&self, log: LogId) {
        self.state.lock().latched.remove(&log);
    }
}

impl State {
    /// Second chance: a frame that was read since it was last passed over goes to the end of the line.
    fn evict_one(&mut self) {
        while let Some(key) = self.order.pop_front() {
            let is_wanted = self.frames.get(&key).is_some_and(|entry| entry.was_read.swap(false, Ordering::Relaxed));
            if is_wanted {
                self.order.push_back(key);
            } else if let Some(entry) = self.frames.remove(&key) {
                self.bytes -= entry.frame.memory_bytes();
                return;
            }
        }
        self.bytes = 0;
    }
}
