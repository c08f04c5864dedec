//! The cluster (1.6), as a node alone tells it: it is the only member, and nothing moves.

use super::*;

const MEMBER: &[&str] = &["id", "addr", "status", "draining", "owned_partitions", "outbound_moves"];
const IN_DETAIL: &[&str] = &["outbound_moves", "voter", "leader", "heartbeat_age_seconds", "node_status"];
const STATUS: &[&str] = &["node", "draining", "produce_in_flight", "dispatch_backlog", "quarantine", "moves", "applied"];

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            "a_node_alone_is_the_only_member",
            "1.6 members",
            vec![
                make("$t", ""),
                get("/v1/cluster/members").gives(
                    json(200)
                        .field("members", Is::Len(1))
                        .field("members.0", Is::KeysInOrder(MEMBER))
                        .field("members.0.id", Is::AnyText)
                        .text("members.0.status", "alive")
                        .raw("members.0.draining", "false")
                        .field("members.0.owned_partitions", Is::AtLeast(1))
                        .raw("members.0.outbound_moves", "0")
                        .field("members.0.voter", Is::Absent)
                        .field("members.0.node_status", Is::Absent),
                ),
            ],
        ),
        Row::new(
            "a_member_in_detail_says_how_it_is",
            "1.6 members, detail",
            vec![
                get("/v1/cluster/members?detail=true").gives(
                    json(200)
                        .field("members.0", Is::KeysInOrder(IN_DETAIL))
                        .raw("members.0.voter", "true")
                        .raw("members.0.leader", "true")
                        .raw("members.0.heartbeat_age_seconds", "0")
                        .field("members.0.decommission_blocked", Is::Absent)
                        .field("members.0.status_error", Is::Absent)
                        .field("members.0.node_status", Is::KeysInOrder(STATUS))
                        .field("members.0.node_status.node", Is::AnyText)
                        .raw("members.0.node_status.draining", "false")
                        .field("members.0.node_status.produce_in_flight", Is::AtLeast(0))
                        .field("members.0.node_status.dispatch_backlog", Is::AtLeast(0))
                        .field("members.0.node_status.quarantine", Is::KeysInOrder(&["copies", "bytes", "list"]))
                        .raw("members.0.node_status.moves", "[]"),
                ),
                get("/v1/cluster/members?detail=perhaps").gives(refusal(400, "invalid_argument").begins("invalid detail")),
            ],
        ),
        Row::new(
            "what_was_set_aside_is_told_one_by_one",
            "1.6 members, detail: quarantine",
            vec![
                make("$t", ""),
                post("/v1/topics/$t/produce", "x").gives(empty(202)),
                get("/v1/topics/$t/consume?wait=10s").gives(json(200)),
                delete("/v1/topics/$t").gives(empty(204)),
                get("/v1/cluster/members?detail=true")
                    .gives(
                        json(200)
                            .field("members.0.node_status.quarantine.copies", Is::AtLeast(1))
                            .field(
                                "members.0.node_status.quarantine.list.0",
                                Is::KeysInOrder(&["kind", "topic", "dir", "bytes", "mod_time"]),
                            )
                            .field("members.0.node_status.quarantine.list.0.kind", Is::AnyText)
                            .field("members.0.node_status.quarantine.list.0.dir", Is::AnyText)
                            .field("members.0.node_status.quarantine.list.0.bytes", Is::AtLeast(1))
                            .field("members.0.node_status.quarantine.list.0.mod_time", Is::AtLeast(1)),
                    )
                    .until(),
            ],
        ),
        Row::new(
            "on_a_node_alone_nothing_moves",
            "1.6 moves",
            vec![
                get("/v1/cluster/moves").gives(json(200).raw("moves", "[]")),
                get("/v1/cluster/moves?detail=true").gives(json(200).raw("moves", "[]").field("aborted", Is::Absent)),
            ],
        ),
        Row::new(
            "a_member_that_is_none_is_neither_taken_out_nor_forgotten",
            "1.6 decommission, forget",
            vec![
                post("/v1/cluster/members/nobody/decommission", "").gives(refusal(404, "not_found").says("member not found")),
                post("/v1/cluster/members/nobody/decommission?dry_run=true", "").gives(refusal(404, "not_found")),
                delete("/v1/cluster/members/nobody/decommission").gives(refusal(404, "not_found")),
                delete("/v1/cluster/members/nobody/decommission?dry_run=true").gives(refusal(400, "invalid_argument")),
                post("/v1/cluster/members/nobody/forget", "").gives(refusal(404, "not_found")),
            ],
        ),
        Row::new(
            "a_move_that_is_none_is_not_aborted",
            "1.6 abort",
            vec![
                make("$t", ""),
                post("/v1/cluster/moves/$t/0/abort", "").gives(refusal(404, "not_found")),
                post("/v1/cluster/moves/no-$t/0/abort", "").gives(refusal(404, "topic_not_found")),
            ],
        ),
    ]
}
