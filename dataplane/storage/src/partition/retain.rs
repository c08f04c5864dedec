//! Removing what is too old or too much: whole sealed segments, oldest first.

use std::io;
use std::sync::Arc;

use tracing::debug;
use veena_contract::{Effect, Offset};

use super::append::{AppendError, PartitionLog};
use super::recover::scan_frames;
use super::segment::{FileKind, Segment};
use super::streams::{Marks, StreamsSnapshot, apply, drop_finished};

/// What retention removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// How many segments.
    pub segments: u64,
    /// How many bytes they held.
    pub bytes: u64,
    /// How many offsets they covered.
    pub records: u64,
    /// The oldest offset that is left.
    pub oldest: Offset,
}

/// Why retention stopped. What it removed before stays removed; nothing else was touched.
#[derive(Debug, thiserror::Error)]
pub enum RetainError {
    /// The log takes no more changes in this life.
    #[error("partition log is latched")]
    Latched,
    /// The file system refused.
    #[error("segments cannot be removed")]
    Io(#[source] io::Error),
}

impl RetainError {
    /// May something have been removed?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Latched => Effect::None,
            Self::Io(_) => Effect::Possible,
        }
    }
}

impl PartitionLog {
    /// Removes sealed segments whose last record is older than `retention_ms` (0: for ever), and the oldest ones while the rest still holds
    /// `retention_bytes` (0: no bound). An active segment whose records are all too old, or that is
    /// older than segments may get, is sealed first.
    ///
    /// # Errors
    /// [`RetainError`].
    pub fn retain(&mut self, now_ms: u64, retention_ms: u64, retention_bytes: u64) -> Result<Retained, RetainError> {
        if self.is_latched() {
            return Err(RetainError::Latched);
        }
        if self.is_seal_due(now_ms, retention_ms) {
            self.seal(now_ms)?;
        }
        let mut removed = Retained { segments: 0, bytes: 0, records: 0, oldest: Offset(0) };
        loop {
            let Some((segment, next)) = self.oldest_sealed() else {
                break;
            };
            let too_old = retention_ms > 0 && self.last_ms(&segment, next)?.is_some_and(|last_ms| is_older(last_ms, retention_ms, now_ms));
            if !too_old && !self.is_too_much(&segment, retention_bytes) {
                break;
            }
            self.remove(&segment)?;
            removed.segments += 1;
            removed.bytes += segment.readable_len();
            removed.records += next.get() - segment.base.get();
        }
        removed.oldest = self.reader().oldest();
        Ok(removed)
    }

    fn is_seal_due(&self, now_ms: u64, retention_ms: u64) -> bool {
        let Some(first_ms) = self.active.first_ms.filter(|_| !self.is_append_open && retention_ms > 0) else {
            return false;
        };
        let age_ms_max = self.config.segment_age_ms_max;
        let is_old = age_ms_max > 0 && now_ms.saturating_sub(first_ms) >= age_ms_max;
        is_old || is_older(self.last_commit_ms, retention_ms, now_ms)
    }

    /// Starts a new segment; the stream table comes from the active one's own files.
    fn seal(&mut self, now_ms: u64) -> Result<(), RetainError> {
        let segment = Arc::clone(&self.active.segment);
        let table = StreamsSnapshot::load(self.shared.disk.as_ref(), &self.shared.dir, segment.base);
        let Some(table) = table.filter(|table| table.log_id == self.shared.log_id) else {
            // Without it the table cannot be told; the next append brings the owner's own.
            return Ok(());
        };
        let mut marks: Marks = table.marks;
        let scan = scan_frames(&self.active.file.as_ref(), segment.salt, segment.base, self.active.end);
        let scan = scan.map_err(|error| RetainError::Io(io::Error::other(error)))?;
        scan.sections.iter().for_each(|(_, section)| apply(&mut marks, section));
        drop_finished(&mut marks);
        self.roll(now_ms, marks).map_err(|error| match error {
            AppendError::Latched => RetainError::Latched,
            AppendError::NoSpace => RetainError::Io(io::Error::from(io::ErrorKind::StorageFull)),
            AppendError::Io(error) => RetainError::Io(error),
        })
    }

    fn oldest_sealed(&self) -> Option<(Arc<Segment>, Offset)> {
        let segments = self.shared.segments.read();
        let (oldest, next) = (segments.first()?, segments.get(1)?);
        Some((Arc::clone(oldest), next.base))
    }

    /// Commit time of a segment's last frame. Absent when it has no readable frame: then it goes with the bytes alone.
    fn last_ms(&self, segment: &Arc<Segment>, end: Offset) -> Result<Option<u64>, RetainError> {
        let summary = match segment.summary() {
            Some(summary) => summary,
            None => {
                let file = self.shared.open_segment(segment).map_err(RetainError::Io)?;
                self.shared.load_index(segment, end, file.as_ref()).map_err(RetainError::Io)?.summary()
            }
        };
        Ok(Some(summary.times.last_ms).filter(|last_ms| *last_ms > 0))
    }

    fn is_too_much(&self, oldest: &Segment, retention_bytes: u64) -> bool {
        let bytes: u64 = self.shared.segments.read().iter().map(|segment| segment.readable_len()).sum();
        retention_bytes > 0 && bytes - oldest.readable_len() >= retention_bytes
    }

    fn remove(&mut self, segment: &Arc<Segment>) -> Result<(), RetainError> {
        let shared = Arc::clone(&self.shared);
        shared.segments.write().retain(|other| !Arc::ptr_eq(other, segment));
        shared.open_sealed.lock().retain(|other| !Arc::ptr_eq(other, segment));
        segment.release();
        // Each removal is durable before the next: a power cut never leaves a gap in the middle.
        shared.disk.remove_file(&segment.path).or_else(ignore_missing).map_err(RetainError::Io)?;
        for kind in [FileKind::Index, FileKind::Streams] {
            shared.disk.remove_file(&kind.path(&shared.dir, segment.base)).or_else(ignore_missing).map_err(RetainError::Io)?;
        }
        if let Err(error) = shared.disk.sync_dir(&shared.dir) {
            shared.latch(&self.active, "a directory sync failed");
            return Err(RetainError::Io(error));
        }
        debug!(path = %segment.path.display(), "segment is removed by retention");
        Ok(())
    }
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn is_older(commit_ms: u64, retention_ms: u64, now_ms: u64) -> bool {
    commit_ms.saturating_add(retention_ms) <= now_ms
}
