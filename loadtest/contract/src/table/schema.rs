//! Schemas: their history, their refusals, and what they make of payloads (1.1, 2.2, 2.4, 3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [history(), documents(), payloads()].concat()
}

/// An object schema with these properties (`"a":{"type":"string"}`).
fn object(properties: &str) -> String {
    format!(r#"{{"type":"object","properties":{{{properties}}}}}"#)
}

fn with_schema(schema: &str) -> String {
    format!(r#""partitions":1,"schema":{schema}"#)
}

fn history() -> Vec<Row> {
    vec![
        Row::new(
            "a_topic_without_schema_has_version_0_and_no_history",
            "1.1 schema",
            vec![make("$t", ""), get("/v1/topics/$t/schema").gives(json(200).raw("", r#"{"topic":"$t","version":0,"versions":[]}"#))],
        ),
        Row::new(
            "the_history_of_a_schema_is_served_oldest_first",
            "1.1 schema",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a":{"type":["string","null"]}"#))).gives(json(200)),
                get("/v1/topics/$t/schema").gives(
                    json(200)
                        .text("topic", "$t")
                        .raw("version", "2")
                        .field("versions", Is::Len(2))
                        .raw("versions.0.version", "1")
                        .raw("versions.0.schema", object(r#""a":{"type":"string"}"#))
                        .raw("versions.1.version", "2")
                        .raw("versions.1.schema", object(r#""a":{"type":["string","null"]}"#)),
                ),
                describe("$t").gives(json(200).raw("schema_version", "2").raw("schema", object(r#""a":{"type":["string","null"]}"#))),
            ],
        ),
        Row::new("an_unknown_topic_has_no_schema_history", "1.1 schema 404", vec![get("/v1/topics/$t/schema").gives(topic_not_found())]),
        Row::new(
            "the_same_schema_again_makes_no_new_version",
            "1.1 patch",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a": {"type" : "string"}"#))).gives(json(200)),
                describe("$t").gives(json(200).raw("schema_version", "1")),
            ],
        ),
        Row::new(
            "a_schema_that_differs_only_in_annotations_makes_no_new_version",
            "1.1 patch",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a":{"type":"string","description":"words"}"#))).gives(json(200)),
                describe("$t").gives(json(200).raw("schema_version", "1")),
            ],
        ),
        Row::new(
            "a_first_schema_may_come_by_patch",
            "1.1 patch",
            vec![
                make("$t", ""),
                patch("$t", r#"{"schema":true}"#).gives(json(200)),
                describe("$t").gives(json(200).raw("schema_version", "1").raw("schema", "true")),
            ],
        ),
        Row::new(
            "a_matching_schema_base_version_is_taken",
            "1.1 patch",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema_base_version":1,"schema":{}}}"#, object(r#""a":{"type":["string","null"]}"#)))
                    .gives(json(200)),
                describe("$t").gives(json(200).raw("schema_version", "2")),
            ],
        ),
        Row::new(
            "another_schema_base_version_is_a_conflict",
            "1.1 patch 409",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema_base_version":7,"schema":{}}}"#, object(r#""a":{"type":["string","null"]}"#)))
                    .gives(refusal(409, "conflict").mentions("topic changed since it was read")),
                describe("$t").gives(json(200).raw("schema_version", "1")),
            ],
        ),
        Row::new(
            "a_schema_base_version_without_a_schema_is_refused",
            "1.1 patch 400",
            vec![make("$t", ""), patch("$t", r#"{"schema_base_version":0}"#).gives(bad())],
        ),
        Row::new(
            "a_history_over_4_mib_is_refused",
            "1.1 create 409 byte budget",
            vec![
                make("$t", &with_schema(&format!(r#"{{"type":"string","maxLength":90000000,"enum":["{}"]}}"#, "x".repeat(250_000)))),
                Step::Times { count: 15, request: patch("$t", grown()), expect: json(200) },
                patch("$t", grown().replace("$i", "0016")).gives(refusal(409, "limit_reached")),
            ],
        ),
    ]
}

/// A schema that nearly fills the bound of one document and takes more with each `$i`.
fn grown() -> String {
    format!(r#"{{"schema":{{"type":"string","maxLength":9000$i,"enum":["{}"]}}}}"#, "x".repeat(250_000))
}

fn documents() -> Vec<Row> {
    vec![
        Row::new(
            "a_null_schema_is_refused",
            "1.1 patch 400",
            vec![
                make("$t", ""),
                patch("$t", r#"{"schema":null}"#).gives(json(400)),
                describe("$t").gives(json(200).raw("schema_version", "0")),
            ],
        ),
        Row::new(
            "a_schema_that_refuses_what_was_valid_is_incompatible",
            "2.2",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"},"b":{"type":"integer"}"#))),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a":{"type":"string"}"#)))
                    .gives(json(400).mentions("schema incompatible with previous version").text("code", "schema_incompatible")),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a":{"type":"integer"},"b":{"type":"integer"}"#)))
                    .gives(json(400).mentions("schema incompatible with previous version")),
                patch("$t", r#"{"schema":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a"]}}"#)
                    .gives(json(400).mentions("schema incompatible with previous version")),
                describe("$t").gives(json(200).raw("schema_version", "1")),
            ],
        ),
        Row::new(
            "a_schema_may_gain_optional_properties_and_types",
            "3 schema",
            vec![
                make("$t", &with_schema(&object(r#""a":{"type":"string"}"#))),
                patch("$t", format!(r#"{{"schema":{}}}"#, object(r#""a":{"type":["string","integer"]},"b":{"type":"integer"}"#)))
                    .gives(json(200)),
                describe("$t").gives(json(200).raw("schema_version", "2")),
            ],
        ),
        Row::new(
            "a_document_that_is_not_a_json_schema_is_refused",
            "1.1 create 400",
            vec![
                create(r#"{"name":"$t","schema":{"type":"no such type"}}"#).gives(json(400)),
                create(r#"{"name":"$t","schema":{"$ref":"https://example.com/x"}}"#).gives(json(400)),
                describe("$t").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "a_schema_over_256_kib_is_refused",
            "3 schema",
            vec![
                create(format!(r#"{{"name":"$t","schema":{{"description":"{}"}}}}"#, "x".repeat(256 * 1024))).gives(json(400)),
                describe("$t").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "a_schema_over_64_levels_is_refused",
            "3 schema",
            vec![create(format!(r#"{{"name":"$t","schema":{}{{}}{}}}"#, r#"{"not":"#.repeat(65), "}".repeat(65))).gives(json(400))],
        ),
    ]
}

fn payloads() -> Vec<Row> {
    let strict = with_schema(r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}"#);
    let violated = || refusal(400, "schema_violation").mentions("schema");
    vec![
        Row::new(
            "a_payload_that_matches_the_schema_is_taken",
            "1.3 produce 400",
            vec![make("$t", &strict), sent("$t", "", r#"{"a":1}"#), read_soon("$t").gives(json(200).raw("payload", r#"{"a":1}"#))],
        ),
        Row::new(
            "a_payload_that_breaks_the_schema_is_refused",
            "1.3 produce 400",
            vec![
                make("$t", &strict),
                send("$t", "", r#"{"a":"x"}"#).gives(violated()),
                send("$t", "", "{}").gives(violated()),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_payload_that_is_not_one_json_text_is_refused_under_a_schema",
            "3 schema",
            vec![
                make("$t", &with_schema("true")),
                send("$t", "", "plain words").gives(json(400)),
                send("$t", "", "1 2").gives(json(400)),
                send("$t", "", "").bytes(vec![0x22, 0xff, 0x22]).gives(json(400)),
            ],
        ),
        Row::new(
            "a_payload_over_256_levels_is_refused_under_a_schema",
            "2.4",
            vec![
                make("$t", &with_schema("true")),
                send("$t", "", format!("{}{}", "[".repeat(257), "]".repeat(257)))
                    .gives(json(400).mentions("payload nests deeper than 256 levels")),
                sent("$t", "", format!("{}{}", "[".repeat(256), "]".repeat(256))),
            ],
        ),
        Row::new(
            "a_payload_with_an_exponent_over_1000_is_refused_under_a_schema",
            "3 schema",
            vec![make("$t", &with_schema("true")), send("$t", "", "1e1001").gives(json(400)), sent("$t", "", "1e1000")],
        ),
        Row::new(
            "the_last_of_two_equal_keys_is_validated",
            "3 schema",
            vec![make("$t", &strict), send("$t", "", r#"{"a":1,"a":"x"}"#).gives(violated()), sent("$t", "", r#"{"a":"x","a":1}"#)],
        ),
        Row::new(
            "a_schema_refusal_in_a_batch_names_the_message",
            "1.3 produce/batch",
            vec![
                make("$t", &strict),
                send_batch("$t", r#"{"messages":[{"payload":{"a":1}},{"payload":{"a":"x"}}]}"#)
                    .gives(refusal(400, "schema_violation").begins("message 1: ")),
                read("$t", "").gives(nothing()),
            ],
        ),
    ]
}
