//! PATCH of a topic (1.1): its fields, its refusals, and the order in which groups are applied.

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [fields(), refusals(), order()].concat()
}

fn fields() -> Vec<Row> {
    vec![
        Row::new(
            "a_patch_answers_the_changed_topic",
            "1.1 patch",
            vec![
                make("$t", ""),
                patch("$t", r#"{"retention_ms":7200000,"max_in_flight_per_partition":5,"max_acked_ahead_per_partition":6,"partitions":4}"#)
                    .gives(
                        json(200)
                            .text("name", "$t")
                            .raw("retention_ms", "7200000")
                            .raw("max_in_flight_per_partition", "5")
                            .raw("max_acked_ahead_per_partition", "6")
                            .raw("partitions", "4"),
                    ),
                describe("$t").gives(json(200).raw("retention_ms", "7200000").raw("partitions", "4").field("partition_stats", Is::Len(4))),
            ],
        ),
        Row::new(
            "a_cap_of_zero_is_the_servers_default",
            "1.1 patch",
            vec![
                make("$t", r#""max_in_flight_per_partition":5,"max_acked_ahead_per_partition":6"#),
                patch("$t", r#"{"max_in_flight_per_partition":0,"max_acked_ahead_per_partition":0}"#)
                    .gives(json(200).raw("max_in_flight_per_partition", "1024").raw("max_acked_ahead_per_partition", "1024")),
            ],
        ),
        Row::new(
            "a_patched_retention_of_zero_keeps_for_ever",
            "0.1 #2",
            vec![make("$t", ""), patch("$t", r#"{"retention_ms":0}"#).gives(json(200).raw("retention_ms", "0"))],
        ),
        Row::new(
            "a_patch_keeps_the_id_and_what_it_does_not_name",
            "1.1 patch",
            vec![
                create(r#"{"name":"$t","visibility_timeout_ms":777}"#).gives(json(201)).take("id", "id"),
                patch("$t", r#"{"retention_ms":3600000}"#)
                    .gives(json(200).text("id", "$id").raw("visibility_timeout_ms", "777").raw("max_in_flight_per_partition", "1024")),
            ],
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        Row::new("a_patch_without_a_field_is_refused", "1.1 patch 400", vec![make("$t", ""), patch("$t", "{}").gives(bad())]),
        Row::new(
            "a_patch_of_the_visibility_timeout_is_an_unknown_member",
            "0.1 #18",
            vec![make("$t", ""), patch("$t", r#"{"visibility_timeout_ms":1000}"#).gives(bad().begins("invalid json: "))],
        ),
        Row::new(
            "a_patch_with_a_second_value_is_refused",
            "1.0 json",
            vec![make("$t", ""), patch("$t", r#"{"retention_ms":0}{}"#).gives(bad().says("invalid json: multiple JSON values"))],
        ),
        Row::new(
            "partitions_only_grow_up_to_the_maximum",
            "1.1 patch 400",
            vec![
                make("$t", ""),
                patch("$t", r#"{"partitions":2}"#).gives(bad()),
                patch("$t", r#"{"partitions":3}"#).gives(bad()),
                patch("$t", r#"{"partitions":-1}"#).gives(bad()),
                patch("$t", r#"{"partitions":109}"#).gives(bad()),
                describe("$t").gives(json(200).raw("partitions", "3")),
            ],
        ),
        Row::new(
            "a_patched_retention_below_an_hour_is_refused",
            "1.1 patch 400",
            vec![
                make("$t", ""),
                patch("$t", r#"{"retention_ms":3599999}"#).gives(bad()),
                patch("$t", r#"{"retention_ms":-1}"#).gives(bad()),
                describe("$t").gives(json(200).raw("retention_ms", "604800000")),
            ],
        ),
        Row::new("an_unknown_topic_is_not_patched", "1.1 patch 404", vec![patch("$t", r#"{"retention_ms":0}"#).gives(topic_not_found())]),
        Row::new(
            "a_patch_over_1_mib_is_refused",
            "1.1 patch 413",
            vec![
                make("$t", ""),
                patch("$t", format!(r#"{{"retention_ms":0{}}}"#, " ".repeat(1024 * 1024)))
                    .gives(refusal(413, "body_too_large").says("request body too large")),
            ],
        ),
        Row::new(
            "a_patch_without_content_type_is_refused",
            "1.1 patch 415",
            vec![
                make("$t", ""),
                Request::new("PATCH", "/v1/topics/$t").text(r#"{"retention_ms":0}"#).gives(unsupported()),
                describe("$t").gives(json(200).raw("retention_ms", "604800000")),
            ],
        ),
        Row::new(
            "a_retention_below_what_a_delayed_child_needs_is_refused",
            "0.1 #14, 5.1",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p","fanout_delay_ms":3600000"#),
                patch("$t-p", r#"{"retention_ms":7199999}"#).gives(delay_conflict()),
                describe("$t-p").gives(json(200).raw("retention_ms", "604800000")),
                patch("$t-p", r#"{"retention_ms":7200000}"#).gives(json(200).raw("retention_ms", "7200000")),
                patch("$t-p", r#"{"retention_ms":0}"#).gives(json(200).raw("retention_ms", "0")),
            ],
        ),
    ]
}

fn order() -> Vec<Row> {
    vec![
        Row::new(
            "retention_stays_when_partitions_are_refused",
            "1.1 patch order",
            vec![
                make("$t", ""),
                patch("$t", r#"{"partitions":2,"retention_ms":7200000}"#).gives(bad()),
                describe("$t").gives(json(200).raw("retention_ms", "7200000").raw("partitions", "3")),
            ],
        ),
        Row::new(
            "caps_stay_when_partitions_are_refused",
            "1.1 patch order",
            vec![
                make("$t", ""),
                patch("$t", r#"{"partitions":2,"max_in_flight_per_partition":5}"#).gives(bad()),
                describe("$t").gives(json(200).raw("max_in_flight_per_partition", "5").raw("partitions", "3")),
            ],
        ),
        Row::new(
            "partitions_stay_when_the_schema_is_refused",
            "1.1 patch order",
            vec![
                make("$t", r#""schema":{"type":"object","properties":{"a":{"type":"string"}}}"#),
                patch("$t", r#"{"schema":{"type":"array"},"partitions":4}"#)
                    .gives(json(400).mentions("schema incompatible with previous version")),
                describe("$t").gives(json(200).raw("partitions", "4").raw("schema_version", "1")),
            ],
        ),
        Row::new(
            "nothing_after_a_refused_retention_is_applied",
            "1.1 patch order",
            vec![
                make("$t", ""),
                patch("$t", r#"{"retention_ms":1,"max_in_flight_per_partition":5,"partitions":4}"#).gives(bad()),
                describe("$t").gives(json(200).raw("max_in_flight_per_partition", "1024").raw("partitions", "3")),
            ],
        ),
    ]
}
