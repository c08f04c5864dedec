//! Lanes take turns in the groups of the log.

use std::path::Path;
use std::sync::Arc;

use veena_storage::disk::mem::MemDisk;
use veena_storage::lanes::Lane;
use veena_storage::wal::{StageError, Wal, WalConfig};

use super::{DIR, config, entry};
use crate::support::Seeded;

const MIB: usize = 1024 * 1024;

#[test]
fn a_flood_in_one_lane_leaves_room_and_the_next_group_to_another() {
    let config =
        WalConfig { segment_bytes: 32 * MIB as u64, staged_bytes_max: 16 * MIB, undispatched_bytes_max: 64 * MIB as u64, ..config() };
    let (wal, _) = Wal::open(Arc::new(MemDisk::new()), Path::new(DIR), config, &Seeded::new(1)).expect("opened");
    wal.start_by_hand(Arc::new(|_| ()));
    let (flood, light) = (Lane(1), Lane(2));
    let stage = |lane, bytes: usize| wal.stage_in(lane, [entry(vec![b'x'; bytes])].into_iter().collect());
    let mut staged = Vec::new();
    let refused = loop {
        match stage(flood, 60 * 1024) {
            Ok(call) => staged.push(call),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, staged.len() * 60 / 1024), (StageError::Full, 13), "in MiB: the last eighth is not theirs");
    let mut one = stage(light, 1_000).expect("there is room for who has little");
    let written = wal.write_now().expect("a group");
    wal.sync_now(&written);
    assert!(one.try_outcome().is_some_and(|outcome| outcome.is_ok()), "it is in the next group");
    let served = staged.iter_mut().filter_map(|call| call.try_outcome()).count();
    assert!(served > 100 && served < staged.len(), "beside as much of the flood as fits: {served} of {}", staged.len());
    wal.flush_now();
    assert_eq!(wal.status().staged_bytes, 0);
    // Who is in no lane may use all of the room, as before.
    let all = (0..).take_while(|_| wal.stage([entry(vec![b'x'; 60 * 1024])].into_iter().collect()).is_ok()).count();
    assert_eq!(all * 60 / 1024, 15);
}
