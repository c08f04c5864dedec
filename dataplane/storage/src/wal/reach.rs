//! How far a log reaches by its files, and whether its checkpoint speaks of more than there is.

use super::checkpoint::CheckpointCell;
use super::format::SEGMENT_HEADER_BYTES;
use super::open::FoundSegment;
use super::replay::{FileSource, Source};
use super::tail::{Decision, Scanned, decide, first_without_header};
use super::{WalIoError, failed};
use crate::disk::Disk;

/// The records of the tail, and what of them counts.
pub(super) struct Reach {
    pub scanned: Scanned,
    pub decision: Decision,
    tail_start: usize,
}

impl Reach {
    /// Reads the tail: the segments from `tail_start` on.
    pub fn read(disk: &dyn Disk, segments: &[FoundSegment], tail_start: usize, cell: &CheckpointCell) -> Result<Self, WalIoError> {
        let mut scanned = Scanned::default();
        for (index, segment) in segments.iter().enumerate().skip(tail_start) {
            scanned.add(&mut FileSource::open(disk, &segment.path)?, index, segment.generation).map_err(failed(&segment.path, "read"))?;
        }
        let first = match segments.get(tail_start).and_then(|segment| segment.header) {
            Some(header) => header.first,
            None => first_without_header(&scanned.runs, cell.below),
        };
        let decision = decide(&scanned.runs, first, cell.durable_end);
        Ok(Self { scanned, decision, tail_start })
    }

    /// Is the checkpoint above everything that is there, and not only because bytes that are there are damaged?
    pub fn is_exceeded(&self, disk: &dyn Disk, segments: &[FoundSegment], cell: &CheckpointCell) -> Result<bool, WalIoError> {
        Ok(cell.below > self.decision.reached && !self.is_end_damaged(disk, segments, cell)?)
    }

    /// Stand bytes that were written between the last record that counts and the place where the log was known to end?
    fn is_end_damaged(&self, disk: &dyn Disk, segments: &[FoundSegment], cell: &CheckpointCell) -> Result<bool, WalIoError> {
        let Some(index) = segments.iter().position(|segment| segment.generation == cell.generation) else { return Ok(false) };
        let last_run = self.scanned.runs[..self.decision.accepted].last();
        if last_run.map_or(self.tail_start, |run| run.segment) > index {
            // The log goes on in a later segment, and the next recycling takes this one with all that is damaged in it.
            return Ok(false);
        }
        let from = last_run.filter(|run| run.segment == index).map_or(SEGMENT_HEADER_BYTES as u64, |run| run.end_at);
        let path = &segments[index].path;
        let mut source = FileSource::open(disk, path)?;
        let mut at = from;
        while at < cell.position {
            let view = source.view(at, SEGMENT_HEADER_BYTES).map_err(failed(path, "read"))?;
            let wanted = view.len().min(usize::try_from(cell.position - at).unwrap_or(usize::MAX));
            if wanted == 0 {
                break;
            }
            if view[..wanted].iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
            at += wanted as u64;
        }
        Ok(false)
    }
}
