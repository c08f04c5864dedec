//! What was reserved, until its client has it.

use std::sync::Arc;

use tracing::debug;
use veena_contract::Offset;

use crate::consume::reserve::is_takeable;
use crate::core::Core;
use crate::message::{Delivery, ReceiptHandle, Settle};
use crate::owners::claims::Claimed;
use crate::owners::settle::settle_each;
use crate::partition::{Partition, Serving};
use crate::tasks::OnExit;
use crate::topics::Topic;

/// Messages on their way to a client, with their leases. Dropped without [`Deliveries::written`], every lease is released at once and not
/// counted.
pub struct Deliveries {
    messages: Vec<Delivery>,
    leases: Leases,
}

/// Where the leases are, beside the messages.
struct Leases {
    core: Arc<Core>,
    topic: Arc<Topic>,
    /// In this node's tables.
    held: Vec<Held>,
    /// Or, all of them, in another's.
    claimed: Option<Claimed>,
}

/// One lease of this node that is not in its client's hands yet.
pub(crate) struct Held {
    pub(crate) partition: Arc<Partition>,
    pub(crate) serving: Arc<Serving>,
    pub(crate) offset: Offset,
    pub(crate) nonce: u64,
}

impl Deliveries {
    pub(crate) fn none(core: &Arc<Core>, topic: &Arc<Topic>) -> Self {
        let leases = Leases { core: Arc::clone(core), topic: Arc::clone(topic), held: Vec::new(), claimed: None };
        Self { messages: Vec::new(), leases }
    }

    /// Messages whose leases another node has granted.
    pub(crate) fn claimed(core: &Arc<Core>, topic: &Arc<Topic>, messages: Vec<Delivery>, claimed: Claimed) -> Self {
        let mut deliveries = Self::none(core, topic);
        deliveries.messages = messages;
        deliveries.leases.claimed = Some(claimed);
        deliveries
    }

    /// The messages, in order of reservation.
    #[must_use]
    pub fn messages(&self) -> &[Delivery] {
        &self.messages
    }

    pub(crate) fn keep(&mut self, held: Held, message: Delivery) {
        self.leases.held.push(held);
        self.messages.push(message);
    }

    /// Is there nothing?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Releases the messages from `len` on: they did not fit the answer.
    pub fn truncate(&mut self, len: usize) {
        self.messages.truncate(len);
        self.leases.truncate(len);
    }

    /// The answer has been handed to the client's socket: the leases stand, the deliveries count.
    pub fn written(mut self) {
        let Leases { core, topic, held, claimed } = &mut self.leases;
        let bytes = self.messages.iter().map(Delivery::counted_bytes).sum();
        topic.usage.on_delivered(self.messages.len() as u64, bytes);
        for (held, message) in held.drain(..).zip(&self.messages) {
            held.written(core, message.payload.len());
        }
        if let Some(claimed) = claimed.take() {
            claimed.end(core, self.messages.len());
        }
    }

    /// The messages, and their leases of this node, which are released by nobody from here on but whoever takes them.
    pub(crate) fn into_held(mut self) -> (Vec<Delivery>, Vec<Held>) {
        (std::mem::take(&mut self.messages), std::mem::take(&mut self.leases.held))
    }
}

impl Leases {
    fn truncate(&mut self, len: usize) {
        for held in self.held.drain(len.min(self.held.len())..) {
            held.release(&self.core, &self.topic);
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.truncate(0);
        if let Some(claimed) = self.claimed.take() {
            claimed.end(&self.core, 0);
        }
    }
}

impl Held {
    /// The message has reached its client: the lease stands, the delivery counts.
    pub(crate) fn written(&self, core: &Core, payload_bytes: usize) {
        self.serving.leases.lock().delivered(self.offset);
        self.partition.counts.on_consumed(payload_bytes);
        self.partition.queue_settle(core);
        core.metrics.messages_delivered.add(1);
    }

    /// The message has not reached its client: it comes again at once. From its new owner, if its partition has left with the lease.
    pub(crate) fn release(&self, core: &Arc<Core>, topic: &Arc<Topic>) {
        let released = {
            let mut leases = self.serving.leases.lock();
            if leases.is_frozen() {
                drop(leases);
                return self.hand_back(core, topic);
            }
            leases.release(core.now_ms(), self.offset, self.nonce)
        };
        // Who is woken for a log that is closed would release in turn, and wake the next, without end.
        let is_takeable = || self.partition.serving().is_some_and(|serving| is_takeable(core, &topic.record.load(), &serving));
        if released.is_ok() && is_takeable() {
            topic.wake(self.partition.id.index, 1);
        }
    }

    fn hand_back(&self, core: &Arc<Core>, topic: &Topic) {
        let record = topic.record.load_full();
        let handle = ReceiptHandle { partition: self.partition.id.index, offset: self.offset, nonce: self.nonce };
        let core_for_run = Arc::clone(core);
        core.ports.tasks.spawn("hand-back", OnExit::Log, async move {
            let results = settle_each(&core_for_run, &record.tenant, &record.name, &[handle], Settle::Nack).await;
            debug!(?results, "a message that did not reach its client was handed back where its partition is");
        });
    }
}
