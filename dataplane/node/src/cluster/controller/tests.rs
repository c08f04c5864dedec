use std::sync::Arc;

use serde_json::json;
use veena_contract::{Frozen, Move, Offset, Ownership, TopicRecord};

use super::*;

const A: MoveToken = MoveToken(0xa);
const AT: (TopicId, PartitionIndex) = (TopicId(7), PartitionIndex(0));

fn node(name: &str) -> NodeId {
    NodeId(name.into())
}

fn seat(name: &str) -> Seat {
    Seat { node: node(name), is_voter: true, is_leader: false, is_here: true, is_dead: false, is_ready: true, drained: None }
}

/// One partition of `a`'s.
fn view(epoch: u64, moving: Option<Option<u64>>) -> CatalogView {
    let mut topic: TopicRecord = serde_json::from_value(json!({
        "tenant": "default", "name": "t", "id": "0000000000000007", "partitions": 1, "retention_ms": 0, "visibility_timeout_ms": 1,
        "max_in_flight_per_partition": 1, "max_acked_ahead_per_partition": 1, "created_at_ms": 0,
    }))
    .expect("a record");
    let moving = moving.map(|end| Move { to: node("b"), token: A, frozen: end.map(|end| Frozen { end: Offset(end) }) });
    topic.owners = vec![Ownership { node: node("a"), epoch: OwnershipEpoch(epoch), moving }];
    let mut view = CatalogView::default();
    view.by_id.insert(topic.id, Arc::new(topic));
    view
}

#[test]
fn a_move_is_overdue_when_it_has_been_frozen_for_long_however_long_it_was_copied() {
    let (mut memory, began) = (Memory::default(), Instant::now());
    let mut overdue = |after: Duration, end| memory.look(&view(1, Some(end)), &[], began + after).overdue.len();
    assert_eq!(overdue(Duration::ZERO, None), 0);
    assert_eq!(overdue(FROZEN * 10, Some(5)), 0);
    assert_eq!(overdue(FROZEN * 11 - Duration::from_millis(1), Some(5)), 0);
    assert_eq!(overdue(FROZEN * 11, Some(5)), 1);
}

#[test]
fn a_partition_rests_after_an_aborted_move_and_not_after_one_that_was_made() {
    let began = Instant::now();
    let after = |epoch, waited: Duration| {
        let mut memory = Memory::default();
        memory.look(&view(1, Some(None)), &[], began);
        memory.look(&view(epoch, None), &[], began);
        memory.look(&view(epoch, None), &[], began + waited).resting.contains(&AT)
    };
    assert!(after(1, Duration::ZERO) && after(1, REST - Duration::from_millis(1)));
    assert!(!after(1, REST), "not for ever");
    assert!(!after(2, Duration::ZERO), "it has moved");
}

#[test]
fn a_partition_rests_twice_as_long_after_each_aborted_move_until_it_has_moved() {
    let (mut memory, mut now) = (Memory::default(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        memory.look(&view(1, Some(None)), &[], now);
        memory.look(&view(1, None), &[], now);
        let began = now;
        while memory.look(&view(1, None), &[], now).resting.contains(&AT) {
            now += Duration::from_secs(1);
        }
        pauses.push(now.duration_since(began).as_secs());
    }
    assert_eq!(pauses, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
    assert!(memory.look(&view(1, None), &[], now).failed.contains(&(AT, node("b"))), "others are tried first");
    memory.look(&view(1, Some(None)), &[], now);
    memory.look(&view(2, None), &[], now);
    memory.look(&view(2, Some(None)), &[], now);
    let timing = memory.look(&view(2, None), &[], now);
    assert!(timing.resting.contains(&AT));
    let timing = memory.look(&view(2, None), &[], now + REST);
    assert!(!timing.resting.contains(&AT), "after it has moved, the pause begins anew");
    assert!(memory.look(&view(2, None), &[], now + REST + REST_MAX).failed.is_empty(), "it is forgotten in the end");
}

#[test]
fn the_members_are_steady_once_nothing_has_changed_for_long() {
    let (mut memory, began) = (Memory::default(), Instant::now());
    let mut is_steady = |after: Duration, members: &[Seat]| memory.look(&CatalogView::default(), members, began + after).is_steady;
    assert!(!is_steady(Duration::ZERO, &[seat("a")]));
    assert!(is_steady(STEADY, &[seat("a")]));
    assert!(!is_steady(STEADY * 2, &[seat("a"), seat("b")]), "one has come");
    assert!(is_steady(STEADY * 3, &[seat("a"), seat("b")]));
    let silent = Seat { is_here: false, ..seat("b") };
    assert!(!is_steady(STEADY * 4, &[seat("a"), silent]));
    assert!(!is_steady(STEADY * 5 - Duration::from_millis(1), &[seat("a"), seat("b")]), "it was back only then");
}

#[test]
fn a_mark_is_forgotten_when_its_node_has_been_gone_for_long() {
    let (mut memory, began) = (Memory::default(), Instant::now());
    let view = CatalogView { draining: [node("b")].into_iter().collect(), ..CatalogView::default() };
    let mut gone = |after: Duration, members: &[Seat]| memory.look(&view, members, began + after).gone.contains(&node("b"));
    assert!(!gone(Duration::ZERO, &[seat("a"), seat("b")]));
    assert!(!gone(GONE, &[seat("a")]), "just now");
    assert!(!gone(GONE + GONE / 2, &[seat("a"), seat("b")]), "it has come again");
    assert!(!gone(GONE * 2, &[seat("a")]));
    assert!(gone(GONE * 3, &[seat("a")]));
}
