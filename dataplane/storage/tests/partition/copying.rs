//! A copy of a log that is made while the log is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::partition::{CopySegment, IncomingError, IncomingLog, PartitionLog};

use super::support::*;

const SOURCE: u128 = 1;

fn copy_dir() -> PathBuf {
    PathBuf::from("/copies/one")
}

/// The other node: its disk, and what it has of the copy.
struct Copying {
    disk: MemDisk,
    copy: IncomingLog,
    asked: u64,
}

impl Copying {
    fn begin(log: &PartitionLog) -> Self {
        Self::begin_on(MemDisk::new(), log)
    }

    fn begin_on(disk: MemDisk, log: &PartitionLog) -> Self {
        let copy = IncomingLog::open(Arc::new(disk.clone()), &copy_dir(), log.log_id()).expect("begins");
        Self { disk, copy, asked: 0 }
    }

    /// Asks for one piece; says whether there was any to ask for.
    fn step(&mut self, log: &PartitionLog, source: u128, is_final: bool) -> bool {
        let list = log.reader().copy_list();
        let Some(piece) = self.copy.next(source, &list, is_final).expect("goes on") else { return false };
        let bytes = log.reader().copy_bytes(&piece, 300).expect("read").expect("the segment is there");
        self.asked += 1;
        self.copy.write(&piece, &bytes, bytes.len() < 300).expect("written");
        true
    }

    fn pull(&mut self, log: &PartitionLog) {
        while self.step(log, SOURCE, false) {}
    }

    fn complete(&mut self, log: &PartitionLog) -> Result<(), IncomingError> {
        while self.step(log, SOURCE, true) {}
        self.copy.complete(&log.reader().copy_list(), log.log_end())
    }

    /// The copy opened as a log, after a power cut that loses everything that is not synced.
    fn check(&self, model: &Modelled) {
        self.disk.crash_power(&mut || 0);
        let disk = self.disk.reopen();
        let opened = PartitionLog::open(Arc::new(disk), &copy_dir(), model.config, cache(), &Dice::new(9), model.log.log_end());
        let (log, opened) = opened.expect("opens");
        assert_eq!((log.log_id(), opened.damage.as_slice()), (model.log.log_id(), [].as_slice()));
        assert_eq!((&opened.marks, log.last_commit_ms()), (&model.marks, model.log.last_commit_ms()));
        check_records(&log.reader(), &model.records);
    }
}

#[test]
fn a_copy_of_a_log_that_is_written_is_the_log() {
    for seed in 0..30 {
        let dice = Dice::new(seed);
        let mut model = Modelled::new(config(4_000));
        model.commit(&[section(1, 1, 1, 10)]);
        let mut copying = Copying::begin(&model.log);
        let mut next = 2;
        for _ in 0..60 {
            for _ in 0..dice.below(8) {
                copying.step(&model.log, SOURCE, false);
            }
            let count = dice.below(4);
            model.commit(&[section(1, next, count + 1, 200), advance(2, next)]);
            next += count + 1;
            if dice.one_in(15) {
                let _ = model.log.retain(0, 0, 9_000).expect("retains");
            }
        }
        copying.complete(&model.log).expect("complete");
        copying.check(&model);
    }
}

#[test]
fn whole_segments_outlive_a_crash_of_the_node_that_copies_and_parts_are_begun_anew() {
    let mut model = Modelled::new(config(2_000));
    for round in 0..20 {
        model.commit(&[section(1, round + 1, 1, 400)]);
    }
    let mut copying = Copying::begin(&model.log);
    copying.pull(&model.log);
    let asked = copying.asked;
    copying.disk.crash_kill();
    let mut again = Copying::begin_on(copying.disk.reopen(), &model.log);
    again.complete(&model.log).expect("complete");
    assert!(again.asked * 3 < asked, "{} of {asked} pieces were asked for again", again.asked);
    again.check(&model);
}

#[test]
fn a_power_cut_at_any_moment_of_copying_leaves_what_can_be_gone_on_with() {
    let mut model = Modelled::new(config(1_500));
    for round in 0..9 {
        model.commit(&[section(1, round + 1, 1, 400)]);
    }
    for seed in 0..60 {
        let dice = Dice::new(seed);
        let mut copying = Copying::begin(&model.log);
        for _ in 0..dice.below(30) {
            copying.step(&model.log, SOURCE, dice.one_in(2));
        }
        copying.disk.crash_power(&mut || dice.roll());
        let mut again = Copying::begin_on(copying.disk.reopen(), &model.log);
        again.complete(&model.log).expect("complete");
        again.check(&model);
    }
}

#[test]
fn what_was_written_since_the_list_was_made_may_come_too() {
    let mut model = Modelled::new(config(100_000));
    model.commit(&[section(1, 1, 1, 100)]);
    let mut copying = Copying::begin(&model.log);
    let list = model.log.reader().copy_list();
    model.commit(&[section(1, 2, 3, 400)]);
    let mut asked = 0;
    while let Some(piece) = copying.copy.next(SOURCE, &list, false).expect("goes on") {
        let bytes = model.log.reader().copy_bytes(&piece, 10_000).expect("read").expect("the segment is there");
        copying.copy.write(&piece, &bytes, true).expect("written");
        asked += 1;
    }
    assert_eq!(asked, 2, "the stream table and the frames");
    copying.complete(&model.log).expect("complete");
    copying.check(&model);
}

#[test]
fn a_part_of_a_segment_that_was_replaced_is_thrown_away() {
    let mut model = Modelled::new(config(600));
    // A segment without records keeps its name when the next one is begun.
    for round in 0..3 {
        model.commit(&[advance(1, round), advance(2, round)]);
    }
    let mut copying = Copying::begin(&model.log);
    copying.pull(&model.log);
    let before: Vec<CopySegment> = model.log.reader().copy_list();
    model.commit(&[section(3, 1, 1, 300)]);
    let after = model.log.reader().copy_list();
    assert_eq!((before.len(), before[0].base), (1, after[0].base));
    assert_ne!(before[0].serial, after[0].serial, "this test needs a segment that is replaced");
    copying.complete(&model.log).expect("complete");
    copying.check(&model);
}

#[test]
fn a_part_does_not_go_on_with_what_another_process_of_the_owner_has() {
    let mut model = Modelled::new(config(100_000));
    model.commit(&[section(1, 1, 3, 400)]);
    let mut copying = Copying::begin(&model.log);
    copying.pull(&model.log);
    let opened = model.reopen();
    model.check(&opened);
    model.commit(&[section(1, 4, 3, 400)]);
    let list = model.log.reader().copy_list();
    let piece = copying.copy.next(SOURCE + 1, &list, false).expect("goes on").expect("a piece");
    assert_eq!(piece.at, 0);
    while copying.step(&model.log, SOURCE + 1, true) {}
    copying.copy.complete(&list, model.log.log_end()).expect("complete");
    copying.check(&model);
}

#[test]
fn what_is_damaged_at_the_owner_is_asked_for_twice_and_copied_as_it_is() {
    let mut model = Modelled::new(config(1_500));
    for round in 0..9 {
        model.commit(&[section(1, round + 1, 1, 400)]);
    }
    let first = segments(&model.disk)[0].clone();
    let (at, len) = frames(&model.disk, &first)[1];
    overwrite(&model.disk, &first, &[0xff; 8], at + len - 8);
    let mut copying = Copying::begin(&model.log);
    copying.complete(&model.log).expect("complete");
    let copied = copy_dir().join(Path::new(first.file_name().expect("a name")));
    assert_eq!(bytes_of(&copying.disk, &copied), bytes_of(&model.disk, &first));
    let pieces = bytes_of(&model.disk, &first).len() as u64 / 300;
    assert!(copying.asked >= pieces * 2, "asked {} times", copying.asked);
}

#[test]
fn bytes_that_are_lost_on_the_way_to_the_disk_are_not_taken_for_a_copy() {
    // They are looked at as they come, and what is left of them in the end.
    for is_final in [false, true] {
        let mut model = Modelled::new(config(100_000));
        model.commit(&[section(1, 1, 3, 400)]);
        let mut copying = Copying::begin(&model.log);
        let (name, list) = ("00000000000000000000.log.part", model.log.reader().copy_list());
        let has_come = |copying: &Copying| copying.disk.list(&copy_dir()).expect("listed").into_iter().find(|entry| entry.name == name);
        while has_come(&copying).is_none_or(|part| part.len < 600) {
            assert!(copying.step(&model.log, SOURCE, false));
        }
        copying.disk.flip_bit(&copy_dir().join(name), 8 * 500).expect("there");
        let error = loop {
            match copying.copy.next(SOURCE, &list, is_final) {
                Ok(Some(_)) => assert!(copying.step(&model.log, SOURCE, is_final)),
                Ok(None) => panic!("it was taken for a copy"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, IncomingError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn a_segment_that_grows_while_it_is_copied_is_whole_in_the_end_and_its_damage_is_told() {
    for damaged in [None, Some(2), Some(7)] {
        let mut model = Modelled::new(config(100_000));
        let mut copying = Copying::begin(&model.log);
        for round in 0..8 {
            model.commit(&[section(1, round + 1, 1, 400)]);
            copying.pull(&model.log);
        }
        let segment = segments(&model.disk)[0].clone();
        if let Some(damaged) = damaged {
            // After it was copied, or before: of the copy only what comes of it counts.
            let (at, len) = frames(&model.disk, &segment)[damaged];
            overwrite(&model.disk, &segment, &[0xff; 8], at + len - 8);
        }
        model.commit(&[section(1, 9, 1, 400)]);
        copying.complete(&model.log).expect("complete");
        let copied = copy_dir().join(Path::new(segment.file_name().expect("a name")));
        assert_eq!(frames(&copying.disk, &copied).len(), 9, "what was intact when it came stays so");
    }
}

#[test]
fn a_copy_that_does_not_end_where_the_owner_stopped_is_not_complete() {
    let mut model = Modelled::new(config(100_000));
    model.commit(&[section(1, 1, 3, 400)]);
    let mut copying = Copying::begin(&model.log);
    while copying.step(&model.log, SOURCE, true) {}
    let list = model.log.reader().copy_list();
    let error = copying.copy.complete(&list, Offset(4)).expect_err("it has three");
    assert!(matches!(error, IncomingError::Mismatch { .. }), "{error}");
    copying.copy.complete(&list, Offset(3)).expect("complete");
    let left = copying.disk.list(&copy_dir()).expect("listed");
    assert!(left.iter().all(|entry| !entry.name.ends_with(".part")), "{left:?}");
}
