//! A group-committed log of one pre-written file: while one sync runs, everything that arrives forms the next group.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

const FILE_BYTES: u64 = 64 * 1024 * 1024;
const HEADER_BYTES: usize = 24;

/// Records that share a sync.
#[derive(Default)]
struct Group {
    is_synced: AtomicBool,
    synced: Notify,
}

#[derive(Default)]
struct Staged {
    bytes: Vec<u8>,
    group: Arc<Group>,
    sequence: u64,
    generation: u32,
    is_closed: bool,
}

/// The log.
pub struct GroupLog {
    staged: Mutex<Staged>,
    arrived: Condvar,
    syncs: AtomicU64,
}

impl GroupLog {
    /// Pre-writes the file at `path` and starts the flush thread; every sync takes `slow` longer than it would.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(path: &Path, slow: Duration) -> io::Result<Arc<Self>> {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
        let zeros = vec![0; 1024 * 1024];
        for _ in 0..FILE_BYTES / 1_048_576 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        let log = Arc::new(Self { staged: Mutex::default(), arrived: Condvar::new(), syncs: AtomicU64::new(0) });
        let shared = log.clone();
        std::thread::Builder::new().name("yardstick-flush".into()).spawn(move || shared.flush(&file, slow))?;
        Ok(log)
    }

    /// Stages a record and waits until it is synced.
    pub async fn append(&self, record: &[u8]) {
        let group = self.stage(record);
        let synced = group.synced.notified();
        if !group.is_synced.load(Ordering::Acquire) {
            synced.await;
        }
    }

    fn stage(&self, record: &[u8]) -> Arc<Group> {
        let mut staged = self.staged.lock();
        staged.sequence += 1;
        let (sequence, generation) = (staged.sequence, staged.generation);
        let length = u32::try_from(record.len()).unwrap_or(u32::MAX);
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(b"YARD");
        header[4..8].copy_from_slice(&length.to_be_bytes());
        header[8..16].copy_from_slice(&sequence.to_be_bytes());
        header[16..20].copy_from_slice(&generation.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..20]), record);
        header[20..].copy_from_slice(&crc.to_be_bytes());
        let was_empty = staged.bytes.is_empty();
        staged.bytes.extend_from_slice(&header);
        staged.bytes.extend_from_slice(record);
        let group = staged.group.clone();
        drop(staged);
        if was_empty {
            self.arrived.notify_one();
        }
        group
    }

    fn flush(&self, file: &File, slow: Duration) {
        let mut position = 0;
        let mut spare = Vec::new();
        loop {
            let (bytes, group) = {
                let mut staged = self.staged.lock();
                while staged.bytes.is_empty() {
                    if staged.is_closed {
                        return;
                    }
                    self.arrived.wait(&mut staged);
                }
                let bytes = std::mem::replace(&mut staged.bytes, std::mem::take(&mut spare));
                if position + bytes.len() as u64 > FILE_BYTES {
                    position = 0;
                    staged.generation += 1;
                }
                (bytes, std::mem::take(&mut staged.group))
            };
            // A failed sync must end a server that promises durability.
            file.write_all_at(&bytes, position).and_then(|()| file.sync_data()).expect("invariant: the yardstick's disk works");
            if !slow.is_zero() {
                std::thread::sleep(slow);
            }
            self.syncs.fetch_add(1, Ordering::Relaxed);
            group.is_synced.store(true, Ordering::Release);
            group.synced.notify_waiters();
            position += bytes.len() as u64;
            spare = bytes;
            spare.clear();
        }
    }

    /// How often the file was synced.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Ends the flush thread once everything staged is synced.
    pub fn close(&self) {
        self.staged.lock().is_closed = true;
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn everything_answered_is_in_the_file_and_shares_syncs() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let log = GroupLog::open(&path, Duration::from_millis(2)).expect("a writable directory");
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..200_u32 {
            let log = log.clone();
            tasks.spawn(async move { log.append(format!("record {number:03}").as_bytes()).await });
        }
        while tasks.join_next().await.is_some() {}
        let file = std::fs::read(&path).expect("a readable file");
        let mut seen = std::collections::BTreeSet::new();
        for record in file.chunks(HEADER_BYTES + 10).take(200) {
            let (header, body) = record.split_at(HEADER_BYTES);
            assert_eq!(&header[..4], b"YARD");
            let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..20]), body);
            assert_eq!(header[20..], crc.to_be_bytes());
            seen.insert(body.to_vec());
        }
        assert_eq!(seen.len(), 200);
        assert!((1..200).contains(&log.syncs()), "{} syncs", log.syncs());
        log.close();
    }
}
