//! Histories as text: one JSON object a line.

use crate::event::Event;

/// A line of a history cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the history is not an event")]
pub struct MalformedHistory {
    /// Which line, from 1.
    pub line: usize,
    /// Why.
    #[source]
    pub cause: serde_json::Error,
}

/// The history as JSON lines.
///
/// # Panics
/// Never: every event has a JSON form.
#[must_use]
pub fn to_jsonl(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        text.push_str(&serde_json::to_string(event).expect("invariant: an event has a JSON form"));
        text.push('\n');
    }
    text
}

/// Reads a history; empty lines are skipped.
///
/// # Errors
/// The first line that is not an event.
pub fn from_jsonl(text: &str) -> Result<Vec<Event>, MalformedHistory> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| serde_json::from_str(line).map_err(|cause| MalformedHistory { line: at + 1, cause })).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Consumed, Delivered, Digest, Down, How, Label, Names, NodeChange, Observed, Op, Outcome, Sent, Settled, TopicKey};

    #[test]
    fn every_kind_of_event_survives_its_text_form() {
        let topic = TopicKey::new("default", "orders");
        let delivered = Delivered {
            partition: 1,
            offset: 2,
            id: Some(Arc::from("00-1")),
            label: Some(Label(7)),
            digest: Digest::of(b"x"),
            handle: Arc::from("1:2:3"),
        };
        let ops = [
            Op::Produce(Sent { topic: topic.clone(), label: Label(7), key: Some(Arc::from("k")), digest: Digest::of(b"x"), once: false }),
            Op::Consume(Consumed { topic: topic.clone(), visibility_us: 9, messages: vec![delivered] }),
            Op::Settle(Settled { topic: topic.clone(), handle: Arc::from("1:2:3"), how: How::Extend }),
            Op::Observe(Observed {
                topic: topic.clone(),
                partition: 0,
                log_end: 3,
                high_watermark: 2,
                frontier: Some(1),
                owner: Some(Arc::from("n1")),
            }),
            Op::Names(Names { tenant: topic.tenant.clone(), names: vec![topic.topic.clone()] }),
            Op::Node(NodeChange::Down(Down::PowerCut)),
        ];
        let events: Vec<Event> = (0..)
            .zip(ops)
            .map(|(at, op)| Event { at, until: at + 1, node: Arc::from("n1"), client: 4, op, outcome: Outcome::Unknown })
            .collect();
        let text = to_jsonl(&events);
        assert!(text.starts_with(r#"{"at":0,"until":1,"node":"n1","client":4,"op":"produce","args":{"#), "{text}");
        assert_eq!(from_jsonl(&text).expect("own text form"), events);
    }

    #[test]
    fn a_line_that_is_no_event_is_named() {
        let err = from_jsonl("\n{}\n").expect_err("no event");
        assert_eq!(err.line, 2);
    }
}
