//! The simulated disk under observation: every call is written into the trace, and faults are counted when they hit, not when planned.

use std::fmt::{Debug, Write as _};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};

use crate::clock::SimTime;
use crate::tally::{Kind, Tally};

const EIO: i32 = 5;

/// What was done, line by line: the same seed must give the same trace, byte for byte.
#[derive(Debug)]
pub struct Trace {
    text: Mutex<Option<String>>,
    hash: Mutex<u64>,
}

impl Trace {
    /// An empty trace; `is_kept` keeps the lines, otherwise only their hash.
    #[must_use]
    pub fn new(is_kept: bool) -> Self {
        Self { text: Mutex::new(is_kept.then(String::new)), hash: Mutex::new(0xcbf2_9ce4_8422_2325) }
    }

    /// Adds a line.
    pub fn line(&self, line: &str) {
        let mut hash = self.hash.lock();
        for byte in line.bytes() {
            *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        if let Some(text) = self.text.lock().as_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }

    /// The hash of all lines.
    #[must_use]
    pub fn hash(&self) -> u64 {
        *self.hash.lock()
    }

    /// The lines, if they are kept.
    #[must_use]
    pub fn take(&self) -> String {
        self.text.lock().take().unwrap_or_default()
    }
}

/// What the watched disk tells the run.
#[derive(Debug)]
pub struct Watch {
    time: Arc<SimTime>,
    trace: Arc<Trace>,
    tally: Arc<Tally>,
    is_over: AtomicBool,
    is_cut: AtomicBool,
    /// Settle state could not be written or synced in this life: the documented windows do not hold in it.
    has_hurt_settle: AtomicBool,
    /// Reads failed in this life: what cannot be read may be reported as damaged.
    has_hurt_reads: AtomicBool,
    /// Some call failed in this life.
    has_hurt: AtomicBool,
    cut: Notify,
}

impl Watch {
    /// The watch over one life.
    #[must_use]
    pub fn new(time: Arc<SimTime>, trace: Arc<Trace>, tally: Arc<Tally>) -> Arc<Self> {
        let flag = || AtomicBool::new(false);
        Arc::new(Self {
            time,
            trace,
            tally,
            is_over: flag(),
            is_cut: flag(),
            has_hurt_settle: flag(),
            has_hurt_reads: flag(),
            has_hurt: flag(),
            cut: Notify::new(),
        })
    }

    /// The life has ended: what its remains still call counts no more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Has the planned cut come?
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Completes when the planned cut comes.
    pub async fn cut(&self) {
        while !self.is_cut() {
            self.cut.notified().await;
        }
    }

    /// Was settle state hurt in this life?
    #[must_use]
    pub fn has_hurt_settle(&self) -> bool {
        self.has_hurt_settle.load(Ordering::Relaxed)
    }

    /// Did reads fail in this life?
    #[must_use]
    pub fn has_hurt_reads(&self) -> bool {
        self.has_hurt_reads.load(Ordering::Relaxed)
    }

    /// Did any call fail in this life, but for the cut?
    #[must_use]
    pub fn has_hurt(&self) -> bool {
        self.has_hurt.load(Ordering::Relaxed)
    }

    fn note<T>(&self, op: &str, path: &Path, detail: impl Debug, outcome: &io::Result<T>, is_short: bool) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let mut line = String::new();
        let _ = write!(line, "{} {op} {} {detail:?}", self.time.now_us(), path.display());
        if let Err(error) = outcome {
            let _ = write!(line, " {error}");
            self.failed(op, path, error);
        }
        if is_short {
            self.tally.add(Kind::ShortWrite);
        }
        self.trace.line(&line);
    }

    fn failed(&self, op: &str, path: &Path, error: &io::Error) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let text = path.to_string_lossy();
        let is_settle = text.contains("/settle");
        match error.kind() {
            ErrorKind::BrokenPipe => {
                self.is_cut.store(true, Ordering::Relaxed);
                self.cut.notify_waiters();
                return;
            }
            ErrorKind::StorageFull => self.tally.add(Kind::DiskFull),
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::WouldBlock => return,
            _ if error.raw_os_error() == Some(EIO) => self.tally.add(match op {
                "sync" if text.contains("/ingress") => Kind::WalSyncError,
                "sync" if is_settle => Kind::SettleSyncError,
                "sync" => Kind::PartitionSyncError,
                "sync-dir" => Kind::DirSyncError,
                "read" => Kind::ReadError,
                _ => Kind::WriteError,
            }),
            _ => {}
        }
        self.has_hurt.store(true, Ordering::Relaxed);
        if op == "read" {
            self.has_hurt_reads.store(true, Ordering::Relaxed);
        }
        if is_settle {
            self.has_hurt_settle.store(true, Ordering::Relaxed);
        }
    }
}

/// A [`MemDisk`] under watch.
pub struct WatchedDisk {
    inner: MemDisk,
    watch: Arc<Watch>,
}

impl WatchedDisk {
    /// Watches `inner`.
    #[must_use]
    pub fn new(inner: MemDisk, watch: Arc<Watch>) -> Self {
        Self { inner, watch }
    }

    fn told<T>(&self, op: &str, path: &Path, outcome: io::Result<T>) -> io::Result<T> {
        self.watch.note(op, path, (), &outcome, false);
        outcome
    }
}

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let outcome = self.inner.open(path, mode);
        self.watch.note("open", path, mode, &outcome, false);
        let file = WatchedFile { inner: outcome?, path: path.to_owned(), watch: Arc::clone(&self.watch) };
        Ok(Arc::new(file))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.told("create-dir", path, self.inner.create_dir_all(path))
    }

    fn make_private(&self, dir: &Path) -> io::Result<()> {
        self.inner.make_private(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let outcome = self.inner.rename(from, to);
        self.watch.note("rename", from, to, &outcome, false);
        outcome
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.told("remove", path, self.inner.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.told("remove-dir", path, self.inner.remove_dir_all(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.told("list", dir, self.inner.list(dir))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.told("exists", path, self.inner.exists(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.told("sync-dir", dir, self.inner.sync_dir(dir))
    }

    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.told("lock", dir, self.inner.lock_dir(dir))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    path: PathBuf,
    watch: Arc<Watch>,
}

impl DiskFile for WatchedFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let outcome = self.inner.read_at(buf, at);
        self.watch.note("read", &self.path, (at, outcome.as_ref().ok()), &outcome, false);
        outcome
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        let outcome = self.inner.write_at(buf, at);
        let is_short = outcome.as_ref().is_ok_and(|written| *written < buf.len());
        self.watch.note("write", &self.path, (at, buf.len(), outcome.as_ref().ok()), &outcome, is_short);
        outcome
    }

    fn sync_data(&self) -> io::Result<()> {
        let outcome = self.inner.sync_data();
        self.watch.note("sync", &self.path, (), &outcome, false);
        outcome
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let outcome = self.inner.set_len(len);
        self.watch.note("set-len", &self.path, len, &outcome, false);
        outcome
    }

    fn len(&self) -> io::Result<u64> {
        let outcome = self.inner.len();
        if let Err(error) = &outcome {
            self.watch.failed("read", &self.path, error);
        }
        outcome
    }

    fn drop_cache(&self) -> io::Result<()> {
        let outcome = self.inner.drop_cache();
        self.watch.note("drop-cache", &self.path, (), &outcome, false);
        outcome
    }
}
