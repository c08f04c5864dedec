//! Crashes at every step, in every way: what was acknowledged is there, what is there was staged, and nothing is missing in between.

use std::collections::BTreeMap;

use proptest::prelude::*;
use veena_contract::{Entropy, StreamId, WalSeq};
use veena_storage::disk::mem::MemDisk;
use veena_storage::wal::{Staged, Written};

use super::{Rig, entries, rig, text, try_rig};
use crate::support::Seeded;

#[derive(Clone, Copy, Debug)]
enum Crash {
    Kill,
    Power,
    PowerInWrite,
}

const CRASHES: [Crash; 3] = [Crash::Kill, Crash::Power, Crash::PowerInWrite];

/// What the world knows of a log.
#[derive(Default)]
struct Model {
    /// Bodies by sequence, for appends that were acknowledged.
    acked: BTreeMap<u64, (StreamId, String)>,
    /// Bodies in the order of staging, by stream.
    staged: BTreeMap<StreamId, Vec<String>>,
    /// A checkpoint that may or may not have been stored, and the last that was.
    checkpoint_tried: u64,
    checkpoint: u64,
    next_body: u64,
}

impl Model {
    fn body(&mut self, len: usize) -> String {
        self.next_body += 1;
        format!("{}:{}", self.next_body, "b".repeat(len))
    }

    /// One group of some calls.
    fn append(&mut self, log: &Rig, calls: &[Vec<usize>]) {
        let waiting = self.stage(log, calls);
        log.wal.flush_now();
        self.note(waiting);
    }

    /// Several groups of a call each, as many in flight at once as the log lets, synced in an order that `order` chooses.
    fn append_overlapping(&mut self, log: &Rig, calls: &[Vec<usize>], mut order: u64) {
        let (mut waiting, mut in_flight) = (Vec::new(), Vec::new());
        let mut land = |in_flight: &mut Vec<Written>| {
            while !in_flight.is_empty() {
                let next = usize::try_from(order).unwrap_or(usize::MAX) % in_flight.len();
                order /= 3;
                log.wal.sync_now(&in_flight.remove(next));
            }
        };
        for call in calls {
            waiting.extend(self.stage(log, std::slice::from_ref(call)));
            match log.wal.write_now() {
                Some(written) => in_flight.push(written),
                // a new segment, or as many as may be
                None => land(&mut in_flight),
            }
        }
        land(&mut in_flight);
        log.wal.flush_now();
        self.note(waiting);
    }

    fn stage(&mut self, log: &Rig, calls: &[Vec<usize>]) -> Vec<(Staged, Vec<String>)> {
        let mut waiting = Vec::new();
        for lens in calls {
            let bodies: Vec<String> = lens.iter().map(|len| self.body(*len)).collect();
            let texts: Vec<&str> = bodies.iter().map(String::as_str).collect();
            if let Ok(staged) = log.wal.stage(entries(&texts)) {
                self.staged.entry(log.opened.stream).or_default().extend(bodies.iter().cloned());
                waiting.push((staged, bodies));
            }
        }
        waiting
    }

    fn note(&mut self, waiting: Vec<(Staged, Vec<String>)>) {
        for (mut staged, bodies) in waiting {
            if let Some(Ok(range)) = staged.try_outcome() {
                for (seq, body) in (range.first.0..).zip(bodies) {
                    assert!(self.acked.insert(seq, (range.stream, body)).is_none(), "sequence {seq} was given twice");
                }
            }
        }
    }

    fn checkpoint(&mut self, log: &Rig) {
        let end = log.wal.status().durable_end.0;
        self.checkpoint_tried = self.checkpoint_tried.max(end);
        if log.wal.checkpoint(WalSeq(end)).is_ok() {
            self.checkpoint = self.checkpoint.max(end);
        }
    }

    /// Checks what an open found, and takes over what it decided.
    fn verify(&mut self, log: &Rig, story: &str) {
        let opened = &log.opened;
        let (records, gaps) = log.backlog();
        assert!(opened.damage.is_empty(), "{story}: {:?}", opened.damage);
        assert!(gaps.is_empty(), "{story}: {gaps:?}");
        assert!((self.checkpoint..=self.checkpoint_tried).contains(&opened.checkpoint.0), "{story}: checkpoint {}", opened.checkpoint);
        let found: BTreeMap<u64, (StreamId, String)> = records.iter().map(|r| (r.seq.0, (r.stream, text(r)))).collect();
        for (seq, acked) in self.acked.range(opened.checkpoint.0..) {
            assert_eq!(found.get(seq), Some(acked), "{story}: acknowledged {seq}");
        }
        assert!(found.keys().copied().eq(opened.checkpoint.0..opened.end.0), "{story}: dense up to the end");
        let mut at: BTreeMap<StreamId, Vec<&String>> = BTreeMap::new();
        for (stream, body) in found.values() {
            at.entry(*stream).or_default().push(body);
        }
        for (stream, bodies) in at {
            let staged = self.staged.get(&stream).unwrap_or_else(|| panic!("{story}: stream {stream} is not known"));
            let start = staged.iter().position(|body| body == bodies[0]).unwrap_or_else(|| panic!("{story}: never staged"));
            assert!(bodies.iter().copied().eq(staged[start..].iter().take(bodies.len())), "{story}: in order, without holes");
        }
        for (stream, first, end) in opened.streams.iter().map(|entry| (entry.stream, entry.first.0, entry.end.0)) {
            for seq in first.max(opened.checkpoint.0)..end {
                assert_eq!(found.get(&seq).map(|(stream, _)| *stream), Some(stream), "{story}: the list of streams");
            }
        }
        // what was not acknowledged and is here now stays for good
        self.acked.extend(found);
        self.checkpoint = opened.checkpoint.0;
        self.checkpoint_tried = opened.checkpoint.0;
        assert!(self.acked.keys().next_back().is_none_or(|last| *last < opened.end.0), "{story}: the end is above everything");
    }
}

fn crash(disk: &MemDisk, how: Crash, seed: u64) -> MemDisk {
    let random = Seeded::new(seed);
    match how {
        Crash::Kill => disk.crash_kill(),
        Crash::Power => disk.crash_power(&mut || random.next_u64()),
        Crash::PowerInWrite => disk.crash_power_in_write(&mut || random.next_u64()),
    }
    disk.reopen()
}

/// A workload that rolls, recycles and checkpoints.
fn work(model: &mut Model, log: &Rig) {
    for round in 0_u64..4 {
        model.append(log, &[vec![900], vec![10, 600]]);
        model.append(log, &[vec![1500, 3]]);
        model.append_overlapping(log, &[vec![700], vec![40, 30], vec![900], vec![20]], 5 + 7 * round);
        if round % 2 == 1 {
            model.checkpoint(log);
        }
    }
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_was_acknowledged() {
    let mut crashes = 0;
    for block_bytes in [512, 4096] {
        for how in CRASHES {
            for cut in 0.. {
                let disk = MemDisk::with_block_bytes(block_bytes);
                let mut model = Model::default();
                let log = rig(&disk, 1);
                disk.cut_power_at(cut);
                work(&mut model, &log);
                let is_past = disk.list_is_alive();
                let disk = crash(&disk, how, cut * 31 + 7);
                for life in 0..3 {
                    let story = format!("{how:?} at {cut}, blocks of {block_bytes}, life {life}");
                    let log = rig(&disk, 2 + life);
                    model.verify(&log, &story);
                    model.append(&log, &[vec![200], vec![300]]);
                    log.wal.close();
                }
                crashes += 1;
                if is_past {
                    break;
                }
            }
        }
    }
    assert!(crashes > 200, "{crashes} crashes");
}

#[test]
fn a_crash_at_any_step_of_an_open_loses_nothing() {
    let mut crashes = 0;
    for how in CRASHES {
        for cut in 0.. {
            let disk = MemDisk::with_block_bytes(512);
            let mut model = Model::default();
            let log = rig(&disk, 1);
            work(&mut model, &log);
            disk.cut_power_at(0);
            model.append(&log, &[vec![2000]]);
            let disk = crash(&disk, how, cut);
            disk.cut_power_at(cut);
            let is_past = match try_rig(&disk, 2) {
                Ok(log) => {
                    model.verify(&log, &format!("{how:?}, open before {cut}"));
                    model.append(&log, &[vec![50]]);
                    disk.list_is_alive()
                }
                Err(_) => false,
            };
            let disk = crash(&disk, how, cut + 1);
            let log = rig(&disk, 3);
            model.verify(&log, &format!("{how:?} in an open, at {cut}"));
            crashes += 1;
            if is_past {
                break;
            }
        }
    }
    assert!(crashes > 20, "{crashes} crashes");
}

trait Alive {
    fn list_is_alive(&self) -> bool;
}

impl Alive for MemDisk {
    /// Has the planned power cut not happened yet?
    fn list_is_alive(&self) -> bool {
        use veena_storage::disk::Disk;
        self.list(std::path::Path::new("/")).is_ok()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Vec<usize>>),
    Overlap(Vec<Vec<usize>>, u64),
    Checkpoint,
    CutAt(u64),
    Crash(u8, u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let call = proptest::collection::vec(0_usize..1200, 1..4);
    prop_oneof![
        3 => proptest::collection::vec(call.clone(), 1..5).prop_map(Step::Append),
        3 => (proptest::collection::vec(call, 2..6), any::<u64>()).prop_map(|(calls, order)| Step::Overlap(calls, order)),
        2 => Just(Step::Checkpoint),
        2 => (0_u64..12).prop_map(Step::CutAt),
        3 => (0_u8..3, any::<u64>()).prop_map(|(how, seed)| Step::Crash(how, seed)),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_what_was_acknowledged_is_there(steps in proptest::collection::vec(step(), 1..40), block in 0_usize..3) {
        let mut disk = MemDisk::with_block_bytes([64, 512, 4096][block]);
        let mut model = Model::default();
        let mut log = rig(&disk, 1);
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::Append(calls) => model.append(&log, calls),
                Step::Overlap(calls, order) => model.append_overlapping(&log, calls, *order),
                Step::Checkpoint => model.checkpoint(&log),
                Step::CutAt(nth) => disk.cut_power_at(*nth),
                Step::Restart if disk.list_is_alive() => {
                    log.wal.close();
                    if disk.list_is_alive() {
                        // the cut, if one is planned, may fall into the open
                        match try_rig(&disk, 1000 + index as u64) {
                            Ok(next) => log = next,
                            Err(_) => {
                                disk = crash(&disk, Crash::Power, index as u64);
                                log = rig(&disk, 2000 + index as u64);
                            }
                        }
                        if disk.list_is_alive() {
                            model.verify(&log, &format!("restart at step {index}"));
                        }
                    }
                }
                Step::Restart => {}
                Step::Crash(how, seed) => {
                    disk = crash(&disk, CRASHES[usize::from(*how)], *seed);
                    log = rig(&disk, 3000 + index as u64);
                    model.verify(&log, &format!("crash at step {index}"));
                }
            }
        }
        disk = crash(&disk, Crash::Power, 99);
        log = rig(&disk, 4000);
        model.verify(&log, "at the end");
    }
}
