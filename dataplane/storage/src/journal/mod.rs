//! The settle journal: a durable map, last write wins, kept as a log of changes.
//!
//! One per node. Keys and values are the caller's; this module must never interpret them, nor decide which of two values is newer: what was
//! appended last counts.
//!
//! A file is one *generation*. It begins with the whole map as it was (written to a temporary name, synced, renamed, directory synced), and
//! goes on with changes. A crash at any step shows the old generation or the new one, whole.

mod file;
mod format;
mod inspect;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile, OpenMode};
use file::{DAMAGED_NAME, Partial, TEMP_NAME, file_name, generations, prepare_dir, read_all, tidy, write_all, write_snapshot};
use format::Encoder;
pub use format::{Entries, KEY_BYTES_MAX, Scan, UnknownVersion, VALUE_BYTES_MAX, scan};
pub use inspect::{JournalFacts, inspect};

/// Where the journal's size is bounded.
#[derive(Clone, Copy, Debug)]
pub struct JournalConfig {
    /// A file below this size, in bytes, is never compacted.
    pub compact_bytes_min: u64,
    /// A file is compacted once it is this many times as large as what it holds.
    pub compact_ratio: u64,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { compact_bytes_min: 16 * 1024 * 1024, compact_ratio: 4 }
    }
}

/// One change: kind, key, and the new value, or `None` to delete.
pub type Change<'a> = (u8, &'a [u8], Option<&'a [u8]>);

/// What opening found besides the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalReport {
    /// The file that was read; `None` for a new journal.
    pub file: Option<PathBuf>,
    /// Ranges of promised bytes that could not be read: values there are older than what was once synced, or missing.
    pub damaged: Vec<Range<u64>>,
    /// Bytes of a torn tail, which was never promised.
    pub torn_bytes: u64,
    /// Where the damaged file is kept.
    pub kept_at: Option<PathBuf>,
}

/// Why a journal cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// The file system refused.
    #[error("cannot {step} {path}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// The file system's answer.
        #[source]
        error: io::Error,
    },
    /// The file is from a newer Veena.
    #[error("{path}: {error}")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Which version.
        error: UnknownVersion,
    },
}

/// Why changes were not taken, or are not durable.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A key or value is too large; nothing of the call was taken.
    #[error("journal entry is too large: a key has {key} bytes, a value {value}")]
    TooLarge {
        /// The key's length.
        key: usize,
        /// The value's length.
        value: usize,
    },
    /// The disk is full; nothing of the call was taken.
    #[error("the disk is full")]
    DiskFull,
    /// A write or sync failed, and a new file could not be written either. The changes are in memory; a later [`Journal::sync`] starts
    /// another new file with all of them.
    #[error("journal {path} is latched: {reason}")]
    Latched {
        /// The file that failed.
        path: PathBuf,
        /// The first error and the newest one.
        reason: String,
    },
}

impl JournalError {
    /// May the changes of this call become durable?
    #[must_use]
    pub fn effect(&self) -> veena_contract::Effect {
        match self {
            Self::TooLarge { .. } | Self::DiskFull => veena_contract::Effect::None,
            Self::Latched { .. } => veena_contract::Effect::Possible,
        }
    }
}

/// The journal, open for changes. One writer; every call blocks.
pub struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    config: JournalConfig,
    live: Entries,
    /// Bytes that the map takes in a file of its own.
    live_bytes: u64,
    /// The newest generation whose name may be on disk.
    generation: u64,
    file: Option<Arc<dyn DiskFile>>,
    end: u64,
    synced_end: u64,
    /// No compaction below this length: one has failed.
    compact_from: u64,
    latched: Option<String>,
    report: JournalReport,
}

/// A sync between its halves. No lock is needed for the part in the middle.
pub struct PendingSync {
    file: Arc<dyn DiskFile>,
    generation: u64,
    end: u64,
}

impl PendingSync {
    /// Makes durable what was appended when it began. Blocks.
    ///
    /// # Errors
    /// Of the file; [`Journal::end_sync`] is to be told.
    pub fn run(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl Journal {
    /// Opens the journal in `dir`, which is created if need be (its parent's own name must be durable), and returns the map it holds.
    ///
    /// Whatever is read was first written back and read from the device. A torn tail is dropped; a bad group in the middle is left out, the
    /// rest counts, the file is kept aside, and [`Journal::report`] names it.
    ///
    /// # Errors
    /// [`JournalOpenError`]; nothing was changed that a later open could not read.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, config: JournalConfig) -> Result<(Self, Entries), JournalOpenError> {
        prepare_dir(disk.as_ref(), dir)?;
        let former = tidy(disk.as_ref(), dir)?;
        let mut journal = Self {
            disk,
            dir: dir.to_path_buf(),
            config,
            live: Entries::new(),
            live_bytes: 0,
            generation: former.last().copied().unwrap_or(0),
            file: None,
            end: 0,
            synced_end: 0,
            compact_from: 0,
            latched: None,
            report: JournalReport::default(),
        };
        let is_clean = journal.generation > 0 && journal.load()?;
        if !is_clean {
            let path = journal.path(journal.generation + 1);
            journal.rotate().map_err(|error| JournalOpenError::Io { step: "write", path, error })?;
        }
        journal.put_aside(&former);
        let entries = journal.live.clone();
        Ok((journal, entries))
    }

    /// What opening found.
    #[must_use]
    pub fn report(&self) -> &JournalReport {
        &self.report
    }

    /// Why changes are not durable now, if so.
    #[must_use]
    pub fn latched(&self) -> Option<&str> {
        self.latched.as_deref()
    }

    /// Is everything that was taken on the disk?
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.latched.is_none() && self.synced_end == self.end
    }

    /// The file's length, in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.end
    }

    /// The map as it is in memory.
    #[must_use]
    pub fn entries(&self) -> &Entries {
        &self.live
    }

    /// Appends changes in one write. After a process kill they are there; after a power cut only once synced. A call is one group, all or
    /// nothing, up to about 1 MiB; a larger one is several groups, of which a crash may keep the first ones.
    ///
    /// # Errors
    /// [`JournalError`], whose effect says whether the changes count.
    pub fn append(&mut self, changes: &[Change<'_>]) -> Result<(), JournalError> {
        for (_, key, value) in changes {
            let value = value.map_or(0, <[u8]>::len);
            if key.len() > KEY_BYTES_MAX || value > VALUE_BYTES_MAX {
                return Err(JournalError::TooLarge { key: key.len(), value });
            }
        }
        if self.latched.is_none()
            && let Some(file) = self.file.clone()
        {
            let mut encoder = Encoder::new(self.generation, self.end, self.synced_end);
            for (kind, key, value) in changes {
                encoder.push(*kind, key, *value);
            }
            let bytes = encoder.take();
            match write_all(file.as_ref(), &bytes, self.end) {
                Ok(()) => self.end += bytes.len() as u64,
                Err(Partial { written: 0, error }) if error.kind() == io::ErrorKind::StorageFull => return Err(JournalError::DiskFull),
                Err(Partial { error, .. }) => self.latch("write", &error),
            }
        }
        for (kind, key, value) in changes {
            self.remember(*kind, key, *value);
        }
        self.standing()
    }

    /// Makes everything appended durable. When the file fails, or has failed before, all is written to a new file instead: a failed sync is
    /// never tried again on the same one. A file that has grown too large is replaced by a compact one.
    ///
    /// # Errors
    /// [`JournalError::Latched`] when the new file failed too.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        if self.latched.is_none() && (!self.is_too_large() || !self.compact()) {
            self.sync_file();
        }
        if self.latched.is_none() {
            return Ok(());
        }
        match self.rotate() {
            Ok(()) => {
                self.latched = None;
                self.remove_former();
            }
            Err(error) => self.latch("new file", &error),
        }
        self.standing()
    }

    /// The first half of a [`sync`](Self::sync), for whoever lets others append meanwhile: what is to be synced. `None` when there is nothing,
    /// or when a new file is to be begun: `sync` does that.
    #[must_use]
    pub fn begin_sync(&self) -> Option<PendingSync> {
        if self.latched.is_some() || self.is_too_large() || self.synced_end == self.end {
            return None;
        }
        let file = Arc::clone(self.file.as_ref()?);
        Some(PendingSync { file, generation: self.generation, end: self.end })
    }

    /// The second half. What was appended in between is not synced by it; when it failed, all is written to a new file here. Two syncs of one
    /// journal MUST NOT run at once: the error of one would not be told to the other.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn end_sync(&mut self, pending: &PendingSync, outcome: io::Result<()>) -> Result<(), JournalError> {
        // A newer file was written whole and is synced.
        if pending.generation != self.generation {
            return self.standing();
        }
        match outcome {
            Ok(()) => self.synced_end = self.synced_end.max(pending.end),
            Err(error) => {
                self.latch("sync", &error);
                return self.sync();
            }
        }
        self.standing()
    }

    fn is_too_large(&self) -> bool {
        let bound = self.config.compact_bytes_min.max(self.live_bytes.saturating_mul(self.config.compact_ratio));
        self.end > bound.max(self.compact_from)
    }

    /// True when a compact file is in use now, or the journal is latched; false when the old file goes on (no room for a second one, say).
    fn compact(&mut self) -> bool {
        let former = self.generation;
        match self.rotate() {
            Ok(()) => self.remove_former(),
            Err(error) if self.generation == former => {
                tracing::warn!(dir = %self.dir.display(), %error, "settle journal could not be compacted; it goes on as it is");
                self.compact_from = self.end.saturating_add(self.config.compact_bytes_min);
                return false;
            }
            // The new name is in doubt: it may be the one that the next open finds, so the old file cannot be gone on with.
            Err(error) => self.latch("compaction", &error),
        }
        true
    }

    fn sync_file(&mut self) {
        let Some(file) = self.file.clone().filter(|_| self.synced_end < self.end) else { return };
        match file.sync_data() {
            Ok(()) => self.synced_end = self.end,
            Err(error) => self.latch("sync", &error),
        }
    }

    fn standing(&self) -> Result<(), JournalError> {
        match &self.latched {
            None => Ok(()),
            Some(reason) => Err(JournalError::Latched { path: self.path(self.generation), reason: reason.clone() }),
        }
    }

    fn latch(&mut self, step: &str, error: &io::Error) {
        let first = self.latched.take().and_then(|reason| reason.split("; then ").next().map(str::to_owned));
        self.latched = Some(match first {
            Some(first) => format!("{first}; then {step}: {error}"),
            None => format!("{step}: {error}"),
        });
    }

    fn path(&self, generation: u64) -> PathBuf {
        self.dir.join(file_name(generation))
    }

    fn remember(&mut self, kind: u8, key: &[u8], value: Option<&[u8]>) {
        let slot = (kind, key.to_vec());
        let old = match value {
            Some(value) => {
                self.live_bytes += format::entry_bytes(key, value);
                self.live.insert(slot, Bytes::copy_from_slice(value))
            }
            None => self.live.remove(&slot),
        };
        self.live_bytes -= old.map_or(0, |old| format::entry_bytes(key, &old));
    }

    /// Reads the current generation. True when the file can be gone on with.
    fn load(&mut self) -> Result<bool, JournalOpenError> {
        let path = self.path(self.generation);
        let io = |step| {
            let path = path.clone();
            move |error| JournalOpenError::Io { step, path, error }
        };
        let file = self.disk.open(&path, OpenMode::ReadWrite).map_err(io("open"))?;
        // What the page cache holds may never have reached the device: write it back, forget it, read the device.
        file.sync_data().map_err(io("sync"))?;
        file.drop_cache().map_err(io("drop the cache of"))?;
        let bytes = read_all(file.as_ref()).map_err(io("read"))?;
        let scan = scan(&bytes, self.generation).map_err(|error| JournalOpenError::Version { path: path.clone(), error })?;
        let is_clean = scan.damaged.is_empty() && scan.end == bytes.len() as u64 && !bytes.is_empty();
        self.live_bytes = scan.entries.iter().map(|((_, key), value)| format::entry_bytes(key, value)).sum();
        self.live = scan.entries;
        self.report = JournalReport {
            file: Some(path),
            damaged: scan.damaged,
            torn_bytes: (bytes.len() as u64).saturating_sub(scan.end),
            kept_at: None,
        };
        if is_clean {
            self.file = Some(file);
            self.end = bytes.len() as u64;
            self.synced_end = self.end;
        }
        Ok(is_clean)
    }

    /// Starts a new generation with the whole map.
    ///
    /// 1 temporary file written and synced   2 renamed   3 directory synced   4 in use: a crash after 2 may show either generation, and until
    /// 4 both hold the same promised changes. A failure after 2 leaves the new name in doubt, so the next attempt takes a higher generation.
    fn rotate(&mut self) -> io::Result<()> {
        let generation = self.generation + 1;
        let path = self.path(generation);
        let temp = self.dir.join(TEMP_NAME);
        if self.disk.exists(&temp)? {
            self.disk.remove_file(&temp)?;
        }
        let file = self.disk.open(&temp, OpenMode::CreateNew)?;
        let end = write_snapshot(file.as_ref(), generation, &self.live)?;
        file.sync_data()?;
        self.generation = generation;
        self.disk.rename(&temp, &path)?;
        self.disk.sync_dir(&self.dir)?;
        self.file = Some(file);
        self.end = end;
        self.synced_end = end;
        self.compact_from = 0;
        Ok(())
    }

    /// Removes all generations below the one in use.
    fn remove_former(&self) {
        match generations(self.disk.as_ref(), &self.dir) {
            Ok(found) => {
                found.into_iter().filter(|generation| *generation < self.generation).for_each(|generation| self.remove(generation))
            }
            Err(error) => tracing::warn!(dir = %self.dir.display(), %error, "old journals could not be listed"),
        }
    }

    /// Removes generations that are no longer needed; a damaged one is kept under another name, the newest of them only.
    fn put_aside(&mut self, former: &[u64]) {
        for generation in former.iter().copied().filter(|generation| *generation != self.generation) {
            let is_damaged = !self.report.damaged.is_empty() && self.report.file.as_deref() == Some(&*self.path(generation));
            if !is_damaged {
                self.remove(generation);
                continue;
            }
            let kept = self.dir.join(DAMAGED_NAME);
            match self.disk.rename(&self.path(generation), &kept) {
                Ok(()) => self.report.kept_at = Some(kept),
                Err(error) => tracing::warn!(path = %kept.display(), %error, "damaged journal could not be put aside"),
            }
        }
    }

    /// A generation that stays is harmless: the highest one counts. The next open removes it.
    fn remove(&self, generation: u64) {
        let path = self.path(generation);
        if let Err(error) = self.disk.remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "old journal could not be removed");
        }
    }
}
