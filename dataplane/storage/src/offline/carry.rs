//! Parked records of a WAL that is gone: accepted, and nowhere else. A new WAL begins with them, so that the next start sends them as it sends
//! everything of a former life.
//!
//! Under the stream of the new WAL their owners do not know them: what had been committed of a file that was not finished comes again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::Entropy;

use super::{COPY_BYTES, Found, Survey};
use crate::disk::{Disk, create_dir_durably};
use crate::wal::parked::{self, ParkedFile, ParkedOpenError};
use crate::wal::{AppendError, RecordKind, StageError, Wal, WalConfig, WalEntry, WalIoError, WalOpenError, WalReadError, failed};

/// Why parked records were not carried over. The files are where they were.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The file system failed.
    #[error(transparent)]
    Io(#[from] WalIoError),
    /// A new WAL cannot be begun.
    #[error(transparent)]
    Open(#[from] WalOpenError),
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] WalReadError),
    /// A record is not taken.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// A record is not written.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Where the new WAL is made.
fn made_at(wal: &Path) -> PathBuf {
    wal.with_extension("new")
}

/// What a WAL that is gone had parked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParkedOfGone {
    /// What can be carried over, in the order in which it was written.
    pub files: Vec<ParkedFile>,
    /// What stays where it is.
    pub left: Vec<(PathBuf, Left)>,
}

/// Why a file is not carried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Its head cannot be read.
    HeadDamaged,
    /// It is of another WAL than the one that is gone. A repair that ended early may have left it: then its records are in a later WAL.
    OtherWal,
    /// A newer version wrote it.
    NewerFormat,
}

/// Parked files whose WAL is gone. It is gone when it will be set aside, or its directory is empty: then it is taken to be the one that wrote
/// the newest file.
///
/// # Errors
/// Of the file system.
pub fn parked_of_gone_wal(disk: &dyn Disk, found: &Found, survey: &Survey) -> Result<ParkedOfGone, CarryError> {
    let mut gone = ParkedOfGone::default();
    let Some(dir) = &found.parked else { return Ok(gone) };
    let is_gone = survey.lost_end.is_some()
        || match &found.wal {
            None => true,
            Some(wal) => disk.list(wal).map_err(failed(wal, "list"))?.is_empty(),
        };
    if !is_gone {
        return Ok(gone);
    }
    for entry in disk.list(dir).map_err(failed(dir, "list"))? {
        if parked::parse_name(&entry.name).is_none() {
            continue;
        }
        let path = dir.join(&entry.name);
        match ParkedFile::open_of_any(disk, &path) {
            Ok(file) => gone.files.push(file),
            Err(ParkedOpenError::Io(error)) => return Err(error.into()),
            Err(ParkedOpenError::Read(error)) => return Err(error.into()),
            Err(ParkedOpenError::NewerFormat { .. }) => gone.left.push((path, Left::NewerFormat)),
            Err(ParkedOpenError::NotOfThisLog { .. }) => gone.left.push((path, Left::HeadDamaged)),
        }
    }
    gone.files.sort_by_key(|file| file.number);
    let wal_id = survey.wal_id.or(gone.files.last().map(ParkedFile::wal_id));
    let others = gone.files.extract_if(.., |file| Some(file.wal_id()) != wal_id);
    gone.left.extend(others.map(|file| (file.path, Left::OtherWal)));
    Ok(gone)
}

/// Makes a new WAL with the records of `files` beside the place `wal`, durably; what is damaged in them is there as a gap. An unfinished one of
/// an earlier attempt goes.
///
/// # Errors
/// [`CarryError`].
pub fn make_wal_of(disk: &Arc<dyn Disk>, wal: &Path, files: &[ParkedFile], entropy: &dyn Entropy) -> Result<(), CarryError> {
    remove_unfinished(disk.as_ref(), wal)?;
    let made = make(disk, &made_at(wal), files, entropy);
    // It may be what fills the disk. What cannot be removed goes with the next repair or start.
    if made.is_err()
        && let Err(error) = remove_unfinished(disk.as_ref(), wal)
    {
        tracing::warn!(%error, "a new WAL that was not finished is left behind");
    }
    made
}

/// Removes what a repair has made and not put in the place `wal`.
///
/// # Errors
/// Of the file system.
pub fn remove_unfinished(disk: &dyn Disk, wal: &Path) -> Result<(), WalIoError> {
    let dir = made_at(wal);
    if disk.exists(&dir).map_err(failed(&dir, "find"))? {
        disk.remove_dir_all(&dir).map_err(failed(&dir, "remove"))?;
    }
    Ok(())
}

fn make(disk: &Arc<dyn Disk>, dir: &Path, files: &[ParkedFile], entropy: &dyn Entropy) -> Result<(), CarryError> {
    let config = WalConfig { staged_bytes_max: usize::MAX, undispatched_bytes_max: u64::MAX, ..WalConfig::default() };
    let (made, _) = Wal::open(Arc::clone(disk), dir, config, entropy)?;
    made.start_by_hand(Arc::new(|_| {}));
    let copied = files.iter().try_for_each(|file| copy(disk.as_ref(), &made, file));
    made.close();
    copied
}

fn copy(disk: &dyn Disk, made: &Wal, file: &ParkedFile) -> Result<(), CarryError> {
    let (mut at, mut is_end) = (file.start(), false);
    while !is_end {
        let piece = file.read(disk, at, COPY_BYTES)?;
        let entry = |kind, body| WalEntry { kind, destination: file.destination, body };
        // A record without a body stands for lost ones.
        let lost = (!piece.damaged.is_empty()).then(|| entry(RecordKind::Accept, Bytes::new()));
        let records = piece.records.into_iter().map(|(record, _)| entry(record.kind, record.body));
        let staged = lost.into_iter().chain(records).map(|entry| made.stage([entry].into_iter().collect()));
        let staged = staged.collect::<Result<Vec<_>, _>>()?;
        made.flush_now();
        for mut staged in staged {
            staged.try_outcome().unwrap_or(Err(AppendError::Latched))?;
        }
        (at, is_end) = (piece.next, piece.is_end);
    }
    Ok(())
}

/// Puts the WAL that was made in its place, which must be empty, and moves the files it was made of into `quarantine`. `now_ms` is as in
/// [`keep_copy`](super::keep_copy).
///
/// # Errors
/// Of the file system.
pub fn put_in_place(disk: &dyn Disk, wal: &Path, files: &[ParkedFile], quarantine: &Path, now_ms: u64) -> Result<(), CarryError> {
    match disk.list(wal) {
        Ok(entries) if entries.is_empty() => disk.remove_dir_all(wal).map_err(failed(wal, "remove"))?,
        Ok(_) => return Err(failed(wal, "replace")(ErrorKind::DirectoryNotEmpty.into()).into()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(wal, "list")(error).into()),
    }
    let root = wal.parent().unwrap_or(Path::new("."));
    let aside = quarantine.join(format!("{now_ms:013}-parked"));
    // 1 new WAL in its place   2 that is durable   3 files set aside    — a crash before 2 leaves the files for another repair, and after it files
    // that the next start names and does not send
    disk.rename(&made_at(wal), wal).map_err(failed(wal, "rename"))?;
    disk.sync_dir(root).map_err(failed(root, "sync"))?;
    create_dir_durably(disk, &aside).map_err(failed(&aside, "create"))?;
    for file in files {
        let name = file.path.file_name().unwrap_or_default();
        disk.rename(&file.path, &aside.join(name)).map_err(failed(&file.path, "set aside"))?;
    }
    disk.sync_dir(&aside).map_err(failed(&aside, "sync"))?;
    let from = files.first().and_then(|file| file.path.parent());
    from.map_or(Ok(()), |dir| disk.sync_dir(dir).map_err(|error| failed(dir, "sync")(error).into()))
}
