//! Series of topics, partitions and children. They are read from the engine at each scrape and kept nowhere, so a deleted topic leaves none.

use std::fmt::Write;

use veena_broker::Broker;
use veena_broker::stats::{CursorNumbers, LogNumbers, PartitionNumbers, TopicNumbers};
use veena_contract::TenantId;

use super::kind;

type OfPartition = fn(&PartitionNumbers) -> u64;
type OfLog = fn(&LogNumbers) -> u64;
type OfCursor = fn(&CursorNumbers) -> u64;

/// Per topic and partition, since the process began.
const COUNTERS: [(&str, &str, OfPartition); 7] = [
    ("messages_produced_total", "counter", |numbers| numbers.produced),
    ("bytes_produced_total", "counter", |numbers| numbers.produced_bytes),
    ("messages_consumed_total", "counter", |numbers| numbers.consumed),
    ("bytes_consumed_total", "counter", |numbers| numbers.consumed_bytes),
    ("consumer_corrupt_skipped_total", "counter", |numbers| numbers.corrupt_skipped),
    ("consumer_dropped_messages", "gauge", |numbers| numbers.retention_dropped),
    ("partition_gaps_total", "counter", |numbers| numbers.gaps),
];

/// Per topic, since the process began.
const TOPIC_COUNTERS: [(&str, OfPartition); 2] =
    [("ack_extended_total", |numbers| numbers.extended), ("nack_total", |numbers| numbers.returned)];

/// Per topic and partition, as they are now.
const GAUGES: [(&str, OfLog); 5] = [
    ("consumer_lag_messages", |log| log.lag()),
    ("inflight_size", |log| log.leased),
    ("acked_ahead_size", |log| log.acked_ahead),
    ("partition_size_bytes", |log| log.bytes),
    ("segments", |log| log.segments),
];

/// Writes the series of a tenant's topics.
pub(super) fn render(out: &mut String, broker: &Broker, tenant: &TenantId) {
    let mut topics = broker.topic_numbers();
    topics.retain(|topic| topic.tenant == *tenant);
    topics.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    render_topics(out, &topics);
    let mut cursors = broker.cursor_numbers();
    cursors.retain(|cursor| cursor.tenant == *tenant);
    cursors.sort_unstable_by(|a, b| (&a.parent, &a.child, a.partition).cmp(&(&b.parent, &b.child, b.partition)));
    render_cursors(out, &cursors);
}

fn render_topics(out: &mut String, topics: &[TopicNumbers]) {
    for (name, of, value) in COUNTERS {
        kind(out, name, of);
        for topic in topics {
            for numbers in &topic.partitions {
                let _ = writeln!(out, "veena_{name}{{topic=\"{}\",partition=\"{}\"}} {}", topic.name, numbers.index, value(numbers));
            }
        }
    }
    for (name, value) in TOPIC_COUNTERS {
        kind(out, name, "counter");
        for topic in topics.iter().filter(|topic| !topic.partitions.is_empty()) {
            let _ = writeln!(out, "veena_{name}{{topic=\"{}\"}} {}", topic.name, topic.partitions.iter().map(value).sum::<u64>());
        }
    }
    for (name, value) in GAUGES {
        kind(out, name, "gauge");
        for topic in topics {
            for (index, log) in topic.partitions.iter().filter_map(|numbers| Some((numbers.index, numbers.log?))) {
                let _ = writeln!(out, "veena_{name}{{topic=\"{}\",partition=\"{index}\"}} {}", topic.name, value(&log));
            }
        }
    }
    kind(out, "topic_bytes", "gauge");
    for topic in topics.iter().filter(|topic| topic.partitions.iter().any(|numbers| numbers.log.is_some())) {
        let bytes: u64 = topic.partitions.iter().filter_map(|numbers| Some(numbers.log?.bytes)).sum();
        let _ = writeln!(out, "veena_topic_bytes{{topic=\"{}\"}} {bytes}", topic.name);
    }
}

fn render_cursors(out: &mut String, cursors: &[CursorNumbers]) {
    kind(out, "fanout_lag_messages", "gauge");
    for (cursor, lag) in cursors.iter().filter_map(|cursor| Some((cursor, cursor.lag?))) {
        let CursorNumbers { parent, child, partition, .. } = cursor;
        let _ = writeln!(out, "veena_fanout_lag_messages{{parent=\"{parent}\",child=\"{child}\",partition=\"{partition}\"}} {lag}");
    }
    let of_link: [(&str, &str, OfCursor); 2] = [
        ("fanout_committed_total", "counter", |cursor| cursor.committed),
        ("fanout_child_dropped_messages", "gauge", |cursor| cursor.dropped),
    ];
    for (name, of, value) in of_link {
        kind(out, name, of);
        for link in cursors.chunk_by(|a, b| (&a.parent, &a.child) == (&b.parent, &b.child)) {
            let total: u64 = link.iter().map(value).sum();
            let _ = writeln!(out, "veena_{name}{{parent=\"{}\",child=\"{}\"}} {total}", link[0].parent, link[0].child);
        }
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{Offset, PartitionIndex, TopicName};

    use super::*;

    fn name(text: &str) -> TopicName {
        TopicName::parse(text).expect("a valid name")
    }

    #[test]
    fn a_log_that_is_not_open_yet_has_counters_and_no_gauges() {
        let used = PartitionNumbers {
            index: PartitionIndex(1),
            produced: 3,
            produced_bytes: 30,
            consumed: 0,
            consumed_bytes: 0,
            extended: 2,
            returned: 0,
            corrupt_skipped: 0,
            retention_dropped: 0,
            gaps: 0,
            log: None,
        };
        let log = LogNumbers { segments: 1, bytes: 99, high_watermark: Offset(10), frontier: Offset(4), leased: 1, acked_ahead: 2 };
        let partitions = vec![used, PartitionNumbers { index: PartitionIndex(2), log: Some(log), ..used }];
        let mut out = String::new();
        render_topics(&mut out, &[TopicNumbers { tenant: TenantId::default_tenant(), name: name("a"), partitions }]);
        for line in [
            "veena_messages_produced_total{topic=\"a\",partition=\"1\"} 3",
            "veena_ack_extended_total{topic=\"a\"} 4",
            "veena_consumer_lag_messages{topic=\"a\",partition=\"2\"} 4",
            "veena_topic_bytes{topic=\"a\"} 99",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}\n{out}");
        }
        assert!(!out.contains("veena_consumer_lag_messages{topic=\"a\",partition=\"1\"}"));
    }

    #[test]
    fn the_cursors_of_a_child_are_summed() {
        let cursor = |partition: u32, lag| CursorNumbers {
            tenant: TenantId::default_tenant(),
            parent: name("p"),
            child: name("c"),
            partition: PartitionIndex(partition),
            committed: 5,
            dropped: 1,
            lag,
        };
        let mut out = String::new();
        render_cursors(&mut out, &[cursor(0, Some(7)), cursor(1, None)]);
        assert!(out.contains("veena_fanout_lag_messages{parent=\"p\",child=\"c\",partition=\"0\"} 7\n"));
        assert!(!out.contains("partition=\"1\""));
        assert!(out.contains("veena_fanout_committed_total{parent=\"p\",child=\"c\"} 10\n"));
        assert!(out.contains("veena_fanout_child_dropped_messages{parent=\"p\",child=\"c\"} 2\n"));
    }
}
