//! Reading at an offset, without a lease (1.3).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new(
            "a_replay_reads_without_a_lease",
            "1.3 replay",
            vec![
                make_one("$t"),
                committed("$t", "key=k", "a"),
                committed("$t", "", "b"),
                read("$t", "partition=0&offset=0").gives(
                    json(200)
                        .text("topic", "$t")
                        .raw("partition", "0")
                        .raw("offset", "0")
                        .text("key", "k")
                        .text("payload", "a")
                        .field("timestamp", Is::AtLeast(1_600_000_000))
                        .field("receipt_handle", Is::Absent),
                ),
                read("$t", "partition=0&offset=1").gives(json(200).text("payload", "b")),
                read("$t", "partition=0&offset=0").gives(json(200).text("payload", "a")),
                read_soon("$t").gives(json(200).text("payload", "a").field("receipt_handle", Is::AnyText)),
            ],
        ),
        Row::new(
            "a_replay_reads_what_was_acked",
            "1.3 replay",
            vec![
                make_one("$t"),
                sent("$t", "", "a"),
                lease("$t"),
                settle("$t", "receipt_handle=$h").gives(empty(204)),
                read("$t", "partition=0&offset=0").gives(json(200).text("payload", "a").field("receipt_handle", Is::Absent)),
            ],
        ),
        Row::new(
            "a_replay_at_or_after_the_high_watermark_answers_204",
            "1.3 replay 204",
            vec![
                make_one("$t"),
                read("$t", "partition=0&offset=0").gives(nothing()),
                committed("$t", "", "a"),
                read("$t", "partition=0&offset=1").gives(nothing()),
                read("$t", "partition=0&offset=9223372036854775807").gives(nothing()),
            ],
        ),
        Row::new(
            "a_negative_offset_is_refused",
            "1.3 replay 400",
            vec![make_one("$t"), read("$t", "partition=0&offset=-1").gives(bad().says("invalid offset: must be >= 0"))],
        ),
        Row::new(
            "an_offset_that_is_no_number_is_refused",
            "1.3 replay 400",
            vec![
                make_one("$t"),
                read("$t", "partition=0&offset=x").gives(bad().begins("invalid offset: ")),
                read("$t", "partition=0&offset=9223372036854775808").gives(bad().begins("invalid offset: ")),
            ],
        ),
        Row::new(
            "a_replay_needs_a_partition",
            "1.3 replay 400",
            vec![make_one("$t"), read("$t", "offset=0").gives(bad().mentions("partition required for replay-mode consume"))],
        ),
        Row::new(
            "a_replay_of_a_partition_that_is_not_there_is_refused",
            "1.3 replay 400",
            vec![make_one("$t"), read("$t", "partition=1&offset=0").gives(bad())],
        ),
        Row::new("an_unknown_topic_is_not_replayed", "1.3 replay 404", vec![read("$t", "partition=0&offset=0").gives(topic_not_found())]),
    ]
}
