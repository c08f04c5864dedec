//! Parked records of a WAL that is gone: accepted, and nowhere else. A new WAL begins with them, so that the next start sends them as it sends
//! everything of a former life.
//!
//! Under the stream of the new WAL their owners do not know them: what had been committed of a file that was not finished comes again.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use veena_contract::Entropy;

use super::{COPY_BYTES, Found};
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

/// Parked files whose WAL is gone, in the order in which they were written. It is gone when it will be set aside (`is_lost`), or its directory
/// is empty. Files whose head cannot be read, or that a newer version wrote, are not among them.
///
/// # Errors
/// Of the file system.
pub fn parked_of_gone_wal(disk: &dyn Disk, found: &Found, is_lost: bool) -> Result<Vec<ParkedFile>, CarryError> {
    let Some(dir) = &found.parked else { return Ok(Vec::new()) };
    let is_gone = is_lost
        || match &found.wal {
            None => true,
            Some(wal) => disk.list(wal).map_err(failed(wal, "list"))?.is_empty(),
        };
    if !is_gone {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in disk.list(dir).map_err(failed(dir, "list"))? {
        if parked::parse_name(&entry.name).is_none() {
            continue;
        }
        match ParkedFile::open_of_any(disk, &dir.join(&entry.name)) {
            Ok(file) => files.push(file),
            Err(ParkedOpenError::Io(error)) => return Err(error.into()),
            Err(ParkedOpenError::Read(error)) => return Err(error.into()),
            Err(ParkedOpenError::NewerFormat { .. } | ParkedOpenError::NotOfThisLog { .. }) => {}
        }
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

/// Makes a new WAL with the records of `files` beside the place `wal`, durably; what is damaged in them is there as a gap. An unfinished one of
/// an earlier attempt goes.
///
/// # Errors
/// [`CarryError`].
pub fn make_wal_of(disk: &Arc<dyn Disk>, wal: &Path, files: &[ParkedFile], entropy: &dyn Entropy) -> Result<(), CarryError> {
    let dir = made_at(wal);
    if disk.exists(&dir).map_err(failed(&dir, "find"))? {
        disk.remove_dir_all(&dir).map_err(failed(&dir, "remove"))?;
    }
    let config = WalConfig { staged_bytes_max: usize::MAX, undispatched_bytes_max: u64::MAX, ..WalConfig::default() };
    let (made, _) = Wal::open(Arc::clone(disk), &dir, config, entropy)?;
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
