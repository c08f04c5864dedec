//! A disk in memory that can lose power. For unit tests and the simulator; everything it does follows from its inputs.
//!
//! Files keep two states per block, cached and durable; directories keep what a reader sees and what a power cut would leave. A handle
//! belongs to one life of the disk: after a crash every call through an old handle fails, and [`MemDisk::reopen`] gives a new one.
//!
//! The model: data is durable after `sync_data`, names after `sync_dir`. A rename is atomic. A power cut keeps a random subset of unsynced
//! blocks, lengths and names, each for itself. After a failed sync the pages count as clean: a later sync does not write them (as Linux does).

mod fault;
mod tree;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};
pub use fault::{Fault, FaultKind, Op, OpRecord};
use fault::{Faults, Verdict};
use tree::Tree;
use veena_contract::sabotage;

/// The block size unless chosen otherwise.
pub const BLOCK_BYTES: usize = 4096;

/// A disk in memory. Clones share the same life of the same disk.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
    let_go: Arc<Condvar>,
    life: u64,
}

struct State {
    tree: Tree,
    faults: Faults,
    locks: BTreeSet<PathBuf>,
    life: u64,
    capacity: u64,
    in_flight: Option<InFlight>,
    holds_given: u64,
    standing: usize,
}

/// The last write, and what its blocks held before.
struct InFlight {
    inode: u64,
    at: u64,
    before: Vec<u8>,
    len_before: u64,
}

struct MemFile {
    disk: MemDisk,
    inode: u64,
    path: PathBuf,
}

struct MemLock {
    disk: MemDisk,
    path: PathBuf,
}

/// Calls that stand still until this is dropped.
#[must_use = "what is held goes on as soon as this is dropped"]
pub struct Hold {
    disk: MemDisk,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.disk.state.lock().faults.holds.retain(|(number, _, _)| *number != self.number);
        self.disk.let_go.notify_all();
    }
}

impl Default for MemDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemDisk {
    /// An empty disk with blocks of [`BLOCK_BYTES`].
    #[must_use]
    pub fn new() -> Self {
        Self::with_block_bytes(BLOCK_BYTES)
    }

    /// An empty disk whose smallest durable unit is `block_bytes`.
    ///
    /// # Panics
    /// When `block_bytes` is 0.
    #[must_use]
    pub fn with_block_bytes(block_bytes: usize) -> Self {
        assert!(block_bytes > 0, "a block has at least one byte");
        let state = State {
            tree: Tree::new(block_bytes),
            faults: Faults::default(),
            locks: BTreeSet::new(),
            life: 0,
            capacity: u64::MAX,
            in_flight: None,
            holds_given: 0,
            standing: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), let_go: Arc::default(), life: 0 }
    }

    /// The process dies; the machine lives on: the page cache is kept, what was unsynced stays unsynced.
    pub fn crash_kill(&self) {
        self.state.lock().end_life();
    }

    /// The power goes: of unsynced blocks, lengths and names a random subset is kept. `random` gives the choices.
    pub fn crash_power(&self, random: &mut dyn FnMut() -> u64) {
        let mut state = self.state.lock();
        state.end_life();
        state.tree.lose_power(random);
    }

    /// The power goes inside the last write: it is torn at a random byte or block, then as [`crash_power`](Self::crash_power).
    pub fn crash_power_in_write(&self, random: &mut dyn FnMut() -> u64) {
        let mut state = self.state.lock();
        if let Some(flight) = state.in_flight.take() {
            state.tree.tear(flight.inode, flight.at, &flight.before, flight.len_before, random);
        }
        state.end_life();
        state.tree.lose_power(random);
    }

    /// The disk in its next life, after a crash; also a second process on a disk that lives.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self { life: self.state.lock().life, ..self.clone() }
    }

    /// Adds a fault to the plan.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.plan.push(fault);
    }

    /// Empties the plan of faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.plan.clear();
    }

    /// Calls of this kind on paths that contain this stand still, whoever made them, until the hold is dropped. Only for callers that may
    /// block.
    pub fn hold(&self, op: Op, path_contains: &str) -> Hold {
        let mut state = self.state.lock();
        state.holds_given += 1;
        let number = state.holds_given;
        state.faults.holds.push((number, op, path_contains.to_owned()));
        Hold { disk: self.clone(), number }
    }

    /// How many calls stand still now.
    #[must_use]
    pub fn standing(&self) -> usize {
        self.state.lock().standing
    }

    /// From the `nth` changing call on (0 is the next one) the power is out: that call does nothing, or if it is a write it is the write the
    /// power cut falls into; every later call fails. Follow with one of the crashes.
    pub fn cut_power_at(&self, nth: u64) {
        let mut state = self.state.lock();
        state.faults.cut_at = Some(state.faults.changes + nth);
    }

    /// How many changing calls (writes, syncs, creations, renames, removals, lengths) were made so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.lock().faults.changes
    }

    /// Bounds the sum of all file lengths; writes over it fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// How many successful syncs of data and names there were.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state.lock().faults.syncs
    }

    /// Starts or stops keeping a record of every call.
    pub fn record_ops(&self, on: bool) {
        self.state.lock().faults.recording = on;
    }

    /// Takes the record of calls so far.
    #[must_use]
    pub fn take_ops(&self) -> Vec<OpRecord> {
        std::mem::take(&mut self.state.lock().faults.ops)
    }

    /// Flips one bit of a file, in the cache and on the device.
    ///
    /// # Errors
    /// `NotFound` when there is no such file, `UnexpectedEof` when it is shorter.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = state.tree.file_at(path)?;
        state.tree.file_mut(inode)?.flip_bit(bit)
    }

    /// Cuts a file, in the cache and on the device.
    ///
    /// # Errors
    /// `NotFound` when there is no such file.
    pub fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let inode = state.tree.file_at(path)?;
        let file = state.tree.file_mut(inode)?;
        file.set_len(len);
        file.sync();
        Ok(())
    }
}

impl State {
    fn end_life(&mut self) {
        self.life += 1;
        self.locks.clear();
        self.in_flight = None;
        self.faults.cut_at = None;
        self.faults.is_cut = false;
    }
}

impl MemDisk {
    /// Runs one call, if this life goes on and the plan lets it.
    fn call<T>(&self, op: Op, path: &Path, body: impl FnOnce(&mut State, Option<usize>) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        while state.faults.is_held(op, path) {
            state.standing += 1;
            self.let_go.wait(&mut state);
            state.standing -= 1;
        }
        if state.life != self.life {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "this life of the disk has ended"));
        }
        match state.faults.judge(op, path) {
            Verdict::Go => body(&mut state, None),
            Verdict::Short(bytes) => body(&mut state, Some(bytes)),
            Verdict::Fail(error) => Err(error),
            Verdict::FailAfter(bytes, error) => {
                body(&mut state, Some(bytes))?;
                Err(error)
            }
            Verdict::Panic => {
                drop(state);
                panic!("{op:?} of {} panics, as it was told to", path.display());
            }
            Verdict::CutInside(error) => {
                if op == Op::Write {
                    body(&mut state, None)?;
                }
                Err(error)
            }
        }
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let op = if mode == OpenMode::CreateNew { Op::Create } else { Op::Open };
        let inode = self.call(op, path, |state, _| match mode {
            OpenMode::Read | OpenMode::ReadWrite => state.tree.file_at(path),
            OpenMode::CreateNew => state.tree.create_file(path),
        })?;
        Ok(Arc::new(MemFile { disk: self.clone(), inode, path: path.to_owned() }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Create, path, |state, _| state.tree.create_dir_all(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(Op::Rename, from, |state, _| state.tree.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Remove, path, |state, _| state.tree.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.call(Op::Remove, path, |state, _| state.tree.remove_dir_all(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.call(Op::List, dir, |state, _| state.tree.list(dir))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.call(Op::List, path, |state, _| Ok(state.tree.exists(path)))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(Op::SyncDir, dir, |state, _| {
            if sabotage::is("no_dir_sync") {
                return Ok(());
            }
            state.tree.sync_dir(dir)?;
            state.faults.syncs += 1;
            Ok(())
        })
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.call(Op::Lock, dir, |state, _| {
            state.tree.list(dir)?;
            if state.locks.insert(dir.to_owned()) { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
        })?;
        Ok(Box::new(MemLock { disk: self.clone(), path: dir.to_owned() }))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.call(Op::List, path, |state, _| {
            Ok(Space { total: state.capacity, available: state.capacity.saturating_sub(state.tree.used_bytes()) })
        })
    }
}

impl DirLock for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.life == self.disk.life {
            state.locks.remove(&self.path);
        }
    }
}

impl DiskFile for MemFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.call(Op::Read, &self.path, |state, _| Ok(state.tree.file_mut(self.inode)?.read_at(buf, at)))
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        self.disk.call(Op::Write, &self.path, |state, short| {
            let room = if state.capacity == u64::MAX { u64::MAX } else { state.capacity.saturating_sub(state.tree.used_bytes()) };
            let file = state.tree.file_mut(self.inode)?;
            let len_before = file.len();
            let mut take = short.map_or(buf.len(), |bytes| bytes.min(buf.len()));
            let end_max = len_before.saturating_add(room);
            if at.saturating_add(take as u64) > end_max.max(len_before) {
                take = usize::try_from(end_max.saturating_sub(at)).unwrap_or(usize::MAX).min(take);
                if take == 0 {
                    return Err(ErrorKind::StorageFull.into());
                }
            }
            let mut before = vec![0; take];
            file.read_at(&mut before, at);
            file.write_at(&buf[..take], at);
            state.in_flight = Some(InFlight { inode: self.inode, at, before, len_before });
            Ok(take)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let outcome = self.disk.call(Op::Sync, &self.path, |state, _| {
            state.tree.file_mut(self.inode)?.sync();
            state.faults.syncs += 1;
            state.in_flight = None;
            Ok(())
        });
        if outcome.is_err() {
            let mut state = self.disk.state.lock();
            if state.life == self.disk.life && !state.faults.is_cut {
                state.tree.file_mut(self.inode)?.forget_dirty();
            }
        }
        outcome
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.call(Op::SetLen, &self.path, |state, _| {
            state.tree.file_mut(self.inode)?.set_len(len);
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.disk.call(Op::Read, &self.path, |state, _| Ok(state.tree.file_mut(self.inode)?.len()))
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.disk.call(Op::DropCache, &self.path, |state, _| {
            state.tree.file_mut(self.inode)?.drop_cache();
            Ok(())
        })
    }
}
