//! From written to visible: synced, read back, published. Each step takes the proof of the one before.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use veena_contract::Offset;

use super::append::{Appended, PartitionLog, WrittenFrame};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader};
use super::segment::Segment;
use super::wire::{len64, read_full};
use crate::disk::DiskFile;

/// How much is read back at once.
const READ_BACK_BYTES: usize = 128 * 1024;

/// The log takes no more writes in this life.
#[derive(Debug, thiserror::Error)]
#[error("partition log {path} is latched")]
pub struct LogLatched {
    /// The file whose sync failed.
    pub path: PathBuf,
    /// What the sync answered; absent when the log was latched before.
    #[source]
    pub cause: Option<io::Error>,
}

/// What was read back is not what was written. The log is latched; the frames are never published.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A frame differs.
    #[error("frame at {position} of {path} does not read back as written")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where the frame starts.
        position: u64,
    },
    /// Reading failed.
    #[error("{path} cannot be read back")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the file system answered.
        #[source]
        cause: io::Error,
    },
}

/// Frames that are on the device.
#[must_use = "an append that is not verified and published latches the log"]
pub struct Synced(Appended);

/// Frames that are on the device and read back as written. The only thing that moves a high watermark.
#[must_use = "an append that is not published latches the log"]
pub struct Verified(Appended);

/// Records that readers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// The first record's offset.
    pub first: Offset,
    /// The offset behind the last record: the new high watermark.
    pub end: Offset,
    /// Commit time, in ms.
    pub commit_ms: u64,
}

impl PartitionLog {
    /// Makes the append durable.
    ///
    /// # Errors
    /// [`LogLatched`]: whether the records are stored shows when the log is opened again.
    pub fn sync(&mut self, appended: Appended) -> Result<Synced, LogLatched> {
        if self.is_latched() {
            return Err(LogLatched { path: self.active.segment.path.clone(), cause: None });
        }
        assert!(Arc::ptr_eq(&appended.segment, &self.active.segment), "invariant: an append is synced by the log that made it");
        if !appended.frames.is_empty()
            && let Err(error) = self.active.file.sync_data()
        {
            self.shared.latch(&self.active, "a sync failed");
            return Err(LogLatched { path: self.active.segment.path.clone(), cause: Some(error) });
        }
        self.active.is_cut &= appended.frames.is_empty();
        Ok(Synced(appended))
    }

    /// Reads every frame of the append back and checks its CRCs.
    ///
    /// # Errors
    /// [`VerifyError`]; the log is latched.
    pub fn verify(&self, synced: Synced) -> Result<Verified, VerifyError> {
        let Synced(appended) = synced;
        for frame in &appended.frames {
            if let Err(error) = read_back(self.active.file.as_ref(), &appended.segment, frame) {
                self.shared.latch(&self.active, "a frame does not read back as written");
                return Err(error);
            }
        }
        Ok(Verified(appended))
    }

    /// Makes the records visible: they go into the cache and below the high watermark. Nothing can fail from here on.
    pub fn publish(&mut self, verified: Verified) -> Visible {
        let Verified(appended) = verified;
        assert!(Arc::ptr_eq(&appended.segment, &self.active.segment), "invariant: an append is published by the log that made it");
        if !veena_contract::sabotage::is("watermark_before_verify") {
            self.expose(&appended);
        }
        appended.frames.iter().for_each(|frame| self.keys.note_frame(&frame.decoded));
        self.active.synced = appended.position_end;
        self.last_commit_ms = appended.commit_ms;
        self.is_append_open = false;
        Visible { first: appended.first, end: appended.end, commit_ms: appended.commit_ms }
    }

    /// Shows frames to readers. Only [`PartitionLog::publish`] may call it (and the planted bug that tests look for).
    pub(super) fn expose(&mut self, appended: &Appended) {
        for frame in &appended.frames {
            if frame.header.records > 0 {
                self.active.first_ms.get_or_insert(appended.commit_ms);
            }
            self.shared.cache.insert(self.shared.log_id, Arc::clone(&frame.decoded));
            appended.segment.extend(&frame.header, frame.position);
        }
        self.shared.high_watermark.store(appended.end.get(), Ordering::Release);
    }
}

fn read_back(file: &dyn DiskFile, segment: &Segment, frame: &WrittenFrame) -> Result<(), VerifyError> {
    let io_error = |cause| VerifyError::Io { path: segment.path.clone(), cause };
    let corrupt = || VerifyError::Corrupt { path: segment.path.clone(), position: frame.position };
    let body_len = frame.header.stored_len as usize;
    let mut buf = vec![0; (FRAME_HEADER_BYTES + body_len).min(READ_BACK_BYTES)];
    let mut read = read_full(file, &mut buf, frame.position).map_err(io_error)?;
    let header = FrameHeader::decode(buf.get(..read).unwrap_or_default(), segment.salt, frame.position).map_err(|_| corrupt())?;
    if header != frame.header {
        return Err(corrupt());
    }
    let mut crc = crc32c::crc32c(&buf[FRAME_HEADER_BYTES..read]);
    let mut done = read - FRAME_HEADER_BYTES;
    while done < body_len {
        let want = (body_len - done).min(READ_BACK_BYTES);
        let at = frame.position + len64(FRAME_HEADER_BYTES + done);
        read = read_full(file, &mut buf[..want], at).map_err(io_error)?;
        if read == 0 {
            return Err(corrupt());
        }
        crc = crc32c::crc32c_append(crc, &buf[..read]);
        done += read;
    }
    if crc == frame.header.body_crc { Ok(()) } else { Err(corrupt()) }
}
