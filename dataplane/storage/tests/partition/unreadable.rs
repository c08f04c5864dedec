//! A device that answers reads with errors: what is around a segment is served, and nothing is taken for lost.

use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, Op};
use veena_storage::partition::ReadError;

use super::support::{Modelled, cache, config, names, open, section, segments};

#[test]
fn a_sealed_segment_that_cannot_be_read_fails_its_own_reads_and_not_the_open() {
    for op in [Op::Read, Op::Open] {
        let mut log = Modelled::new(config(1_000));
        for sequence in 0..12 {
            log.commit(&[section(1, sequence + 1, 1, 300)]);
        }
        let all = segments(&log.disk);
        assert!(all.len() > 3, "there are sealed segments");
        let base = |nth: usize| all[nth].file_stem().and_then(|stem| stem.to_str()).expect("a name").parse::<u64>().expect("a number");
        let hurt = base(1)..base(2);
        let path_contains = all[1].display().to_string();
        log.disk.inject(Fault { op, path_contains, after: 0, times: u64::MAX, kind: FaultKind::Eio });
        let (opened, _) = open(&log.disk.reopen(), log.config, &cache()).expect("one bad segment is no reason to refuse the rest");
        let reader = opened.reader();
        assert_eq!(reader.high_watermark(), Offset(12));
        for offset in 0..12 {
            match reader.read(Offset(offset)) {
                Ok(record) => assert_eq!(record.body, log.records[usize::try_from(offset).expect("small")].body),
                Err(error) => {
                    assert!(hurt.contains(&offset), "{op:?}: {offset}: {error}");
                    assert!(matches!(error, ReadError::Io(_)), "it is there, and cannot be read now: {error}");
                }
            }
        }
        drop((reader, opened));
        log.disk.clear_faults();
        let opened = log.reopen();
        log.check(&opened);
        assert!(log.disk.exists(&all[1]).expect("asked"), "nothing was set aside for an error");
    }
}

/// A log whose first segments are gone by retention: the table of its last one is all that tells of them.
fn without_its_first_segments() -> Modelled {
    let mut log = Modelled::new(config(1_000));
    for number in 1..=12 {
        log.commit(&[section(number, 1, 1, 300)]);
    }
    log.log.retain(u64::MAX, 1, 0).expect("retains");
    assert_eq!(segments(&log.disk).len(), 1);
    log
}

#[test]
fn a_stream_table_that_cannot_be_read_now_is_not_a_lost_one() {
    for op in [Op::Read, Op::Open] {
        let mut log = without_its_first_segments();
        let path_contains = names(&log.disk, ".streams")[0].display().to_string();
        log.disk.inject(Fault { op, path_contains, after: 0, times: 2, kind: FaultKind::Eio });
        for _ in 0..2 {
            let error = open(&log.disk.reopen(), log.config, &cache()).err().expect("the table may tell of streams");
            assert!(error.to_string().contains("cannot be opened"), "{error}");
        }
        let opened = log.reopen();
        log.check(&opened);
    }
}

#[test]
fn a_stream_table_that_cannot_be_read_is_made_again_from_earlier_segments() {
    for op in [Op::Read, Op::Open] {
        let mut log = Modelled::new(config(1_000));
        for number in 1..=12 {
            log.commit(&[section(number, 1, 1, 300)]);
        }
        let path_contains = names(&log.disk, ".streams").pop().expect("the active one's").display().to_string();
        log.disk.inject(Fault { op, path_contains, after: 0, times: 1, kind: FaultKind::Eio });
        let opened = log.reopen();
        log.check(&opened);
    }
}

#[test]
fn the_loss_of_a_stream_table_is_told_by_the_opening_that_succeeds() {
    let mut log = without_its_first_segments();
    log.disk.remove_file(&names(&log.disk, ".streams")[0]).expect("removes");
    let path_contains = segments(&log.disk)[0].display().to_string();
    log.disk.inject(Fault { op: Op::Sync, path_contains, after: 0, times: 1, kind: FaultKind::Eio });
    open(&log.disk.reopen(), log.config, &cache()).err().expect("its segment cannot be synced");
    let opened = log.reopen();
    assert_eq!(opened.damage.iter().map(|damage| damage.reason).collect::<Vec<_>>(), ["stream table is lost"]);
    assert!(log.reopen().damage.is_empty(), "once");
}
