//! The files of a node that does not run: what they hold, what is damaged, what can be made again.
//!
//! A survey changes nothing. A repair makes derived parts again, keeps a copy of every damaged range, sets a WAL aside that a node cannot start
//! on, and begins a new one with what that had parked; it never cuts or drops a record.
//! Whoever calls holds the directory's lock.

pub mod carry;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use veena_contract::{Offset, WalSeq};

use crate::disk::{Disk, OpenMode, create_dir_durably, read_full_at, write_all_at};
use crate::partition::{self, SideFile, SideKind};
pub use crate::wal::LostEnd;
use crate::wal::parked::{self, ParkedFile, ParkedOpenError};
use crate::wal::{RecordKind, WalReadError};
use crate::{journal, wal};

/// The largest piece of a damaged range that is copied at once.
const COPY_BYTES: usize = 1024 * 1024;
/// How deep below `topics` the partitions lie.
const TOPICS_DEPTH: usize = 3;

/// What kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// A segment of the ingress WAL.
    Wal,
    /// Records of the WAL set aside for one destination.
    Parked,
    /// The settle journal.
    Settle,
    /// A segment of a partition.
    Partition,
}

/// What one file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// The file.
    pub path: PathBuf,
    /// What it is.
    pub kind: FileKind,
    /// How many intact records (values, of the settle journal).
    pub records: u64,
    /// How many of them go elsewhere than first accepted.
    pub moved: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Which offsets or sequences.
    pub span: Span,
    /// Where a torn tail starts. Nothing in it was promised; the next start cuts it.
    pub torn_at: Option<u64>,
}

/// Which records are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// None in particular.
    None,
    /// Offsets of a partition, from and to.
    Offsets(Offset, Offset),
    /// Sequences of the WAL, from and to.
    Sequences(WalSeq, WalSeq),
}

/// One damaged range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Where in it the damage starts.
    pub at: u64,
    /// Where it ends; `at` when no length can be told.
    pub end: u64,
    /// What is wrong.
    pub reason: String,
    /// The records concerned.
    pub span: Span,
}

/// A derived part of a partition that can or cannot be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The partition's directory.
    pub dir: PathBuf,
    /// Which part.
    pub part: SideFile,
}

/// What a survey found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Every file of records.
    pub files: Vec<FileFacts>,
    /// What is damaged. Each names a file and a place in it.
    pub findings: Vec<Finding>,
    /// Derived parts that are missing or damaged.
    pub derived: Vec<Derived>,
    /// The newest segments of the WAL are missing: a node does not start on it.
    pub lost_end: Option<LostEnd>,
    /// The identity of the WAL, if it can be read.
    pub wal_id: Option<u64>,
}

/// Why a survey or a repair could not be made.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// There is nothing of ours.
    #[error("{} is neither the data directory of a node nor that of a partition", dir.display())]
    NotOurs {
        /// Where.
        dir: PathBuf,
    },
    /// A file cannot be read or written.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The WAL cannot be read.
    #[error(transparent)]
    Wal(#[from] wal::WalIoError),
    /// A derived part could not be made again.
    #[error("cannot make {} again", path.display())]
    Rebuild {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: partition::RepairError,
    },
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OfflineError + use<> {
    let path = path.to_owned();
    move |source| OfflineError::Io { step, path, source }
}

/// What lies below a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The ingress WAL.
    pub wal: Option<PathBuf>,
    /// Files of parked records.
    pub parked: Option<PathBuf>,
    /// The settle journal.
    pub settle: Option<PathBuf>,
    /// Directories of partitions.
    pub partitions: Vec<PathBuf>,
    /// How many bytes their files have together.
    pub bytes: u64,
}

/// Finds the logs of a node's data directory, or of one partition's.
///
/// # Errors
/// [`OfflineError::NotOurs`] when there are none; of the file system.
pub fn find(disk: &dyn Disk, dir: &Path) -> Result<Found, OfflineError> {
    let mut found = Found::default();
    let list = |dir: &Path| disk.list(dir).map_err(failed("list", dir));
    let entries = list(dir)?;
    if entries.iter().any(|entry| partition::is_segment_name(&entry.name)) {
        found.partitions.push(dir.to_owned());
    }
    let holds = |name: &str| entries.iter().any(|entry| entry.is_dir && entry.name == name).then(|| dir.join(name));
    found.wal = holds("ingress");
    found.parked = holds("parked");
    found.settle = holds("settle");
    let topics = holds("topics");
    if found.wal.is_none() && topics.is_none() && found.partitions.is_empty() {
        return Err(OfflineError::NotOurs { dir: dir.to_owned() });
    }
    let mut level: Vec<PathBuf> = topics.into_iter().collect();
    for _ in 0..TOPICS_DEPTH {
        let mut next = Vec::new();
        for dir in level {
            next.extend(list(&dir)?.into_iter().filter(|entry| entry.is_dir).map(|entry| dir.join(entry.name)));
        }
        level = next;
    }
    found.partitions.extend(level);
    for dir in found.wal.iter().chain(&found.parked).chain(&found.settle).chain(&found.partitions) {
        found.bytes += list(dir)?.iter().map(|entry| entry.len).sum::<u64>();
    }
    Ok(found)
}

/// Reads and checks everything that was found. `promised` answers for a partition's directory up to where its log was once published, as is
/// known from elsewhere (`Offset(0)`: nothing is): only so a damaged last frame is told from a torn tail. `progress` is told how many bytes
/// were read since it was last told.
///
/// # Errors
/// When a file cannot be read at all; damage is no error.
pub fn survey(
    disk: &Arc<dyn Disk>,
    found: &Found,
    promised: &dyn Fn(&Path) -> Offset,
    progress: &mut dyn FnMut(u64),
) -> Result<Survey, OfflineError> {
    let mut survey = Survey::default();
    if let Some(dir) = &found.wal {
        // Without the WAL's identity its parked records cannot be told from others; that it is damaged is told.
        survey.wal(disk, dir, progress)?;
        if let (Some(wal_id), Some(dir)) = (survey.wal_id, &found.parked) {
            survey.parked(disk.as_ref(), dir, wal_id, progress)?;
        }
    }
    if let Some(dir) = &found.settle {
        survey.settle(disk.as_ref(), dir, progress)?;
    }
    for dir in &found.partitions {
        survey.partition(disk.as_ref(), dir, promised(dir), progress)?;
    }
    Ok(survey)
}

impl Survey {
    fn wal(&mut self, disk: &Arc<dyn Disk>, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), OfflineError> {
        let verified = wal::verify(disk, dir, progress)?;
        self.wal_id = verified.wal_id;
        self.lost_end = verified.lost_end;
        if let Some(LostEnd { end, checkpoint, durable_end }) = verified.lost_end {
            let reason = format!(
                "the checkpoint {checkpoint} is beyond the end of the log {end}: its newest segments are missing, and a node does not start"
            );
            let span = if checkpoint < durable_end { Span::Sequences(checkpoint, durable_end) } else { Span::None };
            self.findings.push(Finding { path: wal::checkpoint_path(dir), at: 0, end: 0, reason, span });
        }
        let below = verified.checkpoint.unwrap_or_default();
        for damage in verified.damage {
            let mut reason = match damage.kind {
                wal::DamageKind::Records => "records that were promised cannot be read".to_owned(),
                wal::DamageKind::SegmentHeader => "segment header is damaged; its records are read without it".to_owned(),
                wal::DamageKind::SegmentMissing => "segment is missing".to_owned(),
                wal::DamageKind::CheckpointCell => "checkpoint cannot be read; the next start replays from the oldest record".to_owned(),
                wal::DamageKind::StreamsCell => "list of streams cannot be read; the next start makes it again".to_owned(),
                wal::DamageKind::IdCell => "identity cannot be read; the next start takes it from the segments".to_owned(),
            };
            if damage.kind == wal::DamageKind::Records && damage.end <= below {
                reason.push_str("; all of them are dispatched, nothing is lost");
            }
            let span = if damage.first < damage.end { Span::Sequences(damage.first, damage.end) } else { Span::None };
            self.findings.push(Finding { path: damage.path, at: damage.offset, end: damage.offset + damage.bytes, reason, span });
        }
        for segment in verified.segments {
            let torn_at = verified.torn.as_ref().filter(|(path, _)| *path == segment.path).map(|(_, at)| *at);
            self.files.push(FileFacts {
                path: segment.path,
                kind: FileKind::Wal,
                records: segment.records,
                moved: segment.moved,
                bytes: segment.good_end,
                span: Span::Sequences(segment.first, segment.end),
                torn_at,
            });
        }
        Ok(())
    }

    fn parked(&mut self, disk: &dyn Disk, dir: &Path, wal_id: u64, progress: &mut dyn FnMut(u64)) -> Result<(), OfflineError> {
        let entries = disk.list(dir).map_err(failed("list", dir))?;
        for entry in entries.iter().filter(|entry| parked::parse_name(&entry.name).is_some()) {
            let path = dir.join(&entry.name);
            match self.parked_file(disk, &path, wal_id, entry.len) {
                Err(ParkedOpenError::Io(error) | ParkedOpenError::Read(WalReadError::Io(error))) => return Err(error.into()),
                Err(error) => self.findings.push(Finding { path, at: 0, end: entry.len, reason: error.to_string(), span: Span::None }),
                Ok(()) => {}
            }
            progress(entry.len);
        }
        Ok(())
    }

    fn parked_file(&mut self, disk: &dyn Disk, path: &Path, wal_id: u64, bytes: u64) -> Result<(), ParkedOpenError> {
        let file = ParkedFile::open(disk, path, wal_id)?;
        let found = |at, end, reason: &str| Finding { path: path.to_owned(), at, end, reason: reason.to_owned(), span: Span::None };
        if file.is_head_damaged {
            self.findings.push(found(0, file.start(), "head is damaged; the records are read without it"));
        }
        let (mut at, mut records, mut moved, mut is_end) = (file.start(), 0, 0, false);
        while !is_end {
            let piece = file.read(disk, at, COPY_BYTES)?;
            records += piece.records.len() as u64;
            moved += piece.records.iter().filter(|(record, _)| record.kind == RecordKind::Moved).count() as u64;
            let damaged = piece.damaged.into_iter();
            self.findings.extend(damaged.map(|(from, to)| found(from, to, "parked records that were promised cannot be read")));
            (at, is_end) = (piece.next, piece.is_end);
        }
        let first = file.streams.iter().map(|part| part.first).min().unwrap_or_default();
        let end = file.streams.iter().map(|part| part.last.next()).max().unwrap_or_default();
        let span = Span::Sequences(first, end);
        self.files.push(FileFacts { path: path.to_owned(), kind: FileKind::Parked, records, moved, bytes, span, torn_at: None });
        Ok(())
    }

    fn settle(&mut self, disk: &dyn Disk, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<(), OfflineError> {
        let Some(facts) = journal::inspect(disk, dir).map_err(failed("read", dir))? else { return Ok(()) };
        progress(facts.bytes);
        for range in facts.damaged {
            let reason = "settle state that was synced cannot be read: some messages may be handed out again".to_owned();
            self.findings.push(Finding { path: facts.file.clone(), at: range.start, end: range.end, reason, span: Span::None });
        }
        let records = facts.entries.len() as u64;
        let (bytes, torn_at) = (facts.bytes, facts.torn_at);
        self.files.push(FileFacts { path: facts.file, kind: FileKind::Settle, records, moved: 0, bytes, span: Span::None, torn_at });
        Ok(())
    }

    fn partition(&mut self, disk: &dyn Disk, dir: &Path, promised: Offset, progress: &mut dyn FnMut(u64)) -> Result<(), OfflineError> {
        let report = partition::inspect(disk, dir, promised).map_err(failed("read", dir))?;
        for damage in report.damage {
            let span = if damage.first < damage.next { Span::Offsets(damage.first, damage.next) } else { Span::None };
            self.findings.push(Finding { path: damage.path, at: damage.at, end: damage.end, reason: damage.reason.to_owned(), span });
        }
        for segment in report.segments {
            progress(segment.bytes);
            self.files.push(FileFacts {
                path: segment.path,
                kind: FileKind::Partition,
                records: segment.records,
                moved: 0,
                bytes: segment.bytes,
                span: Span::Offsets(segment.base, segment.end),
                torn_at: segment.torn_at,
            });
        }
        for part in partition::side_files(disk, dir).map_err(failed("read", dir))? {
            if part.is_there && part.kind != SideKind::Header {
                let what = if part.kind == SideKind::Index { "index" } else { "stream table" };
                let reason = format!("{what} is damaged; {}", if part.is_derivable { "it can be made again" } else { "it is lost" });
                self.findings.push(Finding { path: part.path.clone(), at: 0, end: 0, reason, span: Span::None });
            }
            self.derived.push(Derived { dir: dir.to_owned(), part });
        }
        Ok(())
    }
}

/// Copies a damaged range into `quarantine`, durably, and answers where the copy is; `None` when there is nothing to copy. `now_ms` is part
/// of its name, so that the node's own clean-up knows its age.
///
/// # Errors
/// Of the file system.
pub fn keep_copy(disk: &dyn Disk, quarantine: &Path, finding: &Finding, now_ms: u64) -> Result<Option<PathBuf>, OfflineError> {
    let name = finding.path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or("file");
    let source = match disk.open(&finding.path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("open", &finding.path)(error)),
    };
    let len = source.len().map_err(failed("measure", &finding.path))?;
    let end = if finding.end > finding.at { finding.end.min(len) } else { len };
    if finding.at >= end {
        return Ok(None);
    }
    let dir = quarantine.join(format!("{now_ms:013}-damage"));
    create_dir_durably(disk, &dir).map_err(failed("create", &dir))?;
    let owner = finding.path.parent().map(flat_name).unwrap_or_default();
    let path = dir.join(format!("{owner}{name}.{}-{end}", finding.at));
    match disk.remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("replace", &path)(error)),
        _ => {}
    }
    let copy = disk.open(&path, OpenMode::CreateNew).map_err(failed("create", &path))?;
    let mut buf = vec![0; COPY_BYTES];
    let mut at = finding.at;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
        let read = read_full_at(source.as_ref(), &mut buf[..want], at).map_err(failed("read", &finding.path))?;
        if read == 0 {
            break;
        }
        write_all_at(copy.as_ref(), &buf[..read], at - finding.at).map_err(failed("write", &path))?;
        at += read as u64;
    }
    copy.sync_data().map_err(failed("sync", &path))?;
    disk.sync_dir(&dir).map_err(failed("sync", &dir))?;
    Ok(Some(path))
}

/// Moves a WAL whose newest segments are missing into `quarantine`, durably, and leaves an empty directory, in which the next start begins a
/// new log. Answers where it is. `now_ms` is as in [`keep_copy`]; a node removes what is set aside for good (`is_kept`) at no time.
///
/// All that is left of such a log lies below its checkpoint: it is dispatched, or parked; what is lost is not here either. The new log has an identity
/// and streams of its own: no owner takes a record of it for one it has, none is told that a stream is finished by a number that has not come
/// yet, and nothing that was dispatched from the old log is sent again. (Kept, the identity would number its next stream by what is left of the log: lower than
/// streams that owners have been told are finished, so that they would refuse everything.)
///
/// # Errors
/// Of the file system.
pub fn set_wal_aside(disk: &dyn Disk, dir: &Path, quarantine: &Path, now_ms: u64, is_kept: bool) -> Result<PathBuf, OfflineError> {
    create_dir_durably(disk, quarantine).map_err(failed("create", quarantine))?;
    // A node looks at what begins with a time alone.
    let aside = quarantine.join(format!("{}{now_ms:013}-ingress", if is_kept { "kept-" } else { "" }));
    // 1 renamed   2 new name durable   3 old name gone   4 an empty directory    — a crash in between leaves the log under one name, or a node
    // that makes the directory itself
    disk.rename(dir, &aside).map_err(failed("set aside", dir))?;
    disk.sync_dir(quarantine).map_err(failed("sync", quarantine))?;
    create_dir_durably(disk, dir).map_err(failed("create", dir))?;
    Ok(aside)
}

/// The last parts of a directory's path, as part of a file's name.
fn flat_name(dir: &Path) -> String {
    let parts: Vec<&str> = dir.components().filter_map(|part| part.as_os_str().to_str()).collect();
    parts.iter().skip(parts.len().saturating_sub(3)).map(|part| format!("{part}.")).collect()
}

/// Makes one derived part again. A damaged file should have been copied before.
///
/// # Errors
/// [`OfflineError::Rebuild`].
pub fn rebuild(disk: &dyn Disk, derived: &Derived) -> Result<(), OfflineError> {
    partition::rebuild(disk, &derived.dir, &derived.part)
        .map_err(|source| OfflineError::Rebuild { path: derived.part.path.clone(), source })
}
