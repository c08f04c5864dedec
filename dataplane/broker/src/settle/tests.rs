use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::journal::JournalConfig;

use super::*;

#[test]
fn of_two_rounds_at_once_neither_puts_an_older_state_over_a_newer_one() {
    const ROUNDS: u64 = 10_000;
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    disk.create_dir_all(Path::new("/settle")).expect("made");
    let (journal, kept) = Journal::open(disk, Path::new("/settle"), JournalConfig::default()).expect("opens");
    let store = SettleStore::new(journal, kept);
    let key = || (KIND_CURSOR, b"one".to_vec());
    let newest = Mutex::new(0_u64);
    let seen = AtomicU64::new(0);
    let write = || {
        for _ in 0..ROUNDS {
            {
                let mut newest = newest.lock();
                *newest += 1;
                store.put(key(), Some(Bytes::copy_from_slice(&newest.to_be_bytes())));
            }
            assert!(store.append_changed().is_ok());
            let journal = store.journal.lock();
            let written = journal.entries()[&key()].as_ref().try_into().map(u64::from_be_bytes).expect("a number");
            let before = seen.fetch_max(written, Ordering::Relaxed);
            assert!(before <= written, "{before} was in the journal, and {written} was put over it");
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(write);
        threads.spawn(write);
    });
}
