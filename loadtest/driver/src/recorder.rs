//! Writes down what was asked and answered, for the checker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use veena_loadtest_checker::{Delivered, Event, Label, Op, Outcome};

/// The history of one run. An operation is written down *before* it is sent, as of unknown outcome; the answer completes it.
#[derive(Debug)]
pub struct Recorder {
    origin: Instant,
    nodes: Mutex<Vec<Arc<str>>>,
    events: Mutex<Vec<Event>>,
    labels: AtomicU64,
    clients: AtomicU32,
    complaints: Mutex<Vec<String>>,
}

/// An operation on its way.
#[derive(Debug)]
#[must_use = "an operation that is not closed stays unknown"]
pub struct Opened(usize);

const UNANSWERED: u64 = u64::MAX;

impl Recorder {
    /// An empty history of the node called `node`.
    #[must_use]
    pub fn new(node: &str) -> Arc<Self> {
        Self::of([node])
    }

    /// An empty history of these nodes, which are told apart by their place in the row.
    #[must_use]
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            nodes: Mutex::new(nodes.into_iter().map(Arc::from).collect()),
            events: Mutex::new(Vec::new()),
            labels: AtomicU64::new(1),
            clients: AtomicU32::new(1),
            complaints: Mutex::new(Vec::new()),
        })
    }

    /// Are there several nodes? Of one alone nobody needs to be told what it owns.
    #[must_use]
    pub fn is_of_several(&self) -> bool {
        self.nodes.lock().len() > 1
    }

    /// From now on another node has this place.
    pub fn rename(&self, place: usize, node: &str) {
        self.nodes.lock()[place] = node.into();
    }

    fn node(&self, place: usize) -> Arc<str> {
        self.nodes.lock()[place].clone()
    }

    /// Microseconds since the history began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(UNANSWERED - 1)
    }

    /// A label no other message has.
    pub fn new_label(&self) -> Label {
        Label(self.labels.fetch_add(1, Ordering::Relaxed))
    }

    /// A number no other client has.
    pub fn new_client(&self) -> u32 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes down that `op` is about to be sent to the node at place `node`.
    pub fn open(&self, node: usize, client: u32, op: Op) -> Opened {
        let node = self.node(node);
        let mut events = self.events.lock();
        let at = self.now_us();
        events.push(Event { at, until: UNANSWERED, node, client, op, outcome: Outcome::Unknown });
        Opened(events.len() - 1)
    }

    /// Writes down something that began at `at` at the node at place `node`, and ends now.
    pub fn note(&self, node: usize, client: u32, at: u64, op: Op, outcome: Outcome) {
        let node = self.node(node);
        let mut events = self.events.lock();
        let until = self.now_us();
        events.push(Event { at, until, node, client, op, outcome });
    }

    /// Writes down how it ended.
    pub fn close(&self, opened: Opened, outcome: Outcome) {
        self.close_with(opened, outcome, Vec::new());
    }

    /// Writes down how a consume ended.
    pub fn close_with(&self, Opened(at): Opened, outcome: Outcome, messages: Vec<Delivered>) {
        let mut events = self.events.lock();
        let until = self.now_us();
        let event = &mut events[at];
        event.until = until;
        event.outcome = outcome;
        if let Op::Consume(consumed) = &mut event.op {
            consumed.messages = messages;
        }
    }

    /// Notes an answer that is none the contract knows.
    pub fn complain(&self, what: String) {
        self.complaints.lock().push(what);
    }

    /// The answers that were none the contract knows.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.complaints.lock().clone()
    }

    /// How many messages are known to be stored, and how many may be.
    #[must_use]
    pub fn sent(&self) -> (usize, usize) {
        let events = self.events.lock();
        let count = |outcome| events.iter().filter(|e| matches!(e.op, Op::Produce(_)) && e.outcome == outcome).count();
        (count(Outcome::Ok), count(Outcome::Unknown))
    }

    /// The history so far; what is still on its way ends now, unknown.
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        let mut events = self.events.lock().clone();
        let now = self.now_us();
        for event in &mut events {
            event.until = event.until.min(now);
        }
        events
    }
}
