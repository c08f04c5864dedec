//! Producing many messages at once (1.3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [accepting(), entries(), refusals(), whole(), encodings()].concat()
}

/// A batch of `count` small messages.
fn many(count: usize) -> String {
    format!(r#"{{"messages":[{}]}}"#, vec![r#"{"payload":1}"#; count].join(","))
}

fn accepting() -> Vec<Row> {
    vec![
        Row::new(
            "a_batch_is_answered_202_with_the_count",
            "1.3 batch 202",
            vec![
                make_one("$t"),
                send_batch("$t", r#"{"messages":[{"payload":1},{"payload":"two"}]}"#).gives(json(202).raw("", r#"{"accepted":2}"#)),
                read_soon("$t").gives(json(200).raw("payload", "1")),
                read_soon("$t").gives(json(200).raw("payload", "\"two\"")),
            ],
        ),
        Row::new(
            "a_batch_of_1_is_taken",
            "1.3 batch bounds",
            vec![make_one("$t"), send_batch("$t", many(1)).gives(json(202).raw("accepted", "1"))],
        ),
        Row::new(
            "a_batch_of_1000_is_taken",
            "1.3 batch bounds",
            vec![make_one("$t"), send_batch("$t", many(1000)).gives(json(202).raw("accepted", "1000"))],
        ),
        Row::new(
            "a_batch_over_1_mib_is_taken",
            "1.3 batch bounds",
            vec![
                make_one("$t"),
                send_batch(
                    "$t",
                    format!(r#"{{"messages":[{}]}}"#, vec![format!(r#"{{"payload":"{}"}}"#, "x".repeat(700_000)); 3].join(",")),
                )
                .gives(json(202).raw("accepted", "3")),
            ],
        ),
        Row::new(
            "a_payload_of_exactly_1_mib_is_taken_in_a_batch",
            "1.3 batch bounds",
            vec![
                make_one("$t"),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":"{}"}}]}}"#, "x".repeat(1024 * 1024 - 2)))
                    .gives(json(202).raw("accepted", "1")),
            ],
        ),
    ]
}

fn entries() -> Vec<Row> {
    let stored = |name, entry: &str, expect: Expect| {
        Row::new(
            name,
            "1.3 batch entry",
            vec![
                make_one("$t"),
                send_batch("$t", format!(r#"{{"messages":[{entry}]}}"#)).gives(json(202).raw("accepted", "1")),
                read_soon("$t").gives(expect),
            ],
        )
    };
    vec![
        stored(
            "a_batch_payload_is_stored_as_it_was_written",
            r#"{"payload": { "a" :  1.0e400, "b":[ ] } }"#,
            json(200).raw("payload", r#"{ "a" :  1.0e400, "b":[ ] }"#),
        ),
        stored("a_batch_payload_string_keeps_its_quotes", r#"{"payload":"x\u0041"}"#, json(200).raw("payload", r#""x\u0041""#)),
        stored("a_batch_payload_may_be_null", r#"{"payload":null}"#, json(200).raw("payload", "null")),
        stored(
            "a_base64_payload_is_stored_decoded",
            r#"{"payload":"cGxhaW4gd29yZHM=","payload_encoding":"base64"}"#,
            json(200).text("payload", "plain words").field("payload_encoding", Is::Absent),
        ),
        stored(
            "a_base64_payload_may_be_any_bytes",
            r#"{"payload":"AP/+AQ==","payload_encoding":"base64"}"#,
            json(200).text("payload", "AP/+AQ==").text("payload_encoding", "base64"),
        ),
        stored(
            "a_batch_entry_may_have_a_key",
            r#"{"payload":1,"key":"k\n1"}"#,
            json(200).text("key", "k\n1").field("key_encoding", Is::Absent),
        ),
        stored(
            "a_batch_key_may_be_base64",
            r#"{"payload":1,"key":"//4=","key_encoding":"base64"}"#,
            json(200).text("key", "//4=").text("key_encoding", "base64"),
        ),
        stored(
            "a_base64_key_that_is_text_is_served_as_text",
            r#"{"payload":1,"key":"YWI=","key_encoding":"base64"}"#,
            json(200).text("key", "ab").field("key_encoding", Is::Absent),
        ),
        stored("an_empty_batch_key_is_no_key", r#"{"payload":1,"key":""}"#, json(200).field("key", Is::Absent)),
        Row::new(
            "a_batch_entry_may_name_its_partition",
            "1.3 batch entry",
            vec![
                make("$t", r#""partitions":7"#),
                send_batch("$t", r#"{"messages":[{"payload":1,"partition":5,"key":"a"}]}"#).gives(json(202)),
                read_soon("$t").gives(json(200).raw("partition", "5").text("key", "a")),
            ],
        ),
        Row::new(
            "a_batch_key_chooses_the_partition_as_a_single_one_does",
            "1.3 batch entry",
            vec![
                make("$t", r#""partitions":7"#),
                send_batch("$t", r#"{"messages":[{"payload":1,"key":"foobar"}]}"#).gives(json(202)),
                read_soon("$t").gives(json(200).raw("partition", (0xbf9c_f968_u32 % 7).to_string())),
            ],
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        Row::new(
            "a_key_in_a_batchs_query_is_refused",
            "1.3 batch 400",
            vec![
                make("$t", ""),
                post("/v1/topics/$t/produce/batch?key=a", many(1))
                    .gives(bad().says("key is set per message in a batch produce, not as a query parameter")),
            ],
        ),
        Row::new(
            "a_partition_in_a_batchs_query_is_refused",
            "1.3 batch 400",
            vec![
                make("$t", ""),
                post("/v1/topics/$t/produce/batch?partition=0", many(1))
                    .gives(bad().says("partition is set per message in a batch produce, not as a query parameter")),
            ],
        ),
        Row::new(
            "an_empty_batch_is_refused",
            "1.3 batch 400",
            vec![
                make("$t", ""),
                send_batch("$t", r#"{"messages":[]}"#).gives(bad().says("messages required")),
                send_batch("$t", "{}").gives(bad().says("messages required")),
            ],
        ),
        Row::new(
            "a_batch_of_1001_is_refused",
            "1.3 batch 400",
            vec![
                make("$t", ""),
                send_batch("$t", many(1001)).gives(bad().says("too many messages: more than 1000 (max 1000)")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_batch_body_over_16_mib_is_refused",
            "1.3 batch 413",
            vec![
                make("$t", ""),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":1}}]{}}}"#, " ".repeat(16 * 1024 * 1024)))
                    .gives(refusal(413, "body_too_large")),
            ],
        ),
        Row::new(
            "a_batch_that_is_not_the_json_it_should_be_is_refused",
            "1.0 json",
            vec![
                make("$t", ""),
                send_batch("$t", "").gives(bad().begins("invalid json: ")),
                send_batch("$t", "[]").gives(bad().begins("invalid json: ")),
                send_batch("$t", r#"{"messages":[{"payload":1,"colour":1}]}"#).gives(bad().begins("invalid json: ")),
                send_batch("$t", r#"{"messages":[{"payload":1}],"colour":1}"#).gives(bad().begins("invalid json: ")),
                send_batch("$t", r#"{"messages":[{"payload":1,"key":5}]}"#).gives(bad().begins("invalid json: ")),
                send_batch("$t", r#"{"messages":[{"payload":1}]} {}"#).gives(bad().says("invalid json: multiple JSON values")),
            ],
        ),
        Row::new("an_unknown_topic_takes_no_batch", "1.3 batch 404", vec![send_batch("$t", many(1)).gives(topic_not_found())]),
        Row::new(
            "a_batch_without_content_type_is_refused",
            "1.3 batch 415",
            vec![make("$t", ""), Request::new("POST", "/v1/topics/$t/produce/batch").text(many(1)).gives(unsupported())],
        ),
        Row::new(
            "a_batch_body_over_the_nodes_budget_is_refused_for_now",
            "1.3 batch 503",
            vec![
                make_one("$t"),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":1}}]{}}}"#, " ".repeat(3 * 1024 * 1024))).gives(
                    json(503)
                        .says("batch produce bodies in flight on this node are at their limit; retry")
                        .text("effect", "none")
                        .header("Retry-After", raw("1")),
                ),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":1}}]{}}}"#, " ".repeat(1000))).gives(json(202)),
            ],
        )
        .on(Profile::SmallCaps),
    ]
}

/// One refused message refuses all, and is named.
fn whole() -> Vec<Row> {
    let refused = |name, entry: String, expect: Expect| {
        Row::new(
            name,
            "1.3 batch all-or-none",
            vec![
                make_one("$t"),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":"stored?"}},{entry}]}}"#)).gives(expect),
                committed("$t", "", "marker"),
                read_soon("$t").gives(json(200).text("payload", "marker").raw("offset", "0")),
            ],
        )
    };
    vec![
        refused(
            "a_bad_partition_refuses_the_batch_and_names_the_message",
            r#"{"payload":1,"partition":1}"#.into(),
            bad().begins("message 1: invalid partition: "),
        ),
        refused("a_negative_partition_refuses_the_batch", r#"{"payload":1,"partition":-1}"#.into(), bad().begins("message 1: ")),
        refused(
            "an_empty_payload_refuses_the_batch_and_names_the_message",
            r#"{"payload":"","payload_encoding":"base64"}"#.into(),
            bad().says("message 1: message required"),
        ),
        refused("a_missing_payload_refuses_the_batch_and_names_the_message", "{}".into(), bad().says("message 1: message required")),
        refused(
            "a_bad_base64_payload_refuses_the_batch",
            r#"{"payload":"*","payload_encoding":"base64"}"#.into(),
            bad().begins("message 1: "),
        ),
        refused(
            "an_unknown_payload_encoding_refuses_the_batch",
            r#"{"payload":"x","payload_encoding":"hex"}"#.into(),
            bad().begins("message 1: "),
        ),
        refused(
            "a_bad_base64_key_refuses_the_batch",
            r#"{"payload":1,"key":"*","key_encoding":"base64"}"#.into(),
            bad().begins("message 1: "),
        ),
        refused(
            "a_key_over_32_kib_refuses_the_batch",
            format!(r#"{{"payload":1,"key":"{}"}}"#, "k".repeat(32 * 1024 + 1)),
            bad().begins("message 1: "),
        ),
        refused(
            "a_payload_over_1_mib_refuses_the_batch_and_names_the_message",
            format!(r#"{{"payload":"{}"}}"#, "x".repeat(1024 * 1024 - 1)),
            refusal(413, "body_too_large").says("message 1: message too large"),
        ),
    ]
}

fn encodings() -> Vec<Row> {
    let body = r#"{"messages":[{"payload":"packed"}]}"#;
    let over = format!(r#"{{"messages":[{{"payload":1}}]{}}}"#, " ".repeat(16 * 1024 * 1024));
    vec![
        Row::new(
            "a_gzip_batch_is_taken",
            "1.3 batch encoding",
            vec![
                make_one("$t"),
                send_batch("$t", body).gzip().gives(json(202).raw("accepted", "1")),
                read_soon("$t").gives(json(200).text("payload", "packed")),
            ],
        ),
        Row::new(
            "a_zstd_batch_is_taken",
            "1.3 batch encoding",
            vec![
                make_one("$t"),
                send_batch("$t", body).zstd().gives(json(202).raw("accepted", "1")),
                read_soon("$t").gives(json(200).text("payload", "packed")),
            ],
        ),
        Row::new(
            "another_encoding_of_a_batch_is_refused",
            "1.3 batch 415",
            vec![
                make("$t", ""),
                send_batch("$t", body)
                    .header("Content-Encoding", "br")
                    .gives(refusal(415, "unsupported_media_type").says("unsupported Content-Encoding: want zstd, gzip or none")),
            ],
        ),
        Row::new(
            "a_batch_that_does_not_decode_is_refused",
            "1.3 batch encoding",
            vec![
                make("$t", ""),
                send_batch("$t", body).header("Content-Encoding", "gzip").gives(bad()),
                send_batch("$t", body).header("Content-Encoding", "zstd").gives(bad()),
            ],
        ),
        Row::new(
            "a_batch_that_decodes_to_over_16_mib_is_refused",
            "1.3 batch 413",
            vec![
                make("$t", ""),
                send_batch("$t", over.clone()).gzip().gives(refusal(413, "body_too_large")),
                send_batch("$t", over).zstd().gives(refusal(413, "body_too_large")),
            ],
        ),
    ]
}
