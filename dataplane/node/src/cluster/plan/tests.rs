use std::sync::Arc;

use serde_json::json;
use veena_contract::{AttachEpoch, Frozen, Move, Offset, OwnershipEpoch, ParentLink};

use super::*;

fn node(name: &str) -> NodeId {
    NodeId(name.into())
}

/// Members by name: `v` votes, `L` leads, `-` is silent, `+` is dead, `!` is not ready, `0` has nothing left in it.
fn seats(members: &[(&str, &str)]) -> Vec<Seat> {
    let seat = |(name, is): &(&str, &str)| Seat {
        node: node(name),
        is_voter: is.contains(['v', 'L']),
        is_leader: is.contains('L'),
        is_here: !is.contains(['-', '+']),
        is_dead: is.contains('+'),
        is_ready: !is.contains(['!', '-', '+']),
        drained: is.contains('0').then_some(DrainMark(1)),
    };
    members.iter().map(seat).collect()
}

/// A topic whose partitions belong to these nodes. `a>b` moves, `a>b!` is frozen on its way.
fn topic(id: u64, owners: &[&str]) -> TopicRecord {
    let owned = |(index, text): (usize, &&str)| {
        let (text, is_frozen) = text.strip_suffix('!').map_or((*text, false), |text| (text, true));
        let (owner, to) = text.split_once('>').map_or((text, None), |(owner, to)| (owner, Some(to)));
        let frozen = is_frozen.then_some(Frozen { end: Offset(1) });
        let moving = to.map(|to| Move { to: node(to), token: MoveToken(u128::from(id) * 100 + index as u128), frozen });
        Ownership { node: node(owner), epoch: OwnershipEpoch(1), moving }
    };
    let mut topic: TopicRecord = serde_json::from_value(json!({
        "tenant": "default", "name": format!("t{id}"), "id": format!("{id:016x}"), "partitions": owners.len(), "retention_ms": 0,
        "visibility_timeout_ms": 1, "max_in_flight_per_partition": 1, "max_acked_ahead_per_partition": 1, "created_at_ms": 0,
    }))
    .expect("a record");
    topic.owners = owners.iter().enumerate().map(owned).collect();
    topic
}

fn view(topics: impl IntoIterator<Item = TopicRecord>, draining: &[&str]) -> CatalogView {
    let by_id = topics.into_iter().map(|topic| (topic.id, Arc::new(topic))).collect();
    let marks = draining.iter().map(|name| (node(name), DrainMark(1))).collect();
    CatalogView { by_id, draining: draining.iter().map(|name| node(name)).collect(), marks, ..CatalogView::default() }
}

fn steady() -> Timing {
    Timing { is_steady: true, ..Timing::default() }
}

/// What is planned, in short: `begin 1/0 b`, `abort 1/0`, `let go a`, `remove a`, `unmark a`.
fn planned(view: &CatalogView, members: &[(&str, &str)], timing: &Timing) -> Vec<String> {
    let show = |action| match action {
        Action::Begin { at, to } => format!("begin {}/{} {to}", at.topic.0, at.index),
        Action::Abort { at, .. } => format!("abort {}/{}", at.topic.0, at.index),
        Action::LetGo { node, .. } => format!("let go {node}"),
        Action::Remove { node } => format!("remove {node}"),
        Action::Unmark { node } => format!("unmark {node}"),
    };
    plan(view, &seats(members), timing).into_iter().map(show).collect()
}

const FOUR: [(&str, &str); 4] = [("a", "L"), ("b", "v"), ("c", "v"), ("d", "v0")];

#[test]
fn a_node_that_is_taken_out_is_emptied_onto_those_that_have_least_and_then_let_go() {
    let owners = view([topic(1, &["a", "d", "b", "d", "c", "d", "a"])], &["d"]);
    assert_eq!(planned(&owners, &FOUR, &Timing::default()), ["begin 1/1 b", "begin 1/3 c", "begin 1/5 a"]);
    let moving = view([topic(1, &["a", "d>b", "b", "d>c!", "c", "a"])], &["d"]);
    assert_eq!(planned(&moving, &FOUR, &steady()), [""; 0], "it is under way");
    let empty = view([topic(1, &["a", "b", "c"])], &["d"]);
    assert_eq!(planned(&empty, &FOUR, &Timing::default()), ["let go d"]);
    let leaving = CatalogView { leaving: empty.draining.clone(), ..empty.clone() };
    assert_eq!(planned(&leaving, &FOUR, &Timing::default()), ["remove d"], "nobody can keep it any more");
    let gone = Timing { gone: [node("d")].into(), ..Timing::default() };
    assert_eq!(planned(&empty, &FOUR[..3], &gone), ["unmark d"]);
    assert_eq!(planned(&empty, &FOUR[..3], &Timing::default()), [""; 0], "what was begun before may still name it");
}

#[test]
fn a_node_is_let_go_only_when_nothing_is_in_it_and_enough_voters_stay() {
    let empty = view([topic(1, &["a", "b", "c"])], &["d"]);
    for (members, why) in [
        (vec![("a", "L"), ("b", "v"), ("c", "v"), ("d", "v")], "it has messages that are not dispatched"),
        (vec![("a", "L"), ("b", "v"), ("c", "v"), ("d", "v0-")], "it does not say what it has"),
        (vec![("a", "L"), ("b", "v"), ("d", "v0")], "two voters are too few"),
        (vec![("a", "L"), ("b", "v+"), ("c", "v+"), ("d", "v0")], "those who stay could not agree"),
    ] {
        assert_eq!(planned(&empty, &members, &Timing::default()), [""; 0], "{why}");
    }
    assert_eq!(planned(&empty, &[("a", "L"), ("b", "v"), ("d", "0")], &Timing::default()), ["let go d"], "it does not vote");
    let target = view([topic(1, &["a>d!", "b", "c"])], &["d"]);
    assert_eq!(planned(&target, &FOUR, &Timing::default()), [""; 0], "what is frozen may end there yet");
    // The leader goes too, after all others, and one at a time.
    let both = view([topic(1, &["b", "c", "b"])], &["a", "d"]);
    let members = [("a", "L0"), ("b", "v"), ("c", "v"), ("d", "v0"), ("e", "v")];
    assert_eq!(planned(&both, &members, &Timing::default()), ["let go d"]);
    assert_eq!(planned(&both, &[("a", "L0"), ("b", "v"), ("c", "v"), ("e", "v")], &Timing::default()), ["let go a"]);
}

#[test]
fn nothing_is_moved_to_a_node_that_is_silent_not_ready_or_leaving_nor_from_one_that_is_silent() {
    let owners = view([topic(1, &["d", "d"])], &["c", "d"]);
    assert_eq!(planned(&owners, &[("a", "L!"), ("b", "v-"), ("c", "v"), ("d", "v")], &steady()), [""; 0]);
    assert_eq!(planned(&owners, &[("a", "L"), ("b", "v-"), ("c", "v"), ("d", "v")], &steady()), ["begin 1/0 a", "begin 1/1 a"]);
    assert_eq!(planned(&owners, &[("a", "L"), ("b", "v"), ("c", "v"), ("d", "v-")], &steady()), [""; 0]);
}

#[test]
fn what_a_node_said_when_it_was_to_leave_before_does_not_let_it_go_now() {
    let mut again = view([topic(1, &["a", "b", "c"])], &["d"]);
    again.marks.insert(node("d"), DrainMark(2));
    assert_eq!(planned(&again, &FOUR, &Timing::default()), [""; 0]);
    assert!(obstacles(&again, &seats(&FOUR), &node("d")).iter().any(|obstacle| obstacle.code == ObstacleCode::DispatchBacklog));
}

#[test]
fn where_a_partition_could_not_be_moved_it_is_tried_last() {
    let owners = view([topic(1, &["d", "b", "c", "c"])], &["d"]);
    assert_eq!(planned(&owners, &FOUR, &Timing::default()), ["begin 1/0 a"]);
    let at = (TopicId(1), PartitionIndex(0));
    let failed = |nodes: &[&str]| Timing { failed: nodes.iter().map(|to| (at, node(to))).collect(), ..Timing::default() };
    assert_eq!(planned(&owners, &FOUR, &failed(&["a"])), ["begin 1/0 b"]);
    assert_eq!(planned(&owners, &FOUR, &failed(&["a", "b", "c"])), ["begin 1/0 a"]);
}

#[test]
fn only_so_many_partitions_are_moved_at_once() {
    let owners = view([topic(1, &["d"; 20])], &["d"]);
    assert_eq!(planned(&owners, &FOUR, &Timing::default()).len(), limits::MOVES_PER_NODE_MAX);
    let of_three = view([topic(1, &["d"; 20]), topic(2, &["e"; 20]), topic(3, &["f"; 20])], &["d", "e", "f"]);
    let members = [("a", "L"), ("b", "v"), ("c", "v"), ("d", ""), ("e", ""), ("f", "")];
    assert_eq!(planned(&of_three, &members, &Timing::default()).len(), limits::MOVES_MAX);
    // A move that waits for a dead owner takes nobody's turn.
    let waiting = view([topic(1, &["x>a"; 20]), topic(2, &["d"])], &["d"]);
    let members = [("a", "L"), ("b", "v"), ("c", "v"), ("d", "v"), ("x", "+")];
    assert_eq!(planned(&waiting, &members, &Timing::default()), ["begin 2/0 b"]);
}

#[test]
fn a_move_that_cannot_end_well_is_aborted() {
    let late = Timing { overdue: [MoveToken(100)].into(), ..Timing::default() };
    for (owner, members, timing, is_aborted, why) in [
        ("a>d", vec![("a", "L"), ("b", "v")], Timing::default(), true, "its target is no member"),
        ("a>d!", vec![("a", "L"), ("d", "v+")], Timing::default(), true, "its target is dead"),
        ("b>d!", vec![("a", "L"), ("b", "v")], Timing::default(), true, "its target is no member, and its owner goes on"),
        ("b>d!", vec![("a", "L"), ("b", "v-")], Timing::default(), false, "its owner does not say that it would go on"),
        ("b>d!", vec![("a", "L"), ("b", "v+"), ("d", "v+")], Timing::default(), false, "who has its copy comes back first"),
        ("x>d!", vec![("a", "L"), ("d", "v+")], Timing::default(), false, "the copy of a dead target may be all there is"),
        ("b>d", vec![("a", "L"), ("b", "v+"), ("d", "v+")], Timing::default(), true, "nothing was handed over"),
        ("a>d", vec![("a", "L"), ("d", "v-")], Timing::default(), false, "its target is only silent"),
        ("x>d", vec![("a", "L"), ("d", "v")], Timing::default(), true, "its owner is no member"),
        ("x>d!", vec![("a", "L"), ("d", "v")], late.clone(), false, "what its owner handed over may be all there is"),
        ("b>d", vec![("a", "L"), ("b", "v+"), ("d", "v")], Timing::default(), false, "its owner may come back"),
        ("a>d!", vec![("a", "L"), ("d", "v")], Timing::default(), false, "it takes a moment"),
        ("a>d!", vec![("a", "L"), ("d", "v")], late.clone(), true, "its target does not take over"),
        ("b>d!", vec![("a", "L"), ("b", "v-"), ("d", "v")], late.clone(), false, "its owner would not go on"),
    ] {
        let found = planned(&view([topic(1, &[owner])], &[]), &members, &timing);
        assert_eq!(found, if is_aborted { vec!["abort 1/0"] } else { vec![] }, "{owner}: {why}");
    }
    let found = planned(&view([topic(1, &["a>d", "a>d!"])], &["d"]), &FOUR, &Timing::default());
    assert_eq!(found, ["abort 1/0"], "what goes to a node that leaves");
}

#[test]
fn members_are_made_equal_only_when_all_have_been_well_for_long() {
    let owners = view([topic(1, &["a", "a", "a", "b", "c", "d"])], &[]);
    assert_eq!(planned(&owners, &FOUR, &steady()), ["begin 1/0 b"]);
    assert_eq!(planned(&owners, &FOUR, &Timing::default()), [""; 0], "not for long");
    for unwell in ["v-", "v+", "v!"] {
        let mut members = FOUR;
        members[2].1 = unwell;
        assert_eq!(planned(&owners, &members, &steady()), [""; 0], "{unwell}");
    }
    let leaving = view([topic(1, &["a", "a", "a", "b", "c", "d"])], &["d"]);
    assert_eq!(planned(&leaving, &FOUR, &steady()), ["begin 1/5 b"], "first things first");
    let resting = Timing { resting: [(TopicId(1), PartitionIndex(0))].into(), ..steady() };
    assert_eq!(planned(&owners, &FOUR, &resting), ["begin 1/1 b"]);
}

#[test]
fn a_child_is_not_moved_beside_its_parent_if_another_partition_will_do() {
    let link = ParentLink { parent: topic(1, &[]).name, parent_id: TopicId(1), epoch: AttachEpoch(1), delay_ms: 0 };
    let child = TopicRecord { parent: Some(link), ..topic(2, &["a", "a"]) };
    let owners = view([topic(1, &["b", "c"]), child], &[]);
    let members = [("a", "L"), ("b", "v"), ("c", "v")];
    let uneven = |name: &str| view(owners.by_id.values().map(|topic| topic.as_ref().clone()).chain([topic(3, &["a", name])]), &[]);
    assert_eq!(planned(&uneven("c"), &members, &steady()), ["begin 2/1 b"], "not the first, whose parent is there");
    let leaving = CatalogView { draining: [node("a")].into_iter().collect(), ..owners };
    assert_eq!(planned(&leaving, &[("a", "v"), ("b", "v"), ("c", "L")], &Timing::default()), ["begin 2/0 c", "begin 2/1 b"]);
}

/// Whatever there is, moves come to an end, with no two members further apart than one, and no partition moved that need not be.
#[test]
fn balance_is_reached_with_as_few_moves_as_it_takes() {
    let names = ["a", "b", "c", "d", "e"];
    let mut number: u64 = 7;
    let mut draw = |below: u64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (number >> 33) % below
    };
    for _ in 0..200 {
        let members: Vec<(&str, &str)> = names[..2 + usize::try_from(draw(4)).expect("few")].iter().map(|name| (*name, "v")).collect();
        let mut topics: Vec<TopicRecord> = (1..=1 + draw(4))
            .map(|id| {
                let owners: Vec<&str> =
                    (0..draw(12)).map(|_| members[usize::try_from(draw(members.len() as u64)).expect("few")].0).collect();
                topic(id, &owners)
            })
            .collect();
        let counts = |topics: &[TopicRecord]| -> Vec<usize> {
            let owned = |name: &str| topics.iter().flat_map(|topic| &topic.owners).filter(|owner| owner.node == node(name)).count();
            members.iter().map(|(name, _)| owned(name)).collect()
        };
        let (before, total) = (counts(&topics), topics.iter().map(|topic| topic.owners.len()).sum::<usize>());
        let most = total.div_ceil(members.len());
        let over: usize = before.iter().map(|count| count.saturating_sub(most)).sum();
        let under: usize = before.iter().map(|count| (total / members.len()).saturating_sub(*count)).sum();
        let mut moved = 0;
        loop {
            let actions = plan(&view(topics.clone(), &[]), &seats(&members), &steady());
            if actions.is_empty() {
                break;
            }
            for action in actions {
                let Action::Begin { at, to } = action else { panic!("{action:?}") };
                let topic = topics.iter_mut().find(|topic| topic.id == at.topic).expect("there");
                topic.owners[usize::try_from(at.index.get()).expect("small")] = Ownership::new(to, at.epoch.next());
                moved += 1;
            }
        }
        let after = counts(&topics);
        assert!(after.iter().max().expect("a member") - after.iter().min().expect("a member") <= 1, "{before:?} {after:?}");
        assert_eq!(moved, over.max(under), "{before:?} {after:?}");
    }
}

#[test]
fn it_is_told_what_stands_in_the_way_of_taking_a_node_out() {
    let codes = |view: &CatalogView, members: &[(&str, &str)], name: &str| -> String {
        let found = obstacles(view, &seats(members), &node(name)).into_iter();
        found
            .map(|obstacle| format!("{}{}", obstacle.code.as_str(), if obstacle.is_lasting { "!" } else { "" }))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let owned = view([topic(1, &["a", "b", "d", "d"])], &[]);
    assert_eq!(codes(&owned, &FOUR, "d"), "");
    assert_eq!(codes(&owned, &FOUR, "never"), "");
    assert_eq!(codes(&owned, &FOUR, "a"), "leader_transfer");
    assert_eq!(codes(&owned, &FOUR[..3], "b"), "below_min_voters!");
    assert_eq!(
        codes(&owned, &[("a", "L"), ("b", "v"), ("c", "v"), ("e", "")], "b"),
        "below_min_voters",
        "the other one may become a voter"
    );
    let other_leaves = view([topic(1, &["a", "d"])], &["c"]);
    assert_eq!(codes(&other_leaves, &FOUR, "d"), "below_min_voters!", "who leaves already is not counted");
    assert_eq!(codes(&other_leaves, &FOUR, "c"), "dispatch_backlog", "it was the first");
    let five = [("a", "L"), ("b", "v"), ("c", "v"), ("d", "v"), ("e", "v")];
    assert_eq!(codes(&other_leaves, &five, "d"), "");
    assert_eq!(codes(&owned, &[("a", "L"), ("b", "v+"), ("c", "v+"), ("d", "v")], "d"), "no_healthy_majority");
    assert_eq!(codes(&owned, &[("a", "L!"), ("b", "v-"), ("c", "v!"), ("d", "v")], "d"), "no_receivers");
    assert_eq!(codes(&owned, &[("d", "")], "d"), "no_receivers!");
    assert_eq!(codes(&owned, &[("a", "L"), ("b", "v"), ("c", "v"), ("d", "v+")], "d"), "owner_dead!");
    assert_eq!(codes(&owned, &[("a", "L"), ("b", "v"), ("c", "v+"), ("d", "v")], "c"), "node_status_unavailable!");
    assert_eq!(codes(&owned, &[("a", "L"), ("b", "v"), ("c", "v"), ("d", "v-")], "d"), "node_status_unavailable");
    let inbound = view([topic(1, &["a>d", "b"])], &[]);
    assert_eq!(codes(&inbound, &FOUR, "d"), "move_target");
    let full = view([topic(1, &["a>b"; limits::MOVES_MAX]), topic(2, &["d"])], &["d"]);
    assert_eq!(codes(&full, &FOUR, "d"), "move_budget_full");
    let empty = view([topic(1, &["a"])], &["d"]);
    assert_eq!(codes(&empty, &[("a", "L"), ("b", "v"), ("c", "v"), ("d", "v")], "d"), "dispatch_backlog");
}
