//! Reading from the leased queue (1.3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    [messages(), waits(), refusals(), batches(), waking(), bounds()].concat()
}

const KEYS_IN_ORDER: &[&str] = &["topic", "partition", "offset", "key", "payload", "timestamp", "receipt_handle"];
const KEYS_IN_ORDER_ENCODED: &[&str] =
    &["topic", "partition", "offset", "key", "key_encoding", "payload", "payload_encoding", "timestamp", "receipt_handle"];

fn messages() -> Vec<Row> {
    vec![
        Row::new(
            "a_consumed_message_has_its_members_in_order",
            "1.3 Message",
            vec![
                make_one("$t"),
                sent("$t", "key=k", "x"),
                read_soon("$t").gives(
                    json(200)
                        .field("", Is::KeysInOrder(KEYS_IN_ORDER))
                        .text("topic", "$t")
                        .raw("partition", "0")
                        .raw("offset", "0")
                        .text("key", "k")
                        .text("payload", "x")
                        .field("timestamp", Is::AtLeast(1_600_000_000))
                        .field("receipt_handle", Is::Starts("0:0:".into())),
                ),
            ],
        ),
        Row::new(
            "a_consumed_message_with_encodings_has_its_members_in_order",
            "1.3 Message",
            vec![
                make_one("$t"),
                send("$t", "key=%FF", "").bytes(vec![255]).gives(empty(202)),
                read_soon("$t").gives(json(200).field("", Is::KeysInOrder(KEYS_IN_ORDER_ENCODED))),
            ],
        ),
        Row::new(
            "an_empty_topic_answers_204",
            "1.3 consume 204",
            vec![make("$t", ""), read("$t", "").gives(nothing()), read("$t", "wait=0").gives(nothing())],
        ),
        Row::new(
            "offsets_of_a_partition_are_dense_from_0",
            "3 offsets",
            vec![
                make_one("$t"),
                committed("$t", "", "a"),
                committed("$t", "", "b"),
                committed("$t", "", "c"),
                read_soon("$t").gives(json(200).raw("offset", "0").text("payload", "a")),
                read_soon("$t").gives(json(200).raw("offset", "1").text("payload", "b")),
                read_soon("$t").gives(json(200).raw("offset", "2").text("payload", "c")),
                read("$t", "").gives(nothing()),
            ],
        ),
        Row::new(
            "a_leased_message_is_not_handed_out_again",
            "3 lease",
            vec![make_one("$t"), sent("$t", "", "x"), lease("$t"), read("$t", "wait=100ms").gives(nothing())],
        ),
        Row::new(
            "a_consume_may_be_pinned_to_a_partition",
            "1.3 consume partition",
            vec![
                make("$t", ""),
                committed("$t", "partition=0", "zero"),
                committed("$t", "partition=2", "two"),
                read("$t", "partition=1").gives(nothing()),
                read("$t", "partition=2")
                    .gives(json(200).text("payload", "two").raw("partition", "2").field("receipt_handle", Is::AnyText)),
                read("$t", "partition=2").gives(nothing()),
            ],
        ),
        Row::new(
            "a_peers_probe_parameter_is_harmless",
            "1.3 consume local_only",
            vec![
                make("$t", ""),
                read("$t", "local_only=1").gives(nothing()),
                committed("$t", "", "x"),
                read("$t", "local_only=1").gives(json(200)),
            ],
        ),
        Row::new(
            "a_head_consume_takes_a_lease",
            "1.0 HEAD",
            vec![
                make_one("$t"),
                committed("$t", "", "x"),
                head("/v1/topics/$t/consume").gives(status(200)),
                read("$t", "").gives(nothing()),
                head("/v1/topics/$t/consume").gives(status(204)),
            ],
        ),
    ]
}

fn waits() -> Vec<Row> {
    vec![
        Row::new(
            "go_durations_are_understood",
            "1.3 consume wait",
            vec![
                make("$t", ""),
                read("$t", "wait=1ms").gives(nothing()),
                read("$t", "wait=0.01s").gives(nothing()),
                read("$t", "wait=0").gives(nothing()),
                read("$t", "wait=10us").gives(nothing()),
                read("$t", "wait=1ms10us").gives(nothing()),
                read("$t", "wait=%2B5ms").gives(nothing()),
            ],
        ),
        Row::new(
            "a_negative_wait_is_none",
            "1.3 consume wait",
            vec![make("$t", ""), read("$t", "wait=-5s").gives(nothing().header("X-Narad-Wait-Clamped", Is::Absent))],
        ),
        Row::new(
            "a_wait_that_is_no_duration_is_refused",
            "1.3 consume 400",
            vec![
                make("$t", ""),
                read("$t", "wait=soon").gives(bad().begins("invalid wait: ")),
                read("$t", "wait=5").gives(bad().begins("invalid wait: ")),
                read("$t", "wait=5x").gives(bad().begins("invalid wait: ")),
                read("$t", "wait=s").gives(bad().begins("invalid wait: ")),
            ],
        ),
        Row::new(
            "a_wait_over_the_ceiling_is_clamped_and_said_so",
            "1.3 consume wait",
            vec![
                make_one("$t"),
                committed("$t", "", "x"),
                read("$t", "wait=1m30s").gives(json(200).header("X-Narad-Wait-Clamped", raw("10s"))),
            ],
        ),
        Row::new(
            "a_wait_within_the_ceiling_is_not_clamped",
            "1.3 consume wait",
            vec![
                make_one("$t"),
                committed("$t", "", "x"),
                read("$t", "wait=10s").gives(json(200).header("X-Narad-Wait-Clamped", Is::Absent)),
            ],
        ),
    ]
}

fn refusals() -> Vec<Row> {
    vec![
        Row::new(
            "an_unknown_topic_is_not_consumed",
            "1.3 consume 404",
            vec![read("$t", "").gives(topic_not_found()), read("$t", "wait=10s").gives(topic_not_found())],
        ),
        Row::new(
            "a_consume_of_a_partition_that_is_not_there_is_refused",
            "1.3 consume 400",
            vec![
                make("$t", ""),
                read("$t", "partition=x").gives(bad().begins("invalid partition: ")),
                read("$t", "partition=-1").gives(bad().mentions("invalid partition")),
                read("$t", "partition=3").gives(bad()),
            ],
        ),
    ]
}

fn batches() -> Vec<Row> {
    let needs_client = || bad().says("batch consume requires an X-Narad-Client header");
    vec![
        Row::new(
            "a_batch_consume_answers_what_is_there_in_a_list",
            "1.3 consume max",
            vec![
                make_one("$t"),
                committed("$t", "", "a"),
                committed("$t", "key=k", "b"),
                read("$t", "max=100&wait=10s").gives(
                    json(200)
                        .field("messages", Is::Len(2))
                        .field("messages.1", Is::KeysInOrder(KEYS_IN_ORDER))
                        .text("messages.0.payload", "a")
                        .field("messages.0.receipt_handle", Is::Starts("0:0:".into()))
                        .text("messages.1.payload", "b")
                        .raw("messages.1.offset", "1"),
                ),
                read("$t", "max=100").gives(nothing()),
            ],
        ),
        Row::new(
            "a_batch_consume_takes_no_more_than_it_asked_for",
            "1.3 consume max",
            vec![
                make_one("$t"),
                committed("$t", "", "a"),
                committed("$t", "", "b"),
                committed("$t", "", "c"),
                read("$t", "max=2").gives(json(200).field("messages", Is::Len(2))),
                read("$t", "max=1").gives(json(200).field("messages", Is::Len(1)).text("messages.0.payload", "c")),
            ],
        ),
        Row::new(
            "a_batch_consume_without_the_client_header_is_refused",
            "1.3 consume 400",
            vec![
                make("$t", ""),
                get("/v1/topics/$t/consume?max=2").gives(needs_client()),
                get("/v1/topics/$t/consume?max=2").header("X-Narad-Client", "").gives(needs_client()),
                head("/v1/topics/$t/consume?max=2").gives(status(400)),
            ],
        ),
        Row::new(
            "a_max_that_is_not_1_to_100_is_refused",
            "1.3 consume max",
            vec![
                make("$t", ""),
                read("$t", "max=0").gives(bad()),
                read("$t", "max=-1").gives(bad()),
                read("$t", "max=ten").gives(bad()),
                read("$t", "max=101").gives(bad()),
            ],
        ),
        Row::new(
            "a_max_with_an_offset_is_refused",
            "1.3 consume 400",
            vec![make("$t", ""), committed("$t", "partition=0", "x"), read("$t", "max=2&partition=0&offset=0").gives(bad())],
        ),
        Row::new(
            "a_batch_consume_answers_at_most_8_mib_and_returns_the_rest",
            "1.3 consume max",
            vec![
                make_one("$t"),
                // Each byte becomes six in JSON; four such messages are over 8 MiB encoded and under 4 MiB raw.
                Step::Times { count: 4, request: send("$t", "wait_for=commit", "\u{1}".repeat(500_000)), expect: json(200) },
                read("$t", "max=4").gives(json(200).field("messages", Is::Len(2)).raw("messages.0.offset", "0")),
                read("$t", "max=4")
                    .gives(json(200).field("messages", Is::Len(2)).raw("messages.0.offset", "2").raw("messages.0.delivery_count", "1")),
            ],
        ),
    ]
}

fn waking() -> Vec<Row> {
    vec![
        Row::new(
            "a_waiting_consumer_is_woken_by_a_produce",
            "3 long poll",
            vec![
                make_one("$t"),
                read("$t", "wait=10s").park("a"),
                sent("$t", "", "x"),
                Step::Join { slot: "a", expect: json(200).text("payload", "x"), take: Vec::new() },
            ],
        ),
        Row::new(
            "a_waiting_pinned_consumer_is_woken_by_its_partition",
            "3 long poll",
            vec![
                make("$t", ""),
                read("$t", "wait=10s&partition=2").park("a"),
                sent("$t", "partition=1", "other"),
                sent("$t", "partition=2", "mine"),
                Step::Join { slot: "a", expect: json(200).text("payload", "mine").raw("partition", "2"), take: Vec::new() },
            ],
        ),
        Row::new(
            "a_waiting_consumer_is_woken_by_a_nack",
            "3 long poll",
            vec![
                make_one("$t"),
                sent("$t", "", "x"),
                lease("$t"),
                read("$t", "wait=10s").park("a"),
                settle("$t", "receipt_handle=$h&extend=0").gives(empty(204)),
                Step::Join {
                    slot: "a",
                    expect: json(200).text("payload", "x").field("receipt_handle", Is::Not("$h".into())),
                    take: Vec::new(),
                },
            ],
        ),
        Row::new(
            "a_waiting_consumer_is_woken_by_the_deletion_of_its_topic",
            "3 long poll",
            vec![
                make("$t", ""),
                read("$t", "wait=10s").park("a"),
                delete("/v1/topics/$t").gives(empty(204)),
                Step::Join { slot: "a", expect: status(404).or_status(204), take: Vec::new() },
            ],
        ),
        Row::new(
            "an_expired_lease_is_handed_out_again_under_a_fresh_handle",
            "3 expiry",
            vec![
                make("$t", r#""partitions":1,"visibility_timeout_ms":300"#),
                sent("$t", "", "x"),
                read_soon("$t").gives(json(200).raw("delivery_count", "1")).take("h", "receipt_handle").take("id", "id"),
                read_soon("$t").gives(
                    json(200)
                        .text("payload", "x")
                        .raw("offset", "0")
                        .text("id", "$id")
                        .raw("delivery_count", "2")
                        .field("receipt_handle", Is::Not("$h".into())),
                ),
                settle("$t", "receipt_handle=$h").gives(lease_lost()),
            ],
        ),
    ]
}

fn bounds() -> Vec<Row> {
    vec![
        Row::new(
            "the_cap_on_leases_holds_deliveries_until_an_ack",
            "3 lease",
            vec![
                make("$t", r#""partitions":1,"max_in_flight_per_partition":1"#),
                committed("$t", "", "a"),
                committed("$t", "", "b"),
                lease("$t"),
                read("$t", "wait=100ms").gives(nothing()),
                read("$t", "wait=10s").park("a"),
                settle("$t", "receipt_handle=$h").gives(empty(204)),
                Step::Join { slot: "a", expect: json(200).text("payload", "b"), take: Vec::new() },
            ],
        ),
        Row::new(
            "the_cap_on_acks_ahead_holds_deliveries_and_no_acks",
            "0.1 #5",
            vec![
                make("$t", r#""partitions":1,"max_acked_ahead_per_partition":1"#),
                committed("$t", "", "a"),
                committed("$t", "", "b"),
                committed("$t", "", "c"),
                committed("$t", "", "d"),
                read_soon("$t").gives(json(200).text("payload", "a")).take("ha", "receipt_handle"),
                read_soon("$t").gives(json(200).text("payload", "b")).take("hb", "receipt_handle"),
                read_soon("$t").gives(json(200).text("payload", "c")).take("hc", "receipt_handle"),
                settle("$t", "receipt_handle=$hb").gives(empty(204)),
                settle("$t", "receipt_handle=$hc").gives(empty(204)),
                read("$t", "").gives(nothing()),
                settle("$t", "receipt_handle=$ha").gives(empty(204)),
                read_soon("$t").gives(json(200).text("payload", "d")),
            ],
        ),
        Row::new(
            "too_many_consumers_of_one_identity_are_refused",
            "1.3 consume 429",
            vec![
                make("$t", ""),
                read("$t", "wait=10s").park("a"),
                read("$t", "wait=10s").park("b"),
                // Both stand in line before the third asks: it must not take the second one's place.
                get("/metrics").gives(status(200).in_plain_text(Is::Contains("veena_consumers_parked 2".into()))).until(),
                read("$t", "")
                    .gives(refusal(429, "rate_limited").says("too many in-flight consume requests for this identity (limit 2 per node)"))
                    .until(),
                committed("$t", "", "x"),
                committed("$t", "", "y"),
                Step::Join { slot: "a", expect: json(200), take: Vec::new() },
                Step::Join { slot: "b", expect: json(200), take: Vec::new() },
            ],
        )
        .on(Profile::SmallCaps),
    ]
}
