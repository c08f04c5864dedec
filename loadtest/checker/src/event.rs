//! What one line of a history says.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// One operation of one client, or one thing that happened to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it was asked, in microseconds of the recorder's one monotonic clock.
    pub at: u64,
    /// When the answer was in (or given up), on the same clock; not below `at`.
    pub until: u64,
    /// The node that was asked, or to which it happened.
    pub node: Arc<str>,
    /// Which client asked; each client does one thing at a time.
    pub client: u32,
    /// What was asked, with what came back.
    #[serde(flatten)]
    pub op: Op,
    /// Did it happen?
    pub outcome: Outcome,
}

/// Did the operation happen?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Yes: the answer said so.
    Ok,
    /// Certainly not: refused with effect none, or it never left the client.
    Fail,
    /// Nobody told: it may have happened, or may still happen.
    Unknown,
}

/// The operations the rules speak about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "snake_case")]
pub enum Op {
    /// One attempt to send one message. A batch is one event per message; a repeat of the same message is another event.
    Produce(Sent),
    /// One request for messages, with what it delivered.
    Consume(Consumed),
    /// One ack, extend or nack.
    Settle(Settled),
    /// A partition's numbers as a node described them.
    Observe(Observed),
    /// Topic names that a tenant was shown.
    Names(Names),
    /// A node was started, stopped or hurt.
    Node(NodeChange),
}

/// A message's name for the checker: chosen by the sender, unique in a history, carried inside the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(pub u64);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A topic of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TopicKey {
    /// Whose.
    pub tenant: Arc<str>,
    /// Its name.
    pub topic: Arc<str>,
}

impl TopicKey {
    /// The topic `topic` of `tenant`.
    #[must_use]
    pub fn new(tenant: &str, topic: &str) -> Self {
        Self { tenant: Arc::from(tenant), topic: Arc::from(topic) }
    }
}

impl fmt::Display for TopicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.topic)
    }
}

/// What was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Where to.
    #[serde(flatten)]
    pub topic: TopicKey,
    /// The message.
    pub label: Label,
    /// Its key, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    /// Its payload.
    pub digest: Digest,
    /// It was sent under an idempotency key: however many attempts there are, they leave one copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
}

/// What was asked for and what came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumed {
    /// From where.
    #[serde(flatten)]
    pub topic: TopicKey,
    /// How long a lease of this topic lives, in microseconds.
    pub visibility_us: u64,
    /// What came; empty unless the outcome is ok.
    pub messages: Vec<Delivered>,
}

/// One message as it was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Its partition.
    pub partition: u32,
    /// Its offset.
    pub offset: u64,
    /// The broker's id for it, if served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The label found in the payload.
    pub label: Option<Label>,
    /// The payload.
    pub digest: Digest,
    /// The receipt handle.
    pub handle: Arc<str>,
}

/// What a settle asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Done for ever.
    Ack,
    /// The lease runs anew.
    Extend,
    /// Redeliverable at once.
    Nack,
}

/// One settle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The topic.
    #[serde(flatten)]
    pub topic: TopicKey,
    /// The receipt handle that was used.
    pub handle: Arc<str>,
    /// What was asked.
    pub how: How,
}

/// A partition's numbers; all exclusive ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The topic.
    #[serde(flatten)]
    pub topic: TopicKey,
    /// The partition.
    pub partition: u32,
    /// The next offset to be written.
    pub log_end: u64,
    /// The first offset that is not visible.
    pub high_watermark: u64,
    /// The first offset that is not settled, if the node tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontier: Option<u64>,
    /// The node that owns the partition, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Arc<str>>,
}

/// Names shown to a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Who was shown them.
    pub tenant: Arc<str>,
    /// The topic names.
    pub names: Vec<Arc<str>>,
}

/// What happened to a node, from `at` to `until` of its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeChange {
    /// It was started and became ready.
    Started,
    /// Its process ended.
    Down(Down),
    /// It stood still (SIGSTOP to SIGCONT).
    Paused,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Down {
    /// It was asked to stop and did.
    Stopped,
    /// It was killed: what it had written to files stays.
    Killed,
    /// The power went: what was not synced may be gone.
    PowerCut,
}
