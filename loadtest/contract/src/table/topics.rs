//! Creating topics (1.1).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [create_defaults(), create_fields(), create_refusals(), create_with_parent()].concat()
}

fn create_defaults() -> Vec<Row> {
    vec![
        Row::new(
            "a_created_topic_is_answered_with_every_default",
            "1.1 create",
            vec![
                create(r#"{"name":"$t"}"#).gives(
                    json(201)
                        .text("name", "$t")
                        .field("id", Is::Hex16)
                        .raw("partitions", "3")
                        .raw("retention_ms", "604800000")
                        .raw("visibility_timeout_ms", "30000")
                        .raw("max_in_flight_per_partition", "1024")
                        .raw("max_acked_ahead_per_partition", "1024")
                        .field("created_at", Is::AtLeast(1_600_000_000)),
                ),
            ],
        ),
        Row::new(
            "a_created_topic_without_parent_omits_what_it_does_not_have",
            "1.1 Topic object",
            vec![
                create(r#"{"name":"$t"}"#).gives(
                    json(201)
                        .field("role", Is::Absent)
                        .field("owner", Is::Absent)
                        .field("children", Is::Absent)
                        .field("parent", Is::Absent)
                        .field("attach_epoch", Is::Absent)
                        .field("fanout_delay_ms", Is::Absent)
                        .field("attach_offsets", Is::Absent)
                        .field("remote", Is::Absent),
                ),
            ],
        ),
        Row::new(
            "zero_means_the_default_for_partitions_visibility_and_caps",
            "1.1 create",
            vec![
                create(
                    r#"{"name":"$t","partitions":0,"visibility_timeout_ms":0,"max_in_flight_per_partition":0,"max_acked_ahead_per_partition":0}"#,
                )
                .gives(
                    json(201)
                        .raw("partitions", "3")
                        .raw("visibility_timeout_ms", "30000")
                        .raw("max_in_flight_per_partition", "1024")
                        .raw("max_acked_ahead_per_partition", "1024"),
                ),
            ],
        ),
        Row::new(
            "created_at_is_in_seconds",
            "0.1 #20",
            vec![create(r#"{"name":"$t"}"#).gives(json(201)).take("c", "created_at"), describe("$t").gives(json(200).raw("created_at", "$c"))],
        ),
    ]
}

fn create_fields() -> Vec<Row> {
    vec![
        Row::new(
            "one_partition_is_allowed",
            "1.1 create (minimum 1)",
            vec![create(r#"{"name":"$t","partitions":1}"#).gives(json(201).raw("partitions", "1"))],
        ),
        Row::new(
            "a_topic_may_have_108_partitions",
            "1.1 create",
            vec![create(r#"{"name":"$t","partitions":108}"#).gives(json(201).raw("partitions", "108"))],
        ),
        Row::new(
            "more_partitions_than_the_maximum_are_refused",
            "1.1 create",
            vec![create(r#"{"name":"$t","partitions":109}"#).gives(bad()), describe("$t").gives(topic_not_found())],
        ),
        Row::new("negative_partitions_are_refused", "1.1 create", vec![create(r#"{"name":"$t","partitions":-1}"#).gives(bad())]),
        Row::new(
            "retention_zero_at_creation_keeps_for_ever",
            "0.1 #2",
            vec![
                create(r#"{"name":"$t","retention_ms":0}"#).gives(json(201).raw("retention_ms", "0")),
                describe("$t").gives(json(200).raw("retention_ms", "0")),
            ],
        ),
        Row::new(
            "the_shortest_finite_retention_is_an_hour",
            "1.1 create",
            vec![
                create(r#"{"name":"$t","retention_ms":3599999}"#).gives(bad()),
                create(r#"{"name":"$t","retention_ms":3600000}"#).gives(json(201).raw("retention_ms", "3600000")),
            ],
        ),
        Row::new("negative_retention_is_refused", "1.1 create", vec![create(r#"{"name":"$t","retention_ms":-1}"#).gives(bad())]),
        Row::new(
            "visibility_and_caps_are_taken_as_given",
            "1.1 create",
            vec![
                create(r#"{"name":"$t","visibility_timeout_ms":1234,"max_in_flight_per_partition":7,"max_acked_ahead_per_partition":9}"#)
                    .gives(
                        json(201)
                            .raw("visibility_timeout_ms", "1234")
                            .raw("max_in_flight_per_partition", "7")
                            .raw("max_acked_ahead_per_partition", "9"),
                    ),
            ],
        ),
        Row::new(
            "a_schema_at_creation_becomes_version_1",
            "1.1 create",
            vec![
                create(r#"{"name":"$t","schema":{"type":"object"}}"#).gives(json(201)),
                describe("$t").gives(json(200).raw("schema_version", "1").raw("schema", r#"{"type":"object"}"#)),
            ],
        ),
        Row::new(
            "a_schema_may_be_true",
            "1.1 create",
            vec![
                create(r#"{"name":"$t","schema":true}"#).gives(json(201)),
                describe("$t").gives(json(200).raw("schema_version", "1").raw("schema", "true")),
            ],
        ),
        Row::new(
            "a_schema_that_is_neither_object_nor_true_is_refused",
            "1.1 create",
            vec![
                create(r#"{"name":"$t","schema":5}"#).gives(json(400)),
                create(r#"{"name":"$t","schema":"x"}"#).gives(json(400)),
                create(r#"{"name":"$t","schema":false}"#).gives(json(400)),
                describe("$t").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "an_owner_in_the_body_is_accepted_and_ignored",
            "1.1 create",
            vec![create(r#"{"name":"$t","owner":"mallory"}"#).gives(json(201).field("owner", Is::Absent))],
        ),
        Row::new(
            "a_delay_without_a_parent_is_refused",
            "1.1 create",
            vec![create(r#"{"name":"$t","fanout_delay_ms":1000}"#).gives(bad()), describe("$t").gives(topic_not_found())],
        ),
    ]
}

fn create_refusals() -> Vec<Row> {
    let long = |count: usize| "x".repeat(count);
    vec![
        Row::new("a_name_is_required", "1.1 create", vec![create("{}").gives(bad()), create(r#"{"name":""}"#).gives(bad())]),
        Row::new(
            "a_name_of_dots_alone_is_refused",
            "1.1 create",
            vec![create(r#"{"name":"."}"#).gives(bad()), create(r#"{"name":".."}"#).gives(bad())],
        ),
        Row::new(
            "a_name_with_other_characters_is_refused",
            "1.1 create",
            vec![
                create(r#"{"name":"$t/a"}"#).gives(bad()),
                create(r#"{"name":"$t a"}"#).gives(bad()),
                create(r#"{"name":"$t\u0000"}"#).gives(bad()),
                create(r#"{"name":"$té"}"#).gives(bad()),
            ],
        ),
        Row::new(
            "a_name_of_letters_digits_dot_underscore_and_dash_is_taken",
            "1.1 create",
            vec![create(r#"{"name":"$t.A_b-9"}"#).gives(json(201).text("name", "$t.A_b-9"))],
        ),
        Row::new(
            "a_name_of_201_bytes_is_refused_with_its_length",
            "2.4",
            vec![
                create(format!(r#"{{"name":"{}"}}"#, long(201)))
                    .gives(bad().mentions("topic name is 201 bytes; new topic names are limited to 200 bytes")),
            ],
        ),
        Row::new(
            "a_name_of_200_bytes_is_taken",
            "1.1 create",
            // The topic is removed again: its name is the same in every run.
            vec![
                create(format!(r#"{{"name":"{}"}}"#, long(200))).gives(json(201)),
                delete(format!("/v1/topics/{}", long(200))).gives(empty(204)),
            ],
        ),
        Row::new(
            "a_taken_name_is_refused",
            "1.1 create 409",
            vec![make("$t", ""), create(r#"{"name":"$t"}"#).gives(refusal(409, "already_exists").says("topic already exists"))],
        ),
        Row::new(
            "a_name_that_differs_only_in_letter_case_is_refused",
            "2.4",
            vec![
                make("$t-a", ""),
                create(r#"{"name":"$t-A"}"#).gives(json(409).mentions("differs only in letter case")),
                describe("$t-A").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "an_unknown_member_is_refused",
            "1.0 json",
            vec![create(r#"{"name":"$t","colour":"red"}"#).gives(bad().begins("invalid json: ")), describe("$t").gives(topic_not_found())],
        ),
        Row::new(
            "a_member_of_the_wrong_type_is_refused",
            "1.0 json",
            vec![
                create(r#"{"name":"$t","partitions":"3"}"#).gives(bad().begins("invalid json: ")),
                create(r#"{"name":5}"#).gives(bad().begins("invalid json: ")),
                create(r#"{"name":"$t","partitions":1.5}"#).gives(bad().begins("invalid json: ")),
            ],
        ),
        Row::new(
            "a_second_value_after_the_body_is_refused",
            "1.0 json",
            vec![create(r#"{"name":"$t"} {"name":"$t"}"#).gives(bad().says("invalid json: multiple JSON values"))],
        ),
        Row::new(
            "a_body_that_is_not_json_is_refused",
            "1.0 json",
            vec![
                create("").gives(bad().begins("invalid json: ")),
                create("{").gives(bad().begins("invalid json: ")),
                create("name=x").gives(bad().begins("invalid json: ")),
                create("[]").gives(bad().begins("invalid json: ")),
            ],
        ),
        Row::new(
            "a_create_over_1_mib_is_refused",
            "1.1 create 413",
            vec![
                create(format!(r#"{{"name":"$t"{}}}"#, " ".repeat(1024 * 1024)))
                    .gives(refusal(413, "body_too_large").says("request body too large")),
            ],
        ),
        Row::new(
            "a_create_without_content_type_is_refused",
            "1.1 create 415",
            vec![Request::new("POST", "/v1/topics").text(r#"{"name":"$t"}"#).gives(unsupported()), describe("$t").gives(topic_not_found())],
        ),
    ]
}

fn create_with_parent() -> Vec<Row> {
    vec![
        Row::new(
            "a_topic_created_with_a_parent_is_its_child",
            "1.1 create, parent",
            vec![
                make("$t-p", r#""partitions":2"#),
                create(r#"{"name":"$t-c","parent":"$t-p"}"#).gives(
                    json(201)
                        .text("role", "child")
                        .text("parent", "$t-p")
                        .raw("partitions", "2")
                        .field("attach_epoch", Is::Hex16)
                        .raw("attach_offsets", "[0,0]")
                        .field("fanout_delay_ms", Is::Absent),
                ),
                describe("$t-p").gives(json(200).text("role", "parent").raw("children", r#"["$t-c"]"#)),
            ],
        ),
        Row::new(
            "a_topic_created_with_a_parent_may_have_its_own_partition_count",
            "1.1 create, parent",
            vec![make("$t-p", ""), create(r#"{"name":"$t-c","parent":"$t-p","partitions":5}"#).gives(json(201).raw("partitions", "5"))],
        ),
        Row::new(
            "a_topic_created_with_a_parent_and_a_delay_carries_it",
            "1.1 create, parent",
            vec![
                make("$t-p", ""),
                create(r#"{"name":"$t-c","parent":"$t-p","fanout_delay_ms":1000}"#).gives(json(201).raw("fanout_delay_ms", "1000")),
            ],
        ),
        Row::new(
            "a_delay_of_a_year_is_taken_and_a_longer_or_negative_one_refused",
            "1.1 create, parent",
            vec![
                make("$t-p", r#""retention_ms":0"#),
                create(r#"{"name":"$t-c","parent":"$t-p","fanout_delay_ms":31536000001}"#).gives(bad()),
                create(r#"{"name":"$t-c","parent":"$t-p","fanout_delay_ms":-1}"#).gives(bad()),
                create(r#"{"name":"$t-c","parent":"$t-p","fanout_delay_ms":31536000000}"#)
                    .gives(json(201).raw("fanout_delay_ms", "31536000000")),
            ],
        ),
        Row::new(
            "an_unknown_parent_is_not_found_and_nothing_is_created",
            "1.1 create 404",
            vec![create(r#"{"name":"$t","parent":"$t-none"}"#).gives(topic_not_found()), describe("$t").gives(topic_not_found())],
        ),
        Row::new(
            "a_failed_attach_rolls_the_create_back",
            "1.1 create 409",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p""#),
                create(r#"{"name":"$t-g","parent":"$t-c"}"#).gives(refusal(409, "role_conflict").mentions("fan-out role conflict")),
                describe("$t-g").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "a_create_whose_delay_outlasts_the_parents_retention_is_refused",
            "0.1 #14",
            vec![
                make("$t-p", r#""retention_ms":3600000"#),
                create(r#"{"name":"$t-c","parent":"$t-p","fanout_delay_ms":1}"#).gives(delay_conflict()),
                describe("$t-c").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "a_create_with_a_schema_under_a_parent_without_one_is_refused",
            "1.1 create 409",
            vec![
                make("$t-p", ""),
                create(r#"{"name":"$t-c","parent":"$t-p","schema":{"type":"object"}}"#)
                    .gives(json(409).mentions("child schema incompatible with parent")),
                describe("$t-c").gives(topic_not_found()),
            ],
        ),
        Row::new(
            "a_parent_takes_108_children_and_not_one_more",
            "1.1 create 409",
            vec![
                make_one("$t"),
                Step::Times {
                    count: 108,
                    request: create(r#"{"name":"$t-$i","parent":"$t","partitions":1}"#),
                    expect: json(201).text("role", "child"),
                },
                create(r#"{"name":"$t-x","parent":"$t"}"#).gives(json(409).mentions("parent has reached the maximum number of children")),
                describe("$t-x").gives(topic_not_found()),
                get("/v1/topics?page_token=$t").gives(json(200).field("topics", Is::Len(100)).text("next_page_token", "$t-0100")),
            ],
        ),
    ]
}
