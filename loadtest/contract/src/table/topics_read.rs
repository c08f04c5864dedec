//! Listing, describing and deleting topics (1.1, 5.5).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [listing(), describing(), deleting()].concat()
}

fn listing() -> Vec<Row> {
    vec![
        Row::new(
            "a_listing_has_topics_and_a_page_token",
            "1.1 list",
            vec![
                make("$t", ""),
                get("/v1/topics").gives(json(200).field("topics.0.name", Is::AnyText).field("next_page_token", Is::Starts("".into()))),
            ],
        ),
        Row::new(
            "a_listing_goes_on_after_the_token_in_bytewise_order",
            "1.1 list",
            vec![
                make("$t-a", ""),
                make("$t-B", ""),
                make("$t-c", ""),
                get("/v1/topics?limit=2&page_token=$t").gives(
                    json(200)
                        .field("topics", Is::Len(2))
                        .text("topics.0.name", "$t-B")
                        .text("topics.1.name", "$t-a")
                        .text("next_page_token", "$t-a"),
                ),
                get("/v1/topics?limit=1&page_token=$t-a").gives(json(200).text("topics.0.name", "$t-c")),
            ],
        ),
        Row::new(
            "a_token_of_a_deleted_topic_goes_on_after_where_it_was",
            "1.1 list",
            vec![
                make("$t-a", ""),
                make("$t-b", ""),
                make("$t-c", ""),
                delete("/v1/topics/$t-b").gives(empty(204)),
                get("/v1/topics?limit=1&page_token=$t-b").gives(json(200).text("topics.0.name", "$t-c")),
            ],
        ),
        Row::new(
            "the_last_page_has_an_empty_token",
            "1.1 list",
            vec![get("/v1/topics?page_token=zzzzzzzz").gives(json(200).raw("", r#"{"topics":[],"next_page_token":""}"#))],
        ),
        Row::new(
            "a_listed_topic_is_the_topic_object",
            "1.1 list",
            vec![
                create(r#"{"name":"$t-a","partitions":2}"#).gives(json(201)).take("id", "id"),
                get("/v1/topics?limit=1&page_token=$t").gives(
                    json(200)
                        .text("topics.0.id", "$id")
                        .raw("topics.0.partitions", "2")
                        .raw("topics.0.retention_ms", "604800000")
                        .field("topics.0.created_at", Is::AtLeast(1)),
                ),
            ],
        ),
        Row::new(
            "a_limit_must_be_a_positive_integer",
            "1.1 list 400",
            vec![
                get("/v1/topics?limit=0").gives(bad().says("limit must be a positive integer")),
                get("/v1/topics?limit=-1").gives(bad().says("limit must be a positive integer")),
                get("/v1/topics?limit=ten").gives(bad().says("limit must be a positive integer")),
                get("/v1/topics?limit=1.5").gives(bad().says("limit must be a positive integer")),
            ],
        ),
        Row::new(
            "a_limit_over_1000_is_taken_as_1000",
            "1.1 list",
            vec![make("$t-a", ""), get("/v1/topics?limit=100000&page_token=$t").gives(json(200).text("topics.0.name", "$t-a"))],
        ),
    ]
}

fn describing() -> Vec<Row> {
    vec![
        Row::new(
            "a_description_has_the_topics_fields_and_one_entry_per_partition",
            "1.1 describe",
            vec![
                make("$t", ""),
                describe("$t").gives(
                    json(200)
                        .text("name", "$t")
                        .field("id", Is::Hex16)
                        .raw("schema_version", "0")
                        .field("schema", Is::Absent)
                        .field("partial", Is::Absent)
                        .field("role", Is::AbsentOr(&["\"standalone\""]))
                        .field("partition_stats", Is::Len(3)),
                ),
            ],
        ),
        Row::new(
            "an_entry_of_an_empty_partition_has_every_number",
            "1.1 describe",
            vec![
                make("$t", ""),
                describe("$t").gives(
                    json(200)
                        .raw("partition_stats.1.index", "1")
                        .field("partition_stats.1.segments", Is::AtLeast(0))
                        .raw("partition_stats.1.oldest_offset", "0")
                        .raw("partition_stats.1.next_offset", "0")
                        .raw("partition_stats.1.high_watermark", "0")
                        .field("partition_stats.1.size_bytes", Is::AtLeast(0))
                        .text("partition_stats.1.status", "ok")
                        .field("partition_stats.1.owner_liveness", Is::Absent),
                ),
            ],
        ),
        Row::new(
            "an_entry_shows_what_was_committed",
            "1.1 describe",
            vec![
                make("$t", ""),
                committed("$t", "partition=2", "x"),
                describe("$t").gives(
                    json(200)
                        .raw("partition_stats.2.index", "2")
                        .field("partition_stats.2.segments", Is::AtLeast(1))
                        .raw("partition_stats.2.oldest_offset", "0")
                        .raw("partition_stats.2.next_offset", "1")
                        .raw("partition_stats.2.high_watermark", "1")
                        .field("partition_stats.2.size_bytes", Is::AtLeast(1))
                        .field("partition_stats.2.oldest_segment_at", Is::AtLeast(1_600_000_000)),
                ),
            ],
        ),
        Row::new(
            "a_description_may_ask_for_one_partition",
            "1.1 describe",
            vec![
                make("$t", ""),
                get("/v1/topics/$t?partition=1").gives(json(200).raw("partition_stats.0.index", "1").field("partition_stats", Is::Len(1))),
            ],
        ),
        Row::new(
            "a_description_of_a_partition_that_is_not_there_is_refused",
            "1.1 describe 400",
            vec![
                make("$t", ""),
                get("/v1/topics/$t?partition=x").gives(bad().mentions("invalid partition")),
                get("/v1/topics/$t?partition=-1").gives(bad().mentions("invalid partition")),
                get("/v1/topics/$t?partition=3").gives(bad().mentions("invalid partition")),
            ],
        ),
        Row::new("an_unknown_topic_is_not_described", "1.1 describe 404", vec![describe("$t").gives(topic_not_found())]),
        Row::new(
            "a_head_of_a_topic_is_its_description_without_a_body",
            "1.0 HEAD",
            vec![
                make("$t", ""),
                head("/v1/topics/$t").gives(status(200).header("content-type", Is::Text("application/json".into()))),
                head("/v1/topics/$t-none").gives(status(404)),
            ],
        ),
    ]
}

fn deleting() -> Vec<Row> {
    vec![
        Row::new(
            "a_deleted_topic_is_gone_at_once",
            "1.1 delete",
            vec![
                make("$t", ""),
                delete("/v1/topics/$t").gives(empty(204)),
                describe("$t").gives(topic_not_found()),
                delete("/v1/topics/$t").gives(topic_not_found()),
            ],
        ),
        Row::new("an_unknown_topic_is_not_deleted", "1.1 delete 404", vec![delete("/v1/topics/$t").gives(topic_not_found())]),
        Row::new(
            "force_changes_nothing_for_a_topic_without_remote_children",
            "1.1 delete",
            vec![
                make("$t-a", ""),
                make("$t-b", ""),
                delete("/v1/topics/$t-a?force=true").gives(empty(204)),
                delete("/v1/topics/$t-b?force=false").gives(empty(204)),
            ],
        ),
        Row::new(
            "a_recreated_topic_has_a_new_id_and_none_of_the_old_messages",
            "0.1 #4, 5.5",
            vec![
                create(r#"{"name":"$t","partitions":1}"#).gives(json(201)).take("id", "id"),
                committed("$t", "", "old"),
                delete("/v1/topics/$t").gives(empty(204)),
                create(r#"{"name":"$t","partitions":1}"#).gives(json(201).field("id", Is::Not("$id".into()))),
                committed("$t", "", "new"),
                read_soon("$t").gives(json(200).text("payload", "new").raw("offset", "0")),
            ],
        ),
        Row::new(
            "deleting_a_parent_makes_its_children_standalone",
            "5.5",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p""#),
                delete("/v1/topics/$t-p").gives(empty(204)),
                describe("$t-c").gives(
                    json(200)
                        .field("role", Is::AbsentOr(&["\"standalone\""]))
                        .field("parent", Is::Absent)
                        .field("attach_epoch", Is::Absent)
                        .field("attach_offsets", Is::Absent),
                ),
            ],
        ),
        Row::new(
            "deleting_a_child_unlinks_it_from_its_parent",
            "5.5",
            vec![
                make("$t-p", ""),
                make("$t-c", r#""parent":"$t-p""#),
                delete("/v1/topics/$t-c").gives(empty(204)),
                describe("$t-p").gives(json(200).field("role", Is::AbsentOr(&["\"standalone\""])).field("children", Is::Absent)),
            ],
        ),
    ]
}
