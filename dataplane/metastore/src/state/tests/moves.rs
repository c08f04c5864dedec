use veena_contract::{Frozen, Move};

use super::*;

const A: MoveToken = MoveToken(0xa);
const B: MoveToken = MoveToken(0xb);

fn at(epoch: u64) -> PartitionAt {
    PartitionAt { tenant: tenant(), topic: TopicId(1), index: PartitionIndex(1), epoch: OwnershipEpoch(epoch) }
}

fn begin(epoch: u64, to: &str, token: MoveToken) -> Command {
    Command::BeginMove { at: at(epoch), to: node_id(to), token }
}

fn freeze(epoch: u64, token: MoveToken, end: u64) -> Command {
    Command::FreezePartition { at: at(epoch), token, end: Offset(end) }
}

fn flip(epoch: u64, token: MoveToken) -> Command {
    Command::FlipOwner { at: at(epoch), token }
}

fn abort(epoch: u64, token: MoveToken) -> Command {
    Command::AbortMove { at: at(epoch), token }
}

fn owner(state: &State) -> Ownership {
    get(state, "t").owners[1].clone()
}

/// The partition that moves is `b`'s.
fn with(commands: impl IntoIterator<Item = Command>) -> State {
    state([create_on("t", 1, &["a", "b", "c"])].into_iter().chain(commands))
}

#[test]
fn a_partition_moves_in_three_steps_and_only_the_last_one_changes_its_owner() {
    let mut state = with([]);
    let moving = |frozen| Some(Move { to: node_id("c"), token: A, frozen });
    let of_b = |moving| Ownership { node: node_id("b"), epoch: OwnershipEpoch(1), moving };
    state.apply(begin(1, "c", A)).expect("begun");
    assert_eq!(owner(&state), of_b(moving(None)));
    state.apply(freeze(1, A, 42)).expect("frozen");
    assert_eq!(owner(&state), of_b(moving(Some(Frozen { end: Offset(42) }))));
    assert!(owner(&state).is_frozen());
    state.apply(flip(1, A)).expect("flipped");
    assert_eq!(owner(&state), Ownership::new(node_id("c"), OwnershipEpoch(2)));
    assert_eq!(owners(&state, "t"), [("a".to_owned(), 1), ("c".to_owned(), 2), ("c".to_owned(), 1)]);
    state.apply(begin(2, "b", B)).expect("and back");
    state.apply(freeze(2, B, 50)).expect("frozen");
    state.apply(flip(2, B)).expect("flipped");
    assert_eq!(owner(&state), Ownership::new(node_id("b"), OwnershipEpoch(3)));
}

#[test]
fn a_step_of_another_epoch_of_another_move_or_out_of_turn_changes_nothing() {
    let changed = Err(CommandError::OwnershipChanged);
    let cases: &[(&[Command], &[Command])] = &[
        (&[], &[begin(2, "c", A), begin(0, "c", A), begin(1, "b", A), freeze(1, A, 1), flip(1, A), abort(1, A)]),
        (
            &[begin(1, "c", A)],
            &[begin(1, "a", B), begin(1, "c", B), begin(1, "a", A), freeze(1, B, 1), freeze(2, A, 1), flip(1, A), abort(1, B), abort(0, A)],
        ),
        (
            &[begin(1, "c", A), freeze(1, A, 9)],
            &[begin(1, "a", B), freeze(1, A, 8), freeze(1, B, 9), flip(1, B), flip(2, A), flip(0, A), abort(1, B), abort(2, A)],
        ),
        (&[begin(1, "c", A), abort(1, A)], &[freeze(1, A, 9), flip(1, A), abort(1, A)]),
        (&[begin(1, "c", A), abort(1, A), begin(1, "a", B), freeze(1, B, 9)], &[freeze(1, A, 9), flip(1, A), abort(1, A)]),
        (
            &[begin(1, "c", A), freeze(1, A, 9), flip(1, A)],
            &[begin(1, "a", B), freeze(1, A, 9), flip(1, A), flip(2, A), abort(1, A), abort(2, A)],
        ),
    ];
    for (before, late) in cases {
        let state = with(before.iter().cloned());
        for command in *late {
            let mut after = state.clone();
            assert_eq!(after.apply(command.clone()), changed, "{command:?} after {before:?}");
            assert!(same(&after, &state), "{command:?} after {before:?}");
        }
    }
}

#[test]
fn a_step_that_is_asked_for_twice_is_made_once() {
    let mut state = with([begin(1, "c", A), freeze(1, A, 9)]);
    let before = state.clone();
    state.apply(begin(1, "c", A)).expect("it is under way");
    state.apply(freeze(1, A, 9)).expect("it is frozen");
    assert!(same(&state, &before), "the revision too");
}

/// Whoever freezes, flips or aborts in whatever order: one of flip and abort wins, and the partition has one owner.
#[test]
fn in_every_order_of_freeze_flip_and_abort_at_most_one_of_flip_and_abort_is_made() {
    let commands = [freeze(1, A, 9), flip(1, A), abort(1, A), begin(1, "a", B), freeze(1, B, 9), flip(1, B), abort(1, B)];
    // every sequence of four of them, with repetitions
    let count = commands.len();
    for number in 0..count.pow(4) {
        let order = (0..4_u32).map(|place| number / count.pow(place) % count);
        let mut state = with([begin(1, "c", A)]);
        let (mut flips, mut aborts, mut frozen) = (Vec::new(), Vec::new(), Vec::new());
        for command in order.map(|at| commands[at].clone()) {
            let taken = state.apply(command.clone()).is_ok();
            match command {
                Command::FlipOwner { token, .. } if taken => {
                    assert!(frozen.contains(&token), "nothing flips that is not frozen");
                    flips.push(token);
                }
                Command::AbortMove { token, .. } if taken => aborts.push(token),
                Command::FreezePartition { token, .. } if taken => frozen.push(token),
                _ => {}
            }
        }
        assert!(flips.len() <= 1, "the epoch has one successor");
        assert!(flips.iter().all(|token| !aborts.contains(token)), "{number}");
        let owner = owner(&state);
        let node = flips.first().map_or("b", |token| if *token == A { "c" } else { "a" });
        assert_eq!((owner.node, owner.epoch), (node_id(node), OwnershipEpoch(1 + flips.len() as u64)), "{number}");
        assert!(flips.is_empty() || owner.moving.is_none());
    }
}

#[test]
fn a_move_ends_with_its_topic_and_stays_when_the_topic_grows() {
    let mut state = with([begin(1, "c", A)]);
    state.apply(grow_on("t", 1, 4, &["a"])).expect("grown");
    assert_eq!(owner(&state).moving, Some(Move { to: node_id("c"), token: A, frozen: None }));
    state.apply(retention("t", 1, HOUR)).expect("bounds");
    state.apply(freeze(1, A, 9)).expect("frozen");
    state.apply(delete("t", 1)).expect("deleted");
    state.apply(create_on("t", 2, &["a", "b", "c"])).expect("made again");
    assert_eq!(state.apply(flip(1, A)), Err(CommandError::TopicNotFound));
    assert_eq!(owner(&state), Ownership::new(node_id("b"), OwnershipEpoch(1)));
    let mut foreign = at(1);
    (foreign.tenant, foreign.topic) = (serde_json::from_value("other".into()).expect("a tenant"), TopicId(2));
    assert_eq!(state.apply(Command::BeginMove { at: foreign, to: node_id("c"), token: A }), Err(CommandError::TopicNotFound));
    let beyond = PartitionAt { topic: TopicId(2), index: PartitionIndex(3), ..at(1) };
    assert_eq!(state.apply(Command::BeginMove { at: beyond, to: node_id("c"), token: A }), Err(CommandError::OwnershipChanged));
}

#[test]
fn a_topic_is_not_made_in_the_middle_of_a_move() {
    let mut topic = record("t", 1);
    let moving = Some(Move { to: node_id("c"), token: A, frozen: None });
    topic.owners = vec![Ownership { node: node_id("b"), epoch: OwnershipEpoch(5), moving }; 3];
    let state = state([Command::CreateTopic { topic, attach: None }]);
    assert_eq!(owner(&state), Ownership::new(node_id("b"), OwnershipEpoch(1)));
}

#[test]
fn nodes_drain_until_it_is_said_that_they_do_not() {
    let drain = |node: &str, draining| Command::SetDraining { node: node_id(node), draining, mark: None, beside: None };
    let mut state = state([drain("b", true), drain("a", true), drain("b", true)]);
    let draining = |state: &State| state.view().draining.iter().map(NodeId::to_string).collect::<Vec<_>>();
    assert_eq!(draining(&state), ["a", "b"]);
    let refused = |node: &str| Err(CommandError::NodeDraining { node: node_id(node) });
    assert_eq!(state.apply(create_on("t", 1, &["c", "b", "c"])), refused("b"), "it gets nothing new");
    state.apply(create_on("t", 1, &["c", "c", "c"])).expect("taken");
    assert_eq!(state.apply(grow_on("t", 1, 4, &["a"])), refused("a"));
    assert_eq!(state.apply(begin(1, "b", A)), refused("b"));
    state.apply(drain("a", false)).expect("taken back");
    state.apply(begin(1, "a", A)).expect("it gets something again");
    state.apply(drain("c", false)).expect("it never was");
    assert_eq!(draining(&state), ["b"]);
}

#[test]
fn of_two_nodes_that_are_to_leave_at_once_the_second_is_judged_again() {
    let names = |names: &[&str]| Some(names.iter().map(|name| node_id(name)).collect::<Vec<_>>());
    let drain =
        |node: &str, beside: &[&str]| Command::SetDraining { node: node_id(node), draining: true, mark: None, beside: names(beside) };
    let mut state = with([drain("a", &[])]);
    let refused = state.apply(drain("b", &[])).expect_err("a leaves, which its proposer did not know");
    assert!(matches!(&refused, CommandError::NodeChanged { node, .. } if *node == node_id("a")), "{refused}");
    assert!(!state.view().draining.contains(&node_id("b")));
    state.apply(drain("a", &[])).expect("asked for again");
    state.apply(drain("b", &["c", "a"])).expect("it was judged with that; who is kept since does no harm");
    state.apply(drain("a", &[])).expect("it leaves already");
}

#[test]
fn a_node_is_let_go_once_it_has_nothing_and_that_is_not_taken_back() {
    let drain = |draining| Command::SetDraining { node: node_id("b"), draining, mark: None, beside: None };
    let let_go = || Command::LetGo { node: node_id("b"), mark: None };
    let refused = |state: &mut State, command| matches!(state.apply(command), Err(CommandError::NodeChanged { .. }));
    let mut state = with([]);
    assert!(refused(&mut state, let_go()), "nobody has asked for it");
    state.apply(drain(true)).expect("marked");
    assert!(refused(&mut state, let_go()), "it owns a partition");
    for command in [begin(1, "c", A), freeze(1, A, 9), flip(1, A)] {
        state.apply(command).expect("moved");
    }
    state.apply(drain(false)).expect("kept");
    state.apply(begin(2, "b", B)).expect("begun");
    state.apply(drain(true)).expect("marked again");
    assert!(refused(&mut state, let_go()), "a partition is on its way to it");
    state.apply(abort(2, B)).expect("aborted");
    state.apply(let_go()).expect("it has nothing");
    state.apply(let_go()).expect("asked for again");
    assert!(refused(&mut state, drain(false)), "it is on its way out");
    let restored = State::from_dump(&state.dump()).expect("its own dump");
    assert!(same(&restored, &state) && restored.view().leaving.contains(&node_id("b")));
    state.apply(Command::NodeGone { node: node_id("b") }).expect("it is gone");
    assert!(state.view().leaving.is_empty() && state.view().draining.is_empty());
}

#[test]
fn what_a_node_said_of_itself_before_it_was_kept_does_not_let_it_go_the_next_time() {
    let drain = |draining, mark| Command::SetDraining { node: node_id("d"), draining, mark: Some(DrainMark(mark)), beside: None };
    let let_go = |mark: Option<u128>| Command::LetGo { node: node_id("d"), mark: mark.map(DrainMark) };
    let refused = |state: &mut State, command| matches!(state.apply(command), Err(CommandError::NodeChanged { .. }));
    let mut state = with([drain(true, 1), drain(false, 1)]);
    assert!(refused(&mut state, let_go(Some(1))), "it is kept");
    state.apply(drain(true, 2)).expect("marked again");
    state.apply(drain(true, 3)).expect("asked for by somebody else, too");
    let mut state = State::from_dump(&state.dump()).expect("its own dump");
    for mark in [Some(1), Some(3), None] {
        assert!(refused(&mut state, let_go(mark)), "{mark:?}");
    }
    state.apply(let_go(Some(2))).expect("it has nothing");
    state.apply(let_go(Some(2))).expect("asked for again");
    state.apply(Command::NodeGone { node: node_id("d") }).expect("it is gone");
    assert!(state.view().marks.is_empty());
}

#[test]
fn what_an_older_program_would_forget_or_not_understand_has_a_higher_version() {
    let version = |state: &State| {
        let dump: serde_json::Value = serde_json::from_slice(&state.dump()).expect("JSON");
        dump["v"].clone()
    };
    assert_eq!(version(&with([])), 1);
    assert_eq!(version(&with([begin(1, "c", A)])), 2);
    assert_eq!(version(&with([begin(1, "c", A), freeze(1, A, 9), flip(1, A)])), 1, "an owner with another epoch is nothing new");
    assert_eq!(version(&with([Command::SetDraining { node: node_id("a"), draining: true, mark: None, beside: None }])), 2);
    assert_eq!(version(&with([grow_on("t", 1, 4, &["a"])])), 2, "where keys led before");
    let text = |command| super::super::encode(super::super::Operation::Catalog(Box::new(command))).expect("JSON").get().to_owned();
    let head = concat!(
        r#"{"v":2,"op":{"catalog":{"command":"COMMAND","tenant":"default","topic":"0000000000000001","index":1,"epoch":3,"#,
        r#""token":"0000000000000000000000000000000a""#
    );
    let golden = |command: &str, rest: &str| format!("{}{rest}}}}}}}", head.replace("COMMAND", command));
    assert_eq!(text(flip(3, A)), golden("flip_owner", ""));
    assert_eq!(text(abort(3, A)), golden("abort_move", ""));
    assert_eq!(text(freeze(3, A, 7)), golden("freeze_partition", r#","end":7"#));
    assert_eq!(
        text(begin(3, "c", A)),
        r#"{"v":2,"op":{"catalog":{"command":"begin_move","tenant":"default","topic":"0000000000000001","index":1,"epoch":3,"to":"c","token":"0000000000000000000000000000000a"}}}"#
    );
    assert_eq!(
        text(grow_on("t", 1, 4, &["a"])),
        r#"{"v":2,"op":{"catalog":{"command":"grow_partitions","tenant":"default","name":"t","id":"0000000000000001","partitions":4,"owners":["a"]}}}"#
    );
    let drain = Command::SetDraining { node: node_id("c"), draining: true, mark: None, beside: None };
    assert_eq!(text(drain), r#"{"v":2,"op":{"catalog":{"command":"set_draining","node":"c","draining":true}}}"#);
    let drain = Command::SetDraining { node: node_id("c"), draining: true, mark: None, beside: Some(vec![node_id("d")]) };
    assert_eq!(text(drain), r#"{"v":2,"op":{"catalog":{"command":"set_draining","node":"c","draining":true,"beside":["d"]}}}"#);
    assert_eq!(text(Command::LetGo { node: node_id("c"), mark: None }), r#"{"v":2,"op":{"catalog":{"command":"let_go","node":"c"}}}"#);
    let let_go = Command::LetGo { node: node_id("c"), mark: Some(DrainMark(10)) };
    let mark = "0000000000000000000000000000000a";
    assert_eq!(text(let_go), format!(r#"{{"v":2,"op":{{"catalog":{{"command":"let_go","node":"c","mark":"{mark}"}}}}}}"#));
    assert_eq!(text(Command::NodeGone { node: node_id("c") }), r#"{"v":2,"op":{"catalog":{"command":"node_gone","node":"c"}}}"#);
    let ownership = serde_json::to_string(&owner(&with([begin(1, "c", A), freeze(1, A, 9)]))).expect("JSON");
    assert_eq!(ownership, r#"{"node":"b","epoch":1,"moving":{"to":"c","token":"0000000000000000000000000000000a","frozen":{"end":9}}}"#);
}
