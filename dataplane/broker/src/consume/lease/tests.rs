//! The lease table against a naive model, and the cases that cost others their messages.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use veena_contract::Offset;

use super::{LeaseCaps, LeaseTable, NoSuchLease, SettleState};

const CAPS: LeaseCaps = LeaseCaps { in_flight_max: 4, acked_ahead_max: 3 };
const LEASE_MS: u64 = 100;

fn grant(table: &mut LeaseTable, now: u64, high_watermark: u64, nonce: u64) -> Option<u64> {
    table.reserve(now, Offset(high_watermark), CAPS, LEASE_MS, nonce).map(|granted| granted.offset.0)
}

#[test]
fn a_late_ack_cannot_settle_someone_elses_lease() {
    let mut table = LeaseTable::default();
    assert_eq!(grant(&mut table, 0, 1, 11), Some(0));
    assert_eq!(grant(&mut table, 150, 1, 22), Some(0), "expired, handed out anew");
    assert_eq!(table.ack(160, Offset(0), 11), Err(NoSuchLease));
    assert_eq!(table.frontier(), Offset(0));
    assert_eq!(table.ack(160, Offset(0), 22), Ok(()));
    assert_eq!(table.ack(160, Offset(0), 22), Err(NoSuchLease), "settled for ever");
}

#[test]
fn an_extended_lease_outlives_its_first_deadline() {
    let mut table = LeaseTable::default();
    grant(&mut table, 0, 1, 1);
    table.extend(90, Offset(0), 1, LEASE_MS).expect("living lease");
    assert_eq!(table.expire(150), 0, "the first deadline no longer counts");
    assert_eq!(table.expire(190), 1);
    assert_eq!(table.extend(190, Offset(0), 1, LEASE_MS), Err(NoSuchLease), "a lost lease is not stolen back");
}

#[test]
fn a_full_ahead_set_holds_back_all_but_the_frontier() {
    let mut table = LeaseTable::default();
    for nonce in 1..=4 {
        grant(&mut table, 0, 100, nonce);
    }
    for offset in 1..4 {
        table.ack(1, Offset(offset), offset + 1).expect("acks of delivered messages are always taken");
    }
    assert_eq!(grant(&mut table, 2, 100, 9), None, "ahead set full, frontier leased");
    table.release(3, Offset(0), 1).expect("living lease");
    assert_eq!(grant(&mut table, 3, 100, 10), Some(0), "the hole is handed out");
    table.ack(4, Offset(0), 10).expect("living lease");
    assert_eq!(table.frontier(), Offset(4));
    assert_eq!(table.acked_ahead(), 0);
    assert_eq!(grant(&mut table, 4, 100, 11), Some(4));
}

#[test]
fn retention_moves_the_frontier_in_one_step() {
    let mut table =
        LeaseTable::restore(&SettleState { frontier: 5, high_watermark: 0, ahead: vec![(7, 12)], deliveries: vec![(5, 2), (20, 1)] });
    assert_eq!(table.jump_to(Offset(10)), 2, "5 and 6 were not settled");
    assert_eq!(table.frontier(), Offset(12));
    assert_eq!(table.state(Offset(0)).deliveries, vec![(20, 1)]);
}

#[test]
fn an_unwritten_delivery_is_not_counted() {
    let mut table = LeaseTable::default();
    let first = table.reserve(0, Offset(1), CAPS, LEASE_MS, 1).expect("one message");
    assert_eq!(first.deliveries_before, 0);
    table.release(0, Offset(0), 1).expect("living lease");
    let second = table.reserve(0, Offset(1), CAPS, LEASE_MS, 2).expect("again");
    assert_eq!(second.deliveries_before, 0);
    table.delivered(Offset(0));
    table.release(0, Offset(0), 2).expect("living lease");
    let third = table.reserve(0, Offset(1), CAPS, LEASE_MS, 3).expect("again");
    assert_eq!(third.deliveries_before, 1);
}

#[test]
fn ended_leases_leave_no_memory_behind() {
    let mut table = LeaseTable::default();
    for offset in 0..10_000 {
        grant(&mut table, 0, 10_000, offset + 1);
        table.ack(0, Offset(offset), offset + 1).expect("living lease");
    }
    assert!(table.deadlines.len() <= 65);
}

#[derive(Clone, Debug)]
enum Step {
    Reserve,
    Ack(usize),
    Extend(usize),
    Release(usize),
    Wait(u64),
    Skip(u64, u64),
    Grow(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Reserve),
        3 => (0_usize..8).prop_map(Step::Ack),
        1 => (0_usize..8).prop_map(Step::Extend),
        1 => (0_usize..8).prop_map(Step::Release),
        1 => (1_u64..80).prop_map(Step::Wait),
        1 => (0_u64..40, 1_u64..3).prop_map(|(start, len)| Step::Skip(start, start + len)),
        2 => (1_u64..5).prop_map(Step::Grow),
        1 => Just(Step::Restart),
    ]
}

/// The rules, said naively.
#[derive(Default)]
struct Naive {
    settled: BTreeSet<u64>,
    leases: BTreeMap<u64, (u64, u64)>,
    end: u64,
}

impl Naive {
    fn frontier(&self) -> u64 {
        (0..).find(|offset| !self.settled.contains(offset)).expect("finite set")
    }

    fn reserve(&mut self, now: u64) -> Option<u64> {
        self.leases.retain(|_, (_, deadline)| *deadline > now);
        if self.leases.len() as u64 >= CAPS.in_flight_max {
            return None;
        }
        let frontier = self.frontier();
        let ahead = self.settled.iter().filter(|&&offset| offset > frontier).count() as u64;
        let lowest = (frontier..self.end).find(|offset| !self.settled.contains(offset) && !self.leases.contains_key(offset))?;
        (ahead < CAPS.acked_ahead_max || lowest == frontier).then_some(lowest)
    }
}

proptest! {
    #[test]
    fn the_table_agrees_with_the_naive_rules(steps in proptest::collection::vec(step(), 1..200)) {
        let mut table = LeaseTable::default();
        let mut naive = Naive::default();
        let mut handles: Vec<(u64, u64)> = Vec::new();
        let (mut now, mut nonce) = (0_u64, 0_u64);
        for step in steps {
            nonce += 1;
            match step {
                Step::Reserve => {
                    let expected = naive.reserve(now);
                    prop_assert_eq!(grant(&mut table, now, naive.end, nonce), expected);
                    if let Some(offset) = expected {
                        naive.leases.insert(offset, (nonce, now + LEASE_MS));
                        handles.push((offset, nonce));
                    }
                }
                Step::Ack(i) | Step::Extend(i) | Step::Release(i) if handles.is_empty() => { let _ = i; }
                Step::Ack(i) => {
                    let (offset, held) = handles[i % handles.len()];
                    let is_living = naive.leases.get(&offset).is_some_and(|&(n, deadline)| n == held && deadline > now);
                    prop_assert_eq!(table.ack(now, Offset(offset), held).is_ok(), is_living);
                    if is_living {
                        naive.leases.remove(&offset);
                        naive.settled.insert(offset);
                    }
                }
                Step::Extend(i) => {
                    let (offset, held) = handles[i % handles.len()];
                    let living = naive.leases.get_mut(&offset).filter(|(n, deadline)| *n == held && *deadline > now);
                    prop_assert_eq!(table.extend(now, Offset(offset), held, LEASE_MS).is_ok(), living.is_some());
                    if let Some(lease) = living {
                        lease.1 = now + LEASE_MS;
                    }
                }
                Step::Release(i) => {
                    let (offset, held) = handles[i % handles.len()];
                    let is_living = naive.leases.get(&offset).is_some_and(|&(n, deadline)| n == held && deadline > now);
                    prop_assert_eq!(table.release(now, Offset(offset), held).is_ok(), is_living);
                    if is_living {
                        naive.leases.remove(&offset);
                    }
                }
                Step::Wait(ms) => now += ms,
                Step::Skip(start, end) => {
                    let end = end.min(naive.end);
                    table.skip(Offset(start), Offset(end));
                    for offset in start..end {
                        naive.settled.insert(offset);
                        naive.leases.remove(&offset);
                    }
                }
                Step::Grow(n) => naive.end += n,
                Step::Restart => {
                    table = LeaseTable::restore(&table.state(Offset(0)));
                    naive.leases.clear();
                }
            }
            prop_assert_eq!(table.frontier().0, naive.frontier());
        }
    }
}

#[test]
fn leases_and_what_is_settled_go_on_in_another_table() {
    let mut table = LeaseTable::default();
    let caps = LeaseCaps { in_flight_max: 10, acked_ahead_max: 10 };
    for nonce in 0..7 {
        assert!(table.reserve(nonce, Offset(20), caps, LEASE_MS, 100 + nonce).is_some());
    }
    // 0 is settled, 2 and 3 ahead; 1 has run out; 5 was handed back; 4 and 6 are leased.
    table.ack(7, Offset(0), 100).expect("leased");
    table.ack(7, Offset(2), 102).expect("leased");
    table.ack(7, Offset(3), 103).expect("leased");
    table.release(7, Offset(5), 105).expect("leased");
    table.extend(50, Offset(4), 104, LEASE_MS).expect("leased");
    table.freeze();
    let now = 102;
    let left = table.leases_left(now);
    assert_eq!(left.iter().map(|lease| (lease.offset.0, lease.nonce, lease.left_ms)).collect::<Vec<_>>(), [(4, 104, 48), (6, 106, 4)]);
    let mut other = LeaseTable::restore(&table.state(Offset(20)));
    let began = 1_000_000;
    other.take_over(&left.iter().map(|lease| (*lease, began + lease.left_ms)).collect::<Vec<_>>());
    assert_eq!((other.leased(), other.frontier(), other.acked_ahead()), (2, Offset(1), 2));
    let mut next = || other.reserve(began, Offset(20), caps, LEASE_MS, 900).map(|granted| granted.offset.0);
    assert_eq!([next(), next(), next(), next()], [Some(1), Some(5), Some(7), Some(8)]);
    other.ack(began + 1, Offset(4), 104).expect("its handle has not changed");
    assert_eq!(other.ack(began + 5, Offset(6), 106), Err(NoSuchLease), "it has run out");
    assert_eq!(other.reserve(began + 5, Offset(20), caps, LEASE_MS, 901).map(|granted| granted.offset.0), Some(6));
}

#[test]
fn a_frozen_table_changes_nothing_until_it_is_thawed() {
    let mut table = LeaseTable::default();
    assert_eq!(grant(&mut table, 0, 5, 1), Some(0));
    assert_eq!(grant(&mut table, 0, 5, 2), Some(1));
    table.freeze();
    let before = format!("{table:?}");
    assert_eq!(grant(&mut table, 0, 5, 3), None);
    assert_eq!(table.ack(1, Offset(0), 1), Err(NoSuchLease));
    assert_eq!(table.release(1, Offset(0), 1), Err(NoSuchLease));
    assert_eq!(table.extend(1, Offset(0), 1, LEASE_MS), Err(NoSuchLease));
    assert_eq!((table.expire(1_000), table.skip(Offset(0), Offset(2)), table.jump_to(Offset(2))), (0, 0, 0));
    table.delivered(Offset(0));
    assert!(!table.has_candidate(1, Offset(5), CAPS));
    assert_eq!(format!("{table:?}"), before);
    table.thaw();
    assert_eq!(table.ack(1, Offset(0), 1), Ok(()));
}
