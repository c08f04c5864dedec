//! The settle journal: what was synced is never lost, whatever happens, and never comes back older.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use veena_contract::Effect;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::disk::{Disk, OpenMode};
use veena_storage::journal::{Change, Entries, Journal, JournalConfig, JournalError, KEY_BYTES_MAX, VALUE_BYTES_MAX, scan};

const SMALL: JournalConfig = JournalConfig { compact_bytes_min: 2048, compact_ratio: 4 };

fn dir() -> &'static Path {
    Path::new("/data/settle")
}

fn file(generation: u64) -> PathBuf {
    dir().join(format!("settle-{generation:016x}.journal"))
}

fn disk() -> MemDisk {
    let disk = MemDisk::with_block_bytes(64);
    disk.create_dir_all(Path::new("/data")).expect("an empty disk");
    disk.sync_dir(Path::new("/")).expect("an empty disk");
    disk
}

fn open(disk: &MemDisk) -> (Journal, Entries) {
    Journal::open(Arc::new(disk.clone()), dir(), SMALL).expect("the journal opens")
}

fn put(key: &'static str, value: &'static str) -> Change<'static> {
    (1, key.as_bytes(), Some(value.as_bytes()))
}

fn map(pairs: &[(&str, &str)]) -> Entries {
    pairs.iter().map(|(key, value)| ((1, key.as_bytes().to_vec()), Bytes::copy_from_slice(value.as_bytes()))).collect()
}

fn read(disk: &MemDisk, path: &Path) -> Vec<u8> {
    let file = disk.open(path, OpenMode::Read).expect("the file is there");
    let mut bytes = vec![0; usize::try_from(file.len().expect("a length")).expect("a small file")];
    let count = file.read_at(&mut bytes, 0).expect("readable");
    assert_eq!(count, bytes.len());
    bytes
}

#[test]
fn the_last_write_of_a_key_counts_after_a_process_kill() {
    let disk = disk();
    let (mut journal, entries) = open(&disk);
    assert!(entries.is_empty());
    journal.append(&[put("a", "1"), put("b", "1")]).expect("room");
    journal.append(&[put("a", "2"), (1, b"b", None), (2, b"a", Some(b"other kind"))]).expect("room");
    disk.crash_kill();
    let (journal, entries) = open(&disk.reopen());
    let mut expected = map(&[("a", "2")]);
    expected.insert((2, b"a".to_vec()), Bytes::from_static(b"other kind"));
    assert_eq!(entries, expected);
    assert_eq!(journal.entries(), &expected);
    assert!(journal.report().damaged.is_empty());
}

#[test]
fn what_was_synced_survives_a_power_cut_and_the_rest_is_whole_or_gone() {
    for seed in 0..200_u64 {
        let disk = disk();
        let (mut journal, _) = open(&disk);
        journal.append(&[put("a", "synced")]).expect("room");
        journal.sync().expect("a good disk");
        journal.append(&[put("a", "newer"), put("b", "newer")]).expect("room");
        let mut random = random(seed);
        disk.crash_power_in_write(&mut random);
        let (journal, entries) = open(&disk.reopen());
        assert!(entries == map(&[("a", "synced")]) || entries == map(&[("a", "newer"), ("b", "newer")]), "{entries:?}");
        assert!(journal.report().damaged.is_empty(), "a torn tail is no damage: {:?}", journal.report());
    }
}

#[test]
fn a_file_that_outgrows_its_map_is_compacted() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    for round in 0..400_u64 {
        journal.append(&[(1, b"key", Some(&round.to_be_bytes()))]).expect("room");
        journal.sync().expect("a good disk");
        assert!(journal.file_bytes() <= SMALL.compact_bytes_min + 100);
    }
    let names: Vec<String> = disk.list(dir()).expect("listed").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), 1, "old generations are removed: {names:?}");
    let (_, entries) = open(&disk);
    assert_eq!(entries[&(1, b"key".to_vec())].as_ref(), 399_u64.to_be_bytes());
}

#[test]
fn a_compaction_without_room_leaves_the_journal_in_use() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    for _ in 0..100 {
        journal.append(&[put("a", "some value that takes room")]).expect("room");
    }
    disk.inject(Fault { kind: FaultKind::Error(ErrorKind::StorageFull), ..fault(Op::Create, "settle.tmp", 1) });
    journal.sync().expect("the old file goes on");
    assert_eq!(journal.latched(), None);
    disk.crash_power(&mut random(1));
    assert_eq!(open(&disk.reopen()).1, map(&[("a", "some value that takes room")]));
}

#[test]
fn a_compaction_whose_name_is_in_doubt_is_followed_by_another() {
    for seed in 0..50 {
        let disk = disk();
        let (mut journal, _) = open(&disk);
        for _ in 0..100 {
            journal.append(&[put("a", "some value that takes room")]).expect("room");
        }
        disk.inject(fault(Op::SyncDir, "settle", 1));
        journal.sync().expect("the second new file");
        journal.append(&[put("a", "newer")]).expect("room");
        journal.sync().expect("a good disk");
        disk.crash_power(&mut random(seed));
        assert_eq!(open(&disk.reopen()).1, map(&[("a", "newer")]), "a generation that may be found is never older than what was synced");
    }
}

#[test]
fn a_failed_sync_is_answered_by_a_new_file_with_everything() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("a", "1")]).expect("room");
    disk.inject(fault(Op::Sync, "settle", 1));
    journal.sync().expect("the new file is synced");
    assert_eq!(journal.latched(), None);
    assert!(!disk.exists(&file(1)).expect("asked"), "the failed file is gone");
    journal.append(&[put("b", "2")]).expect("room");
    journal.sync().expect("a good disk");
    disk.crash_power(&mut random(2));
    assert_eq!(open(&disk.reopen()).1, map(&[("a", "1"), ("b", "2")]));
}

#[test]
fn what_is_appended_while_a_sync_runs_is_not_taken_for_synced() {
    let mut kept = [0; 2];
    for seed in 0..200_u64 {
        let disk = disk();
        let (mut journal, _) = open(&disk);
        journal.append(&[put("a", "1")]).expect("room");
        let pending = journal.begin_sync().expect("something to sync");
        let outcome = pending.run();
        journal.append(&[put("b", "2")]).expect("room");
        journal.end_sync(&pending, outcome).expect("a good disk");
        assert!(!journal.is_synced());
        assert!(journal.begin_sync().is_some(), "there is more to sync");
        disk.crash_power(&mut random(seed));
        let (_, entries) = open(&disk.reopen());
        assert!(entries == map(&[("a", "1")]) || entries == map(&[("a", "1"), ("b", "2")]), "{entries:?}");
        kept[entries.len() - 1] += 1;
    }
    assert!(kept[0] > 0, "{kept:?}");
}

#[test]
fn a_sync_that_fails_beside_appends_is_answered_by_a_new_file_with_those_too() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("a", "1")]).expect("room");
    let pending = journal.begin_sync().expect("something to sync");
    disk.inject(fault(Op::Sync, "settle", 1));
    let outcome = pending.run();
    assert!(outcome.is_err());
    journal.append(&[put("b", "2")]).expect("room");
    journal.end_sync(&pending, outcome).expect("the new file is synced");
    assert!(journal.is_synced());
    assert!(!disk.exists(&file(1)).expect("asked"), "the failed file is gone");
    disk.crash_power(&mut random(3));
    assert_eq!(open(&disk.reopen()).1, map(&[("a", "1"), ("b", "2")]));
}

#[test]
fn a_sync_of_a_file_that_was_replaced_meanwhile_says_nothing_of_the_new_one() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("a", "1")]).expect("room");
    let pending = journal.begin_sync().expect("something to sync");
    disk.inject(fault(Op::Sync, "settle", 1));
    journal.sync().expect("the new file is synced");
    journal.append(&[put("b", "2")]).expect("room");
    journal.end_sync(&pending, Ok(())).expect("nothing is wrong");
    assert!(!journal.is_synced(), "what came after the new file was begun is not synced");
    journal.end_sync(&pending, Err(ErrorKind::Other.into())).expect("the failed file is of no use any more");
    assert_eq!(journal.latched(), None);
}

#[test]
fn a_journal_whose_new_file_fails_too_stays_latched_and_recovers_with_everything() {
    for op in [Op::Sync, Op::SyncDir, Op::Rename, Op::Write, Op::Create] {
        let disk = disk();
        let (mut journal, _) = open(&disk);
        journal.append(&[put("a", "1")]).expect("room");
        disk.inject(fault(Op::Sync, "settle", 1));
        disk.inject(fault(op, "settle", 1));
        let error = journal.sync().expect_err("both files fail");
        assert_eq!(error.effect(), Effect::Possible, "{error}");
        assert!(journal.latched().is_some());
        let error = journal.append(&[put("a", "2")]).expect_err("latched");
        assert!(matches!(error, JournalError::Latched { .. }), "{error}");
        disk.clear_faults();
        journal.sync().expect("a third file");
        assert_eq!(journal.latched(), None);
        disk.crash_power(&mut random(3));
        assert_eq!(open(&disk.reopen()).1, map(&[("a", "2")]), "{op:?}");
    }
}

#[test]
fn a_full_disk_takes_nothing_and_is_no_latch() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("a", "1")]).expect("room");
    disk.inject(Fault { kind: FaultKind::Error(ErrorKind::StorageFull), ..fault(Op::Write, "settle", 1) });
    let error = journal.append(&[put("a", "2")]).expect_err("no room");
    assert!(matches!(error, JournalError::DiskFull), "{error}");
    assert_eq!(error.effect(), Effect::None);
    journal.sync().expect("what was taken is synced");
    assert_eq!(open(&disk).1, map(&[("a", "1")]));
    journal.append(&[put("a", "3")]).expect("room again");
    assert_eq!(open(&disk).1, map(&[("a", "3")]));
}

#[test]
fn entries_over_their_bounds_are_refused() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    let error = journal.append(&[(1, &[0; KEY_BYTES_MAX + 1], None)]).expect_err("too long");
    assert_eq!(error.effect(), Effect::None);
    let large = vec![7; VALUE_BYTES_MAX + 1];
    assert!(matches!(journal.append(&[put("a", "1"), (1, b"b", Some(&large))]), Err(JournalError::TooLarge { .. })));
    assert!(journal.entries().is_empty(), "nothing of the call was taken");
    let largest: Vec<Vec<u8>> = (0..3).map(|byte| vec![byte; VALUE_BYTES_MAX]).collect();
    let keys = [[0; KEY_BYTES_MAX], [1; KEY_BYTES_MAX], [2; KEY_BYTES_MAX]];
    let changes: Vec<Change<'_>> = keys.iter().zip(&largest).map(|(key, value)| (9, key.as_slice(), Some(value.as_slice()))).collect();
    journal.append(&changes).expect("within bounds");
    assert_eq!(open(&disk).1.len(), 3);
}

#[test]
fn a_bad_group_in_the_middle_is_left_out_and_named() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    let mut ends = vec![journal.file_bytes()];
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")] {
        journal.append(&[put(key, value)]).expect("room");
        journal.sync().expect("a good disk");
        ends.push(journal.file_bytes());
    }
    disk.flip_bit(&file(1), (ends[1] + 20) * 8).expect("in the second group");
    let (journal, entries) = open(&disk);
    assert_eq!(entries, map(&[("a", "2"), ("c", "1")]));
    let report = journal.report().clone();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0], ends[1]..ends[2]);
    assert_eq!(report.file, Some(file(1)));
    let kept = report.kept_at.expect("the damaged file is kept");
    assert!(disk.exists(&kept).expect("asked"));
    let (journal, entries) = open(&disk);
    assert_eq!(entries, map(&[("a", "2"), ("c", "1")]));
    assert!(journal.report().damaged.is_empty(), "it was written anew");
}

#[test]
fn damage_to_the_map_a_file_began_with_is_no_torn_tail() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("a", "1")]).expect("room");
    disk.inject(fault(Op::Sync, "settle", 1));
    journal.sync().expect("a second generation");
    let last = journal.file_bytes() - 1;
    disk.flip_bit(&file(2), last * 8).expect("in its only group");
    let (journal, entries) = open(&disk);
    assert!(entries.is_empty());
    assert_eq!(journal.report().damaged.len(), 1);
}

#[test]
fn a_file_of_a_later_version_is_refused_and_kept() {
    let disk = disk();
    drop(open(&disk));
    let mut bytes = read(&disk, &file(1));
    bytes[5] = 2;
    let crc = crc32c::crc32c(&bytes[..24]).to_be_bytes();
    bytes[24..28].copy_from_slice(&crc);
    let handle = disk.open(&file(1), OpenMode::ReadWrite).expect("there");
    handle.write_at(&bytes, 0).expect("written");
    let error = Journal::open(Arc::new(disk.clone()), dir(), SMALL).map(|_| ()).expect_err("unknown");
    assert!(error.to_string().contains("format 2"), "{error}");
    assert_eq!(read(&disk, &file(1)), bytes);
}

#[test]
fn the_bytes_are_those_of_the_golden_file() {
    let disk = disk();
    let (mut journal, _) = open(&disk);
    journal.append(&[put("orders/0", "frontier"), (2, b"k", Some(b""))]).expect("room");
    journal.sync().expect("a good disk");
    journal.append(&[(2, b"k", None)]).expect("room");
    let bytes = read(&disk, &file(1));
    let text: String = bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect();
    assert_eq!(text, include_str!("golden/journal.hex"), "a format that changes needs a new version");
}

fn fault(op: Op, path: &str, times: u64) -> Fault {
    Fault { op, path_contains: path.into(), after: 0, times, kind: FaultKind::Eio }
}

/// A small generator (splitmix64): the same seed gives the same crash.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Per key every value that was ever given, oldest first, and how many of them were certainly durable.
#[derive(Default)]
struct History {
    values: BTreeMap<u8, Vec<Option<u64>>>,
    synced: BTreeMap<u8, usize>,
}

impl History {
    fn note_synced(&mut self) {
        self.synced = self.values.iter().map(|(key, values)| (*key, values.len())).collect();
    }

    /// Each key holds its last synced value, or a later one.
    fn allows(&self, entries: &Entries) -> bool {
        self.values.iter().all(|(key, values)| {
            let found = entries.get(&(1, vec![*key])).map(|value| u64::from_be_bytes(value.as_ref().try_into().expect("eight bytes")));
            let synced = self.synced.get(key).copied().unwrap_or(0);
            (synced == 0 && found.is_none()) || values[synced.saturating_sub(1)..].contains(&found)
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<(u8, bool)>),
    Sync,
    FailSync,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec((0..6_u8, prop::bool::weighted(0.8)), 1..5).prop_map(Step::Append),
        3 => Just(Step::Sync),
        1 => Just(Step::FailSync),
    ]
}

fn run(journal: &mut Journal, disk: &MemDisk, steps: &[Step], history: &mut History) {
    for (round, step) in (1_u64..).zip(steps) {
        match step {
            Step::Append(changes) => {
                let value = round.to_be_bytes();
                for (key, is_put) in changes {
                    history.values.entry(*key).or_default().push(is_put.then_some(round));
                }
                let keys: Vec<[u8; 1]> = changes.iter().map(|(key, _)| [*key]).collect();
                let changes: Vec<Change<'_>> =
                    changes.iter().zip(&keys).map(|((_, is_put), key)| (1, key.as_slice(), is_put.then_some(value.as_slice()))).collect();
                // After the cut every call fails; that is the point.
                let _ = journal.append(&changes);
            }
            Step::Sync | Step::FailSync => {
                if matches!(step, Step::FailSync) {
                    disk.inject(fault(Op::Sync, "settle", 1));
                }
                if journal.sync().is_ok() {
                    history.note_synced();
                }
                disk.clear_faults();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Wherever the power goes out, each key comes back with its last synced value or a later one; twice in a row.
    #[test]
    fn no_crash_takes_back_what_was_synced(steps in prop::collection::vec(step(), 1..60), cut in 0..120_u64, how in 0..3_u8, goes_on in any::<bool>(), seed in any::<u64>()) {
        let config = JournalConfig { compact_bytes_min: 300, compact_ratio: 1 };
        let disk = disk();
        let mut history = History::default();
        disk.cut_power_at(cut);
        if let Ok((mut journal, _)) = Journal::open(Arc::new(disk.clone()), dir(), config) {
            run(&mut journal, &disk, &steps, &mut history);
        }
        let mut random = random(seed);
        match how {
            0 => disk.crash_kill(),
            1 => disk.crash_power(&mut random),
            _ => disk.crash_power_in_write(&mut random),
        }
        let disk = disk.reopen();
        let (mut journal, mut entries) = Journal::open(Arc::new(disk.clone()), dir(), config).expect("a good disk opens");
        prop_assert!(history.allows(&entries), "{entries:?} {:?}", history.values);
        prop_assert!(journal.report().damaged.is_empty(), "{:?}", journal.report());
        if goes_on {
            journal.append(&[put("another life", "1")]).expect("room");
            journal.sync().expect("a good disk");
            entries.extend(map(&[("another life", "1")]));
        }
        drop(journal);
        disk.crash_power(&mut random);
        let (journal, again) = Journal::open(Arc::new(disk.reopen()), dir(), config).expect("a good disk opens");
        prop_assert_eq!(entries, again, "opening makes durable what it shows");
        prop_assert!(journal.report().damaged.is_empty(), "{:?}", journal.report());
    }

    #[test]
    fn no_bytes_make_a_scan_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), generation in any::<u64>()) {
        if let Ok(scan) = scan(&bytes, generation) {
            prop_assert!(scan.end <= bytes.len() as u64);
        }
    }

    /// One flipped bit costs at most the group it hits, and never shows a value that was not written.
    #[test]
    fn a_flipped_bit_is_noticed_or_harmless(bit in 0..2000_u64) {
        let disk = disk();
        let (mut journal, _) = open(&disk);
        for round in 0..5_u8 {
            journal.append(&[(1, &[b'0' + round], Some(&u64::from(round).to_be_bytes()))]).expect("room");
            journal.sync().expect("a good disk");
        }
        let sound = journal.entries().clone();
        let bit = bit % (journal.file_bytes() * 8);
        disk.flip_bit(&file(1), bit).expect("within the file");
        let (journal, entries) = open(&disk);
        prop_assert!(entries.iter().all(|(key, value)| sound.get(key) == Some(value)), "{entries:?}");
        prop_assert!(entries.len() + 1 >= sound.len());
        let report = journal.report();
        prop_assert!(!report.damaged.is_empty() || report.torn_bytes > 0);
    }
}
