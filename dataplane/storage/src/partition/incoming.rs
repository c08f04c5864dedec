//! A copy of a log, as it comes from the log's owner piece by piece: in a directory of its own, whole segments under their names, others
//! beside them.
//!
//! A segment takes its name when all of it is there, synced, read back as it was received, and its frames were checked. What comes of one that
//! is still written to is checked as it comes, so that little is left to do while nobody serves the partition. One whose frames are
//! damaged is asked for once more: what then comes with the same bytes is damaged at its owner, and is what the owner serves too.
//!
//! What a former life of this node had begun and not ended is thrown away; whole segments stay. A part goes on only with the segment that it
//! was begun with: the owner may have replaced it by another one under the same name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;
use veena_contract::{LogId, Offset, limits};

use super::copy::{CopyFile, CopyPiece, CopySegment};
use super::inspect::{intact_end, verify_copy};
use super::segment::{FileKind, parse_name};
use super::streams::StreamsSnapshot;
use super::wire::{len64, read_full, write_full};
use crate::disk::{Disk, DiskFile, OpenMode, create_dir_durably};

/// How much is read back at once.
const READ_BACK_BYTES: usize = 1024 * 1024;
/// Behind the names of what is not whole.
const PART: &str = ".part";

/// Why a copy does not go on.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// The file system refused. What is whole stays; the rest is begun anew.
    #[error("the copy cannot be written")]
    Io(#[from] io::Error),
    /// What was written is not what was received.
    #[error("the copy of {path} does not read back as it was received")]
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// What was received is not the log that was asked for.
    #[error("the copy in {path} is not the log that was promised: {reason}")]
    Mismatch {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// A copy that is being received.
pub struct IncomingLog {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    log_id: LogId,
    /// Which process of the owner the parts are from.
    source: u128,
    parts: BTreeMap<Offset, Part>,
    whole: BTreeMap<Offset, Whole>,
    /// Segments that came damaged: the CRC of what came.
    doubted: BTreeMap<Offset, u32>,
}

/// A segment of which not everything is there.
struct Part {
    serial: u64,
    streams: Growing,
    log: Growing,
    index: Growing,
    /// Where the frames end that were found intact, and the offset behind them.
    intact: Option<(u64, Offset)>,
}

/// A file that is being received.
struct Growing {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    len: u64,
    synced: u64,
    crc: u32,
    /// So much was read back as it was received, with this CRC.
    read_back: (u64, u32),
    is_whole: bool,
}

/// A segment that is there.
#[derive(Clone, Copy)]
struct Whole {
    len: u64,
    end: Offset,
}

impl Growing {
    fn create(disk: &dyn Disk, dir: &Path, kind: FileKind, base: Offset) -> io::Result<Self> {
        let mut path = kind.path(dir, base).into_os_string();
        path.push(PART);
        let path = PathBuf::from(path);
        remove(disk, &path)?;
        let file = disk.open(&path, OpenMode::CreateNew)?;
        Ok(Self { path, file, len: 0, synced: 0, crc: 0, read_back: (0, 0), is_whole: false })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        write_full(self.file.as_ref(), bytes, self.len).map_err(|short| short.error)?;
        self.len += len64(bytes.len());
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        if self.len - self.synced >= limits::MOVE_SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.len;
        }
        Ok(())
    }

    /// Synced, and as it was received.
    fn settle(&mut self) -> Result<(), IncomingError> {
        self.file.sync_data()?;
        self.file.drop_cache()?;
        let mut buf = vec![0; READ_BACK_BYTES];
        let (mut at, mut crc) = self.read_back;
        loop {
            let read = read_full(self.file.as_ref(), &mut buf, at)?;
            crc = crc32c::crc32c_append(crc, &buf[..read]);
            at += len64(read);
            if read < buf.len() {
                break;
            }
        }
        if at != self.len || crc != self.crc {
            return Err(IncomingError::Corrupt { path: self.path.clone() });
        }
        self.read_back = (at, crc);
        self.synced = self.len;
        Ok(())
    }
}

impl IncomingLog {
    /// Goes on with the copy in `dir`, or begins it there.
    ///
    /// # Errors
    /// [`IncomingError::Io`].
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, log_id: LogId) -> Result<Self, IncomingError> {
        create_dir_durably(disk.as_ref(), dir)?;
        let (parts, doubted) = (BTreeMap::new(), BTreeMap::new());
        let mut copy = Self { disk, dir: dir.to_path_buf(), log_id, source: 0, parts, whole: BTreeMap::new(), doubted };
        for entry in copy.disk.list(dir)?.into_iter().filter(|entry| !entry.is_dir) {
            if entry.name.ends_with(PART) {
                copy.disk.remove_file(&dir.join(&entry.name))?;
            } else if let Some((base, FileKind::Log, false)) = parse_name(&entry.name) {
                copy.take_up(base, entry.len)?;
            }
        }
        Ok(copy)
    }

    /// A segment of a former life: kept if it is intact.
    fn take_up(&mut self, base: Offset, len: u64) -> Result<(), IncomingError> {
        let report = verify_copy(self.disk.as_ref(), &FileKind::Log.path(&self.dir, base), base, self.log_id, None)?;
        if report.log_id == Some(self.log_id) && report.damage.is_empty() {
            self.whole.insert(base, Whole { len, end: report.end });
            return Ok(());
        }
        self.forget(base)
    }

    /// The log that is copied.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// How many bytes of what is listed are not here.
    #[must_use]
    pub fn missing_bytes(&self, list: &[CopySegment]) -> u64 {
        let has = |segment: &CopySegment| match (self.whole.get(&segment.base), self.parts.get(&segment.base)) {
            (Some(whole), _) => whole.len,
            (None, Some(part)) if part.serial == segment.serial => part.log.len,
            (None, _) => 0,
        };
        list.iter().map(|segment| segment.len.saturating_sub(has(segment))).sum()
    }

    /// What to ask for next, of what the process `source` of the owner lists; `None` when all of it is here. When nothing is added to the log
    /// any more (`is_final`), the segment that was written to is whole too.
    ///
    /// # Errors
    /// [`IncomingError`].
    pub fn next(&mut self, source: u128, list: &[CopySegment], is_final: bool) -> Result<Option<CopyPiece>, IncomingError> {
        if self.source != source {
            self.source = source;
            for base in self.parts.keys().copied().collect::<Vec<_>>() {
                self.forget(base)?;
            }
        }
        for segment in list {
            if let Some(piece) = self.next_of(segment, is_final || segment.is_sealed)? {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    fn next_of(&mut self, segment: &CopySegment, is_final: bool) -> Result<Option<CopyPiece>, IncomingError> {
        let CopySegment { base, serial, len, .. } = *segment;
        if self.whole.get(&base).is_some_and(|whole| whole.len == len && is_final) {
            return Ok(None);
        }
        // More may have come than there was when the list was made.
        let fits = self.parts.get(&base).is_some_and(|part| part.serial == serial && (part.log.len <= len || !is_final));
        if !fits {
            self.forget(base)?;
            let create = |kind| Growing::create(self.disk.as_ref(), &self.dir, kind, base);
            let part = Part {
                serial,
                streams: create(FileKind::Streams)?,
                log: create(FileKind::Log)?,
                index: create(FileKind::Index)?,
                intact: None,
            };
            self.parts.insert(base, part);
        }
        let Some(part) = self.parts.get_mut(&base) else { return Ok(None) };
        let of = |file, at| Ok(Some(CopyPiece { base, serial, file, at }));
        if !part.streams.is_whole {
            return of(CopyFile::Streams, part.streams.len);
        }
        if part.log.len < len {
            return of(CopyFile::Log, part.log.len);
        }
        if !is_final {
            // What is damaged, or no whole frame, is looked at again in the end.
            if part.log.read_back.0 < part.log.len {
                part.log.settle()?;
                part.intact = intact_end(part.log.file.as_ref(), base, self.log_id, part.intact).or(part.intact);
            }
            return Ok(None);
        }
        if segment.is_sealed && !part.index.is_whole {
            return of(CopyFile::Index, part.index.len);
        }
        if self.end_part(base)? { Ok(None) } else { self.next_of(segment, is_final) }
    }

    /// What has come of a piece; `is_end` when its file ends there.
    ///
    /// # Errors
    /// [`IncomingError::Io`].
    pub fn write(&mut self, piece: &CopyPiece, bytes: &[u8], is_end: bool) -> Result<(), IncomingError> {
        let part = self.parts.get_mut(&piece.base).filter(|part| part.serial == piece.serial);
        let Some(part) = part else { return Ok(()) };
        let file = match piece.file {
            CopyFile::Log => &mut part.log,
            CopyFile::Streams => &mut part.streams,
            CopyFile::Index => &mut part.index,
        };
        if file.len == piece.at {
            file.write(bytes)?;
            file.is_whole = is_end;
        }
        Ok(())
    }

    /// All of a segment is here. Says whether it has taken its name; if not, it is asked for once more.
    fn end_part(&mut self, base: Offset) -> Result<bool, IncomingError> {
        let Some(part) = self.parts.get_mut(&base) else { return Ok(true) };
        let disk = self.disk.as_ref();
        for file in [&mut part.streams, &mut part.log, &mut part.index] {
            file.settle()?;
        }
        let (len, crc) = (part.log.len, part.log.crc);
        let report = verify_copy(disk, &part.log.path, base, self.log_id, part.intact)?;
        if !report.damage.is_empty() && self.doubted.insert(base, crc) != Some(crc) {
            self.forget(base)?;
            return Ok(false);
        }
        if report.log_id != Some(self.log_id) {
            return Err(self.mismatch("a segment belongs to another log"));
        }
        for damage in &report.damage {
            let (first, next) = (damage.first, damage.next);
            warn!(path = %damage.path.display(), at = damage.at, %first, %next, "a segment is damaged at its owner: {}", damage.reason);
        }
        // 1 side files   2 their names   3 the segment's name   - what has the segment's name is whole, side files included
        for (file, kind) in [(&part.streams, FileKind::Streams), (&part.index, FileKind::Index)] {
            if file.len > 0 {
                disk.rename(&file.path, &kind.path(&self.dir, base))?;
            } else {
                disk.remove_file(&file.path)?;
            }
        }
        disk.sync_dir(&self.dir)?;
        disk.rename(&part.log.path, &FileKind::Log.path(&self.dir, base))?;
        self.parts.remove(&base);
        self.whole.insert(base, Whole { len, end: report.end });
        Ok(true)
    }

    /// The log was given up to `end`, in the segments listed, and all of it has come: whatever else is here goes, and what stays is durable
    /// under its names.
    ///
    /// # Errors
    /// [`IncomingError`].
    pub fn complete(&mut self, list: &[CopySegment], end: Offset) -> Result<(), IncomingError> {
        let bases: Vec<Offset> = self.whole.keys().chain(self.parts.keys()).copied().collect();
        for base in bases.into_iter().filter(|base| list.iter().all(|segment| segment.base != *base)) {
            self.forget(base)?;
        }
        let Some((last, whole)) = self.whole.last_key_value() else { return Err(self.mismatch("it has no segment")) };
        if self.whole.len() != list.len() || whole.end != end {
            return Err(self.mismatch("it does not end where the owner has stopped"));
        }
        let table = StreamsSnapshot::read(self.disk.as_ref(), &self.dir, *last)?;
        if table.is_none_or(|table| table.log_id != self.log_id) {
            return Err(self.mismatch("the stream table is damaged"));
        }
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    fn mismatch(&self, reason: &'static str) -> IncomingError {
        IncomingError::Mismatch { path: self.dir.clone(), reason }
    }

    /// Throws away what there is of a segment. Its own name goes first: without it the rest is nothing.
    fn forget(&mut self, base: Offset) -> Result<(), IncomingError> {
        let disk = self.disk.as_ref();
        self.whole.remove(&base);
        if let Some(part) = self.parts.remove(&base) {
            for file in [part.streams, part.log, part.index] {
                remove(disk, &file.path)?;
            }
        }
        remove(disk, &FileKind::Log.path(&self.dir, base))?;
        disk.sync_dir(&self.dir)?;
        for kind in [FileKind::Streams, FileKind::Index] {
            remove(disk, &kind.path(&self.dir, base))?;
        }
        Ok(())
    }
}

fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
