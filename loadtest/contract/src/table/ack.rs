//! Ack, extend and nack, one by one and many at once (1.3, 3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [acks(), modes(), stale(), malformed(), checks(), batches()].concat()
}

const ACK: &str = "receipt_handle=$h";

fn acks() -> Vec<Row> {
    vec![
        Row::new(
            "an_acked_message_is_gone_and_its_handle_spent",
            "1.3 ack 204",
            vec![
                make("$t", r#""partitions":1,"visibility_timeout_ms":300"#),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", ACK).gives(empty(204)),
                settle("$t", ACK).gives(lease_lost()),
                read("$t", "wait=2s").gives(nothing()),
            ],
        ),
        Row::new(
            "an_ack_out_of_order_is_taken",
            "3 ack effect",
            vec![
                make_one("$t"),
                committed("$t", "", "a"),
                committed("$t", "", "b"),
                read_soon("$t").gives(json(200).text("payload", "a")).take("ha", "receipt_handle"),
                read_soon("$t").gives(json(200).text("payload", "b")).take("hb", "receipt_handle"),
                settle("$t", "receipt_handle=$hb").gives(empty(204)),
                settle("$t", "receipt_handle=$ha&extend=0").gives(empty(204)),
                read_soon("$t").gives(json(200).text("payload", "a")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "an_ack_with_a_content_type_and_no_body_is_taken",
            "1.3 ack",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                Request::new("POST", "/v1/topics/$t/ack?receipt_handle=$h").header("Content-Type", "application/json").gives(empty(204)),
            ],
        ),
        Row::new(
            "an_ack_without_any_sign_of_a_program_is_refused",
            "1.3 ack 415",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                Request::new("POST", "/v1/topics/$t/ack?receipt_handle=$h").gives(unsupported()),
                settle("$t", ACK).gives(empty(204)),
            ],
        ),
        Row::new(
            "with_the_guard_off_a_bare_ack_is_taken",
            "0.1 #1",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                Request::new("POST", "/v1/topics/$t/ack?receipt_handle=$h").gives(empty(204)),
                Request::new("POST", "/v1/topics/$t/produce").text("y").gives(empty(202)),
            ],
        )
        .on(Profile::GuardOff),
        Row::new(
            "an_unknown_parameter_of_an_ack_is_ignored",
            "1.3 ack",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "colour=red&receipt_handle=$h&partition=9").gives(empty(204)),
            ],
        ),
        Row::new(
            "the_first_of_two_handles_counts",
            "1.3 ack",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=$h&receipt_handle=junk").gives(empty(204)),
                settle("$t", "receipt_handle=junk&receipt_handle=$h").gives(bad().says("receipt handle is malformed")),
            ],
        ),
        Row::new(
            "a_handle_may_be_percent_escaped",
            "1.3 ack",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=0%3A0%3A1").gives(lease_lost()),
                settle("$t", "%72eceipt_handle=$h").gives(empty(204)),
            ],
        ),
    ]
}

fn modes() -> Vec<Row> {
    let acks_with = |name, mode: &str| {
        Row::new(
            name,
            "1.3 ack extend",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", &format!("receipt_handle=$h{mode}")).gives(empty(204)),
                settle("$t", ACK).gives(lease_lost()),
            ],
        )
    };
    let extends_with = |name, mode: &str| {
        Row::new(
            name,
            "1.3 ack extend",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", &format!("receipt_handle=$h&extend={mode}")).gives(empty(204)),
                read("$t", "").gives(nothing()),
                settle("$t", ACK).gives(empty(204)),
                settle("$t", &format!("receipt_handle=$h&extend={mode}")).gives(lease_lost()),
            ],
        )
    };
    vec![
        acks_with("an_empty_extend_is_an_ack", "&extend="),
        acks_with("an_extend_of_false_is_an_ack", "&extend=false"),
        extends_with("an_extend_of_true_keeps_the_handle", "true"),
        extends_with("an_extend_of_1_keeps_the_handle", "1"),
        Row::new(
            "an_extended_lease_runs_anew_from_the_extend",
            "3 receipt handle",
            // The two waits together outlast the lease; neither alone does.
            vec![
                make("$t", r#""partitions":1,"visibility_timeout_ms":4000"#),
                sent("$t", "", "x"),
                lease("$t"),
                read("$t", "wait=2500ms").gives(nothing()),
                settle("$t", "receipt_handle=$h&extend=true").gives(empty(204)),
                read("$t", "wait=2500ms").gives(nothing()),
                settle("$t", ACK).gives(empty(204)),
            ],
        ),
        Row::new(
            "an_extended_lease_still_ends",
            "3 receipt handle",
            vec![
                make("$t", r#""partitions":1,"visibility_timeout_ms":300"#),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=$h&extend=true").gives(empty(204).or_status(410)),
                read_soon("$t").gives(json(200).text("payload", "x").field("receipt_handle", Is::Not("$h".into()))),
                settle("$t", ACK).gives(lease_lost()),
            ],
        ),
        Row::new(
            "a_nacked_message_is_redeliverable_at_once_under_a_fresh_handle",
            "1.3 ack extend",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=$h&extend=0").gives(empty(204)),
                read("$t", "")
                    .gives(json(200).text("payload", "x").field("receipt_handle", Is::Not("$h".into())))
                    .take("g", "receipt_handle"),
                settle("$t", ACK).gives(lease_lost()),
                settle("$t", "receipt_handle=$h&extend=0").gives(lease_lost()),
                settle("$t", "receipt_handle=$g").gives(empty(204)),
            ],
        ),
        Row::new(
            "another_extend_is_refused",
            "1.3 ack 400",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=$h&extend=yes").gives(bad_extend()),
                settle("$t", "receipt_handle=$h&extend=TRUE").gives(bad_extend()),
                settle("$t", "receipt_handle=$h&extend=00").gives(bad_extend()),
                settle("$t", ACK).gives(empty(204)),
            ],
        ),
    ]
}

fn bad_extend() -> Expect {
    bad().says(r#"invalid extend: want "true" (renew lease) or "0" (release for redelivery)"#)
}

fn stale() -> Vec<Row> {
    vec![
        Row::new(
            "a_handle_never_handed_out_is_stale",
            "1.3 ack 410",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                settle("$t", "receipt_handle=0:0:1").gives(lease_lost()),
                settle("$t", "receipt_handle=0:7:1").gives(lease_lost()),
                settle("$t", "receipt_handle=0:0:1&extend=true").gives(lease_lost()),
                settle("$t", "receipt_handle=0:0:1&extend=0").gives(lease_lost()),
                settle("$t", ACK).gives(empty(204)),
            ],
        ),
        Row::new(
            "a_handle_of_another_topic_is_stale",
            "3 receipt handle",
            vec![
                make_one("$t"),
                make_one("$t-other"),
                sent("$t", "", "x"),
                sent("$t-other", "", "y"),
                lease("$t-other"),
                lease("$t"),
                settle("$t-other", ACK).gives(lease_lost()),
                settle("$t", ACK).gives(empty(204)),
            ],
        ),
        Row::new(
            "a_handle_of_a_partition_the_topic_lacks_is_stale",
            "3 receipt handle",
            vec![
                make_one("$t"),
                settle("$t", "receipt_handle=1:0:5").gives(lease_lost()),
                settle("$t", "receipt_handle=107:0:5").gives(lease_lost()),
            ],
        ),
        Row::new(
            "a_handle_does_not_outlive_its_topics_incarnation",
            "5.5",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                delete("/v1/topics/$t").gives(empty(204)),
                settle("$t", ACK).gives(topic_not_found()),
                make_one("$t"),
                settle("$t", ACK).gives(lease_lost()),
            ],
        ),
    ]
}

fn malformed() -> Vec<Row> {
    let mut steps = vec![make_one("$t")];
    for text in [
        "junk",
        "1:2",
        "1:2:3:4",
        "0:0:0",
        "-1:0:5",
        "0:-1:5",
        "%2B1:0:5",
        "0:0:5%20",
        "::",
        "0::5",
        "a:b:c",
        "0x1:0:5",
        "0:0:9223372036854775808",
        "0:9223372036854775808:5",
        "%D9%A1:0:5",
    ] {
        steps.push(settle("$t", &format!("receipt_handle={text}")).gives(bad().says("receipt handle is malformed")));
    }
    vec![Row::new("anything_but_three_decimals_is_a_malformed_handle", "3 receipt handle", steps)]
}

/// Which of several mistakes is answered.
fn checks() -> Vec<Row> {
    vec![
        Row::new(
            "an_ack_without_a_handle_is_refused",
            "1.3 ack 400",
            vec![
                make_one("$t"),
                settle("$t", "").gives(bad().says("receipt_handle required")),
                settle("$t", "receipt_handle=").gives(bad().says("receipt_handle required")),
                settle("$t", "extend=yes").gives(bad().says("receipt_handle required")),
            ],
        ),
        Row::new(
            "a_bad_extend_is_answered_before_a_malformed_handle",
            "1.3 ack order",
            vec![make_one("$t"), settle("$t", "receipt_handle=junk&extend=yes").gives(bad_extend())],
        ),
        Row::new(
            "a_handle_with_a_bad_escape_is_refused_first",
            "1.3 ack order",
            vec![
                make_one("$t"),
                settle("$t", "receipt_handle=%zz").gives(bad().begins("invalid receipt_handle: ")),
                settle("$t", "receipt_handle=%zz&extend=yes").gives(bad().begins("invalid receipt_handle: ")),
            ],
        ),
        Row::new(
            "a_malformed_handle_on_an_unknown_topic_is_malformed",
            "1.3 ack order",
            vec![settle("$t", "receipt_handle=junk").gives(bad().says("receipt handle is malformed"))],
        ),
        Row::new(
            "a_well_formed_handle_on_an_unknown_topic_is_not_found",
            "1.3 ack 404",
            vec![
                settle("$t", "receipt_handle=0:0:1").gives(topic_not_found()),
                settle("$t", "receipt_handle=0:0:1&extend=true").gives(topic_not_found()),
                settle("$t", "receipt_handle=0:0:1&extend=0").gives(topic_not_found()),
            ],
        ),
    ]
}

/// A topic of one partition, three messages leased as `$a`, `$b` and `$c`.
fn three_leases() -> Vec<Step> {
    vec![
        make_one("$t"),
        committed("$t", "", "a"),
        committed("$t", "", "b"),
        committed("$t", "", "c"),
        read("$t", "max=3")
            .gives(json(200).field("messages", Is::Len(3)))
            .take("a", "messages.0.receipt_handle")
            .take("b", "messages.1.receipt_handle")
            .take("c", "messages.2.receipt_handle"),
    ]
}

fn handles(list: &[&str]) -> String {
    format!(r#"{{"receipt_handles":["{}"]}}"#, list.join(r#"",""#))
}

fn batches() -> Vec<Row> {
    let with = |mut steps: Vec<Step>, more: Vec<Step>| {
        steps.extend(more);
        steps
    };
    vec![
        Row::new(
            "a_batch_ack_answers_each_handle_in_order",
            "1.3 batch ack 200",
            with(
                three_leases(),
                vec![
                    settle_batch("$t", "", handles(&["$c", "0:0:1", "$a"])).gives(
                        json(200)
                            .field("results", Is::Len(3))
                            .raw("results.0.status", "204")
                            .field("results.0.error", Is::Absent)
                            .raw("results.1.status", "410")
                            .text("results.1.error", "receipt handle no longer matches an active reservation")
                            .raw("results.2.status", "204"),
                    ),
                    settle("$t", "receipt_handle=$a").gives(lease_lost()),
                    settle("$t", "receipt_handle=$b").gives(empty(204)),
                ],
            ),
        ),
        Row::new(
            "a_handle_twice_in_a_batch_ack_is_spent_once",
            "1.3 batch ack 200",
            with(
                three_leases(),
                vec![
                    settle_batch("$t", "", handles(&["$a", "$a"]))
                        .gives(json(200).raw("results.0.status", "204").raw("results.1.status", "410")),
                ],
            ),
        ),
        Row::new(
            "a_batch_nack_releases_every_handle",
            "1.3 batch ack extend",
            with(
                three_leases(),
                vec![
                    settle_batch("$t", "extend=0", handles(&["$a", "$b"]))
                        .gives(json(200).raw("results", r#"[{"status":204},{"status":204}]"#)),
                    read("$t", "max=3").gives(json(200).field("messages", Is::Len(2)).text("messages.0.payload", "a")),
                ],
            ),
        ),
        Row::new(
            "a_batch_extend_keeps_every_handle",
            "1.3 batch ack extend",
            with(
                three_leases(),
                vec![
                    settle_batch("$t", "extend=true", handles(&["$a", "$b"])).gives(json(200).raw("results.1.status", "204")),
                    settle_batch("$t", "extend=1", handles(&["$a"])).gives(json(200).raw("results.0.status", "204")),
                    settle_batch("$t", "", handles(&["$a", "$b"])).gives(json(200).raw("results.1.status", "204")),
                ],
            ),
        ),
        Row::new(
            "a_batch_ack_with_another_extend_is_refused",
            "1.3 batch ack extend",
            with(three_leases(), vec![settle_batch("$t", "extend=yes", handles(&["$a"])).gives(bad_extend())]),
        ),
        Row::new(
            "a_batch_ack_without_handles_is_refused",
            "1.3 batch ack 400",
            vec![make_one("$t"), settle_batch("$t", "", r#"{"receipt_handles":[]}"#).gives(bad().says("receipt_handles required"))],
        ),
        Row::new(
            "a_batch_ack_of_100_is_taken_and_of_101_refused",
            "1.3 batch ack 400",
            vec![
                make_one("$t"),
                settle_batch("$t", "", handles(&["0:0:1"; 100]))
                    .gives(json(200).field("results", Is::Len(100)).raw("results.99.status", "410")),
                settle_batch("$t", "", handles(&["0:0:1"; 101])).gives(bad().says("too many receipt_handles: more than 100")),
            ],
        ),
        Row::new(
            "a_batch_ack_over_64_kib_is_refused",
            "1.3 batch ack 413",
            vec![
                make_one("$t"),
                settle_batch("$t", "", format!(r#"{{"receipt_handles":["0:0:1"]{}}}"#, " ".repeat(64 * 1024)))
                    .gives(refusal(413, "body_too_large")),
            ],
        ),
        Row::new(
            "a_batch_ack_that_is_not_the_json_it_should_be_is_refused",
            "1.0 json",
            vec![
                make_one("$t"),
                settle_batch("$t", "", "[]").gives(bad().begins("invalid json: ")),
                settle_batch("$t", "", r#"{"receipt_handles":["0:0:1"],"x":1}"#).gives(bad().begins("invalid json: ")),
                settle_batch("$t", "", r#"{"receipt_handles":["0:0:1"]} 1"#).gives(bad().says("invalid json: multiple JSON values")),
            ],
        ),
        Row::new(
            "a_batch_ack_of_an_unknown_topic_is_not_found",
            "1.3 ack 404",
            vec![settle_batch("$t", "", handles(&["0:0:1"])).gives(topic_not_found())],
        ),
    ]
}
