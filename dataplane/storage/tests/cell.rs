use std::path::Path;

use veena_contract::Entropy;
use veena_storage::cell::{self, CellKind, CellRead};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, MemDisk, Op};

use crate::support::Seeded;

const PATH: &str = "/d/cell";
const KIND: CellKind = CellKind::WAL_CHECKPOINT;

fn disk() -> MemDisk {
    let disk = MemDisk::new();
    disk.create_dir_all(Path::new("/d")).expect("created");
    disk.sync_dir(Path::new("/")).expect("synced");
    disk
}

fn value(disk: &MemDisk) -> CellRead {
    cell::read(disk, Path::new(PATH), KIND).expect("read")
}

#[test]
fn a_cell_has_the_golden_bytes() {
    let disk = disk();
    cell::write(&disk, Path::new(PATH), KIND, b"golden value").expect("written");
    let file = disk.open(Path::new(PATH), veena_storage::disk::OpenMode::Read).expect("opened");
    let mut bytes = vec![0; 64];
    let read = file.read_at(&mut bytes, 0).expect("read");
    crate::wal::assert_golden("cell.hex", &bytes[..read]);
}

#[test]
fn a_cell_that_was_never_written_is_not_there() {
    assert_eq!(value(&disk()), CellRead::NotThere);
}

#[test]
fn a_first_value_that_was_said_to_be_written_is_there_after_a_power_cut_at_any_step() {
    let mut seen = std::collections::BTreeSet::new();
    // Beyond the last step the value is written before the power goes.
    for cut in 0..8 {
        for seed in 0..20 {
            let disk = disk();
            disk.cut_power_at(cut);
            let outcome = cell::write(&disk, Path::new(PATH), KIND, b"first");
            let random = Seeded::new(seed);
            disk.crash_power_in_write(&mut || random.next_u64());
            let disk = disk.reopen();
            let found = value(&disk);
            let is_there = found == CellRead::Value(b"first".to_vec());
            assert!(is_there || found == CellRead::NotThere, "cut {cut}, seed {seed}: {found:?}");
            assert!(is_there || outcome.is_err(), "cut {cut}, seed {seed}: said to be written, and is not there");
            seen.insert((is_there, outcome.is_ok()));
        }
    }
    assert!(seen.contains(&(true, true)) && seen.contains(&(false, false)), "{seen:?}");
}

#[test]
fn a_power_cut_at_any_step_shows_the_old_value_or_the_new_one() {
    let mut seen = std::collections::BTreeSet::new();
    for cut in 0..6 {
        for seed in 0..20 {
            let disk = disk();
            cell::write(&disk, Path::new(PATH), KIND, b"old").expect("written");
            disk.cut_power_at(cut);
            let outcome = cell::write(&disk, Path::new(PATH), KIND, b"new");
            let random = Seeded::new(seed);
            disk.crash_power_in_write(&mut || random.next_u64());
            let disk = disk.reopen();
            let found = value(&disk);
            let is_new = found == CellRead::Value(b"new".to_vec());
            assert!(is_new || found == CellRead::Value(b"old".to_vec()), "cut {cut}, seed {seed}: {found:?}");
            assert!(is_new || outcome.is_err(), "cut {cut}, seed {seed}: said to be written, and is not there");
            seen.insert(is_new);
            cell::write(&disk, Path::new(PATH), KIND, b"next").expect("a left-over temp file is no obstacle");
            assert_eq!(value(&disk), CellRead::Value(b"next".to_vec()));
        }
    }
    assert_eq!(seen.len(), 2, "both outcomes occur");
}

#[test]
fn a_failed_step_is_told_with_its_file() {
    let disk = disk();
    cell::write(&disk, Path::new(PATH), KIND, b"old").expect("written");
    for op in [Op::Create, Op::Write, Op::Sync, Op::Rename, Op::SyncDir] {
        disk.inject(Fault { op, path_contains: "d".to_owned(), after: 0, times: 1, kind: FaultKind::Eio });
        let error = cell::write(&disk, Path::new(PATH), KIND, b"new").expect_err("fails");
        assert!(error.to_string().contains(PATH), "{error}");
        disk.clear_faults();
    }
}

#[test]
fn any_flipped_bit_is_damage() {
    let disk = disk();
    cell::write(&disk, Path::new(PATH), KIND, b"value").expect("written");
    for bit in 0..(16 + 5) * 8 {
        disk.flip_bit(Path::new(PATH), bit).expect("flipped");
        assert!(matches!(value(&disk), CellRead::Damaged { .. }), "bit {bit}");
        disk.flip_bit(Path::new(PATH), bit).expect("flipped back");
    }
    assert_eq!(value(&disk), CellRead::Value(b"value".to_vec()));
}
