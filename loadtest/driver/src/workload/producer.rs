//! One producer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Digest, Label, Op, Outcome, Sent};

use super::{Plan, topic_key};
use crate::api::{Client, outcome_of};
use crate::chance::Chance;
use crate::payload::{self, Shape};
use crate::recorder::{Opened, Recorder};

const KEYS: u64 = 3;
const BATCH_MAX: u64 = 20;
/// Of 100 requests, how many go to another node than the one before.
const TURN_PERCENT: u64 = 2;
/// How long to wait after a request that had no effect: the node is down or busy.
const BACK_OFF: Duration = Duration::from_millis(10);

pub(super) struct Producer {
    plan: Plan,
    recorder: Arc<Recorder>,
    chance: Chance,
    number: u32,
    client: Client,
}

/// A message that was made, and maybe sent before.
#[derive(Clone)]
struct Made {
    label: Label,
    key: Option<String>,
    payload: Vec<u8>,
}

impl Producer {
    pub(super) fn new(plan: &Plan, recorder: &Arc<Recorder>, chance: Chance) -> Self {
        let number = recorder.new_client();
        Self { plan: plan.clone(), recorder: recorder.clone(), chance, number, client: plan.client(number) }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if self.chance.percent(TURN_PERCENT) {
                self.client.turn();
            }
            let topic = self.pick_topic();
            let is_batch = self.chance.percent(self.plan.batch_percent);
            let count = if is_batch { 2 + self.chance.below(BATCH_MAX - 1) } else { 1 };
            let made: Vec<Made> = (0..count).map(|_| self.make()).collect();
            let mut outcome = self.send(&topic, &made, is_batch).await;
            // Now and then a message is sent again, as real clients do.
            if outcome != Outcome::Ok {
                tokio::time::sleep(BACK_OFF).await;
                if self.chance.percent(50) && !stop.is_cancelled() {
                    outcome = self.send(&topic, &made, is_batch).await;
                }
            }
            let pause_us = u64::try_from(self.plan.pause_max.as_micros()).unwrap_or(u64::MAX);
            if outcome == Outcome::Ok && pause_us > 0 {
                tokio::time::sleep(Duration::from_micros(self.chance.below(pause_us))).await;
            }
        }
    }

    fn pick_topic(&mut self) -> String {
        let at = self.chance.below(u64::try_from(self.plan.topics.len()).unwrap_or(1));
        self.plan.topics[usize::try_from(at).unwrap_or(0)].name.clone()
    }

    fn make(&mut self) -> Made {
        let label = self.recorder.new_label();
        let shape = Shape::any(&mut self.chance);
        let bytes = if self.chance.percent(1) { 64 * 1024 } else { 16 + self.chance.below(500) };
        let key = self.chance.percent(70).then(|| format!("client {} key {}", self.number, self.chance.below(KEYS)));
        Made { label, key, payload: payload::make(label, shape, usize::try_from(bytes).unwrap_or(16)) }
    }

    async fn send(&mut self, topic: &str, made: &[Made], is_batch: bool) -> Outcome {
        let open = |one: &Made| {
            let key = one.key.as_deref().map(Into::into);
            let sent = Sent { topic: topic_key(topic), label: one.label, key, digest: Digest::of(&one.payload), once: false };
            self.recorder.open(self.client.node(), self.number, Op::Produce(sent))
        };
        let opened: Vec<Opened> = made.iter().map(open).collect();
        let answered = if is_batch {
            let entries: Vec<(Option<&str>, &[u8])> = made.iter().map(|one| (one.key.as_deref(), one.payload.as_slice())).collect();
            self.client.produce_batch(topic, &entries).await
        } else {
            self.client.produce(topic, made[0].key.as_deref(), &made[0].payload).await
        };
        let outcome = match &answered {
            Ok(reply) => reply.outcome(),
            Err(err) => outcome_of(err),
        };
        for one in opened {
            self.recorder.close(one, outcome);
        }
        outcome
    }
}
