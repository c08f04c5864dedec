//! What is common to all answers: framing, refusals, unknown paths, the guard (1.0, 2.1, 12).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [bodies(), plain_answers(), guard(), connections()].concat()
}

fn bodies() -> Vec<Row> {
    vec![
        Row::new(
            "a_refusal_has_its_text_and_its_machine_readable_members",
            "2.1, 12 code",
            vec![
                describe("$t").gives(
                    json(404)
                        .text("error", "topic not found")
                        .text("code", "topic_not_found")
                        .text("effect", "none")
                        .raw("retryable", "false")
                        .field("instance", Is::AnyText)
                        .field("retry_after_ms", Is::AbsentOr(&["null"])),
                ),
            ],
        ),
        Row::new(
            "a_refusal_that_a_repeat_may_lift_says_when",
            "12 retry_after_ms",
            vec![
                make_one("$t"),
                send_batch("$t", format!(r#"{{"messages":[{{"payload":1}}]{}}}"#, " ".repeat(3 * 1024 * 1024)))
                    .gives(json(503).raw("retryable", "true").raw("retry_after_ms", "1000").header("Retry-After", raw("1"))),
            ],
        )
        .on(Profile::SmallCaps),
        Row::new(
            "two_refusals_have_two_instances",
            "12 instance",
            vec![
                describe("$t").gives(json(404)).take("one", "instance"),
                describe("$t").gives(json(404).field("instance", Is::Not("$one".into()))),
            ],
        ),
        Row::new(
            "odd_characters_in_a_refusal_stay_json",
            "0.1 #15",
            vec![
                make("$t", ""),
                send("$t", "partition=%22%00%0A%5C", "x").gives(bad().begins("invalid partition: ")),
                send("$t", "partition=%FF", "x").gives(json(400)),
            ],
        ),
        Row::new(
            "a_topic_name_in_a_path_that_cannot_exist_is_not_found_or_refused",
            "1.1 describe 404",
            vec![get("/v1/topics/a%20b").gives(status(404).or_status(400)), get("/v1/topics/%FF").gives(status(404).or_status(400))],
        ),
    ]
}

fn no_page() -> Expect {
    plain(404, "404 page not found").header("Veena-Error-Code", raw("not_found")).header("Veena-Effect", raw("none"))
}

fn not_allowed() -> Expect {
    status(405).in_plain_text(Is::AnyText).header("Veena-Error-Code", raw("method_not_allowed")).header("Veena-Effect", raw("none"))
}

fn plain_answers() -> Vec<Row> {
    let with_client = |method, target: &str| Request::new(method, target).header("X-Narad-Client", "contract");
    let allow = |text: &str| Is::Contains(text.into());
    vec![
        Row::new(
            "an_unknown_path_is_answered_in_plain_text",
            "1.0 plain text",
            vec![
                get("/").gives(no_page()),
                get("/v1").gives(no_page()),
                get("/v1/nothing").gives(no_page()),
                get("/v1/topics/$t/nothing").gives(no_page()),
                with_client("POST", "/v2/topics").gives(no_page()),
            ],
        ),
        Row::new("a_head_of_an_unknown_path_has_no_body", "1.0 HEAD", vec![head("/v1/nothing").gives(status(404))]),
        Row::new(
            "a_known_path_with_another_method_says_what_it_allows",
            "1.0 plain text",
            vec![
                with_client("PUT", "/v1/topics").gives(not_allowed().header("Allow", allow("GET")).header("Allow", allow("POST"))),
                with_client("PUT", "/v1/topics/$t")
                    .gives(not_allowed().header("Allow", allow("GET")).header("Allow", allow("PATCH")).header("Allow", allow("DELETE"))),
                get("/v1/topics/$t/produce").gives(not_allowed().header("Allow", allow("POST"))),
                get("/v1/topics/$t/produce/batch").gives(not_allowed().header("Allow", allow("POST"))),
                get("/v1/topics/$t/ack").gives(not_allowed().header("Allow", allow("POST"))),
                with_client("POST", "/v1/topics/$t/consume")
                    .gives(not_allowed().header("Allow", allow("GET")).header("Allow", allow("HEAD"))),
                with_client("PUT", "/v1/topics/$t/children")
                    .gives(not_allowed().header("Allow", allow("GET")).header("Allow", allow("POST"))),
                get("/v1/topics/$t/children/x").gives(not_allowed().header("Allow", allow("DELETE"))),
                with_client("POST", "/v1/topics/$t/schema").gives(not_allowed().header("Allow", allow("GET"))),
                with_client("POST", "/healthz").gives(not_allowed().header("Allow", allow("GET"))),
                delete("/readyz").gives(not_allowed().header("Allow", allow("GET"))),
            ],
        ),
        Row::new(
            "a_head_of_a_path_that_only_takes_posts_is_not_allowed",
            "1.0 HEAD",
            vec![head("/v1/topics/$t/produce").gives(status(405).header("Allow", allow("POST")))],
        ),
        Row::new(
            "headers_over_64_kib_are_refused",
            "1.0 limits",
            vec![
                get("/healthz").header("X-Long", "x".repeat(65 * 1024)).gives(
                    status(431)
                        .in_plain_text(Is::AnyText)
                        .header("Veena-Error-Code", raw("headers_too_large"))
                        .header("Veena-Effect", raw("none")),
                ),
                get("/healthz").header("X-Long", "x".repeat(40 * 1024)).gives(json(200)),
            ],
        ),
        Row::new(
            "many_header_lines_within_64_kib_are_taken",
            "1.0 limits",
            vec![(0..150).fold(get("/healthz"), |r, i| r.header(format!("X-H{i}"), "1")).gives(json(200))],
        ),
        Row::new(
            "bytes_that_are_not_http_are_refused",
            "1.0 conventions",
            vec![Step::Wire { bytes: "NOT HTTP\r\n\r\n".into(), expects: vec![status(400)] }],
        ),
    ]
}

fn guard() -> Vec<Row> {
    let refused = || refusal(415, "unsupported_media_type");
    vec![
        Row::new(
            "the_guard_refuses_in_json_and_without_effect",
            "0.1 #1",
            vec![Request::new("POST", "/v1/topics").text(r#"{"name":"$t"}"#).gives(refused()), describe("$t").gives(topic_not_found())],
        ),
        Row::new(
            "the_guard_looks_at_post_put_and_patch_only",
            "0.1 #1",
            vec![
                make("$t", ""),
                Request::new("PATCH", "/v1/topics/$t").text(r#"{"retention_ms":0}"#).gives(refused()),
                Request::new("PUT", "/v1/topics/$t").text("{}").gives(refused()),
                get("/v1/topics/$t").gives(json(200)),
                delete("/v1/topics/$t").gives(empty(204)),
            ],
        ),
        Row::new(
            "the_guard_is_asked_before_the_method",
            "1.0 middleware order",
            vec![Request::new("POST", "/healthz").gives(unsupported()), Request::new("POST", "/v1/topics/$t/consume").gives(unsupported())],
        ),
        Row::new(
            "either_client_header_satisfies_the_guard",
            "12 X-Veena-Client",
            vec![
                Request::new("POST", "/v1/topics").header("X-Narad-Client", "n").text(r#"{"name":"$t-n"}"#).gives(json(201)),
                Request::new("POST", "/v1/topics").header("X-Veena-Client", "v").text(r#"{"name":"$t-v"}"#).gives(json(201)),
                Request::new("POST", "/v1/topics").header("X-Narad-Client", "").text(r#"{"name":"$t-e"}"#).gives(refused()),
            ],
        ),
    ]
}

fn connections() -> Vec<Row> {
    vec![
        Row::new(
            "a_connection_serves_one_request_after_another",
            "1.0 conventions",
            vec![Step::Wire {
                bytes: "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/topics/$t HTTP/1.1\r\nHost: x\r\n\r\n\
                        GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                    .into(),
                expects: vec![json(200), topic_not_found(), json(200)],
            }],
        ),
        Row::new(
            "an_announced_body_is_asked_for",
            "1.0 conventions",
            vec![
                make_one("$t"),
                Step::Wire {
                    bytes: "POST /v1/topics/$t/produce HTTP/1.1\r\nHost: x\r\nX-Narad-Client: c\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx"
                        .into(),
                    expects: vec![empty(202)],
                },
                read_soon("$t").gives(json(200).text("payload", "x")),
            ],
        ),
        Row::new(
            "a_refused_body_does_not_become_the_next_request",
            "1.0 conventions",
            // The body of the refused produce reads like a request; whatever follows must not be its answer.
            vec![
                make_one("$t"),
                Step::Wire {
                    bytes: "POST /v1/topics/$t-none/produce HTTP/1.1\r\nHost: x\r\nX-Narad-Client: c\r\nContent-Length: 39\r\n\r\n\
                            DELETE /v1/topics/x HTTP/1.1\r\nHost: x\r\n\
                            GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                        .into(),
                    expects: vec![topic_not_found(), json(200).text("status", "ok")],
                },
            ],
        ),
    ]
}
