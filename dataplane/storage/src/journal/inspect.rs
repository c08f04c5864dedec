//! Looking at a journal without opening it. Changes nothing.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::file::{file_name, generations, read_all};
use super::format::{Entries, scan};
use crate::disk::{Disk, OpenMode};

/// What the newest file of a journal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFacts {
    /// The file.
    pub file: PathBuf,
    /// The values.
    pub entries: Entries,
    /// Its length.
    pub bytes: u64,
    /// Ranges of promised bytes that cannot be read.
    pub damaged: Vec<Range<u64>>,
    /// Where a torn tail starts, which was never promised.
    pub torn_at: Option<u64>,
}

/// Reads the journal's newest file; `None` when there is none.
///
/// # Errors
/// Of the file system; `InvalidData` for a format of a newer version.
pub fn inspect(disk: &dyn Disk, dir: &Path) -> io::Result<Option<JournalFacts>> {
    let Some(generation) = generations(disk, dir)?.pop() else { return Ok(None) };
    let path = dir.join(file_name(generation));
    let bytes = read_all(disk.open(&path, OpenMode::Read)?.as_ref())?;
    let scan = scan(&bytes, generation).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let len = bytes.len() as u64;
    let torn_at = Some(scan.end).filter(|end| *end < len && scan.damaged.iter().all(|range| range.start < *end));
    Ok(Some(JournalFacts { file: path, entries: scan.entries, bytes: len, damaged: scan.damaged, torn_at }))
}
