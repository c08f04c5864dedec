//! What clients do while nodes are hurt: produce in every way, consume, settle in every way, look at the numbers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use veena_broker::Broker;
use veena_broker::errors::{ConsumeError, SettleError};
use veena_broker::message::{ConsumeRequest, Delivery, NewMessage, ReceiptHandle, Settle};
use veena_contract::{Effect, Key, PartitionIndex, TopicId, TopicName, TopicRecord};
use veena_loadtest_checker::{Consumed, Delivered, How, Observed, Op, Outcome, Sent, Settled};

use crate::chance::Chance;
use crate::door::Door;
use crate::history::{Opened, digest, label_of, payload};
use crate::tally::Kind;
use crate::world::{World, key_of, name, tenant};

/// One client with what it uses.
pub struct Client {
    /// The world.
    pub world: Arc<World>,
    /// The way to a node.
    pub door: Door,
    /// Its number in the history.
    pub number: u32,
    /// Its chance.
    pub chance: Chance,
}

/// How a message is produced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Single,
    Batch,
    Committed,
}

/// What became of each message, once a node has answered; none of them was asked for if the topic is another incarnation by now.
async fn send(broker: Broker, (topic, id): (TopicName, TopicId), way: Way, mut messages: Vec<NewMessage>) -> Vec<Outcome> {
    let count = messages.len();
    // The engine resolves the name when it is first polled: nothing comes between this and that.
    if !is_living(&broker, &topic, id) {
        return vec![Outcome::Fail; count];
    }
    match way {
        Way::Single => {
            let message = messages.pop().expect("invariant: one was drafted");
            let answer = broker.produce(&tenant(), &topic, message).await;
            vec![answer.map_or_else(|error| outcome_of(error.effect()), |()| Outcome::Ok)]
        }
        Way::Batch => {
            let answer = broker.produce_batch(&tenant(), &topic, messages).await;
            vec![answer.map_or_else(|refused| outcome_of(refused.error.effect()), |()| Outcome::Ok); count]
        }
        Way::Committed => match broker.produce_committed(&tenant(), &topic, messages).await {
            Ok(answers) => answers.iter().map(|answer| answer.as_ref().map_or_else(|e| outcome_of(e.effect()), |_| Outcome::Ok)).collect(),
            Err(refused) => vec![outcome_of(refused.error.effect()); count],
        },
    }
}

pub(crate) fn is_living(broker: &Broker, topic: &TopicName, id: TopicId) -> bool {
    broker.catalog().topic(&tenant(), topic).is_some_and(|living| living.id == id)
}

/// What a node answers to a consume.
struct Taken {
    messages: Vec<Delivery>,
    /// The answer could not be written to the client.
    is_unwritten: bool,
    chance: Chance,
}

pub(crate) fn outcome_of(effect: Effect) -> Outcome {
    match effect {
        Effect::None => Outcome::Fail,
        Effect::Possible => Outcome::Unknown,
    }
}

impl Client {
    pub(crate) fn record(&self, topic: &str) -> Option<Arc<TopicRecord>> {
        self.door.catalog()?.topic(&tenant(), &name(topic)).cloned()
    }

    /// Produces to any topic that takes direct produce, for ever.
    pub async fn produce(mut self) {
        let pace_ms = self.world.plan.pace_ms;
        loop {
            let pause = self.chance.ms(0, pace_ms);
            tokio::time::sleep(pause).await;
            self.door.turn(&mut self.chance);
            let topic = self.any_root();
            let way = *self.chance.pick(&[Way::Single, Way::Single, Way::Single, Way::Batch, Way::Committed]);
            self.produce_once(topic, way, None).await;
        }
    }

    pub(crate) fn any_root(&mut self) -> &'static str {
        let direct: Vec<&'static str> =
            self.world.plan.topics.iter().filter(|topic| topic.parent.is_none()).map(|topic| topic.name).collect();
        let copies: Vec<&'static str> = self
            .world
            .plan
            .topics
            .iter()
            .filter(|topic| topic.parent.is_some_and(|(_, delay)| delay == 0))
            .map(|topic| topic.name)
            .collect();
        if !copies.is_empty() && self.chance.percent(10) {
            return copies[self.chance.index(copies.len())];
        }
        direct[self.chance.index(direct.len())]
    }

    /// Sends one message to `topic` and says whether it was accepted.
    pub async fn produce_one(&mut self, topic: &'static str) -> bool {
        self.produce_once(topic, Way::Single, None).await
    }

    /// Sends one message to one partition of `topic` and says whether it was accepted.
    pub async fn produce_to(&mut self, topic: &'static str, partition: PartitionIndex) -> bool {
        self.produce_once(topic, Way::Single, Some(partition)).await
    }

    async fn produce_once(&mut self, topic: &'static str, way: Way, partition: Option<PartitionIndex>) -> bool {
        let Some(record) = self.record(topic) else {
            return false;
        };
        let count = if way == Way::Single { 1 } else { self.chance.between(1, 6) };
        let mut messages = Vec::new();
        let mut opened = Vec::new();
        for _ in 0..count {
            let (message, open) = self.draft(&record, way, partition);
            messages.push(message);
            opened.push(open);
        }
        let (count, incarnation) = (messages.len(), (name(topic), record.id));
        let answer = self.door.ask(move |broker| send(broker, incarnation, way, messages)).await;
        let outcomes = answer.unwrap_or_else(|none| vec![none.outcome(); count]);
        let is_ok = outcomes.iter().all(|outcome| *outcome == Outcome::Ok);
        for (open, outcome) in opened.into_iter().zip(outcomes) {
            self.world.history.close(open, outcome);
        }
        is_ok
    }

    /// Keys of one way of producing are its own: between the ways no order is promised.
    fn draft(&mut self, record: &TopicRecord, way: Way, partition: Option<PartitionIndex>) -> (NewMessage, Opened) {
        let label = self.world.history.new_label();
        let bytes = match self.chance.below(50) {
            0 => self.chance.between(10_000, 30_000),
            1..=5 => self.chance.between(300, 4_000),
            _ => self.chance.between(16, 300),
        };
        let payload = payload(label, usize::try_from(bytes).unwrap_or(16));
        let has_key = partition.is_none() && self.chance.percent(60);
        let key = has_key.then(|| {
            let way = if way == Way::Committed { "sync" } else { "wal" };
            format!("k{}.{}.{way}", self.number, self.chance.below(4))
        });
        let is_anywhere = partition.is_none() && key.is_none() && self.chance.percent(30);
        let anywhere = is_anywhere.then(|| PartitionIndex(u32::try_from(self.chance.below(u64::from(record.partitions))).unwrap_or(0)));
        let partition = partition.or(anywhere);
        let sent = Sent { topic: key_of(record), label, key: key.as_deref().map(Arc::from), digest: digest(&payload), once: false };
        let open = self.world.history.open(&self.door.name(), self.number, Op::Produce(sent));
        let key = key.and_then(|key| Key::parse(Bytes::from(key)).expect("invariant: a short key"));
        (NewMessage { key, partition, headers: Vec::new(), idempotency_key: None, payload: Bytes::from(payload) }, open)
    }

    /// Consumes one topic and settles what comes, in every way, for ever.
    pub async fn consume(mut self, topic: &'static str) {
        let mut stale: Vec<(Arc<TopicRecord>, ReceiptHandle, u64)> = Vec::new();
        loop {
            self.door.turn(&mut self.chance);
            let (max, wait_ms) = (self.chance.between(1, 20), self.chance.below(3) * self.chance.below(1_000));
            let partition = self.chance.percent(25);
            let patience = self.chance.percent(10).then(|| self.chance.ms(0, 400));
            let found = self.take(topic, max, wait_ms, partition, patience).await;
            let is_empty = found.is_none();
            if let Some((record, deliveries)) = found {
                if self.door.is_among() && self.chance.percent(20) {
                    self.settle_all(&record, &deliveries).await;
                } else {
                    for delivery in deliveries {
                        self.settle_somehow(&record, &delivery, &mut stale).await;
                    }
                }
            }
            let now = self.world.time.now_us();
            for at in (0..stale.len()).rev() {
                if stale[at].2 < now && self.chance.percent(50) {
                    let (record, handle, _) = stale.swap_remove(at);
                    self.world.tally.add(Kind::StaleHandle);
                    let how = *self.chance.pick(&[Settle::Nack, Settle::Ack, Settle::Extend]);
                    self.settle(&record, handle, how).await;
                }
            }
            let pause = if is_empty { self.chance.ms(5, 200) } else { self.chance.ms(0, 40) };
            tokio::time::sleep(pause).await;
        }
    }

    /// One request. `None` when nothing was delivered.
    pub async fn take(
        &mut self,
        topic: &str,
        messages_max: u64,
        wait_ms: u64,
        is_one_partition: bool,
        patience: Option<Duration>,
    ) -> Option<(Arc<TopicRecord>, Vec<Delivery>)> {
        let record = self.record(topic)?;
        let partition =
            is_one_partition.then(|| PartitionIndex(u32::try_from(self.chance.below(u64::from(record.partitions))).unwrap_or(0)));
        let request = ConsumeRequest {
            tenant: tenant(),
            topic: name(topic),
            partition,
            messages_max: usize::try_from(messages_max).unwrap_or(1),
            bytes_max: 256 * 1024,
            wait: Duration::from_millis(wait_ms),
        };
        let consumed = Consumed { topic: key_of(&record), visibility_us: record.visibility_timeout_ms * 1000, messages: Vec::new() };
        let opened = self.world.history.open(&self.door.name(), self.number, Op::Consume(consumed));
        let (mut chance, may_leave, id) = (self.chance.clone(), patience.is_some(), record.id);
        let asked = self.door.ask(move |broker| async move {
            if !is_living(&broker, &request.topic, id) {
                return Err(ConsumeError::TopicNotFound);
            }
            let deliveries = broker.consume(request).await?;
            let messages = deliveries.messages().to_vec();
            let is_unwritten = !messages.is_empty() && may_leave && chance.percent(60);
            if is_unwritten {
                drop(deliveries);
            } else {
                deliveries.written();
            }
            Ok(Taken { messages, is_unwritten, chance })
        });
        let answer = match patience {
            None => asked.await,
            Some(patience) => match tokio::time::timeout(patience, asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.world.history.close(opened, Outcome::Unknown);
                    return None;
                }
            },
        };
        let Taken { messages, is_unwritten, chance } = match answer {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => {
                self.world.history.close(opened, outcome_of(error.effect()));
                return None;
            }
            Err(none) => {
                self.world.history.close(opened, none.outcome());
                return None;
            }
        };
        self.chance = chance;
        if is_unwritten {
            self.world.tally.add(Kind::UnwrittenDelivery);
            self.world.history.close(opened, Outcome::Unknown);
            return None;
        }
        self.world.history.close_with(opened, Outcome::Ok, messages.iter().map(delivered).collect());
        (!messages.is_empty()).then_some((record, messages))
    }

    async fn settle_somehow(
        &mut self,
        record: &Arc<TopicRecord>,
        delivery: &Delivery,
        stale: &mut Vec<(Arc<TopicRecord>, ReceiptHandle, u64)>,
    ) {
        let Some(lease) = delivery.lease else { return };
        let visibility = record.visibility_timeout_ms;
        match self.chance.below(100) {
            0..=64 => {
                self.settle(record, lease.handle, Settle::Ack).await;
            }
            65..=74 => {
                let pause = self.chance.ms(0, visibility);
                tokio::time::sleep(pause).await;
                self.settle(record, lease.handle, Settle::Ack).await;
            }
            75..=81 => {
                self.settle(record, lease.handle, Settle::Nack).await;
            }
            82..=88 => {
                let pause = self.chance.ms(0, visibility / 2);
                tokio::time::sleep(pause).await;
                self.settle(record, lease.handle, Settle::Extend).await;
                let pause = self.chance.ms(0, visibility);
                tokio::time::sleep(pause).await;
                self.settle(record, lease.handle, Settle::Ack).await;
            }
            89..=92 => self.world.tally.add(Kind::LeaseLeft),
            _ => {
                self.world.tally.add(Kind::LeaseLeft);
                let due = self.world.time.now_us() + (visibility + self.chance.below(1_500)) * 1000;
                stale.push((Arc::clone(record), lease.handle, due));
            }
        }
    }

    /// Settles one lease at any node and says whether it was applied. The topic may be another incarnation by now; then the handle is nobody's.
    pub async fn settle(&mut self, record: &TopicRecord, handle: ReceiptHandle, how: Settle) -> bool {
        self.door.turn(&mut self.chance);
        let is_same = self.record(record.name.as_str()).is_some_and(|living| living.id == record.id);
        if !is_same {
            return false;
        }
        let opened = self.open_settle(record, handle, how);
        let (topic, id) = (record.name.clone(), record.id);
        let asked = self.door.ask(move |broker| async move {
            match is_living(&broker, &topic, id) {
                true => broker.settle(&tenant(), &topic, handle, how).await,
                false => Err(SettleError::TopicNotFound),
            }
        });
        let outcome = match asked.await {
            Ok(answer) => answer.map_or_else(|error| outcome_of(error.effect()), |()| Outcome::Ok),
            Err(none) => none.outcome(),
        };
        self.world.history.close(opened, outcome);
        outcome == Outcome::Ok
    }

    /// Settles all at once, at any node.
    async fn settle_all(&mut self, record: &TopicRecord, deliveries: &[Delivery]) {
        self.door.turn(&mut self.chance);
        let how = *self.chance.pick(&[Settle::Ack, Settle::Ack, Settle::Ack, Settle::Extend, Settle::Nack]);
        let handles: Vec<ReceiptHandle> = deliveries.iter().filter_map(|delivery| Some(delivery.lease?.handle)).collect();
        let opened: Vec<Opened> = handles.iter().map(|handle| self.open_settle(record, *handle, how)).collect();
        let (topic, id) = (record.name.clone(), record.id);
        let answer = self.door.ask(move |broker| async move {
            match is_living(&broker, &topic, id) {
                true => broker.settle_batch(&tenant(), &topic, &handles, how).await,
                false => handles.iter().map(|_| Err(SettleError::TopicNotFound)).collect(),
            }
        });
        let outcomes: Vec<Outcome> = match answer.await {
            Ok(answers) => {
                answers.into_iter().map(|answer| answer.map_or_else(|error| outcome_of(error.effect()), |()| Outcome::Ok)).collect()
            }
            Err(none) => vec![none.outcome(); opened.len()],
        };
        for (opened, outcome) in opened.into_iter().zip(outcomes) {
            self.world.history.close(opened, outcome);
        }
    }

    fn open_settle(&self, record: &TopicRecord, handle: ReceiptHandle, how: Settle) -> Opened {
        let how = match how {
            Settle::Ack => How::Ack,
            Settle::Extend => How::Extend,
            Settle::Nack => How::Nack,
        };
        let settled = Settled { topic: key_of(record), handle: Arc::from(handle.to_string()), how };
        self.world.history.open(&self.door.name(), self.number, Op::Settle(settled))
    }

    /// Looks at every partition of a topic.
    pub async fn observe(&self, topic: &str) {
        let Some(record) = self.record(topic) else { return };
        let at = self.world.time.stamp_us();
        let (asked, id) = (record.name.clone(), record.id);
        let answer = self.door.ask(move |broker| async move {
            match is_living(&broker, &asked, id) {
                true => broker.describe(&tenant(), &asked, None).await,
                false => Err(ConsumeError::TopicNotFound),
            }
        });
        let Ok(Ok(stats)) = answer.await else { return };
        for stats in stats.into_iter().flatten() {
            let observed = Observed {
                topic: key_of(&record),
                partition: stats.partition.get(),
                log_end: stats.log_end.get(),
                high_watermark: stats.high_watermark.get(),
                frontier: Some(stats.frontier.get()),
                owner: record.owner_of(stats.partition).map(|owner| Arc::clone(&owner.node.0)),
            };
            self.world.history.note(&self.door.name(), self.number, at, Op::Observe(observed), Outcome::Ok);
        }
    }

    /// Looks at any topic now and then, for ever.
    pub async fn watch(mut self) {
        loop {
            let pause = self.chance.ms(20, 500);
            tokio::time::sleep(pause).await;
            self.door.turn(&mut self.chance);
            let at = self.chance.index(self.world.plan.topics.len());
            let topic = self.world.plan.topics[at].name;
            self.observe(topic).await;
        }
    }

    /// The disk hangs and the processor does not: what can be seen and taken now, the node has said.
    pub async fn last_look(mut self) {
        for at in 0..self.world.plan.topics.len() {
            let topic = self.world.plan.topics[at].name;
            self.observe(topic).await;
            let _ = self.take(topic, 20, 0, false, None).await;
        }
    }
}

fn delivered(delivery: &Delivery) -> Delivered {
    Delivered {
        partition: delivery.partition.get(),
        offset: delivery.offset.get(),
        id: Some(Arc::from(delivery.id.to_string())),
        label: label_of(&delivery.payload),
        digest: digest(&delivery.payload),
        handle: delivery.lease.map_or_else(|| Arc::from(""), |lease| Arc::from(lease.handle.to_string())),
    }
}
