//! The position below which everything is dispatched, and what may be recycled because of it.

use std::sync::atomic::Ordering;

use tracing::warn;
use veena_contract::WalSeq;

use super::append::Shared;
use super::segments::Segment;
use super::{CHECKPOINT_CELL, Wal};
use crate::cell::{self, CellError, CellKind};

/// The checkpoint was not moved.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// It would pass records that are not durable.
    #[error("checkpoint {below} is beyond the durable end {end}")]
    BeyondEnd {
        /// What was asked for.
        below: WalSeq,
        /// What is durable.
        end: WalSeq,
    },
    /// Its cell was not written; the old one or the new one stands.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// The checkpoint cell: where replay starts, and proof of how much was durable when it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckpointCell {
    pub below: WalSeq,
    pub durable_end: WalSeq,
    /// Where the durable end stood: a segment and the place in it.
    pub generation: u64,
    pub position: u64,
}

impl CheckpointCell {
    pub fn encode(self) -> Vec<u8> {
        [self.below.0, self.durable_end.0, self.generation, self.position].iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        let cell = Self { below: WalSeq(number(0)?), durable_end: WalSeq(number(8)?), generation: number(16)?, position: number(24)? };
        // Nothing is dispatched before it is durable, so no log wrote such a cell.
        (cell.below <= cell.durable_end).then_some(cell)
    }
}

impl Wal {
    /// Says that every record below `below` is safe elsewhere. Going back is ignored. Blocks.
    ///
    /// # Errors
    /// [`CheckpointError`]; nothing was recycled.
    pub fn checkpoint(&self, below: WalSeq) -> Result<(), CheckpointError> {
        let shared = &self.handle.shared;
        let mut current = shared.checkpoint.lock();
        if below <= *current {
            return Ok(());
        }
        let cell = {
            let log = shared.log.lock();
            let (generation, position) = log.durable_at;
            CheckpointCell { below, durable_end: shared.durable_end(), generation, position }
        };
        if below > cell.durable_end {
            return Err(CheckpointError::BeyondEnd { below, end: cell.durable_end });
        }
        // 1 cell synced   2 segments recycled    — a crash between leaves segments that the next open recycles
        cell::write(&*shared.disk, &shared.dir.join(CHECKPOINT_CELL), CellKind::WAL_CHECKPOINT, &cell.encode())?;
        *current = below;
        shared.rotate(below);
        shared.recycle(below);
        Ok(())
    }
}

impl Shared {
    /// A fully dispatched active segment that holds enough is closed; the next group goes into a new one.
    fn rotate(&self, below: WalSeq) {
        let mut log = self.log.lock();
        let is_dispatched = log.next_seq == below;
        if let Some(active) = log.active.as_mut().filter(|active| is_dispatched && active.position >= self.config.rotate_bytes_min) {
            active.is_closing = true;
        }
    }

    /// Segments wholly below the checkpoint become spares. The newest whose header is on the disk stays: it tells where the log ends.
    pub fn recycle(&self, below: WalSeq) {
        let freed: Vec<Segment> = {
            let mut log = self.log.lock();
            let kept = log.segments.iter().rposition(|segment| segment.is_durable && segment.first <= below);
            log.segments.drain(..kept.unwrap_or(0)).collect()
        };
        for segment in freed {
            self.live_bytes.fetch_sub(segment.used, Ordering::Relaxed);
            if let Err(error) = self.recycle_file(&segment) {
                warn!(file = %segment.path.display(), err = &error as &dyn std::error::Error, "a dispatched segment was not recycled; the next start tries again");
            }
        }
    }

    fn recycle_file(&self, segment: &Segment) -> std::io::Result<()> {
        if self.spares.count() >= self.config.spare_max {
            return self.disk.remove_file(&segment.path);
        }
        let spare = self.spares.name_for_recycled();
        self.disk.rename(&segment.path, &spare)?;
        self.spares.put(spare);
        Ok(())
    }
}
