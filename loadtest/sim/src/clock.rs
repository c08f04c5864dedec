//! One time line over all lives of all nodes, and the wall clock of each machine. A life runs on a runtime whose clock is paused; between
//! lives time passes too.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;
use veena_contract::WallClock;

const EPOCH_MS: u64 = 1_700_000_000_000;

/// Virtual time.
#[derive(Debug, Default)]
pub struct SimTime {
    base_us: AtomicU64,
    origin: Mutex<Option<Instant>>,
    stamped_us: AtomicU64,
}

impl SimTime {
    /// A runtime was started: its clock carries the time line on. Called inside it.
    pub fn begin_life(&self) {
        *self.origin.lock() = Some(Instant::now());
    }

    /// The runtime ends; the next one starts `down_us` later. Called inside it.
    pub fn end_life(&self, down_us: u64) {
        let now = self.now_us();
        *self.origin.lock() = None;
        self.base_us.store(now + down_us, Ordering::Relaxed);
    }

    /// It is this late. For runtimes that are moved on together, none of which is the one whose clock counts.
    pub fn set_us(&self, now_us: u64) {
        self.base_us.store(now_us, Ordering::Relaxed);
    }

    /// Microseconds since the run began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        let elapsed = self.origin.lock().map_or(0, |origin| u64::try_from(origin.elapsed().as_micros()).unwrap_or(0));
        self.base_us.load(Ordering::Relaxed) + elapsed
    }

    /// Microseconds since the run began, for a history: no two are the same, so that what came first is known even while time stands still.
    pub fn stamp_us(&self) -> u64 {
        let stamp = self.now_us().max(self.stamped_us.load(Ordering::Relaxed) + 1);
        self.stamped_us.store(stamp, Ordering::Relaxed);
        stamp
    }
}

/// The wall clock of a machine, which may be off by any amount.
#[derive(Debug)]
pub struct SimClock {
    time: Arc<SimTime>,
    offset_ms: AtomicI64,
    offset_ms_max: AtomicI64,
}

impl SimClock {
    /// A clock that is right.
    #[must_use]
    pub fn new(time: Arc<SimTime>) -> Self {
        Self { time, offset_ms: AtomicI64::new(0), offset_ms_max: AtomicI64::new(0) }
    }

    /// The wall clock jumps.
    pub fn jump(&self, by_ms: i64) {
        let offset = self.offset_ms.fetch_add(by_ms, Ordering::Relaxed) + by_ms;
        self.offset_ms_max.fetch_max(offset, Ordering::Relaxed);
    }

    /// The wall clocks of all machines are right again: they agree, and none is earlier than any of them ever was. What a partition holds of
    /// one that was far ahead may have moved to another.
    pub fn heal<'a>(clocks: impl Iterator<Item = &'a Self> + Clone) {
        let furthest = clocks.clone().map(|clock| clock.offset_ms_max.load(Ordering::Relaxed)).max().unwrap_or(0);
        clocks.for_each(|clock| clock.offset_ms.store(furthest, Ordering::Relaxed));
    }
}

impl WallClock for SimClock {
    fn now_ms(&self) -> u64 {
        (EPOCH_MS + self.time.now_us() / 1000).saturating_add_signed(self.offset_ms.load(Ordering::Relaxed))
    }
}
