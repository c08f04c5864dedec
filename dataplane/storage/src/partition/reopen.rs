//! Opening a log whose last life ended badly: with a failed sync, with a last segment of which nothing can be read, or with last frames that
//! were promised and are not there.

use std::io;
use std::sync::Arc;

use tracing::info;
use veena_contract::{LogId, Offset, limits};

use super::Damage;
use super::append::{Active, PartitionLog};
use super::cache::LatchedAt;
use super::frame::{FRAME_HEADER_BYTES, Salt};
use super::index::{self, Index};
use super::layout::replace;
use super::open::{Found, FoundLog, OpenError, Opening, PartitionOpened, at, create_file, create_segment, store_at};
use super::recover::{Hole, Scan};
use super::segment::{FRAMES_START, FileKind, Segment, SegmentHeader};
use super::streams::{StreamsSnapshot, apply};
use super::wire::{len64, memory_len, read_full};
use crate::disk::DiskFile;

impl Opening {
    /// After a failed sync: the frames past the last good one are written anew, into a new segment, and cut off the old one.
    pub(super) fn rewrite_tail(&mut self, found: &mut Found, log_id: LogId, latched: LatchedAt) -> Result<(), OpenError> {
        let dir = self.dir.clone();
        let Some((base, _)) = found.logs.last_key_value().filter(|(base, _)| **base == latched.base) else {
            return Ok(());
        };
        let base = *base;
        let path = FileKind::Log.path(&dir, base);
        let (file, scan) = self.scan_active(base, log_id, latched.synced)?;
        let cut = scan.frames.iter().find(|frame| frame.position >= latched.synced).copied();
        if let Some(first) = cut {
            let is_replaced = first.header.base == base;
            let from = if is_replaced { FRAMES_START } else { first.position };
            let (StreamsSnapshot { mut marks, mut keys, mut last_commit_ms, .. }, _) = self.table_at(found, log_id, base)?;
            let kept = scan.frames.partition_point(|frame| frame.position < from);
            scan.sections.iter().filter(|(frame, _)| *frame < kept).for_each(|(_, section)| apply(&mut marks, section));
            scan.keys.iter().filter(|(frame, _)| *frame < kept).for_each(|(_, mark)| keys.note(*mark));
            last_commit_ms = scan.frames[..kept].last().map_or(last_commit_ms, |frame| frame.header.commit_ms);
            let new_base = first.header.base;
            let frames = moved_frames(file.as_ref(), &scan, kept, Salt::new(log_id, new_base)).map_err(at(&path))?;
            let holes: Vec<Hole> = scan.holes.iter().copied().filter(|hole| !is_replaced && hole.end <= from).collect();
            self.note_holes(&path, &holes);
            // 1 stream table   2 new segment   3 names   4 old segment cut   - after 3 the old segment's frames from the new base on are ignored
            let snapshot = StreamsSnapshot { log_id, base: new_base, last_commit_ms, marks, keys };
            snapshot.store(self.disk.as_ref(), &dir).map_err(store_at(&dir))?;
            self.disk.sync_dir(&dir).map_err(at(&dir))?;
            let header = SegmentHeader { log_id, base: new_base, leader_epoch: 0, ownership_epoch: 0, created_ms: first.header.commit_ms };
            create_file(self.disk.as_ref(), &dir, &header, &frames).map_err(store_at(&dir))?;
            self.disk.sync_dir(&dir).map_err(at(&dir))?;
            let len = FRAMES_START + len64(frames.len());
            found.logs.insert(new_base, FoundLog { len, has_header: true });
            if is_replaced {
                return Ok(());
            }
        }
        if cut.is_none() && scan.end_offset < self.promised {
            // The last promised frames are damaged: nothing of them is cut.
            return Ok(());
        }
        let end = cut.map_or(scan.end, |first| first.position);
        file.set_len(end).map_err(at(&path))?;
        file.sync_data().map_err(at(&path))?;
        found.logs.entry(base).and_modify(|log| log.len = end);
        info!(path = %path.display(), at = end, "tail past the last good sync was written anew");
        Ok(())
    }

    /// The last segment holds bytes and not one frame of it can be read. How many records it held is not known: the log goes on behind the
    /// highest offset it can have given.
    pub(super) fn open_behind_lost(
        mut self,
        log_id: LogId,
        lost: Offset,
        len: u64,
        mut segments: Vec<Arc<Segment>>,
        table: StreamsSnapshot,
    ) -> Result<(PartitionLog, PartitionOpened), OpenError> {
        let frames_max = len / len64(FRAME_HEADER_BYTES) + 1;
        let base = Offset(lost.get() + frames_max * len64(limits::FRAME_RECORDS_MAX)).max(self.promised);
        let path = FileKind::Log.path(&self.dir, lost);
        segments.push(Arc::new(Segment::sealed(lost, path.clone(), Salt::new(log_id, lost), len, None)));
        self.damage.push(Damage { path, at: 0, end: len, first: lost, next: base, reason: "segment is unreadable" });
        self.go_on_at(base, segments, table)
    }

    /// The last segment, or what is left of the log, ends below what was promised: the rest is a hole, whatever bytes it has stay, and the
    /// log goes on behind it in a new segment.
    pub(super) fn open_behind_promised(
        mut self,
        log_id: LogId,
        base: Offset,
        file: &dyn DiskFile,
        scan: &Scan,
        mut segments: Vec<Arc<Segment>>,
        table: StreamsSnapshot,
    ) -> Result<(PartitionLog, PartitionOpened), OpenError> {
        let path = FileKind::Log.path(&self.dir, base);
        let (len, next) = (file.len().map_err(at(&path))?, self.promised);
        let reason = if scan.torn.is_some() { "promised frames are damaged" } else { "promised frames are missing" };
        self.damage.push(Damage { path: path.clone(), at: scan.end, end: len.max(scan.end), first: scan.end_offset, next, reason });
        let mut index = Index::of_scan(base, scan);
        index.cover(next);
        // Derived: a failure costs a scan later, which then calls the hole a missing segment.
        let _ = index::store(self.disk.as_ref(), &self.dir, log_id, base, len, &index);
        segments.push(Arc::new(Segment::sealed(base, path, Salt::new(log_id, base), len, Some(index.summary()))));
        self.go_on_at(next, segments, table)
    }

    /// Starts a new segment at `base`; the earlier ones are as they are.
    fn go_on_at(
        self,
        base: Offset,
        mut segments: Vec<Arc<Segment>>,
        table: StreamsSnapshot,
    ) -> Result<(PartitionLog, PartitionOpened), OpenError> {
        let dir = self.dir.clone();
        // 1 stream table, synced   2 new segment, synced   3 both names   - a crash before 3 leaves the log as it was found
        let snapshot = StreamsSnapshot { base, ..table };
        snapshot.store(self.disk.as_ref(), &dir).map_err(store_at(&dir))?;
        let StreamsSnapshot { log_id, last_commit_ms, marks, keys, .. } = snapshot;
        let header = SegmentHeader { log_id, base, leader_epoch: 0, ownership_epoch: 0, created_ms: last_commit_ms };
        let (segment, file) = create_segment(self.disk.as_ref(), &dir, &header).map_err(store_at(&dir))?;
        self.disk.sync_dir(&dir).map_err(at(&dir))?;
        segments.push(Arc::clone(&segment));
        let active = Active::empty(segment, file);
        Ok(self.finish(log_id, segments, active, base, last_commit_ms, marks, keys, false))
    }
}

/// The frames from `kept` on, as they are to be written behind a new segment's header.
fn moved_frames(file: &dyn DiskFile, scan: &Scan, kept: usize, salt: Salt) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    for scanned in &scan.frames[kept..] {
        let mut bytes = vec![0; memory_len(scanned.header.frame_len())?];
        let read = read_full(file, &mut bytes, scanned.position)?;
        if read < bytes.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let position = FRAMES_START + len64(out.len());
        out.extend_from_slice(&replace(&scanned.header, &bytes, salt, position, FRAMES_START));
    }
    Ok(out)
}
