//! Children: linking, listing, unlinking, and what a link copies (1.2, 5.1, 5.2, 5.3, 5.5).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [attaching(), refusals(), roles(), listing(), detaching(), copying()].concat()
}

fn attach(parent: &str, body: &str) -> Request {
    post(format!("/v1/topics/{parent}/children"), body)
}

fn attached(parent: &str, child: &str) -> Step {
    attach(parent, &format!(r#"{{"child":"{child}"}}"#)).gives(json(200))
}

fn role_conflict() -> Expect {
    refusal(409, "role_conflict").mentions("fan-out role conflict")
}

fn attaching() -> Vec<Row> {
    vec![
        Row::new(
            "an_attach_answers_the_parent",
            "1.2 attach",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":0}"#)
                    .gives(json(200).text("name", "$t-p").text("role", "parent").raw("children", r#"["$t-c"]"#)),
                describe("$t-c").gives(json(200).text("role", "child").text("parent", "$t-p").field("attach_epoch", Is::Hex16)),
            ],
        ),
        Row::new(
            "children_are_listed_in_the_order_of_attachment",
            "1.1 Topic object",
            vec![
                make("$t-p", ""),
                make("$t-b", ""),
                make("$t-a", ""),
                attached("$t-p", "$t-b"),
                attach("$t-p", r#"{"child":"$t-a"}"#).gives(json(200).raw("children", r#"["$t-b","$t-a"]"#)),
            ],
        ),
        Row::new(
            "the_attach_point_is_the_high_watermark_of_each_parent_partition",
            "5.2",
            vec![
                make("$t-p", r#""partitions":2"#),
                make("$t-c", ""),
                committed("$t-p", "partition=1", "a"),
                committed("$t-p", "partition=1", "b"),
                attached("$t-p", "$t-c"),
                describe("$t-c").gives(json(200).raw("attach_offsets", "[0,2]")),
            ],
        ),
        Row::new(
            "an_attached_delay_is_shown_by_the_child",
            "1.2 attach",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":5000}"#).gives(json(200)),
                describe("$t-c").gives(json(200).raw("fanout_delay_ms", "5000")),
            ],
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        Row::new(
            "an_attach_without_a_child_is_refused",
            "1.2 attach 400",
            vec![
                make("$t-p", ""),
                attach("$t-p", "{}").gives(bad().mentions("child is required")),
                attach("$t-p", r#"{"child":""}"#).gives(bad().mentions("child is required")),
            ],
        ),
        Row::new(
            "a_topic_is_not_attached_to_itself",
            "1.2 attach 400",
            vec![make("$t", ""), attach("$t", r#"{"child":"$t"}"#).gives(bad())],
        ),
        Row::new(
            "an_attach_with_a_negative_delay_or_one_over_a_year_is_refused",
            "1.2 attach 400",
            vec![
                make("$t-p", r#""retention_ms":0"#),
                make("$t-c", ""),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":-1}"#).gives(bad()),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":31536000001}"#).gives(bad()),
                describe("$t-c").gives(json(200).field("parent", Is::Absent)),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":31536000000}"#).gives(json(200)),
            ],
        ),
        Row::new(
            "an_attach_with_an_unknown_member_or_a_second_value_is_refused",
            "1.0 json",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                attach("$t-p", r#"{"child":"$t-c","colour":1}"#).gives(bad().begins("invalid json: ")),
                attach("$t-p", r#"{"child":"$t-c"} 1"#).gives(bad().says("invalid json: multiple JSON values")),
            ],
        ),
        Row::new(
            "an_attach_over_1_mib_is_a_bad_request",
            "1.0 json",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                attach("$t-p", &format!(r#"{{"child":"$t-c"{}}}"#, " ".repeat(1024 * 1024))).gives(json(400)),
            ],
        ),
        Row::new(
            "an_attach_of_or_to_an_unknown_topic_is_not_found",
            "1.2 attach 404",
            vec![
                make("$t", ""),
                attach("$t", r#"{"child":"$t-none"}"#).gives(topic_not_found()),
                attach("$t-none", r#"{"child":"$t"}"#).gives(topic_not_found()),
                describe("$t").gives(json(200).field("parent", Is::Absent).field("children", Is::Absent)),
            ],
        ),
        Row::new(
            "an_attach_without_content_type_is_refused",
            "1.2 attach 415",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                Request::new("POST", "/v1/topics/$t-p/children").text(r#"{"child":"$t-c"}"#).gives(unsupported()),
            ],
        ),
    ]
}

fn roles() -> Vec<Row> {
    vec![
        Row::new(
            "a_child_is_not_attached_twice",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-q", ""),
                make("$t-c", ""),
                attached("$t-p", "$t-c"),
                attach("$t-p", r#"{"child":"$t-c"}"#).gives(role_conflict()),
                attach("$t-q", r#"{"child":"$t-c"}"#).gives(role_conflict()),
            ],
        ),
        Row::new(
            "a_child_takes_no_children",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                make("$t-g", ""),
                attached("$t-p", "$t-c"),
                attach("$t-c", r#"{"child":"$t-g"}"#).gives(role_conflict()),
            ],
        ),
        Row::new(
            "a_parent_becomes_no_child",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                make("$t-r", ""),
                attached("$t-p", "$t-c"),
                attach("$t-r", r#"{"child":"$t-p"}"#).gives(role_conflict()),
            ],
        ),
        Row::new(
            "a_child_with_a_schema_its_parent_does_not_have_is_refused",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""schema":{"type":"object"}"#),
                attach("$t-p", r#"{"child":"$t-c"}"#).gives(json(409).mentions("child schema incompatible with parent")),
            ],
        ),
        Row::new(
            "a_child_with_another_schema_than_its_parent_is_refused",
            "5.1",
            vec![
                make("$t-p", r#""schema":{"type":"object"}"#),
                make("$t-c", r#""schema":{"type":"array"}"#),
                attach("$t-p", r#"{"child":"$t-c"}"#).gives(json(409).mentions("child schema incompatible with parent")),
            ],
        ),
        Row::new(
            "a_child_with_its_parents_schema_is_attached",
            "5.1",
            vec![make("$t-p", r#""schema":{"type":"object"}"#), make("$t-c", r#""schema":{"type":"object"}"#), attached("$t-p", "$t-c")],
        ),
        Row::new(
            "an_attached_childs_schema_is_its_parents_matter",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                attached("$t-p", "$t-c"),
                patch("$t-c", r#"{"schema":{"type":"object"}}"#)
                    .gives(json(409).mentions("schema is parent-managed while attached to a fan-out parent")),
            ],
        ),
        Row::new(
            "an_attach_whose_delay_outlasts_the_parents_retention_is_refused",
            "5.1",
            vec![
                make("$t-p", r#""retention_ms":3600000"#),
                make("$t-c", ""),
                attach("$t-p", r#"{"child":"$t-c","delay_ms":1}"#).gives(delay_conflict()),
                describe("$t-c").gives(json(200).field("parent", Is::Absent)),
            ],
        ),
        Row::new(
            "a_delayed_child_takes_no_direct_produce",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p","fanout_delay_ms":1000"#),
                send("$t-c", "", "x")
                    .gives(refusal(409, "delayed_child").mentions("direct produce to a delayed child topic is not allowed")),
                send_batch("$t-c", r#"{"messages":[{"payload":1}]}"#)
                    .gives(refusal(409, "delayed_child").mentions("direct produce to a delayed child topic is not allowed")),
            ],
        ),
        Row::new(
            "an_immediate_child_takes_a_direct_produce",
            "5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p""#),
                sent("$t-c", "", "x"),
                read_soon("$t-c").gives(json(200).text("payload", "x")),
            ],
        ),
    ]
}

fn listing() -> Vec<Row> {
    vec![
        Row::new(
            "a_listing_of_children_names_parent_delay_and_lag",
            "1.2 list",
            vec![
                create(r#"{"name":"$t-p"}"#).gives(json(201)).take("id", "id"),
                make("$t-c", r#""parent":"$t-p","fanout_delay_ms":5000"#),
                get("/v1/topics/$t-p/children").gives(
                    json(200)
                        .text("parent", "$t-p")
                        .text("parent_id", "$id")
                        .field("children", Is::Len(1))
                        .text("children.0.name", "$t-c")
                        .raw("children.0.delay_ms", "5000")
                        .raw("children.0.lag_messages", "0")
                        .raw("children.0.lag_complete", "true"),
                ),
            ],
        ),
        Row::new(
            "a_topic_without_children_lists_none",
            "1.2 list",
            vec![
                make("$t", ""),
                get("/v1/topics/$t/children").gives(json(200).text("parent", "$t").field("parent_id", Is::Hex16).raw("children", "[]")),
            ],
        ),
        Row::new(
            "the_lag_of_a_delayed_child_counts_what_is_held_back",
            "1.2 list",
            vec![
                make("$t-p", r#""partitions":1"#),
                make("$t-c", r#""parent":"$t-p","fanout_delay_ms":3600000"#),
                committed("$t-p", "", "x"),
                committed("$t-p", "", "y"),
                get("/v1/topics/$t-p/children")
                    .gives(json(200).raw("children.0.lag_messages", "2").raw("children.0.lag_complete", "true"))
                    .until(),
                read("$t-c", "").gives(nothing()),
            ],
        ),
        Row::new(
            "the_lag_of_a_child_returns_to_zero",
            "1.2 list",
            vec![
                make("$t-p", r#""partitions":1"#),
                make("$t-c", r#""parent":"$t-p""#),
                committed("$t-p", "", "x"),
                lease("$t-c"),
                get("/v1/topics/$t-p/children?partitions=true").gives(json(200).raw("children.0.lag_messages", "0")).until(),
            ],
        ),
        Row::new("an_unknown_topic_lists_no_children", "1.2 list", vec![get("/v1/topics/$t/children").gives(topic_not_found())]),
    ]
}

fn detaching() -> Vec<Row> {
    vec![
        Row::new(
            "a_detached_child_is_standalone_and_keeps_its_messages",
            "1.2 detach",
            vec![
                make("$t-p", ""),
                make_one("$t-c"),
                committed("$t-c", "", "kept"),
                attached("$t-p", "$t-c"),
                delete("/v1/topics/$t-p/children/$t-c").gives(empty(204)),
                describe("$t-c").gives(json(200).field("parent", Is::Absent).field("attach_epoch", Is::Absent)),
                describe("$t-p").gives(json(200).field("children", Is::Absent)),
                read_soon("$t-c").gives(json(200).text("payload", "kept")),
            ],
        ),
        Row::new(
            "a_pair_that_is_not_linked_is_not_found",
            "1.2 detach 404",
            vec![
                make("$t-p", ""),
                make("$t-c", ""),
                delete("/v1/topics/$t-p/children/$t-c").gives(json(404)),
                delete("/v1/topics/$t-p/children/$t-none").gives(json(404)),
                delete("/v1/topics/$t-none/children/$t-c").gives(json(404)),
            ],
        ),
        Row::new(
            "force_changes_nothing_for_a_local_child",
            "1.2 detach",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p""#),
                delete("/v1/topics/$t-p/children/$t-c?force=true").gives(empty(204)),
                delete("/v1/topics/$t-p/children/$t-c?force=true").gives(json(404)),
            ],
        ),
        Row::new(
            "a_detached_child_may_be_deleted_and_attached_elsewhere",
            "5.5",
            vec![
                make("$t-p", ""),
                make("$t-q", ""),
                make("$t-c", r#""parent":"$t-p""#),
                delete("/v1/topics/$t-p/children/$t-c").gives(empty(204)),
                attached("$t-q", "$t-c"),
                describe("$t-c").gives(json(200).text("parent", "$t-q")),
            ],
        ),
    ]
}

fn copying() -> Vec<Row> {
    vec![
        Row::new(
            "a_link_copies_key_payload_and_id",
            "5.2, 12 id",
            vec![
                make_one("$t-p"),
                make_one("$t-c"),
                attached("$t-p", "$t-c"),
                sent("$t-p", "key=k1", r#"{ "a": 1.50 }"#),
                read_soon("$t-p").gives(json(200).text("key", "k1").raw("payload", r#"{ "a": 1.50 }"#)).take("id", "id"),
                read_soon("$t-c")
                    .gives(json(200).text("topic", "$t-c").text("key", "k1").raw("payload", r#"{ "a": 1.50 }"#).text("id", "$id")),
            ],
        ),
        Row::new(
            "a_link_copies_nothing_from_before_the_attach",
            "5.2",
            vec![
                make_one("$t-p"),
                make_one("$t-c"),
                committed("$t-p", "", "before"),
                attached("$t-p", "$t-c"),
                committed("$t-p", "", "after"),
                read_soon("$t-c").gives(json(200).text("payload", "after").raw("offset", "0")),
            ],
        ),
        Row::new(
            "a_link_attached_again_has_a_new_epoch_and_copies_nothing_from_between",
            "5.5",
            vec![
                make_one("$t-p"),
                make_one("$t-c"),
                attached("$t-p", "$t-c"),
                describe("$t-c").gives(json(200)).take("e", "attach_epoch"),
                committed("$t-p", "", "first"),
                read_soon("$t-c").gives(json(200).text("payload", "first")).take("h", "receipt_handle"),
                settle("$t-c", "receipt_handle=$h").gives(empty(204)),
                delete("/v1/topics/$t-p/children/$t-c").gives(empty(204)),
                committed("$t-p", "", "between"),
                attached("$t-p", "$t-c"),
                describe("$t-c").gives(json(200).field("attach_epoch", Is::Not("$e".into())).raw("attach_offsets", "[2]")),
                committed("$t-p", "", "second"),
                read_soon("$t-c").gives(json(200).text("payload", "second").raw("offset", "1")),
            ],
        ),
        Row::new(
            "a_delayed_child_gets_the_message_in_the_end",
            "5.3",
            vec![
                make_one("$t-p"),
                make("$t-c", r#""partitions":1,"parent":"$t-p","fanout_delay_ms":300"#),
                sent("$t-p", "", "late"),
                read_soon("$t-c").gives(json(200).text("payload", "late")),
            ],
        ),
        Row::new(
            "a_keyed_message_is_hashed_onto_the_childs_partitions",
            "5.2",
            vec![
                make_one("$t-p"),
                make("$t-c", r#""partitions":7"#),
                attached("$t-p", "$t-c"),
                sent("$t-p", "key=a", "x"),
                read_soon("$t-c").gives(json(200).raw("partition", (0xe40c_292c_u32 % 7).to_string())),
            ],
        ),
    ]
}
