//! Idempotency keys (12).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [repeats(), forms(), windows(), batches()].concat()
}

/// A single produce under a key; `query` without the question mark.
fn under(key: &str, topic: &str, query: &str, body: &str) -> Request {
    send(topic, query, body).header("Idempotency-Key", key)
}

fn replayed(expect: Expect) -> Expect {
    expect.header("Veena-Replayed", raw("true"))
}

fn stored(expect: Expect) -> Expect {
    expect.header("Veena-Replayed", Is::Absent)
}

fn reused() -> Expect {
    refusal(409, "idempotency_key_reused").field("effect", Is::Text("none".into())).raw("retryable", "false")
}

fn commit_batch(topic: &str, body: &str) -> Request {
    post(format!("/v1/topics/{topic}/produce/batch?wait_for=commit"), body)
}

fn repeats() -> Vec<Row> {
    vec![
        Row::new(
            "a_produce_under_an_idempotency_key_is_answered_as_usual_and_is_visible_by_then",
            "12 Idempotency-Key",
            vec![
                make_one("$t"),
                under("k", "$t", "", "x").gives(stored(empty(202))),
                read("$t", "").gives(json(200).text("payload", "x").field("idempotency_key", Is::Absent)),
                under("k2", "$t", "wait_for=commit", "y").gives(stored(json(200).raw("offset", "1"))),
            ],
        ),
        Row::new(
            "a_repeat_under_an_idempotency_key_is_stored_once_and_gets_the_first_answer",
            "12 Idempotency-Key",
            vec![
                make_one("$t"),
                under("k", "$t", "wait_for=commit", "x").gives(stored(json(200).raw("offset", "0"))).take("id", "id"),
                committed("$t", "", "between"),
                under("k", "$t", "wait_for=commit", "x").gives(replayed(json(200).raw("offset", "0").text("id", "$id"))),
                under("k", "$t", "", "x").gives(replayed(empty(202))),
                read("$t", "").gives(json(200).text("payload", "x").text("id", "$id")),
                read("$t", "").gives(json(200).text("payload", "between")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "an_idempotency_key_of_another_message_is_refused",
            "12 Idempotency-Key",
            vec![
                make_one("$t"),
                under("k", "$t", "key=a", "x").header("Veena-Header-Kind", "1").gives(empty(202)),
                under("k", "$t", "key=a", "y").header("Veena-Header-Kind", "1").gives(reused()),
                under("k", "$t", "key=b", "x").header("Veena-Header-Kind", "1").gives(reused()),
                under("k", "$t", "key=a", "x").header("Veena-Header-Kind", "2").gives(reused()),
                under("k", "$t", "key=a", "x").gives(reused()),
                under("k", "$t", "key=a", "x").header("Veena-Header-Kind", "1").header("traceparent", "00-2").gives(replayed(empty(202))),
                read("$t", "").gives(json(200).text("payload", "x")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_message_that_was_refused_leaves_no_idempotency_key",
            "12 Idempotency-Key",
            vec![
                make("$t", r#""partitions":1,"schema":{"type":"integer"}"#),
                under("k", "$t", "", "\"x\"").gives(refusal(400, "schema_violation")),
                under("k", "$t", "", "").gives(bad().says("message required")),
                under("k", "$t", "", "7").gives(stored(empty(202))),
                under("k", "$t", "", "7").gives(replayed(empty(202))),
            ],
        ),
        Row::new(
            "an_idempotency_key_is_no_ones_in_a_topic_that_was_created_again",
            "12 Idempotency-Key",
            vec![
                make_one("$t"),
                under("k", "$t", "", "x").gives(empty(202)),
                delete("/v1/topics/$t").gives(empty(204)),
                make_one("$t"),
                under("k", "$t", "wait_for=commit", "another").gives(stored(json(200).raw("offset", "0"))),
            ],
        ),
    ]
}

fn forms() -> Vec<Row> {
    let longest = "k".repeat(255);
    vec![
        Row::new(
            "an_idempotency_key_has_1_to_255_printable_characters",
            "12 Idempotency-Key",
            vec![
                make_one("$t"),
                under(&longest, "$t", "", "x").gives(empty(202)),
                under("order 1, ~", "$t", "", "x").gives(empty(202)),
                under(&format!("{longest}k"), "$t", "", "x").gives(bad()),
                under("", "$t", "", "x").gives(bad()),
                under("\u{e9}", "$t", "", "x").gives(bad()),
                under("a\tb", "$t", "", "x").gives(bad()),
                under("a", "$t", "", "x").header("Idempotency-Key", "a").gives(bad()),
            ],
        ),
        Row::new(
            "the_idempotency_key_chooses_the_partition_when_the_message_has_no_key",
            "12 Idempotency-Key",
            vec![
                make("$t", r#""partitions":7"#),
                send("$t", "wait_for=commit&key=some+key", "x").gives(json(200)).take("p", "partition"),
                under("some key", "$t", "wait_for=commit", "x").gives(json(200).raw("partition", "$p")),
                under("another", "$t", "wait_for=commit&key=some+key", "x").gives(json(200).raw("partition", "$p")),
                under("a third", "$t", "wait_for=commit&partition=6", "x").gives(json(200).raw("partition", "6")),
            ],
        ),
    ]
}

fn windows() -> Vec<Row> {
    vec![
        Row::new(
            "an_idempotency_key_ends_with_its_window",
            "12 dedup_window_ms",
            vec![
                make("$t", r#""partitions":1,"dedup_window_ms":5"#),
                under("k", "$t", "wait_for=commit", "x").gives(json(200).raw("offset", "0")),
                under("k", "$t", "wait_for=commit", "x").gives(stored(json(200).raw("offset", "1"))).until(),
            ],
        ),
        Row::new(
            "a_topic_whose_window_is_0_takes_idempotency_keys_and_remembers_none",
            "12 dedup_window_ms",
            vec![
                make("$t", r#""partitions":1,"dedup_window_ms":0"#),
                under("k", "$t", "wait_for=commit", "x").gives(stored(json(200).raw("offset", "0"))),
                under("k", "$t", "wait_for=commit", "x").gives(stored(json(200).raw("offset", "1"))),
                under("k", "$t", "wait_for=commit", "y").gives(stored(json(200).raw("offset", "2"))),
            ],
        ),
    ]
}

fn batches() -> Vec<Row> {
    let two = r#"{"messages":[{"payload":1,"idempotency_key":"a"},{"payload":2,"idempotency_key":"b"}]}"#;
    vec![
        Row::new(
            "a_repeated_batch_of_idempotency_keys_is_stored_once",
            "12 idempotency_key",
            vec![
                make_one("$t"),
                send_batch("$t", two).gives(stored(json(202).raw("accepted", "2"))),
                send_batch("$t", two).gives(replayed(json(202).raw("accepted", "2"))),
                commit_batch("$t", two).gives(replayed(
                    json(200)
                        .raw("results.0.status", "200")
                        .raw("results.0.offset", "0")
                        .raw("results.0.replayed", "true")
                        .raw("results.1.offset", "1")
                        .raw("results.1.replayed", "true"),
                )),
                read("$t", "").gives(json(200).raw("payload", "1")),
                read("$t", "").gives(json(200).raw("payload", "2")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "each_message_of_a_batch_that_waits_has_the_outcome_of_its_idempotency_key",
            "12 idempotency_key",
            vec![
                make_one("$t"),
                under("a", "$t", "", "1").gives(empty(202)),
                commit_batch(
                    "$t",
                    r#"{"messages":[{"payload":1,"idempotency_key":"a"},{"payload":2,"idempotency_key":"a"},{"payload":3},
                        {"payload":4,"idempotency_key":"b"},{"payload":4,"idempotency_key":"b"}]}"#,
                )
                .gives(stored(
                    json(200)
                        .field("results", Is::Len(5))
                        .raw("results.0.offset", "0")
                        .raw("results.0.replayed", "true")
                        .raw("results.1.status", "409")
                        .text("results.1.code", "idempotency_key_reused")
                        .text("results.1.effect", "none")
                        .raw("results.2.offset", "1")
                        .field("results.2.replayed", Is::Absent)
                        .raw("results.3.offset", "2")
                        .field("results.3.replayed", Is::Absent)
                        .raw("results.4.offset", "2")
                        .raw("results.4.replayed", "true"),
                )),
            ],
        ),
        Row::new(
            "a_batch_is_refused_for_an_idempotency_key_only_if_nothing_of_it_was_stored",
            "12 idempotency_key",
            vec![
                make_one("$t"),
                under("a", "$t", "", "1").gives(empty(202)),
                send_batch("$t", r#"{"messages":[{"payload":1,"idempotency_key":"a"},{"payload":2,"idempotency_key":"a"}]}"#)
                    .gives(reused().begins("message 1: ")),
                send_batch("$t", r#"{"messages":[{"payload":3,"idempotency_key":"c"},{"payload":2,"idempotency_key":"a"}]}"#)
                    .gives(json(502).text("code", "outcome_unknown").text("effect", "possible").begins("message 1: ")),
                under("c", "$t", "wait_for=commit", "3").gives(replayed(json(200).raw("offset", "1"))),
            ],
        ),
        Row::new(
            "the_idempotency_keys_of_a_batch_are_in_its_entries",
            "12 idempotency_key",
            vec![
                make_one("$t"),
                send_batch("$t", two).header("Idempotency-Key", "k").gives(bad()),
                send_batch("$t", r#"{"messages":[{"payload":1},{"payload":1,"idempotency_key":""}]}"#).gives(bad().begins("message 1: ")),
                send_batch("$t", r#"{"messages":[{"payload":1,"idempotency_key":7}]}"#).gives(bad().begins("invalid json: ")),
                read("$t", "").gives(nothing()),
            ],
        ),
    ]
}
