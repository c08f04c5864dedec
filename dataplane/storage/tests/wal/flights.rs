//! Several groups in flight: they land in order, together or not at all, and only where it pays.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use veena_contract::{Entropy, WalSeq};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{DirEntry, DirLock, Disk, DiskFile, OpenMode, Space};
use veena_storage::io::Io;
use veena_storage::wal::{AppendError, OnDurable, Staged, Wal, WalConfig, WalRecord};

use super::{DIR, config, entries, rig, segments, text};
use crate::support::Seeded;

#[test]
fn nobody_is_told_of_a_group_before_those_in_front_of_it_are_durable() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let mut staged = Vec::new();
    let mut written = Vec::new();
    for body in ["a", "b", "c"] {
        staged.push(log.wal.stage(entries(&[body])).expect("staged"));
        written.push(log.wal.write_now().expect("several may be in flight"));
    }
    log.wal.sync_now(&written[2]);
    log.wal.sync_now(&written[1]);
    assert!(staged.iter_mut().all(|staged| staged.try_outcome().is_none()), "the first is not durable yet");
    assert!(log.told.lock().is_empty());
    assert_eq!(log.wal.status().durable_end, WalSeq(0));
    log.wal.sync_now(&written[0]);
    let sequences: Vec<u64> = staged.iter_mut().map(|staged| staged.try_outcome().expect("landed").expect("durable").first.0).collect();
    assert_eq!(sequences, [0, 1, 2]);
    assert_eq!(log.told.lock().iter().map(text).collect::<Vec<_>>(), ["a", "b", "c"], "and the dispatcher hears of them in order");
    assert_eq!((log.wal.status().durable_end, log.wal.status().staged_bytes), (WalSeq(3), 0));
}

#[test]
fn a_failed_sync_fails_every_group_in_flight() {
    for failing in 0..3 {
        let disk = MemDisk::new();
        let log = rig(&disk, 1);
        log.append(&["before"]).expect("durable");
        let mut staged = Vec::new();
        let mut written = Vec::new();
        for body in ["a", "b", "c"] {
            staged.push(log.wal.stage(entries(&[body])).expect("staged"));
            written.push(log.wal.write_now().expect("in flight"));
        }
        disk.inject(Fault { op: Op::Sync, path_contains: DIR.to_owned(), after: 0, times: 1, kind: FaultKind::Eio });
        log.wal.sync_now(&written[failing]);
        let syncs = disk.syncs();
        written.iter().for_each(|written| log.wal.sync_now(written));
        assert_eq!(disk.syncs(), syncs, "pages of a failed sync are never synced again");
        for staged in &mut staged {
            assert_eq!(staged.try_outcome(), Some(Err(AppendError::Latched)), "group {failing} failed");
        }
        assert_eq!((log.wal.status().durable_end, log.wal.status().staged_bytes), (WalSeq(1), 0));
        assert_eq!(log.told.lock().len(), 1);
        log.wal.close();
        disk.crash_kill();
        assert_eq!(rig(&disk.reopen(), 2).bodies(), ["before"]);
    }
}

#[test]
fn a_power_cut_with_groups_in_flight_keeps_a_prefix_and_everything_that_was_told() {
    let mut kept = [0; 4];
    for seed in 0..400 {
        let disk = MemDisk::with_block_bytes(512);
        let log = rig(&disk, 1);
        let mut staged: Vec<Staged> = Vec::new();
        let mut written = Vec::new();
        for body in ["a", "b", "c"] {
            staged.push(log.wal.stage(entries(&[&body.repeat(700)])).expect("staged"));
            written.push(log.wal.write_now().expect("in flight"));
        }
        let random = Seeded::new(seed);
        // the first lands while the others are in flight, or none does
        if seed % 2 == 0 {
            log.wal.sync_now(&written[0]);
        }
        let told = staged.iter_mut().filter_map(Staged::try_outcome).filter(Result::is_ok).count();
        disk.crash_power(&mut || random.next_u64());
        let again = rig(&disk.reopen(), 2);
        assert!(again.opened.damage.is_empty(), "seed {seed}: nothing that was promised is missing: {:?}", again.opened.damage);
        let bodies: String = again.bodies().iter().filter_map(|body| body.chars().next()).collect();
        assert!("abc".starts_with(&bodies), "seed {seed}: {bodies}");
        assert!(bodies.len() >= told, "seed {seed}: {told} were told, {bodies} is there");
        kept[bodies.len()] += 1;
        again.append(&["d"]).expect("it goes on");
        again.wal.close();
        let last = rig(&disk.reopen(), 3);
        let all: String = last.bodies().iter().filter_map(|body| body.chars().next()).collect();
        assert_eq!(all, format!("{bodies}d"), "seed {seed}: what was cut never comes back");
        last.wal.close();
    }
    assert!(kept[0] > 0 && kept[3] > 0, "{kept:?}");
}

#[test]
fn a_new_segment_is_begun_only_when_nothing_is_in_flight() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let first = log.wal.stage(entries(&[&"x".repeat(3500)])).expect("staged");
    let written = log.wal.write_now().expect("in flight");
    let mut second = log.wal.stage(entries(&[&"y".repeat(3500)])).expect("staged");
    assert!(log.wal.write_now().is_none(), "it does not fit this segment, and the first is not durable");
    assert_eq!(segments(&disk).len(), 1);
    let mut third = log.wal.stage(entries(&["z"])).expect("staged");
    assert!(log.wal.write_now().is_none(), "and nothing overtakes it");
    log.wal.sync_now(&written);
    log.wal.flush_now();
    assert_eq!(segments(&disk).len(), 2);
    let (mut first, order) = (first, [WalSeq(0), WalSeq(1), WalSeq(2)]);
    let got = [&mut first, &mut second, &mut third].map(|staged| staged.try_outcome().expect("landed").expect("durable").first);
    assert_eq!(got, order);
}

#[test]
fn the_first_that_arrive_do_not_take_the_places_of_the_many_behind_them() {
    let disk = MemDisk::new();
    let log = rig(&disk, 1);
    let stage = |count: usize| (0..count).map(|_| log.wal.stage(entries(&["x"])).expect("staged")).collect::<Vec<_>>();
    let mut staged = stage(1);
    let one = log.wal.write_now().expect("alone, one record is a group");
    log.wal.sync_now(&one);
    staged.extend(stage(35));
    let many = log.wal.write_now().expect("nothing else is in flight");
    staged.extend(stage(4));
    assert!(log.wal.write_now().is_none(), "four of 39 are less than an eighth");
    staged.extend(stage(1));
    let share = log.wal.write_now().expect("five of 40 are an eighth");
    staged.extend(stage(1));
    assert!(log.wal.write_now().is_none());
    log.wal.sync_now(&many);
    log.wal.sync_now(&share);
    log.wal.flush_now();
    assert!(staged.iter_mut().all(|staged| matches!(staged.try_outcome(), Some(Ok(_)))), "and all land");
}

#[test]
fn a_slow_disk_has_the_next_group_before_the_callers_of_the_one_before_are_told() {
    let mem = MemDisk::new();
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (sink, files) = (Arc::clone(&seen), mem.clone());
    let on_durable = Arc::new(move |records: Vec<WalRecord>| {
        let is_second_written = log_bytes(&files).windows(6).any(|part| part == b"second");
        sink.lock().extend(records.iter().map(|record| (text(record), is_second_written)));
    });
    let wal = with_hook(&mem, on_durable, |wal| drop(wal.stage(entries(&["second"])).expect("staged")));
    drop(wal.stage(entries(&["first"])).expect("staged"));
    wal.flush_now();
    let told = [("before", false), ("first", true), ("second", true)].map(|(text, is_written)| (text.to_owned(), is_written));
    assert_eq!(*seen.lock(), told);
    wal.close();
}

/// All bytes of the only segment.
fn log_bytes(disk: &MemDisk) -> Vec<u8> {
    let segment = disk.open(&segments(disk)[0], OpenMode::Read).expect("there");
    let mut bytes = vec![0; usize::try_from(segment.len().expect("a length")).expect("small")];
    segment.read_at(&mut bytes, 0).expect("read");
    bytes
}

/// A log by hand that holds "before", and has `during` happen while the next group is synced.
fn with_hook(mem: &MemDisk, on_durable: OnDurable, during: impl FnOnce(&Wal) + Send + 'static) -> Wal {
    let during_sync = DuringSync::default();
    let disk = CountingDisk { during_sync: Arc::clone(&during_sync), ..CountingDisk::new(mem, Duration::ZERO) };
    let (wal, _) = Wal::open(Arc::new(disk), Path::new(DIR), config(), &Seeded::new(1)).expect("opened");
    wal.start_by_hand(on_durable);
    drop(wal.stage(entries(&["before"])).expect("staged"));
    wal.flush_now();
    let late = wal.clone();
    *during_sync.lock() = Some(Box::new(move || during(&late)));
    wal
}

#[test]
fn a_group_that_cannot_be_written_takes_nothing_from_the_one_before_that_was_synced() {
    let mem = MemDisk::new();
    let second = Arc::new(parking_lot::Mutex::new(None));
    let (slot, disk) = (Arc::clone(&second), mem.clone());
    let wal = with_hook(&mem, Arc::new(|_| {}), move |wal| {
        disk.inject(Fault { op: Op::Write, path_contains: DIR.to_owned(), after: 0, times: 1, kind: FaultKind::Eio });
        *slot.lock() = Some(wal.stage(entries(&["second"])).expect("staged"));
    });
    let mut first = wal.stage(entries(&["first"])).expect("staged");
    wal.flush_now();
    assert!(matches!(first.try_outcome(), Some(Ok(_))), "it was synced before the other was tried");
    let mut second = second.lock().take().expect("staged");
    assert_eq!(second.try_outcome(), Some(Err(AppendError::Latched)));
    assert!(wal.status().latched.is_some());
    wal.close();
    mem.crash_kill();
    assert_eq!(rig(&mem.reopen(), 2).bodies(), ["before", "first"]);
}

#[test]
fn a_group_that_is_written_while_one_lands_proves_it() {
    let mem = MemDisk::new();
    let wal = with_hook(&mem, Arc::new(|_| {}), |wal| drop(wal.stage(entries(&["second"])).expect("staged")));
    drop(wal.stage(entries(&["first"])).expect("staged"));
    wal.flush_now();
    wal.close();
    mem.crash_kill();
    // a bit of the first record, whose group was told, rots
    let disk = mem.reopen();
    let path = segments(&disk)[0].clone();
    let file = disk.open(&path, OpenMode::ReadWrite).expect("there");
    let bytes = log_bytes(&disk);
    let at = bytes.windows(5).position(|part| part == b"first").expect("written");
    file.write_at(&[bytes[at] ^ 1], at as u64).expect("written");
    let again = rig(&disk, 2);
    assert!(!again.opened.damage.is_empty(), "the second group proves that the first was synced: it is damage, not a torn end");
    assert_eq!(again.bodies(), ["before", "second"]);
}

#[test]
fn a_dispatcher_that_panics_while_the_next_group_is_written_fails_both_and_the_log_says_so() {
    let mem = MemDisk::new();
    let second = Arc::new(parking_lot::Mutex::new(None));
    let slot = Arc::clone(&second);
    let on_durable = Arc::new(|records: Vec<WalRecord>| assert_ne!(text(&records[0]), "first", "a bug behind the log"));
    let wal = with_hook(&mem, on_durable, move |wal| *slot.lock() = Some(wal.stage(entries(&["second"])).expect("staged")));
    let mut first = wal.stage(entries(&["first"])).expect("staged");
    wal.flush_now();
    assert_ne!(first.try_outcome().map(|outcome| outcome.is_ok()), Some(true));
    let mut second = second.lock().take().expect("staged");
    assert_ne!(second.try_outcome().map(|outcome| outcome.is_ok()), Some(true));
    assert!(wal.status().latched.is_some());
    assert!(wal.stage(entries(&["third"])).is_err());
    wal.close();
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_full_group_leaves_behind_is_written_before_that_lands() {
    let mem = MemDisk::new();
    let seen = Arc::new(parking_lot::Mutex::new(None));
    let (sink, files) = (Arc::clone(&seen), mem.clone());
    let config = WalConfig { segment_bytes: 64 << 20, staged_bytes_max: 64 << 20, undispatched_bytes_max: 64 << 20, ..config() };
    let during_sync = DuringSync::default();
    let disk = CountingDisk { during_sync: Arc::clone(&during_sync), ..CountingDisk::new(&mem, Duration::ZERO) };
    let (wal, _) = Wal::open(Arc::new(disk), Path::new(DIR), config, &Seeded::new(1)).expect("opened");
    wal.start(&Io::inline(), Arc::new(|_| {}));
    wal.stage(entries(&["before"])).expect("staged").await.expect("durable");
    // whoever wrote that waits for more now
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    *during_sync.lock() = Some(Box::new(move || {
        let bytes = log_bytes(&files);
        *sink.lock() = Some((0..10).filter(|n| bytes.windows(3).any(|part| part == [b'#', b'0' + n, b'.'])).collect::<Vec<u8>>());
    }));
    let body = |n: u8| format!("#{n}.{}", "x".repeat(1_000_000));
    let staged: Vec<Staged> = (0..10).map(|n| wal.stage(entries(&[&body(n)])).expect("staged")).collect();
    for staged in staged {
        staged.await.expect("durable");
    }
    assert_eq!(seen.lock().take(), Some((0..10).collect()), "eight are a group; the other two are not left waiting for it");
    wal.close();
}

/// What a test does while a sync runs.
type DuringSync = Arc<parking_lot::Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Passes everything on; each sync of a segment takes a while, and how many run at once is counted.
struct CountingDisk {
    inner: MemDisk,
    sync_takes: Duration,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    during_sync: DuringSync,
}

struct CountingFile {
    inner: Arc<dyn DiskFile>,
    sync_takes: Duration,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    during_sync: DuringSync,
}

impl CountingDisk {
    fn new(inner: &MemDisk, sync_takes: Duration) -> Self {
        Self { inner: inner.clone(), sync_takes, running: Arc::default(), most: Arc::default(), during_sync: Arc::default() }
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, mode)?;
        let (running, most, during_sync) = (Arc::clone(&self.running), Arc::clone(&self.most), Arc::clone(&self.during_sync));
        Ok(Arc::new(CountingFile { inner, sync_takes: self.sync_takes, running, most, during_sync }))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }
    fn lock_dir(&self, dir: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock_dir(dir)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

impl DiskFile for CountingFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_at(buf, at)
    }
    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<usize> {
        self.inner.write_at(buf, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(self.sync_takes);
        if let Some(act) = self.during_sync.lock().take() {
            act();
        }
        let outcome = self.inner.sync_data();
        self.running.fetch_sub(1, Ordering::SeqCst);
        outcome
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn drop_cache(&self) -> io::Result<()> {
        self.inner.drop_cache()
    }
}

/// Appends from `threads` at once until the log holds `appends`; answers how many syncs of the log ran at once at most.
fn syncs_at_once(sync_takes: Duration, threads: usize, appends: usize) -> usize {
    let mem = MemDisk::new();
    let disk = CountingDisk::new(&mem, sync_takes);
    let most = Arc::clone(&disk.most);
    let config = WalConfig { segment_bytes: 1024 * 1024, ..config() };
    let (wal, _) = Wal::open(Arc::new(disk), Path::new(DIR), config, &Seeded::new(1)).expect("opened");
    most.store(0, Ordering::SeqCst);
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    wal.start(&Io::threads(1), Arc::new(move |records| sink.lock().extend(records)));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
                for _ in 0..appends / threads {
                    runtime.block_on(wal.stage(entries(&["x"])).expect("staged")).expect("durable");
                }
            });
        }
    });
    wal.close();
    let sequences: Vec<u64> = told.lock().iter().map(|record| record.seq.0).collect();
    assert!(sequences.iter().copied().eq(0..(appends / threads * threads) as u64), "each once, in order");
    assert_eq!(rig(&mem.reopen(), 2).bodies().len(), sequences.len());
    most.load(Ordering::SeqCst)
}

#[test]
fn a_slow_disk_gets_several_groups_at_once() {
    let most = syncs_at_once(Duration::from_millis(10), 16, 800);
    assert!((2..=8).contains(&most), "{most} syncs at once");
}
