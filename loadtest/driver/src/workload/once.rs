//! One producer that sends under idempotency keys: what was not answered it sends again, to one node after the other, until it is answered;
//! and now and then what was answered. However often a message is sent, it is stored once, and each answer names the same place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Digest, Label, Op, Outcome, Sent};

use super::{Plan, topic_key};
use crate::api::{Client, Reply, outcome_of};
use crate::chance::Chance;
use crate::payload::{self, Shape};
use crate::recorder::Recorder;

const KEYS: u64 = 3;
/// Of 100 messages, how many are sent again though they were answered.
const AGAIN_PERCENT: u64 = 20;
/// Of 100 attempts, how many ask where the message is.
const WHERE_PERCENT: u64 = 50;
/// How long to wait after an attempt without an answer: an owner may be away for seconds.
const BACK_OFF: Duration = Duration::from_millis(50);
/// By when a message is answered: below the time for which a broker remembers keys, above that for which all of its nodes are hurt.
const ANSWERED_WITHIN: Duration = Duration::from_secs(240);

pub(super) struct OnceProducer {
    plan: Plan,
    recorder: Arc<Recorder>,
    chance: Chance,
    number: u32,
    client: Client,
}

struct Draft {
    topic: String,
    label: Label,
    key: Option<String>,
    payload: Vec<u8>,
}

/// Where a message is, as an answer says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Place {
    id: String,
    partition: u32,
    offset: u64,
}

impl OnceProducer {
    pub(super) fn new(plan: &Plan, recorder: &Arc<Recorder>, chance: Chance) -> Self {
        let number = recorder.new_client();
        Self { plan: plan.clone(), recorder: recorder.clone(), chance, number, client: plan.client(number) }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let draft = self.draft();
            let mut place = None;
            self.until_answered(&draft, &mut place).await;
            while self.chance.percent(AGAIN_PERCENT) {
                self.client.turn();
                self.until_answered(&draft, &mut place).await;
            }
            let pause_us = u64::try_from(self.plan.pause_max.as_micros()).unwrap_or(u64::MAX);
            tokio::time::sleep(Duration::from_micros(self.chance.below(pause_us))).await;
        }
    }

    fn draft(&mut self) -> Draft {
        let at = self.chance.below(u64::try_from(self.plan.topics.len()).unwrap_or(1));
        let topic = self.plan.topics[usize::try_from(at).unwrap_or(0)].name.clone();
        let label = self.recorder.new_label();
        let key = self.chance.percent(50).then(|| format!("client {} key {}", self.number, self.chance.below(KEYS)));
        let bytes = usize::try_from(16 + self.chance.below(500)).unwrap_or(16);
        Draft { topic, label, key, payload: payload::make(label, Shape::any(&mut self.chance), bytes) }
    }

    /// Sends it until it is answered, also when the others have ended: nothing hurts the nodes any more then.
    async fn until_answered(&mut self, draft: &Draft, place: &mut Option<Place>) {
        let since = Instant::now();
        loop {
            let told = match self.attempt(draft).await {
                Ok(reply) if reply.outcome() == Outcome::Ok => return self.compare(draft, &reply, place),
                Ok(reply) => format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
                Err(err) => err.to_string(),
            };
            // Neither a node that is down nor one that is full says that the message is wrong.
            let is_wrong = told.starts_with('4') && !told.starts_with("429");
            if is_wrong || since.elapsed() > ANSWERED_WITHIN {
                self.recorder.complain(format!("message {} with an idempotency key is answered with {told}", draft.label));
                return;
            }
            tokio::time::sleep(BACK_OFF).await;
        }
    }

    async fn attempt(&mut self, draft: &Draft) -> Result<Reply, crate::http::Exchange> {
        let key = draft.key.as_deref();
        let (topic, digest) = (topic_key(&draft.topic), Digest::of(&draft.payload));
        let sent = Sent { topic, label: draft.label, key: key.map(Into::into), digest, once: true };
        let opened = self.recorder.open(self.client.node(), self.number, Op::Produce(sent));
        let asks_where = self.chance.percent(WHERE_PERCENT);
        let answered = self.client.produce_once(&draft.topic, key, &format!("message {}", draft.label), asks_where, &draft.payload).await;
        self.recorder.close(opened, answered.as_ref().map_or_else(outcome_of, Reply::outcome));
        answered
    }

    fn compare(&self, draft: &Draft, reply: &Reply, place: &mut Option<Place>) {
        if reply.status != 200 {
            return;
        }
        match (serde_json::from_slice::<Place>(&reply.body), &place) {
            (Ok(told), Some(known)) if told != *known => {
                self.recorder.complain(format!("message {} is at {known:?}, and at {told:?} by another answer", draft.label));
            }
            (Ok(told), _) => *place = Some(told),
            (Err(err), _) => self.recorder.complain(format!("where message {} is: {err}", draft.label)),
        }
    }
}
