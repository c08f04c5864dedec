//! Random lives: appends, rolls, retention, faults, power cuts at any step; what was published stays, bit for bit, and nothing else appears.

use std::io::ErrorKind;

use veena_contract::{MessageId, Offset, StreamId};
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};
use veena_storage::partition::{Codec, Marks, PartitionConfig, PartitionOpened, RecordKey, Section};

use super::support::*;

struct Chaos {
    dice: Dice,
    log: Modelled,
    sequences: [u64; 4],
}

/// How a step ended.
enum Step {
    Done,
    /// The append failed or was cut; it may be there.
    InDoubt(Vec<Section>),
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let config = PartitionConfig {
            segment_bytes_max: 1_000 + dice.below(8_000),
            segment_age_ms_max: if dice.one_in(3) { 200 } else { 0 },
            codec: if dice.one_in(2) { Codec::Zstd } else { Codec::None },
        };
        let block_bytes = if dice.one_in(2) { 512 } else { 4096 };
        let log = Modelled::on(MemDisk::with_block_bytes(block_bytes), config);
        Self { dice, log, sequences: [0; 4] }
    }

    fn sections(&mut self) -> Vec<Section> {
        let mut sections = Vec::new();
        for (number, last) in self.sequences.iter_mut().enumerate() {
            if self.dice.one_in(2) {
                continue;
            }
            let first = *last + 1 + self.dice.below(3);
            let count = self.dice.below(4);
            let body_len = usize::try_from(self.dice.below(600)).expect("small");
            let mut section = if count == 0 { advance(number as u128, first) } else { section(number as u128, first, count, body_len) };
            if self.dice.one_in(4) {
                for record in &mut section.records {
                    record.id = Some(MessageId { stream: StreamId(99), sequence: record.sequence });
                }
            }
            for record in &mut section.records {
                // Few, so that they come again.
                let hash = u128::from(self.dice.below(40));
                record.key = self.dice.one_in(3).then_some(RecordKey { hash, digest: u128::from(record.sequence) });
            }
            *last = section.last;
            sections.push(section);
        }
        sections
    }

    fn commit(&mut self) -> Step {
        let sections = self.sections();
        self.log.now_ms += self.dice.below(50);
        let marks = self.log.marks.clone();
        let log = &mut self.log.log;
        let visible = log.append(&sections, self.log.now_ms, &|| marks.clone()).ok();
        let visible = visible.and_then(|appended| log.sync(appended).ok());
        let visible = visible.and_then(|synced| log.verify(synced).ok());
        let Some(verified) = visible else {
            return Step::InDoubt(sections);
        };
        log.publish(verified);
        self.log.note(&sections);
        self.log.check_keys();
        Step::Done
    }

    /// The log after a crash or a fault: all that was published, and of the append in doubt all or nothing.
    fn settle(&mut self, opened: &PartitionOpened, doubt: Option<Vec<Section>>) {
        let end = self.log.log.log_end();
        if let Some(sections) = doubt {
            let mut marks: Marks = self.log.marks.clone();
            mark(&mut marks, &sections);
            let is_there = if expected(&sections).is_empty() { opened.marks == marks } else { end > Offset(self.log.records.len() as u64) };
            if is_there {
                self.log.note(&sections);
            }
        }
        self.log.check(opened);
    }

    fn retain(&mut self) {
        let retention_ms = if self.dice.one_in(2) { 300 } else { 0 };
        let retention_bytes = if self.dice.one_in(2) { 5_000 } else { 0 };
        if let Ok(retained) = self.log.log.retain(self.log.now_ms, retention_ms, retention_bytes) {
            assert!(retained.oldest <= self.log.log.log_end());
        }
    }
}

#[test]
fn published_records_survive_power_cuts_at_any_step() {
    for seed in 0..150 {
        let mut chaos = Chaos::new(seed);
        for _life in 0..5 {
            chaos.log.disk.cut_power_at(chaos.dice.below(60));
            let mut doubt = None;
            for _ in 0..30 {
                if chaos.dice.one_in(6) {
                    chaos.retain();
                }
                if let Step::InDoubt(sections) = chaos.commit() {
                    doubt = Some(sections);
                    break;
                }
            }
            match chaos.dice.below(3) {
                0 => chaos.log.disk.crash_kill(),
                1 => chaos.log.disk.crash_power(&mut || chaos.dice.roll()),
                _ => chaos.log.disk.crash_power_in_write(&mut || chaos.dice.roll()),
            }
            let opened = chaos.log.reopen();
            chaos.settle(&opened, doubt);
        }
    }
}

#[test]
fn published_records_survive_a_power_cut_while_the_log_is_opened() {
    for seed in 0..100 {
        let mut chaos = Chaos::new(seed);
        let mut doubt = None;
        chaos.log.disk.cut_power_at(20 + chaos.dice.below(60));
        for _ in 0..40 {
            if let Step::InDoubt(sections) = chaos.commit() {
                doubt = Some(sections);
                break;
            }
        }
        chaos.log.disk.crash_power_in_write(&mut || chaos.dice.roll());
        for _ in 0..3 {
            let disk = chaos.log.disk.reopen();
            disk.cut_power_at(chaos.dice.below(6));
            drop(open(&disk, chaos.log.config, &cache()));
            disk.crash_power_in_write(&mut || chaos.dice.roll());
        }
        let opened = chaos.log.reopen();
        chaos.settle(&opened, doubt);
    }
}

#[test]
fn published_records_survive_failing_syncs_and_writes() {
    for seed in 0..150 {
        let mut chaos = Chaos::new(seed);
        for _life in 0..6 {
            let op = if chaos.dice.one_in(2) { Op::Sync } else { Op::Write };
            let kind = match (op, chaos.dice.below(3)) {
                (Op::Sync, _) | (_, 0) => FaultKind::Eio,
                (_, 1) => FaultKind::ErrorAfter(usize::try_from(chaos.dice.below(200)).expect("small")),
                _ => FaultKind::Error(ErrorKind::StorageFull),
            };
            chaos.log.disk.inject(Fault { op, path_contains: String::new(), after: chaos.dice.below(15), times: 1, kind });
            let mut doubt = None;
            for _ in 0..12 {
                if let Step::InDoubt(sections) = chaos.commit() {
                    doubt = Some(sections);
                    break;
                }
            }
            chaos.log.disk.clear_faults();
            let is_cut = chaos.dice.one_in(2);
            let opened = if is_cut {
                chaos.log.disk.crash_power(&mut || chaos.dice.roll());
                chaos.log.reopen()
            } else {
                chaos.log.reopen_warm()
            };
            chaos.settle(&opened, doubt);
        }
    }
}

#[test]
fn a_power_cut_at_every_step_of_starting_a_segment_loses_nothing() {
    for nth in 0..24 {
        for seed in 0..16 {
            let dice = Dice::new(seed);
            let mut log = Modelled::on(MemDisk::with_block_bytes(512), config(2_000));
            log.commit(&[section(1, 1, 2, 600), advance(2, 4)]);
            let sections = [section(1, 3, 2, 600)];
            log.disk.cut_power_at(nth);
            let marks = log.marks.clone();
            let appended = log.log.append(&sections, 5_000, &|| marks.clone()).ok();
            let synced = appended.and_then(|appended| log.log.sync(appended).ok());
            if let Some(verified) = synced.and_then(|synced| log.log.verify(synced).ok()) {
                log.log.publish(verified);
                log.note(&sections);
            }
            log.disk.crash_power_in_write(&mut || dice.roll());
            let opened = log.reopen();
            if log.log.log_end() > Offset(log.records.len() as u64) {
                log.note(&sections);
            }
            log.check(&opened);
            let sequence = log.records.len() as u64 + 1;
            log.commit(&[section(1, sequence, 3, 600)]);
            log.commit(&[section(1, sequence + 3, 3, 600)]);
            let opened = log.reopen();
            log.check(&opened);
        }
    }
}

#[test]
fn a_log_whose_creation_was_cut_is_created_again() {
    for nth in 0..16 {
        for seed in 0..8 {
            let dice = Dice::new(seed);
            let disk = MemDisk::new();
            disk.cut_power_at(nth);
            let is_created = open(&disk, config(2_000), &cache()).is_ok();
            disk.crash_power_in_write(&mut || dice.roll());
            let (mut log, opened) = open(&disk.reopen(), config(2_000), &cache()).expect("opens");
            assert!(!is_created || !opened.is_new, "what was created stays");
            assert_eq!((opened.damage.len(), opened.marks.len(), log.log_end()), (0, 0, Offset(0)));
            commit(&mut log, &[section(1, 1, 1, 10)], 1, &Marks::new()).expect("commits");
        }
    }
}
