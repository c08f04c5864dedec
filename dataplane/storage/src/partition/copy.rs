//! What a log gives away for a copy of itself, while it is written: its files, in pieces, as far as they are published.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use veena_contract::Offset;

use super::frame::Salt;
use super::read::{LogReader, ReadError};
use super::recover::{ScanError, scan_frames};
use super::segment::{FileKind, Segment};
use super::wire::{memory_len, read_full};

/// Which file of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyFile {
    /// Its frames.
    Log,
    /// Its stream table.
    Streams,
    /// Its index; not every segment has one.
    Index,
}

impl CopyFile {
    const ALL: [Self; 3] = [Self::Log, Self::Streams, Self::Index];

    /// Its number between nodes; never used again for another.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Log => 1,
            Self::Streams => 2,
            Self::Index => 3,
        }
    }

    /// The file of a number.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.number() == number)
    }

    pub(super) const fn kind(self) -> FileKind {
        match self {
            Self::Log => FileKind::Log,
            Self::Streams => FileKind::Streams,
            Self::Index => FileKind::Index,
        }
    }
}

/// One segment, as it can be copied now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySegment {
    /// The offset of its first record.
    pub base: Offset,
    /// Which of the segments that this process has had under this base: what was read of another one does not belong to it.
    pub serial: u64,
    /// Where its published frames end in the file.
    pub len: u64,
    /// Will nothing be added to it?
    pub is_sealed: bool,
}

/// One piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPiece {
    /// Of which segment.
    pub base: Offset,
    /// Which of those of this base.
    pub serial: u64,
    /// Which file of it.
    pub file: CopyFile,
    /// From which position on.
    pub at: u64,
}

impl LogReader {
    /// The segments there are, in rising base.
    #[must_use]
    pub fn copy_list(&self) -> Vec<CopySegment> {
        let segments = self.shared.segments.read();
        let last = segments.len().saturating_sub(1);
        let listed = |(at, segment): (usize, &Arc<Segment>)| CopySegment {
            base: segment.base,
            serial: segment.serial,
            len: segment.readable_len(),
            is_sealed: at < last,
        };
        segments.iter().enumerate().map(listed).collect()
    }

    /// Reads the published frames of the last segment again: the reason, when the last of them are damaged. Nothing behind them shows that they
    /// were there, so that a copy would end before them. Damage before them is stepped over in a copy as it is here.
    ///
    /// # Errors
    /// [`ReadError::Closed`] and [`ReadError::Io`].
    pub fn damaged_end(&self) -> Result<Option<&'static str>, ReadError> {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(ReadError::Closed);
        }
        // In this order: what is published meanwhile is more than is asked for.
        let promised = self.high_watermark();
        let Some(segment) = shared.segments.read().last().cloned() else { return Ok(None) };
        let file = segment.open_apart(shared.disk.as_ref()).map_err(ReadError::Io)?;
        let salt = Salt::new(self.log_id(), segment.base);
        match scan_frames(&file.as_ref(), salt, segment.base, segment.readable_len()) {
            Ok(scan) if scan.end_offset < promised => Ok(Some("the last published frames of the log are damaged")),
            Ok(_) => Ok(None),
            Err(ScanError::Io(error)) => Err(ReadError::Io(error)),
            Err(ScanError::Unsupported { .. }) => Ok(Some("the last segment of the log has frames of an unknown format")),
        }
    }

    /// At most `bytes_max` bytes of a piece; fewer at its file's end, or where its published frames end, and none of a file that is not there.
    /// `None` when there is no such segment, or none any more.
    ///
    /// # Errors
    /// [`ReadError::Closed`] and [`ReadError::Io`].
    pub fn copy_bytes(&self, piece: &CopyPiece, bytes_max: usize) -> Result<Option<Bytes>, ReadError> {
        let shared = &self.shared;
        if shared.is_closed.load(Ordering::Acquire) {
            return Err(ReadError::Closed);
        }
        let find = || shared.segments.read().iter().find(|segment| segment.base == piece.base && segment.serial == piece.serial).cloned();
        let Some(segment) = find() else { return Ok(None) };
        let (disk, kind) = (shared.disk.as_ref(), piece.file.kind());
        let opened = match piece.file {
            // Of the segment that is written to, never by its name: another may take that at any moment.
            CopyFile::Log => segment.open_apart(disk),
            CopyFile::Streams | CopyFile::Index => disk.open(&kind.path(&shared.dir, piece.base), crate::disk::OpenMode::Read),
        };
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(find().map(|_| Bytes::new())),
            opened => opened.map_err(ReadError::Io)?,
        };
        let end = match piece.file {
            CopyFile::Log => segment.readable_len(),
            CopyFile::Streams | CopyFile::Index => file.len().map_err(ReadError::Io)?,
        };
        let len = memory_len(end.saturating_sub(piece.at)).map_err(ReadError::Io)?.min(bytes_max);
        let mut bytes = vec![0; len];
        let read = read_full(file.as_ref(), &mut bytes, piece.at).map_err(ReadError::Io)?;
        bytes.truncate(read);
        // A segment without records is replaced under its name, its stream table first: looked at again.
        Ok(find().map(|_| bytes.into()))
    }
}
