//! What clients asked and were answered, in virtual time, as the checker reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use veena_loadtest_checker::{Delivered, Digest, Event, Label, NodeChange, Op, Outcome};

use crate::clock::SimTime;

/// The history of one run. An operation is written down before it is sent, as of unknown outcome; the answer completes it.
#[derive(Debug)]
pub struct History {
    time: Arc<SimTime>,
    events: Mutex<Vec<Event>>,
    labels: AtomicU64,
}

/// An operation on its way.
#[derive(Debug)]
#[must_use = "an operation that is not closed stays unknown"]
pub struct Opened(usize);

const UNANSWERED: u64 = u64::MAX;
/// The client number under which node changes are written down.
const NOBODY: u32 = 0;

impl History {
    /// An empty history.
    #[must_use]
    pub fn new(time: Arc<SimTime>) -> Self {
        Self { time, events: Mutex::default(), labels: AtomicU64::new(1) }
    }

    /// A label no other message has.
    pub fn new_label(&self) -> Label {
        Label(self.labels.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes down that `op` is about to be asked of a node.
    pub fn open(&self, node: &Arc<str>, client: u32, op: Op) -> Opened {
        let mut events = self.events.lock();
        events.push(Event { at: self.time.stamp_us(), until: UNANSWERED, node: node.clone(), client, op, outcome: Outcome::Unknown });
        Opened(events.len() - 1)
    }

    /// Writes down how it ended.
    pub fn close(&self, opened: Opened, outcome: Outcome) {
        self.close_with(opened, outcome, Vec::new());
    }

    /// Writes down how a consume ended.
    pub fn close_with(&self, Opened(at): Opened, outcome: Outcome, messages: Vec<Delivered>) {
        let until = self.time.stamp_us();
        let event = &mut self.events.lock()[at];
        event.until = until;
        event.outcome = outcome;
        if let Op::Consume(consumed) = &mut event.op {
            consumed.messages = messages;
        }
    }

    /// Writes down something that a node was asked at `at` and has answered now.
    pub fn note(&self, node: &Arc<str>, client: u32, at: u64, op: Op, outcome: Outcome) {
        let until = self.time.stamp_us();
        self.events.lock().push(Event { at, until, node: node.clone(), client, op, outcome });
    }

    /// Writes down what happened to a node from `at` until now.
    pub fn node(&self, node: &Arc<str>, at: u64, change: NodeChange) {
        self.note(node, NOBODY, at, Op::Node(change), Outcome::Ok);
    }

    /// A life ends: what is unanswered stays so.
    pub fn end_life(&self) {
        let now = self.time.stamp_us();
        for event in self.events.lock().iter_mut().filter(|event| event.until == UNANSWERED) {
            event.until = now;
        }
    }

    /// Everything so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

/// A payload of about `bytes` bytes that carries its label.
#[must_use]
pub fn payload(label: Label, bytes: usize) -> Vec<u8> {
    let mut payload = label.to_string().into_bytes();
    let start = payload.len();
    payload.extend((start..bytes.max(start)).map(|at| u8::try_from((at + start * 7) % 251).unwrap_or(0)));
    payload
}

/// The label a payload carries.
#[must_use]
pub fn label_of(payload: &[u8]) -> Option<Label> {
    let text = std::str::from_utf8(payload.get(..16)?).ok()?;
    u64::from_str_radix(text, 16).ok().map(Label)
}

/// What a payload is recognised by.
#[must_use]
pub fn digest(payload: &[u8]) -> Digest {
    Digest::of(payload)
}
