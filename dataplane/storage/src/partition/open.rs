//! Opening a log. Sealed segments are not read: a header each, and what their indexes say. The active one is written back, dropped from
//! the page cache, read and checked; whatever then verifies is durable and visible at once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, RwLock};
use tracing::{info, warn};
use veena_contract::{Entropy, LogId, Offset};

use super::append::{Active, PartitionLog, Shared};
use super::cache::FrameCache;
use super::frame::Salt;
use super::index::{self, Index};
use super::keys::Keys;
use super::recover::{Hole, Scan, ScanError, scan_frames};
use super::segment::{FRAMES_START, FileKind, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, SegmentHeaderError, parse_name};
use super::streams::{Marks, StoreError, StreamsSnapshot, apply_scan, drop_finished};
use super::wire::{len64, read_full, write_full};
use super::{Damage, PartitionConfig};
use crate::disk::{Disk, DiskFile, OpenMode};

/// What was found when a log was opened.
#[derive(Debug)]
pub struct PartitionOpened {
    /// The stream table as committed.
    pub marks: Marks,
    /// Promised bytes that are gone. What can still be read is served.
    pub damage: Vec<Damage>,
    /// Was the log created by this call?
    pub is_new: bool,
}

/// Why a log was not opened. Nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file system refused.
    #[error("partition log {path} cannot be opened")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the file system answered.
        #[source]
        cause: io::Error,
    },
    /// Written by a newer version.
    #[error("partition log {path} has an unknown format: {detail}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// No file says which log this is, so that none of its frames can be checked.
    #[error("partition log {path} has no intact header or stream table")]
    Unidentified {
        /// The directory.
        path: PathBuf,
    },
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> OpenError + '_ {
    move |cause| OpenError::Io { path: path.to_path_buf(), cause }
}

pub(super) fn store_at(path: &Path) -> impl FnOnce(StoreError) -> OpenError + '_ {
    move |error| match error {
        StoreError::Write(cause) | StoreError::Sync(cause) => OpenError::Io { path: path.to_path_buf(), cause },
    }
}

fn scan_at(path: &Path) -> impl FnOnce(ScanError) -> OpenError + '_ {
    move |error| match error {
        ScanError::Io(cause) => OpenError::Io { path: path.to_path_buf(), cause },
        ScanError::Unsupported { .. } => OpenError::Unsupported { path: path.to_path_buf(), detail: error.to_string() },
    }
}

/// Writes a segment's header and gives the file its name. The name is durable once the caller has synced the directory.
pub(super) fn create_segment(disk: &dyn Disk, dir: &Path, header: &SegmentHeader) -> Result<(Arc<Segment>, Arc<dyn DiskFile>), StoreError> {
    let file = create_file(disk, dir, header, &[])?;
    let path = FileKind::Log.path(dir, header.base);
    let salt = Salt::new(header.log_id, header.base);
    let segment = Segment::active(header.base, path, salt, Arc::clone(&file), Index::new(header.base), FRAMES_START);
    Ok((Arc::new(segment), file))
}

pub(super) fn create_file(disk: &dyn Disk, dir: &Path, header: &SegmentHeader, frames: &[u8]) -> Result<Arc<dyn DiskFile>, StoreError> {
    let path_new = FileKind::Log.path_new(dir, header.base);
    match disk.remove_file(&path_new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(StoreError::Write(error)),
        _ => {}
    }
    // 1 written   2 synced   3 renamed   - a crash before 3 leaves a `.new` that the next open removes
    let file = disk.open(&path_new, OpenMode::CreateNew).map_err(StoreError::Write)?;
    write_full(file.as_ref(), &header.encode(), 0).map_err(|short| StoreError::Write(short.error))?;
    write_full(file.as_ref(), frames, FRAMES_START).map_err(|short| StoreError::Write(short.error))?;
    file.sync_data().map_err(StoreError::Sync)?;
    disk.rename(&path_new, &FileKind::Log.path(dir, header.base)).map_err(StoreError::Write)?;
    Ok(file)
}

impl PartitionLog {
    /// Opens the log in `dir`, or creates it there. Records below `promised` were once published here, as the caller remembers
    /// (`Offset(0)`: it knows of none): those that are not found are reported as damage and stay a hole, their bytes are left as they are,
    /// and no offset below `promised` is given again.
    ///
    /// # Errors
    /// [`OpenError`]; opening again later may succeed.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        config: PartitionConfig,
        cache: Arc<FrameCache>,
        entropy: &dyn Entropy,
        promised: Offset,
    ) -> Result<(Self, PartitionOpened), OpenError> {
        let mut opening = Opening { disk, dir: dir.to_path_buf(), config, cache, promised, damage: Vec::new() };
        let mut found = opening.find()?;
        if found.logs.is_empty() {
            return opening.create(&found, LogId(entropy.next_u128()));
        }
        let log_id = opening.identify(&mut found)?;
        if found.logs.is_empty() {
            return Err(OpenError::Unidentified { path: dir.to_path_buf() });
        }
        if let Some(latched) = opening.cache.latched(log_id) {
            opening.rewrite_tail(&mut found, log_id, latched)?;
            opening.cache.forget_latched(log_id);
        }
        opening.open_existing(&found, log_id)
    }
}

/// The names in a log's directory.
#[derive(Default)]
pub(super) struct Found {
    /// Segments with their lengths; whether the header is intact.
    pub(super) logs: BTreeMap<Offset, FoundLog>,
    others: BTreeSet<(Offset, FileKind)>,
}

#[derive(Clone, Copy)]
pub(super) struct FoundLog {
    pub(super) len: u64,
    pub(super) has_header: bool,
}

pub(super) struct Opening {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    config: PartitionConfig,
    cache: Arc<FrameCache>,
    /// Everything below was once published.
    pub(super) promised: Offset,
    pub(super) damage: Vec<Damage>,
}

impl Opening {
    fn find(&self) -> Result<Found, OpenError> {
        let dir = self.dir.as_path();
        if !self.disk.exists(dir).map_err(at(dir))? {
            self.disk.create_dir_all(dir).map_err(at(dir))?;
            if let Some(parent) = dir.parent() {
                self.disk.sync_dir(parent).map_err(at(parent))?;
            }
        }
        let mut found = Found::default();
        for entry in self.disk.list(dir).map_err(at(dir))? {
            match parse_name(&entry.name) {
                Some(_) if entry.is_dir => self.move_aside(&entry.name)?,
                None => {}
                Some((_, _, true)) => {
                    // Never took its name: nothing was promised with it.
                    let _ = self.disk.remove_file(&dir.join(&entry.name));
                }
                Some((base, FileKind::Log, false)) => {
                    found.logs.insert(base, FoundLog { len: entry.len, has_header: true });
                }
                Some((base, kind, false)) => {
                    found.others.insert((base, kind));
                }
            }
        }
        Ok(found)
    }

    /// A directory under the name of one of our files would be in the way of it for ever.
    fn move_aside(&self, name: &str) -> Result<(), OpenError> {
        let (path, aside) = (self.dir.join(name), self.dir.join(format!("{name}.foreign")));
        if self.disk.exists(&aside).map_err(at(&aside))? {
            return Ok(());
        }
        warn!(path = %path.display(), aside = %aside.display(), "a directory has the name of a segment's file; it is moved aside");
        self.disk.rename(&path, &aside).map_err(at(&path))?;
        self.disk.sync_dir(&self.dir).map_err(at(&self.dir))
    }

    /// Creates an empty log. When only its side files are left, or nothing but a promise, it starts behind all they speak of: no offset is
    /// given twice.
    fn create(mut self, found: &Found, log_id: LogId) -> Result<(PartitionLog, PartitionOpened), OpenError> {
        let dir = self.dir.clone();
        let base = found.others.iter().map(|(base, _)| *base).max().unwrap_or_default().max(self.promised);
        if base > Offset(0) {
            let path = FileKind::Log.path(&dir, Offset(0));
            self.damage.push(Damage { path, at: 0, end: 0, first: Offset(0), next: base, reason: "all segments are missing" });
        }
        let snapshot = StreamsSnapshot { log_id, base, last_commit_ms: 0, marks: Marks::new(), keys: Keys::default() };
        snapshot.store(self.disk.as_ref(), &dir).map_err(store_at(&dir))?;
        let header = SegmentHeader { log_id, base, leader_epoch: 0, ownership_epoch: 0, created_ms: 0 };
        let (segment, file) = create_segment(self.disk.as_ref(), &dir, &header).map_err(store_at(&dir))?;
        self.disk.sync_dir(&dir).map_err(at(&dir))?;
        let active = Active::empty(Arc::clone(&segment), file);
        Ok(self.finish(log_id, vec![segment], active, base, 0, Marks::new(), Keys::default(), true))
    }

    /// Finds out which log this is, and sets aside segments of another one.
    fn identify(&mut self, found: &mut Found) -> Result<LogId, OpenError> {
        let mut headers = BTreeMap::new();
        for base in found.logs.keys() {
            headers.insert(*base, self.read_header(*base)?);
        }
        let mut counts: BTreeMap<LogId, usize> = BTreeMap::new();
        for header in headers.values().flatten() {
            *counts.entry(header.log_id).or_default() += 1;
        }
        let from_tables = || {
            let bases = found.logs.keys().rev();
            bases.filter_map(|base| StreamsSnapshot::load(self.disk.as_ref(), &self.dir, *base)).map(|table| table.log_id).next()
        };
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(log_id, _)| log_id);
        let log_id = most.or_else(from_tables).ok_or_else(|| OpenError::Unidentified { path: self.dir.clone() })?;
        for (base, header) in headers {
            let path = FileKind::Log.path(&self.dir, base);
            match header {
                Some(header) if header.log_id == log_id && header.base == base => {}
                Some(_) => {
                    let aside = path.with_extension("log.foreign");
                    self.disk.rename(&path, &aside).map_err(at(&path))?;
                    found.logs.remove(&base);
                    let reason = "segment belongs to another log; it is set aside";
                    self.damage.push(Damage { path: aside, at: 0, end: len64(SEGMENT_HEADER_BYTES), first: base, next: base, reason });
                }
                None => {
                    if let Some(log) = found.logs.get_mut(&base) {
                        log.has_header = false;
                    }
                    let reason = "segment header is damaged";
                    self.damage.push(Damage { path, at: 0, end: len64(SEGMENT_HEADER_BYTES), first: base, next: base, reason });
                }
            }
        }
        Ok(log_id)
    }

    fn read_header(&self, base: Offset) -> Result<Option<SegmentHeader>, OpenError> {
        let path = FileKind::Log.path(&self.dir, base);
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let read = self.disk.open(&path, OpenMode::Read).and_then(|file| read_full(file.as_ref(), &mut bytes, 0));
        match read.map(|read| SegmentHeader::decode(&bytes[..read])) {
            Ok(Ok(header)) => Ok(Some(header)),
            Ok(Err(error @ SegmentHeaderError::Unsupported { .. })) => Err(OpenError::Unsupported { path, detail: error.to_string() }),
            Ok(Err(SegmentHeaderError::Damaged)) => Ok(None),
            Err(error) => {
                warn!(path = %path.display(), err = &error as &dyn std::error::Error, "segment header cannot be read");
                Ok(None)
            }
        }
    }

    /// Writes the active segment back, forgets its pages, and reads what the device then has.
    pub(super) fn scan_active(&self, base: Offset, log_id: LogId, proven: u64) -> Result<(Arc<dyn DiskFile>, Scan), OpenError> {
        let path = FileKind::Log.path(&self.dir, base);
        let file = self.disk.open(&path, OpenMode::ReadWrite).map_err(at(&path))?;
        if !veena_contract::sabotage::is("trust_page_cache") {
            file.sync_data().map_err(at(&path))?;
            file.drop_cache().map_err(at(&path))?;
        }
        let mut scan = scan_frames(&file.as_ref(), Salt::new(log_id, base), base, u64::MAX).map_err(scan_at(&path))?;
        scan.cut_torn(base, proven, self.promised);
        Ok((file, scan))
    }

    /// The stream table as of a segment's base: from its file, or rebuilt from earlier segments. Also says whether it was rebuilt.
    ///
    /// A table that cannot be read now is not a lost one: without it the log is not opened, unless earlier segments tell the same.
    pub(super) fn table_at(&mut self, found: &Found, log_id: LogId, base: Offset) -> Result<(StreamsSnapshot, bool), OpenError> {
        let mut unreadable = None;
        let mut own = |base: Offset| match StreamsSnapshot::read(self.disk.as_ref(), &self.dir, base) {
            Ok(table) => table.filter(|table| table.log_id == log_id),
            Err(error) => {
                unreadable.get_or_insert((FileKind::Streams.path(&self.dir, base), error));
                None
            }
        };
        if let Some(table) = own(base) {
            return Ok((table, false));
        }
        let earlier: Vec<Offset> = found.logs.range(..base).map(|(base, _)| *base).collect();
        let start = earlier.iter().rev().find_map(|base| own(*base));
        if start.is_none() && found.logs.keys().next().is_some_and(|first| *first > Offset(0)) {
            if let Some((path, error)) = unreadable {
                return Err(at(&path)(error));
            }
            let path = FileKind::Streams.path(&self.dir, base);
            let lost = Damage { path, at: 0, end: 0, first: base, next: base, reason: "stream table is lost" };
            if !self.damage.contains(&lost) {
                self.damage.push(lost);
            }
        }
        let (from, mut last_commit_ms) = start.as_ref().map_or((Offset(0), 0), |table| (table.base, table.last_commit_ms));
        let (mut marks, mut keys) = start.map(|table| (table.marks, table.keys)).unwrap_or_default();
        for (at_base, next) in earlier.iter().zip(earlier.iter().skip(1).chain([&base])).filter(|(at_base, _)| **at_base >= from) {
            let path = FileKind::Log.path(&self.dir, *at_base);
            let file = self.disk.open(&path, OpenMode::Read).map_err(at(&path))?;
            let scan = scan_frames(&file.as_ref(), Salt::new(log_id, *at_base), *at_base, u64::MAX).map_err(scan_at(&path))?;
            last_commit_ms = last_commit_ms.max(apply_scan(&mut marks, &mut keys, &scan, *next).unwrap_or(0));
        }
        Ok((StreamsSnapshot { log_id, base, last_commit_ms, marks, keys }, true))
    }

    fn open_existing(mut self, found: &Found, log_id: LogId) -> Result<(PartitionLog, PartitionOpened), OpenError> {
        let (base, log) = found.logs.last_key_value().map(|(base, log)| (*base, *log)).expect("invariant: there is a segment");
        let path = FileKind::Log.path(&self.dir, base);
        // A name that is there may still be lost: the last life may have ended between a rename and its sync.
        self.disk.sync_dir(&self.dir).map_err(at(&self.dir))?;
        let (table, is_rebuilt) = self.table_at(found, log_id, base)?;
        let (file, scan) = self.scan_active(base, log_id, FRAMES_START)?;
        let (mut marks, mut keys, mut last_commit_ms) = (table.marks.clone(), table.keys.clone(), table.last_commit_ms);
        let mut segments = self.sealed(found, log_id, base);
        if !log.has_header && scan.frames.is_empty() && scan.torn.is_some() {
            return self.open_behind_lost(log_id, base, log.len, segments, table);
        }
        self.note_holes(&path, &scan.holes);
        last_commit_ms = last_commit_ms.max(apply_scan(&mut marks, &mut keys, &scan, scan.end_offset).unwrap_or(0));
        drop_finished(&mut marks);
        if veena_contract::sabotage::is("keys_forgotten_at_open") {
            keys = Keys::default();
        }
        if scan.end_offset < self.promised {
            let table = StreamsSnapshot { log_id, base, last_commit_ms, marks, keys };
            return self.open_behind_promised(log_id, base, file.as_ref(), &scan, segments, table);
        }
        let mut allocated = file.len().map_err(at(&path))?;
        if scan.torn.is_some() {
            info!(path = %path.display(), at = scan.end, bytes = allocated.saturating_sub(scan.end), "torn tail is cut");
            file.set_len(scan.end).map_err(at(&path))?;
            file.sync_data().map_err(at(&path))?;
            allocated = scan.end;
        }
        if is_rebuilt {
            // As the last step: a loss that it hides from the next opening is told by this one.
            table.store(self.disk.as_ref(), &self.dir).map_err(store_at(&self.dir))?;
            self.disk.sync_dir(&self.dir).map_err(at(&self.dir))?;
        }
        let index = Index::of_scan(base, &scan);
        let first_ms = index.summary().times.first_ms;
        let salt = Salt::new(log_id, base);
        let segment = Arc::new(Segment::active(base, path, salt, Arc::clone(&file), index, scan.end));
        segments.push(Arc::clone(&segment));
        self.remove_orphans(found);
        let allocated = allocated.max(scan.end);
        let active = Active { segment, file, end: scan.end, synced: scan.end, allocated, is_cut: false, first_ms };
        Ok(self.finish(log_id, segments, active, scan.end_offset, last_commit_ms, marks, keys, false))
    }

    pub(super) fn note_holes(&mut self, path: &Path, holes: &[Hole]) {
        for hole in holes {
            let reason = "frames are damaged";
            self.damage.push(Damage { path: path.to_owned(), at: hole.start, end: hole.end, first: hole.first, next: hole.next, reason });
        }
    }

    /// The sealed segments, unread.
    fn sealed(&mut self, found: &Found, log_id: LogId, active: Offset) -> Vec<Arc<Segment>> {
        let bases: Vec<(Offset, FoundLog)> = found.logs.range(..active).map(|(base, log)| (*base, *log)).collect();
        let mut segments = Vec::with_capacity(bases.len() + 1);
        for (at, (base, log)) in bases.iter().enumerate() {
            let next = bases.get(at + 1).map_or(active, |(next, _)| *next);
            let summary = index::load_summary(self.disk.as_ref(), &self.dir, log_id, *base, log.len);
            let path = FileKind::Log.path(&self.dir, *base);
            if let Some(summary) = summary.filter(|summary| summary.end < next) {
                let missing = FileKind::Log.path(&self.dir, summary.end);
                let reason = "segment is missing";
                self.damage.push(Damage { path: missing, at: 0, end: 0, first: summary.end, next, reason });
            }
            segments.push(Arc::new(Segment::sealed(*base, path, Salt::new(log_id, *base), log.len, summary)));
        }
        segments
    }

    /// Side files whose segment was removed by retention, or never came to be.
    fn remove_orphans(&self, found: &Found) {
        let (Some((first, _)), Some((last, _))) = (found.logs.first_key_value(), found.logs.last_key_value()) else {
            return;
        };
        for (base, kind) in found.others.iter().filter(|(base, _)| base < first || base > last) {
            let _ = self.disk.remove_file(&kind.path(&self.dir, *base));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one value, each found in another way")]
    pub(super) fn finish(
        self,
        log_id: LogId,
        segments: Vec<Arc<Segment>>,
        active: Active,
        log_end: Offset,
        last_commit_ms: u64,
        marks: Marks,
        keys: Keys,
        is_new: bool,
    ) -> (PartitionLog, PartitionOpened) {
        for damage in &self.damage {
            let (first, next) = (damage.first, damage.next);
            warn!(path = %damage.path.display(), at = damage.at, %first, %next, "partition log is damaged: {}", damage.reason);
        }
        let shared = Arc::new(Shared {
            disk: self.disk,
            dir: self.dir,
            log_id,
            cache: self.cache,
            high_watermark: AtomicU64::new(log_end.get()),
            is_closed: AtomicBool::new(false),
            is_latched: AtomicBool::new(false),
            segments: RwLock::new(segments),
            open_sealed: Mutex::new(Vec::new()),
        });
        let log = PartitionLog { shared, config: self.config, active, log_end, last_commit_ms, keys, is_append_open: false };
        (log, PartitionOpened { marks, damage: self.damage, is_new })
    }
}
