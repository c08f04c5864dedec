//! What Veena adds (12), but for idempotency keys.

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [wait_for(), headers(), topic_settings(), ids()].concat()
}

fn wait_for() -> Vec<Row> {
    vec![
        Row::new(
            "a_produce_that_waits_for_the_commit_is_told_where_it_is",
            "12 wait_for",
            vec![
                make_one("$t"),
                send("$t", "wait_for=commit&key=k", "x")
                    .gives(
                        json(200)
                            .field("id", Is::AnyText)
                            .raw("partition", "0")
                            .raw("offset", "0")
                            .field("timestamp", Is::AtLeast(1_600_000_000)),
                    )
                    .take("id", "id"),
                read("$t", "").gives(json(200).text("id", "$id").raw("offset", "0").text("key", "k").text("payload", "x")),
            ],
        ),
        Row::new(
            "a_produce_that_waits_for_the_wal_is_answered_as_usual",
            "12 wait_for",
            vec![make_one("$t"), sent("$t", "wait_for=wal", "x"), read_soon("$t").gives(json(200).text("payload", "x"))],
        ),
        Row::new(
            "another_wait_for_is_refused",
            "12 wait_for",
            vec![
                make_one("$t"),
                send("$t", "wait_for=disk", "x").gives(bad()),
                send("$t", "wait_for=", "x").gives(bad()),
                post("/v1/topics/$t/produce/batch?wait_for=disk", r#"{"messages":[{"payload":1}]}"#).gives(bad()),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_batch_that_waits_for_the_commit_has_one_result_per_message",
            "12 wait_for",
            vec![
                make("$t", r#""partitions":2"#),
                post(
                    "/v1/topics/$t/produce/batch?wait_for=commit",
                    r#"{"messages":[{"payload":1,"partition":1},{"payload":2,"partition":0},{"payload":3,"partition":1}]}"#,
                )
                .gives(
                    json(200)
                        .field("results", Is::Len(3))
                        .raw("results.0.status", "200")
                        .field("results.0.id", Is::AnyText)
                        .raw("results.0.partition", "1")
                        .raw("results.0.offset", "0")
                        .raw("results.1.partition", "0")
                        .raw("results.1.offset", "0")
                        .raw("results.2.partition", "1")
                        .raw("results.2.offset", "1"),
                )
                .take("id", "results.2.id"),
                read("$t", "partition=1&offset=1").gives(json(200).text("id", "$id").raw("payload", "3")),
            ],
        ),
        Row::new(
            "a_batch_that_waits_for_the_commit_is_checked_whole_first",
            "12 wait_for",
            vec![
                make_one("$t"),
                post("/v1/topics/$t/produce/batch?wait_for=commit", r#"{"messages":[{"payload":1},{"payload":2,"partition":9}]}"#)
                    .gives(bad().begins("message 1: ")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_produce_that_waits_for_the_commit_is_refused_as_any_other",
            "12 wait_for",
            vec![
                make_one("$t"),
                send("$t", "wait_for=commit", "").gives(bad().says("message required")),
                send("$t", "wait_for=commit&partition=1", "x").gives(bad().begins("invalid partition: ")),
                send("$t-none", "wait_for=commit", "x").gives(topic_not_found()),
            ],
        ),
    ]
}

fn headers() -> Vec<Row> {
    let many = |count: usize| (0..count).fold(send("$t", "", "x"), |r, i| r.header(format!("Veena-Header-H{i}"), "v"));
    vec![
        Row::new(
            "a_messages_headers_are_served_in_lower_case",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x")
                    .header("Veena-Header-Trace-ID", "abc 123")
                    .header("veena-header-source", "web")
                    .header("X-Other", "no")
                    .gives(empty(202)),
                read_soon("$t").gives(
                    json(200).text("headers.trace-id", "abc 123").text("headers.source", "web").field("headers.x-other", Is::Absent),
                ),
            ],
        ),
        Row::new(
            "a_message_without_headers_has_none",
            "12 headers",
            vec![make_one("$t"), sent("$t", "", "x"), read_soon("$t").gives(json(200).field("headers", Is::AbsentOr(&["{}"])))],
        ),
        Row::new(
            "a_trace_context_is_stored_with_the_message",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x").header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").gives(empty(202)),
                read_soon("$t").gives(json(200).text("headers.traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
            ],
        ),
        Row::new(
            "a_batch_entry_may_have_headers",
            "12 headers",
            vec![
                make_one("$t"),
                send_batch("$t", r#"{"messages":[{"payload":1,"headers":{"a":"1","b-2":"two words"}}]}"#).gives(json(202)),
                read_soon("$t").gives(json(200).text("headers.a", "1").text("headers.b-2", "two words")),
            ],
        ),
        Row::new(
            "a_header_name_of_64_bytes_is_taken_and_a_longer_or_odd_one_refused",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x").header(format!("Veena-Header-{}", "n".repeat(64)), "v").gives(empty(202)),
                send("$t", "", "x").header(format!("Veena-Header-{}", "n".repeat(65)), "v").gives(bad()),
                send("$t", "", "x").header("Veena-Header-a_b", "v").gives(bad()),
                send("$t", "", "x").header("Veena-Header-", "v").gives(bad()),
                send_batch("$t", r#"{"messages":[{"payload":1,"headers":{"a_b":"1"}}]}"#).gives(bad().begins("message 0: ")),
            ],
        ),
        Row::new(
            "a_repeated_header_is_refused",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x").header("Veena-Header-A", "1").header("veena-header-a", "1").gives(bad()),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_header_value_that_is_not_printable_ascii_is_refused",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x").header("Veena-Header-A", "caf\u{e9}").gives(bad()),
                send("$t", "", "x").header("Veena-Header-A", vec![0xff]).gives(bad()),
                send_batch("$t", r#"{"messages":[{"payload":1,"headers":{"a":"x\ny"}}]}"#).gives(bad().begins("message 0: ")),
                send_batch("$t", r#"{"messages":[{"payload":1,"headers":{"a":"é"}}]}"#).gives(bad().begins("message 0: ")),
                send_batch("$t", r#"{"messages":[{"payload":1,"headers":{"a":5}}]}"#).gives(bad()),
            ],
        ),
        Row::new(
            "thirty_two_headers_are_taken_and_one_more_refused",
            "12 headers",
            vec![make_one("$t"), many(32).gives(empty(202)), many(33).gives(bad())],
        ),
        Row::new(
            "headers_over_8_kib_in_all_are_refused",
            "12 headers",
            vec![
                make_one("$t"),
                send("$t", "", "x").header("Veena-Header-A", "v".repeat(8 * 1024 - 1)).gives(empty(202)),
                send("$t", "", "x").header("Veena-Header-A", "v".repeat(8 * 1024)).gives(bad()),
            ],
        ),
    ]
}

fn topic_settings() -> Vec<Row> {
    vec![
        Row::new(
            "a_topics_additional_settings_have_defaults",
            "12 topic",
            vec![
                create(r#"{"name":"$t"}"#).gives(
                    json(201).field("retention_bytes", Is::AbsentOr(&["0"])).text("reroute", "auto").raw("dedup_window_ms", "300000"),
                ),
            ],
        ),
        Row::new(
            "a_retention_by_size_is_at_least_64_mib",
            "12 retention_bytes",
            vec![
                create(r#"{"name":"$t","retention_bytes":67108863}"#).gives(bad()),
                create(r#"{"name":"$t","retention_bytes":-1}"#).gives(bad()),
                create(r#"{"name":"$t","retention_bytes":67108864}"#).gives(json(201).raw("retention_bytes", "67108864")),
                patch("$t", r#"{"retention_bytes":1}"#).gives(bad()),
                patch("$t", r#"{"retention_bytes":67108865}"#).gives(json(200).raw("retention_bytes", "67108865")),
                patch("$t", r#"{"retention_bytes":0}"#).gives(json(200).field("retention_bytes", Is::AbsentOr(&["0"]))),
            ],
        ),
        Row::new(
            "reroute_is_auto_or_never",
            "12 reroute",
            vec![
                create(r#"{"name":"$t","reroute":"sometimes"}"#).gives(bad()),
                create(r#"{"name":"$t","reroute":"never"}"#).gives(json(201).text("reroute", "never")),
                patch("$t", r#"{"reroute":"auto"}"#).gives(json(200).text("reroute", "auto")),
                patch("$t", r#"{"reroute":"x"}"#).gives(bad()),
                describe("$t").gives(json(200).text("reroute", "auto")),
            ],
        ),
        Row::new(
            "a_dedup_window_is_at_most_an_hour",
            "12 dedup_window_ms",
            vec![
                create(r#"{"name":"$t","dedup_window_ms":3600001}"#).gives(bad()),
                create(r#"{"name":"$t","dedup_window_ms":-1}"#).gives(bad()),
                create(r#"{"name":"$t","dedup_window_ms":3600000}"#).gives(json(201).raw("dedup_window_ms", "3600000")),
                patch("$t", r#"{"dedup_window_ms":3600001}"#).gives(bad()),
                patch("$t", r#"{"dedup_window_ms":1000}"#).gives(json(200).raw("dedup_window_ms", "1000")),
            ],
        ),
    ]
}

fn ids() -> Vec<Row> {
    vec![
        Row::new(
            "a_message_keeps_its_id_from_delivery_to_delivery",
            "12 id",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                read_soon("$t").gives(json(200).field("id", Is::AnyText)).take("id", "id").take("h", "receipt_handle"),
                settle("$t", "receipt_handle=$h&extend=0").gives(empty(204)),
                read_soon("$t").gives(json(200).text("id", "$id")),
                read("$t", "partition=0&offset=0").gives(json(200).text("id", "$id")),
            ],
        ),
        Row::new(
            "two_messages_have_two_ids",
            "12 id",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                sent("$t", "", "x"),
                read_soon("$t").gives(json(200)).take("id", "id"),
                read_soon("$t").gives(json(200).field("id", Is::Not("$id".into()))),
            ],
        ),
        Row::new(
            "deliveries_are_counted_from_1",
            "12 delivery_count",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                read_soon("$t").gives(json(200).raw("delivery_count", "1")).take("h", "receipt_handle"),
                settle("$t", "receipt_handle=$h&extend=0").gives(empty(204)),
                read_soon("$t").gives(json(200).raw("delivery_count", "2")).take("h", "receipt_handle"),
                settle("$t", "receipt_handle=$h&extend=0").gives(empty(204)),
                read_soon("$t").gives(json(200).raw("delivery_count", "3")),
            ],
        ),
        Row::new(
            "a_replay_counts_no_delivery",
            "12 delivery_count",
            vec![
                make_one("$t"),
                committed("$t", "", "x"),
                read("$t", "partition=0&offset=0").gives(json(200).field("receipt_handle", Is::Absent)),
                read_soon("$t").gives(json(200).raw("delivery_count", "1")),
            ],
        ),
    ]
}
