//! A device that answers reads of one segment with errors: what is around it is served.

use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::{Fault, FaultKind, Op};
use veena_storage::partition::ReadError;

use super::support::{Modelled, cache, config, open, section, segments};

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
