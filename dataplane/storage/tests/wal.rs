mod crash;
mod damage;
mod faults;
mod format;
mod lanes;
mod life;
mod parked;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use veena_contract::{StreamId, WalSeq};
use veena_storage::disk::mem::MemDisk;
use veena_storage::disk::{Disk, OpenMode, read_full_at, write_all_at};
use veena_storage::wal::{
    AppendError, Destination, RecordKind, Wal, WalConfig, WalEntries, WalEntry, WalGap, WalOpenError, WalOpened, WalRange, WalRecord,
};

use crate::support::Seeded;

pub const DIR: &str = "/data/wal";

pub fn config() -> WalConfig {
    WalConfig {
        segment_bytes: 8192,
        rotate_bytes_min: 6000,
        spare_max: 2,
        staged_bytes_max: 1024 * 1024,
        undispatched_bytes_max: 16 * 1024 * 1024,
    }
}

pub fn entry(body: impl Into<Bytes>) -> WalEntry {
    WalEntry { kind: RecordKind::Accept, destination: Destination { group: 7, partition: 3 }, body: body.into() }
}

pub fn entries(bodies: &[&str]) -> WalEntries {
    bodies.iter().map(|body| entry((*body).to_owned())).collect()
}

/// A WAL whose groups are written by hand, and what it said was durable.
pub struct Rig {
    pub wal: Wal,
    pub opened: WalOpened,
    pub told: Arc<Mutex<Vec<WalRecord>>>,
}

pub fn try_rig(disk: &MemDisk, seed: u64) -> Result<Rig, WalOpenError> {
    let (wal, opened) = Wal::open(Arc::new(disk.clone()), Path::new(DIR), config(), &Seeded::new(seed))?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    wal.start_by_hand(Arc::new(move |records| sink.lock().extend(records)));
    Ok(Rig { wal, opened, told })
}

pub fn rig(disk: &MemDisk, seed: u64) -> Rig {
    try_rig(disk, seed).expect("opened")
}

impl Rig {
    /// Appends one group of one call.
    pub fn append(&self, bodies: &[&str]) -> Result<WalRange, AppendError> {
        let mut staged = self.wal.stage(entries(bodies)).expect("staged");
        self.wal.flush_now();
        staged.try_outcome().expect("flushed")
    }

    /// Every record of a range, read in small steps, and the gaps.
    pub fn read(&self, from: WalSeq, end: WalSeq) -> (Vec<WalRecord>, Vec<WalGap>) {
        let (mut records, mut gaps, mut next) = (Vec::new(), Vec::new(), from);
        while next < end {
            let step = self.wal.read_backlog(next, end, 100).expect("read");
            assert!(step.next > next, "a step goes forward");
            records.extend(step.records);
            gaps.extend(step.gaps);
            next = step.next;
        }
        (records, gaps)
    }

    /// What was in the log when it was opened.
    pub fn backlog(&self) -> (Vec<WalRecord>, Vec<WalGap>) {
        self.read(self.opened.checkpoint, self.opened.end)
    }

    pub fn bodies(&self) -> Vec<String> {
        self.backlog().0.iter().map(text).collect()
    }
}

pub fn text(record: &WalRecord) -> String {
    String::from_utf8_lossy(&record.body).into_owned()
}

/// The segment files of a log, oldest first.
pub fn segments(disk: &MemDisk) -> Vec<PathBuf> {
    let listed = disk.list(Path::new(DIR)).expect("listed");
    listed.into_iter().filter(|entry| entry.name.ends_with(".wal")).map(|entry| Path::new(DIR).join(entry.name)).collect()
}

pub fn file_bytes(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("opened");
    let mut bytes = vec![0; usize::try_from(file.len().expect("length")).expect("small")];
    read_full_at(&*file, &mut bytes, 0).expect("read");
    bytes
}

pub fn overwrite(disk: &MemDisk, path: &Path, bytes: &[u8], at: u64) {
    let file = disk.open(path, OpenMode::ReadWrite).expect("opened");
    write_all_at(&*file, bytes, at).expect("written");
    file.sync_data().expect("synced");
}

pub fn streams_of(records: &[WalRecord]) -> Vec<StreamId> {
    let mut streams: Vec<StreamId> = records.iter().map(|record| record.stream).collect();
    streams.dedup();
    streams
}

/// Compares with a committed file of hexadecimal lines; `VEENA_BLESS=1` writes it.
pub fn assert_golden(name: &str, bytes: &[u8]) {
    use std::fmt::Write;
    let mut hex = String::new();
    for line in bytes.chunks(16) {
        for byte in line {
            write!(hex, "{byte:02x}").expect("a string takes everything");
        }
        hex.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("VEENA_BLESS").is_some() {
        std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, hex.as_bytes()))
            .expect("blessed");
    }
    let golden = std::fs::read_to_string(&path).expect("a golden file");
    assert_eq!(hex, golden, "{name} changed: a format that is on disks must not");
}
