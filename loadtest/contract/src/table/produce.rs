//! Producing one message (1.3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [accepting(), keys(), partitions(), refusals(), forms()].concat()
}

fn accepting() -> Vec<Row> {
    vec![
        Row::new(
            "a_produce_is_answered_202_without_a_body",
            "1.3 produce 202",
            vec![make("$t", ""), send("$t", "", "x").gives(empty(202).header("Content-Length", raw("0")))],
        ),
        Row::new(
            "a_message_of_1_mib_is_taken_and_served_whole",
            "1.3 produce",
            vec![
                make_one("$t"),
                sent("$t", "", "y".repeat(1024 * 1024)),
                read_soon("$t").gives(json(200).text("payload", "y".repeat(1024 * 1024))),
            ],
        ),
        Row::new(
            "a_message_of_1_byte_is_taken",
            "1.3 produce",
            vec![make_one("$t"), sent("$t", "", "z"), read_soon("$t").gives(json(200).text("payload", "z"))],
        ),
        Row::new(
            "a_chunked_body_is_a_message",
            "1.3 produce",
            vec![
                make_one("$t"),
                send("$t", "", "in two parts").chunked().gives(empty(202)),
                read_soon("$t").gives(json(200).text("payload", "in two parts")),
            ],
        ),
        Row::new(
            "an_unknown_query_parameter_of_a_produce_is_ignored",
            "1.3 produce",
            vec![make_one("$t"), sent("$t", "colour=red&offset=7&max=x", "x")],
        ),
        Row::new(
            "each_sign_of_a_program_satisfies_the_guard_on_produce",
            "0.1 #1",
            vec![
                make("$t", ""),
                Request::new("POST", "/v1/topics/$t/produce").header("Content-Type", "application/json").text("1").gives(empty(202)),
                Request::new("POST", "/v1/topics/$t/produce")
                    .header("Content-Type", "application/octet-stream")
                    .text("1")
                    .gives(empty(202)),
                Request::new("POST", "/v1/topics/$t/produce").header("X-Narad-Client", "x").text("1").gives(empty(202)),
                Request::new("POST", "/v1/topics/$t/produce").header("X-Veena-Client", "x").text("1").gives(empty(202)),
            ],
        ),
    ]
}

fn keys() -> Vec<Row> {
    let key_row = |name, query: &str, expect: Expect| {
        Row::new(name, "1.3 key", vec![make_one("$t"), sent("$t", query, "x"), read_soon("$t").gives(expect)])
    };
    vec![
        key_row("a_key_is_served_with_its_message", "key=user-1", json(200).text("key", "user-1").field("key_encoding", Is::Absent)),
        key_row("a_message_without_a_key_has_none", "", json(200).field("key", Is::Absent).field("key_encoding", Is::Absent)),
        key_row("an_empty_key_is_no_key", "key=", json(200).field("key", Is::Absent).field("key_encoding", Is::Absent)),
        key_row("a_key_may_hold_a_zero_byte", "key=a%00b", json(200).text("key", "a\0b").field("key_encoding", Is::Absent)),
        key_row("a_key_may_hold_line_ends", "key=a%0D%0Ab", json(200).text("key", "a\r\nb")),
        key_row("a_key_may_hold_quotes_and_backslashes", "key=%22%5C", json(200).text("key", "\"\\")),
        key_row("a_key_may_hold_any_utf8", "key=%E2%82%AC%F0%9F%8E%B5", json(200).text("key", "€🎵")),
        key_row("a_plus_in_a_key_is_a_space", "key=a+b%2Bc", json(200).text("key", "a b+c")),
        key_row("a_key_that_is_not_utf8_is_served_as_base64", "key=%FF%FE", json(200).text("key", "//4=").text("key_encoding", "base64")),
        Row::new(
            "a_key_of_32_kib_is_taken_and_a_longer_one_refused",
            "12 key length",
            vec![
                make_one("$t"),
                sent("$t", &format!("key={}", "k".repeat(32 * 1024)), "x"),
                send("$t", &format!("key={}", "k".repeat(32 * 1024 + 1)), "x").gives(bad()),
                read_soon("$t").gives(json(200).text("key", "k".repeat(32 * 1024))),
            ],
        ),
    ]
}

fn partitions() -> Vec<Row> {
    // FNV-1a, 32 bit: "" is no key, "a" is e40c292c, "b" is e70c2de5, "c" is e60c2c52, "foobar" is bf9cf968.
    let hashed: [(&str, u32); 4] = [("a", 0xe40c_292c), ("b", 0xe70c_2de5), ("c", 0xe60c_2c52), ("foobar", 0xbf9c_f968)];
    let mut by_key = vec![make("$t", r#""partitions":7"#)];
    for (key, hash) in hashed {
        let partition = hash % 7;
        by_key.push(send("$t", &format!("key={key}&wait_for=commit"), "x").gives(json(200).raw("partition", partition.to_string())));
    }
    vec![
        Row::new("a_key_chooses_the_partition_by_fnv_1a", "3 partition choice", by_key),
        Row::new(
            "a_partition_wins_over_a_key",
            "1.3 produce",
            vec![
                make("$t", r#""partitions":7"#),
                sent("$t", "key=a&partition=6", "x"),
                read_soon("$t").gives(json(200).raw("partition", "6").text("key", "a")),
            ],
        ),
        Row::new(
            "a_partition_that_is_not_there_is_refused",
            "1.3 produce 400",
            vec![
                make("$t", ""),
                send("$t", "partition=", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=x", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=-1", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=1.5", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=3", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=99999999999999999999", "x").gives(bad().begins("invalid partition: ")),
            ],
        ),
        Row::new(
            "messages_without_key_go_round_the_partitions",
            "3 partition choice",
            vec![
                make("$t", r#""partitions":2"#),
                send("$t", "wait_for=commit", "x").gives(json(200)).take("p", "partition"),
                send("$t", "wait_for=commit", "x").gives(json(200)),
                send("$t", "wait_for=commit", "x").gives(json(200).raw("partition", "$p")),
            ],
        ),
        Row::new(
            "a_partition_added_by_a_patch_takes_messages",
            "1.1 patch",
            vec![
                make_one("$t"),
                send("$t", "partition=1", "x").gives(bad().begins("invalid partition: ")),
                patch("$t", r#"{"partitions":2}"#).gives(json(200)),
                sent("$t", "partition=1", "x"),
                read_soon("$t").gives(json(200).raw("partition", "1").raw("offset", "0")),
            ],
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        Row::new(
            "an_empty_message_is_refused",
            "1.3 produce 400",
            vec![
                make("$t", ""),
                send("$t", "", "").gives(bad().says("message required")),
                send("$t", "", "").chunked().gives(bad().says("message required")),
            ],
        ),
        Row::new(
            "a_message_over_1_mib_is_refused",
            "1.3 produce 413",
            vec![
                make("$t", ""),
                send("$t", "", "y".repeat(1024 * 1024 + 1)).gives(refusal(413, "body_too_large").says("request body too large")),
                send("$t", "", "y".repeat(1024 * 1024 + 1)).chunked().gives(refusal(413, "body_too_large").says("request body too large")),
            ],
        ),
        Row::new(
            "a_repeated_key_is_refused",
            "1.3 produce 400",
            vec![
                make("$t", ""),
                send("$t", "key=a&key=a", "x").gives(bad().says("duplicate key query parameter")),
                send("$t", "key=&key=", "x").gives(bad().says("duplicate key query parameter")),
            ],
        ),
        Row::new(
            "a_repeated_partition_is_refused",
            "1.3 produce 400",
            vec![make("$t", ""), send("$t", "partition=0&partition=0", "x").gives(bad().says("duplicate partition query parameter"))],
        ),
        Row::new(
            "a_bad_percent_escape_in_a_produce_is_refused",
            "1.3 produce 400",
            vec![
                make("$t", ""),
                send("$t", "key=%zz", "x").gives(bad()),
                send("$t", "key=%4", "x").gives(bad()),
                send("$t", "key=%", "x").gives(bad()),
            ],
        ),
        Row::new("an_unknown_topic_takes_no_message", "1.3 produce 404", vec![send("$t", "", "x").gives(topic_not_found())]),
        Row::new(
            "a_produce_that_a_web_page_could_send_is_refused",
            "1.3 produce 415",
            vec![
                make("$t", ""),
                Request::new("POST", "/v1/topics/$t/produce").text("x").gives(unsupported()),
                Request::new("POST", "/v1/topics/$t/produce").header("Content-Type", "text/plain").text("x").gives(unsupported()),
                Request::new("POST", "/v1/topics/$t/produce")
                    .header("Content-Type", "application/x-www-form-urlencoded")
                    .text("x")
                    .gives(unsupported()),
                Request::new("POST", "/v1/topics/$t/produce").header("X-Narad-Client", "").text("x").gives(unsupported()),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "too_many_produces_of_one_identity_are_refused",
            "1.3 produce 429",
            vec![
                make_one("$t"),
                Step::Hold {
                    slot: "a",
                    bytes: "POST /v1/topics/$t/produce HTTP/1.1\r\nHost: x\r\nX-Narad-Client: c\r\nContent-Length: 2\r\n\r\nx".into(),
                },
                // The held one is counted before the next asks: it must not be the one that is refused. The other in flight is this question.
                get("/metrics").gives(status(200).in_plain_text(Is::Contains("veena_http_requests_in_flight 2".into()))).until(),
                send("$t", "", "z")
                    .gives(refusal(429, "rate_limited").says("too many in-flight produce requests for this identity (limit 1 per node)"))
                    .until(),
                Step::Release { slot: "a", bytes: "y".into(), expect: empty(202) },
            ],
        )
        .on(Profile::SmallCaps),
    ]
}

/// How bytes that were produced look in a message.
fn forms() -> Vec<Row> {
    let form = |name, body: &str, expect: Expect| {
        Row::new(name, "1.3 payload rule", vec![make_one("$t"), sent("$t", "", body), read_soon("$t").gives(expect)])
    };
    let verbatim = |name, body: &str| form(name, body, json(200).raw("payload", body).field("payload_encoding", Is::Absent));
    vec![
        verbatim("a_json_payload_is_served_as_it_was_sent", r#"{ "b" :  1.50, "a":[1,2 ],"b":2}"#),
        verbatim("a_number_too_large_for_a_float_is_served_as_it_was_sent", "123456789012345678901234567890.1e400"),
        verbatim("an_escaped_json_string_is_served_as_it_was_sent", r#""caf\u00e9 \/""#),
        verbatim("json_null_is_served_as_null", "null"),
        verbatim("json_false_is_served_as_false", "false"),
        verbatim("deep_json_is_served_as_it_was_sent", &format!("{}{}", "[".repeat(100), "]".repeat(100))),
        form(
            "words_are_served_as_a_json_string",
            "plain words",
            json(200).text("payload", "plain words").field("payload_encoding", Is::Absent),
        ),
        form("two_json_texts_are_served_as_a_string", "1 2", json(200).text("payload", "1 2").field("payload_encoding", Is::Absent)),
        form("broken_json_is_served_as_a_string", r#"{"a":"#, json(200).text("payload", r#"{"a":"#)),
        form("control_characters_are_served_as_a_string", "a\0\u{1}\n\u{7f}", json(200).text("payload", "a\0\u{1}\n\u{7f}")),
        form(
            "text_that_looks_like_base64_is_served_as_a_string",
            "AAEC",
            json(200).text("payload", "AAEC").field("payload_encoding", Is::Absent),
        ),
        Row::new(
            "bytes_that_are_not_utf8_are_served_as_base64",
            "1.3 payload rule",
            vec![
                make_one("$t"),
                send("$t", "", "").bytes(vec![0, 255, 254, 1]).gives(empty(202)),
                read_soon("$t").gives(json(200).text("payload", "AP/+AQ==").text("payload_encoding", "base64")),
            ],
        ),
    ]
}
