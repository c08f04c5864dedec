//! Files of the log: which hold records, which are clean and ready, and how one becomes the other.
//!
//! Life of a file: written with zeros under a temporary name and synced -> `spare` -> renamed to `<generation>.wal` and the directory
//! synced -> header and first group in one write, one sync -> sealed when the next is begun -> renamed to `spare` once the checkpoint is above it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use veena_contract::WalSeq;

use super::flush::FLIGHTS_MAX;
use super::{WalIoError, failed, segment_name, spare_name, temp_name};
use crate::disk::{Disk, DiskFile, OpenMode, write_all_at};

const ZEROS_BYTES: usize = 1024 * 1024;
/// While a spare is written, a sync falls due after this much, so that the log's own syncs never wait behind a whole segment.
const ZEROS_SYNC_BYTES: u64 = 4 * 1024 * 1024;

/// A segment that holds records.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub generation: u64,
    pub first: WalSeq,
    pub path: PathBuf,
    /// Bytes that count against the bound of live bytes.
    pub used: u64,
    /// Its header is on the disk: where the log goes on is known without the segments before it.
    pub is_durable: bool,
}

/// The segment that takes appends.
#[derive(Clone)]
pub(super) struct Active {
    /// One per flusher. The first is written through.
    pub handles: Arc<[Arc<dyn DiskFile>]>,
    pub path: PathBuf,
    pub generation: u64,
    pub previous: u64,
    pub first: WalSeq,
    pub position: u64,
    pub capacity: u64,
    pub is_header_written: bool,
    /// The next group goes into a new segment.
    pub is_closing: bool,
}

/// Why no segment can be begun.
#[derive(Debug)]
pub(super) enum NoSegment {
    /// There is no clean file, for want of room or otherwise. Nothing of the log was touched; the next attempt may succeed.
    Unavailable(WalIoError),
    /// A sync failed: the log is latched.
    Failed(WalIoError),
}

pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Clean segments, and the making of more.
pub(super) struct Spares {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    state: Mutex<SpareState>,
    changed: Condvar,
}

#[derive(Default)]
struct SpareState {
    ready: Vec<PathBuf>,
    next_number: u64,
    has_maker: bool,
    /// The maker panicked: no file is made any more.
    has_lost_maker: bool,
    is_wanted: bool,
    is_closed: bool,
    failure: Option<WalIoError>,
}

impl Spares {
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf, segment_bytes: u64, ready: Vec<PathBuf>, next_number: u64) -> Self {
        let state = SpareState { ready, next_number, ..SpareState::default() };
        Self { disk, dir, segment_bytes, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn count(&self) -> usize {
        self.state.lock().ready.len()
    }

    /// A clean file. Waits for the maker if there is one, else makes it here.
    pub fn take(&self) -> Result<PathBuf, WalIoError> {
        let mut state = self.state.lock();
        loop {
            if let Some(path) = state.ready.pop() {
                self.changed.notify_all();
                return Ok(path);
            }
            if state.has_lost_maker {
                return Err(WalIoError::new(&self.dir, "prepare a segment in", io::Error::other("the thread that does it panicked")));
            }
            if !state.has_maker {
                let number = state.next_number;
                state.next_number += 1;
                drop(state);
                return self.make(number);
            }
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            state.is_wanted = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    /// A free spare name for a file that is recycled.
    pub fn name_for_recycled(&self) -> PathBuf {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        self.dir.join(spare_name(number))
    }

    pub fn put(&self, path: PathBuf) {
        self.state.lock().ready.push(path);
        self.changed.notify_all();
    }

    pub fn add_maker(&self) {
        self.state.lock().has_maker = true;
    }

    /// The maker has panicked: whoever waits for it is told so.
    pub fn lose_maker(&self) {
        let mut state = self.state.lock();
        state.has_maker = false;
        state.has_lost_maker = true;
        drop(state);
        self.changed.notify_all();
    }

    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Keeps one clean file ahead of need, until closed. A failure is told to whoever waits, and not tried again before someone asks.
    pub fn run_maker(&self) {
        let mut state = self.state.lock();
        let mut has_failed = false;
        while !state.is_closed {
            let due = state.ready.is_empty() && (state.is_wanted || !has_failed);
            if !due {
                self.changed.wait(&mut state);
                continue;
            }
            let number = state.next_number;
            state.next_number += 1;
            drop(state);
            let made = self.make(number);
            state = self.state.lock();
            has_failed = made.is_err();
            match made {
                Ok(path) => {
                    state.ready.push(path);
                    state.failure = None;
                }
                Err(error) if state.is_wanted => state.failure = Some(error),
                Err(_) => {}
            }
            state.is_wanted = false;
            self.changed.notify_all();
        }
        state.has_maker = false;
        self.changed.notify_all();
    }

    /// 1 zeros written and synced under a temporary name   2 renamed    — a `spare` is always whole; its name is made durable when it is used
    fn make(&self, number: u64) -> Result<PathBuf, WalIoError> {
        let temp = self.dir.join(temp_name(number));
        let room = self.disk.space(&self.dir).map_err(failed(&self.dir, "measure"))?;
        if room.available < self.segment_bytes {
            return Err(WalIoError::new(&self.dir, "find room in", ErrorKind::StorageFull.into()));
        }
        let file = self.disk.open(&temp, OpenMode::CreateNew).map_err(failed(&temp, "create"))?;
        if let Err(error) = write_zeros(&*file, self.segment_bytes) {
            drop(file);
            let _ = self.disk.remove_file(&temp);
            return Err(failed(&temp, "write")(error));
        }
        let path = self.dir.join(spare_name(number));
        self.disk.rename(&temp, &path).map_err(failed(&temp, "rename"))?;
        Ok(path)
    }
}

fn write_zeros(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES.min(usize::try_from(len).unwrap_or(ZEROS_BYTES))];
    let mut at = 0;
    let mut synced = 0;
    while at < len {
        let take = usize::try_from(len - at).unwrap_or(usize::MAX).min(zeros.len());
        write_all_at(file, &zeros[..take], at)?;
        at += take as u64;
        if at - synced >= ZEROS_SYNC_BYTES {
            file.sync_data()?;
            synced = at;
        }
    }
    file.sync_data()
}

/// Makes a clean file the segment of `generation`: opened, renamed, the directory synced. Its header is written with its first group.
pub(super) fn begin(disk: &dyn Disk, dir: &Path, spare: &Path, generation: u64, previous: u64, first: WalSeq) -> Result<Active, NoSegment> {
    let unavailable = |step| move |error| NoSegment::Unavailable(failed(spare, step)(error));
    let path = dir.join(segment_name(generation));
    let handles = open_handles(disk, spare).map_err(unavailable("open"))?;
    let capacity = handles[0].len().map_err(unavailable("measure"))?;
    disk.rename(spare, &path).map_err(unavailable("rename"))?;
    disk.sync_dir(dir).map_err(|error| NoSegment::Failed(failed(dir, "sync")(error)))?;
    Ok(Active { handles, path, generation, previous, first, position: 0, capacity, is_header_written: false, is_closing: false })
}

/// Opens a segment for its flushers.
pub(super) fn open_handles(disk: &dyn Disk, path: &Path) -> io::Result<Arc<[Arc<dyn DiskFile>]>> {
    (0..FLIGHTS_MAX).map(|_| disk.open(path, OpenMode::ReadWrite)).collect()
}
