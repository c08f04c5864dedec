//! One consumer.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Consumed, How, Op, Outcome, Settled};

use super::{Plan, topic_key};
use crate::api::{Client, Message, NewTopic, outcome_of};
use crate::chance::Chance;
use crate::http::Exchange;
use crate::recorder::Recorder;

const WAIT: Duration = Duration::from_millis(300);
const BATCH_MAX: u64 = 20;
/// Of 100 messages, how many are settled at another node than the one that gave them.
const TURN_PERCENT: u64 = 30;
const BACK_OFF: Duration = Duration::from_millis(10);

pub(super) struct Consumer {
    plan: Plan,
    recorder: Arc<Recorder>,
    chance: Chance,
    number: u32,
    client: Client,
}

impl Consumer {
    pub(super) fn new(plan: &Plan, recorder: &Arc<Recorder>, chance: Chance) -> Self {
        let number = recorder.new_client();
        Self { plan: plan.clone(), recorder: recorder.clone(), chance, number, client: plan.client(number) }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let topics: Vec<&NewTopic> = self.plan.all_topics().collect();
            let at = self.chance.below(u64::try_from(topics.len()).unwrap_or(1));
            let topic = topics[usize::try_from(at).unwrap_or(0)].clone();
            let messages_max = if self.chance.percent(30) { 2 + self.chance.below(BATCH_MAX - 1) } else { 1 };
            let messages_max = usize::try_from(messages_max).unwrap_or(1);
            if self.chance.percent(self.plan.leave_percent) {
                self.leave(&topic, messages_max).await;
                continue;
            }
            match lease(&mut self.client, &self.recorder, self.number, &topic, WAIT, messages_max).await {
                Some(messages) => {
                    for message in messages {
                        self.handle(&topic.name, &message).await;
                    }
                }
                None => tokio::time::sleep(BACK_OFF).await,
            }
        }
    }

    /// Asks and goes away before the answer, or while it comes.
    async fn leave(&mut self, topic: &NewTopic, messages_max: usize) {
        let patience = Duration::from_micros(self.chance.below(20_000));
        let asked = lease(&mut self.client, &self.recorder, self.number, topic, WAIT, messages_max);
        // What came in time is held and forgotten: the lease runs out.
        let _ = tokio::time::timeout(patience, asked).await;
    }

    async fn handle(&mut self, topic: &str, message: &Message) {
        let Some(handle) = message.handle.as_deref() else { return };
        if self.chance.percent(TURN_PERCENT) {
            self.client.turn();
        }
        let draw = self.chance.below(100);
        let Plan { nack_percent, extend_percent, forget_percent, .. } = self.plan;
        if draw < forget_percent {
            return;
        }
        if draw < forget_percent + nack_percent {
            self.settle(topic, handle, How::Nack).await;
            return;
        }
        if draw < forget_percent + nack_percent + extend_percent {
            self.settle(topic, handle, How::Extend).await;
        }
        if self.settle(topic, handle, How::Ack).await == Outcome::Unknown && self.chance.percent(50) {
            self.settle(topic, handle, How::Ack).await;
        }
    }

    async fn settle(&mut self, topic: &str, handle: &str, how: How) -> Outcome {
        settle(&mut self.client, &self.recorder, self.number, topic, handle, how).await
    }
}

/// One recorded consume; `None` if the node refused or did not answer.
pub(crate) async fn lease(
    client: &mut Client,
    recorder: &Recorder,
    number: u32,
    topic: &NewTopic,
    wait: Duration,
    messages_max: usize,
) -> Option<Vec<Message>> {
    let consumed = Consumed { topic: topic_key(&topic.name), visibility_us: topic.visibility_ms * 1000, messages: Vec::new() };
    let opened = recorder.open(client.node(), number, Op::Consume(consumed));
    match client.consume(&topic.name, wait, messages_max).await {
        Ok(Ok(messages)) => {
            recorder.close_with(opened, Outcome::Ok, messages.iter().map(Message::delivered).collect());
            Some(messages)
        }
        Ok(Err(reply)) => {
            recorder.close(opened, reply.outcome());
            None
        }
        Err(err) => {
            recorder.close(opened, Outcome::Unknown);
            if !err.is::<Exchange>() {
                recorder.complain(format!("consume of {}: {err:#}", topic.name));
            }
            None
        }
    }
}

/// One recorded settle.
pub(crate) async fn settle(client: &mut Client, recorder: &Recorder, number: u32, topic: &str, handle: &str, how: How) -> Outcome {
    let opened = recorder.open(client.node(), number, Op::Settle(Settled { topic: topic_key(topic), handle: handle.into(), how }));
    let outcome = match client.settle(topic, handle, how).await {
        Ok(reply) => reply.outcome(),
        Err(err) => outcome_of(&err),
    };
    recorder.close(opened, outcome);
    outcome
}
