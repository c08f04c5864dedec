//! The stream rule under an exhaustive explorer.
//!
//! The right rule must hold in every state that the bounds allow; each planted mistake must be found. A mistake is planted in the model's
//! wrapper, never in the rule's own code.

mod explore;
mod owner;
mod world;

use explore::{Explored, explore};
use world::Streams;

/// Which rule the model runs: the right one, or one with a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Right,
    /// The owner answers as committed what it has only appended.
    AppendedAsCommitted,
    /// The owner drops whatever is below the highest sequence it has seen, and asks for no `prev`.
    HighWaterDedup,
    /// The owner takes every commit that says BEGIN as a new stream.
    BeginFromAnyone,
    /// The sender moves a record to another partition without first making that durable.
    MoveNotDurable,
    /// The sender moves records that an earlier life may have sent.
    MoveFromEarlierLife,
    /// The sender moves a record whose commit was not answered.
    MoveInDoubt,
    /// The sender moves a record that a file holds, and leaves the file.
    MoveParked,
    /// When it is unknown whether a move was written, the sender goes on as if it was not.
    FailedMoveForgotten,
    /// When it is unknown whether a move was written, the sender goes on with what comes behind that record.
    HeldIsPassed,
    /// After a restart the sender sends originals too.
    ReplayIgnoresMoved,
    /// The checkpoint passes what was moved before its new owner has it.
    CheckpointPastMoved,
    /// The sender does not ask where it stands after a restart or a missing answer.
    NoReopen,
    /// After a failed sync the owner keeps its tail and still takes its marks back.
    RollbackBesideKeptTail,
}

/// How much may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub records: u64,
    pub owners: usize,
    /// Packets under way at once.
    pub packets: usize,
    pub sender_crashes: u8,
    pub owner_crashes: u8,
    pub failed_syncs: u8,
    pub repeats: u8,
    /// How often an owner comes back as an older copy of itself.
    pub restores: u8,
    pub moves: u8,
    /// Moves of which it is not known whether they were written.
    pub failed_moves: u8,
    /// How often everything that waits is set aside.
    pub parks: u8,
    pub has_checkpoints: bool,
    /// Leaves it to the other rules to notice a wrong answer.
    pub is_blind_to_answers: bool,
}

const SMALL: Bounds = Bounds {
    records: 3,
    owners: 1,
    packets: 2,
    sender_crashes: 0,
    owner_crashes: 0,
    failed_syncs: 0,
    repeats: 0,
    restores: 0,
    moves: 0,
    failed_moves: 0,
    parks: 0,
    has_checkpoints: false,
    is_blind_to_answers: false,
};
const STATES_MAX: usize = 2_000_000;

#[expect(clippy::print_stdout, reason = "the counts and traces are for whoever reads the run")]
fn run(name: &str, rule: Rule, bounds: Bounds) -> Explored {
    let explored = explore(&Streams { bounds, rule }, STATES_MAX);
    println!("{name}: {explored}");
    explored
}

/// The right rule holds, everything can always get done, and each kind of step that the bounds allow was taken.
fn assert_holds(name: &str, bounds: Bounds) {
    let explored = run(name, Rule::Right, bounds);
    let allowed = [
        (true, vec!["open", "send", "give up", "deliver", "drop", "sync"]),
        (bounds.sender_crashes > 0, vec!["crash sender"]),
        (bounds.owner_crashes > 0, vec!["crash owner"]),
        (bounds.failed_syncs > 0, vec!["fail sync", "fail sync, keep tail"]),
        (bounds.repeats > 0, vec!["repeat"]),
        (bounds.restores > 0, vec!["restore"]),
        (bounds.has_checkpoints, vec!["checkpoint"]),
        (bounds.restores > 0 && bounds.has_checkpoints, vec!["declare gap"]),
        (bounds.moves > 0, vec!["move"]),
        (bounds.failed_moves > 0, vec!["fail move"]),
        (bounds.parks > 0, vec!["park"]),
    ];
    for kind in allowed.into_iter().filter(|(is_allowed, _)| *is_allowed).flat_map(|(_, kinds)| kinds) {
        assert!(explored.kinds.get(kind).is_some_and(|count| *count > 0), "no step of kind {kind}: {explored}");
    }
    assert!(explored.violation.is_none(), "{explored}");
    assert!(explored.done > 0, "{explored}");
}

/// The mistake is found, by a rule whose text has `rule_part`, and the right rule holds within the same bounds.
fn assert_found(name: &str, rule: Rule, bounds: Bounds, rule_part: &str) {
    let explored = run(name, rule, bounds);
    let violation = explored.violation.as_ref().unwrap_or_else(|| panic!("{name} was not found: {explored}"));
    assert!(violation.rule.contains(rule_part), "{explored}");
    assert_holds("the right rule within the same bounds", bounds);
}

#[test]
fn the_rule_holds_under_crashes_of_both_sides() {
    assert_holds("crashes", Bounds { sender_crashes: 1, owner_crashes: 2, has_checkpoints: true, ..SMALL });
    assert_holds("more crashes of the sender", Bounds { sender_crashes: 2, owner_crashes: 1, has_checkpoints: true, ..SMALL });
}

#[test]
fn the_rule_holds_when_packets_are_repeated_late_and_out_of_order() {
    assert_holds("network", Bounds { packets: 3, repeats: 1, sender_crashes: 1, ..SMALL });
}

#[test]
fn the_rule_holds_under_failed_syncs() {
    assert_holds("failed syncs", Bounds { failed_syncs: 2, repeats: 1, owner_crashes: 1, ..SMALL });
}

#[test]
fn the_rule_holds_when_an_owner_comes_back_older() {
    assert_holds("restores", Bounds { restores: 1, has_checkpoints: true, ..SMALL });
    assert_holds(
        "restores and crashes",
        Bounds { records: 2, restores: 1, sender_crashes: 1, owner_crashes: 1, has_checkpoints: true, ..SMALL },
    );
}

#[test]
fn the_rule_holds_when_records_move_to_another_partition() {
    assert_holds("moves", Bounds { records: 2, owners: 2, moves: 2, sender_crashes: 1, owner_crashes: 1, ..SMALL });
}

#[test]
fn four_records_are_no_different_from_three() {
    assert_holds("four records", Bounds { records: 4, sender_crashes: 1, owner_crashes: 1, ..SMALL });
}

#[test]
fn appended_answered_as_committed_is_found() {
    let bounds = Bounds { owner_crashes: 1, ..SMALL };
    assert_found("appended as committed", Rule::AppendedAsCommitted, bounds, "the high watermark is behind");
    let blind = Bounds { is_blind_to_answers: true, ..bounds };
    assert_found("appended as committed, by its loss", Rule::AppendedAsCommitted, blind, "does not hold it");
}

#[test]
fn high_water_dedup_is_found() {
    assert_found("high-water dedup", Rule::HighWaterDedup, SMALL, "is missing before");
    let alone = Bounds { records: 1, packets: 1, failed_syncs: 1, ..SMALL };
    let explored = run("high-water dedup with one in flight", Rule::HighWaterDedup, alone);
    assert!(explored.violation.is_some(), "{explored}");
}

#[test]
fn begin_accepted_from_anyone_is_found() {
    assert_found("BEGIN from anyone", Rule::BeginFromAnyone, Bounds { repeats: 1, ..SMALL }, "held twice");
}

const MOVES: Bounds = Bounds { records: 2, owners: 2, moves: 1, ..SMALL };

#[test]
fn the_rule_holds_when_moved_records_move_on_and_back() {
    assert_holds("on and back", Bounds { records: 1, moves: 2, sender_crashes: 1, has_checkpoints: true, ..MOVES });
    assert_holds("on", Bounds { records: 1, owners: 3, moves: 2, sender_crashes: 1, ..MOVES });
}

#[test]
fn the_rule_holds_when_records_move_and_the_log_or_the_files_of_the_sender_come_between() {
    assert_holds("failed moves", Bounds { failed_moves: 1, ..MOVES });
    assert_holds("failed moves and checkpoints", Bounds { records: 1, failed_moves: 1, has_checkpoints: true, ..MOVES });
    assert_holds("parked", Bounds { parks: 1, ..MOVES });
}

#[test]
fn a_reroute_of_what_may_have_been_committed_is_found() {
    assert_found("reroute in doubt", Rule::MoveInDoubt, MOVES, "held twice");
}

#[test]
fn a_reroute_of_what_a_file_keeps_is_found() {
    let bounds = Bounds { records: 1, parks: 1, sender_crashes: 1, has_checkpoints: true, ..MOVES };
    assert_found("reroute of parked records", Rule::MoveParked, bounds, "held twice");
}

#[test]
fn a_reroute_that_may_be_durable_and_is_forgotten_is_found() {
    let bounds = Bounds { moves: 0, failed_moves: 1, ..MOVES };
    assert_found("failed reroute forgotten", Rule::FailedMoveForgotten, bounds, "held twice");
}

#[test]
fn a_sender_that_passes_what_was_perhaps_rerouted_is_found() {
    let bounds = Bounds { moves: 0, failed_moves: 1, ..MOVES };
    assert_found("held is passed", Rule::HeldIsPassed, bounds, "does not hold it");
}

#[test]
fn a_replay_that_ignores_a_reroute_is_found() {
    assert_found("replay ignores moved", Rule::ReplayIgnoresMoved, Bounds { sender_crashes: 1, ..MOVES }, "held twice");
}

#[test]
fn a_checkpoint_that_passes_what_was_rerouted_is_found() {
    let bounds = Bounds { records: 1, sender_crashes: 1, has_checkpoints: true, ..MOVES };
    assert_found("checkpoint past moved", Rule::CheckpointPastMoved, bounds, "stuck");
}

#[test]
fn a_reroute_without_a_durable_record_is_found() {
    let bounds = Bounds { records: 2, owners: 2, moves: 1, sender_crashes: 1, ..SMALL };
    assert_found("reroute without moved", Rule::MoveNotDurable, bounds, "held twice");
}

#[test]
fn a_reroute_of_what_an_earlier_life_sent_is_found() {
    let bounds = Bounds { records: 2, owners: 2, moves: 1, sender_crashes: 1, ..SMALL };
    assert_found("reroute of an earlier life's record", Rule::MoveFromEarlierLife, bounds, "held twice");
}

#[test]
fn a_sender_that_does_not_ask_where_it_stands_is_found() {
    let bounds = Bounds { records: 2, restores: 1, sender_crashes: 1, has_checkpoints: true, ..SMALL };
    assert_found("no open", Rule::NoReopen, bounds, "is missing before");
}

#[test]
fn marks_taken_back_beside_a_kept_tail_are_found() {
    assert_found("rollback beside a kept tail", Rule::RollbackBesideKeptTail, Bounds { failed_syncs: 1, ..SMALL }, "held twice");
}
