//! A client that asks one thing at a time and wants to know the answer, with everything in the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use veena_loadtest_checker::{Digest, How, Op, Outcome, Sent};

use crate::api::{Client, NewTopic, Reply, outcome_of};
use crate::http::RequestBytes;
use crate::payload::{self, Shape};
use crate::recorder::Recorder;
use crate::workload::{lease, settle, topic_key};

/// How often a condition is looked at while waiting for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Uses a topic that only probes use, so that it knows what must be there.
pub struct Probe {
    client: Client,
    number: u32,
    recorder: Arc<Recorder>,
    topic: NewTopic,
    /// How many topics it has asked for beyond its own.
    asked: u64,
}

impl Probe {
    /// Creates its topic.
    ///
    /// # Errors
    /// The node refuses.
    pub async fn start(client: Client, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        let mut probe = Self::beside(client, recorder);
        probe.client.create_topic(&probe.topic).await?;
        Ok(probe)
    }

    /// Uses the topic that another probe has created.
    #[must_use]
    pub fn beside(client: Client, recorder: &Arc<Recorder>) -> Self {
        Self { client, number: recorder.new_client(), recorder: recorder.clone(), topic: topic(), asked: 0 }
    }

    /// The client, for what the ledger does not hold.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The node does not answer.
    pub async fn produce(&mut self) -> anyhow::Result<Reply> {
        let label = self.recorder.new_label();
        let payload = payload::make(label, Shape::Text, 64);
        let sent = Sent { topic: topic_key(&self.topic.name), label, key: None, digest: Digest::of(&payload), once: false };
        let opened = self.recorder.open(self.client.node(), self.number, Op::Produce(sent));
        let answered = self.client.produce(&self.topic.name, None, &payload).await;
        let outcome = match &answered {
            Ok(reply) => reply.outcome(),
            Err(err) => outcome_of(err),
        };
        self.recorder.close(opened, outcome);
        Ok(answered?)
    }

    /// Sends `count` messages, each of which must be stored.
    ///
    /// # Errors
    /// One is refused.
    pub async fn stock(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let reply = self.produce().await?;
            ensure!(reply.status == 202, "a produce of the probe: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        }
        Ok(())
    }

    /// Leases one message of those in stock and acks it: both must work within `deadline`.
    ///
    /// # Errors
    /// They do not.
    pub async fn take_one(&mut self, deadline: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let wait = Duration::from_millis(500);
            let messages = lease(&mut self.client, &self.recorder, self.number, &self.topic, wait, 1).await.unwrap_or_default();
            let handle = messages.first().and_then(|message| message.handle.as_deref());
            if let Some(handle) = handle
                && settle(&mut self.client, &self.recorder, self.number, &self.topic.name, handle, How::Ack).await == Outcome::Ok
            {
                return Ok(());
            }
            ensure!(started.elapsed() < deadline, "nothing of the stock can be consumed and acked within {deadline:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks until the answer is `wanted`.
    ///
    /// # Errors
    /// It is not before `deadline`; the error holds the last answer.
    pub async fn until(&mut self, target: &str, wanted: impl Fn(&Reply) -> bool, deadline: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let answer = self.client.get(target).await;
            if answer.as_ref().is_ok_and(&wanted) {
                return Ok(());
            }
            if started.elapsed() > deadline {
                bail!("{target} is not as it should be after {deadline:?}: {}", told(&answer));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Asks for a new topic until that is refused. Answers the refusal.
    ///
    /// # Errors
    /// It is not before `deadline`.
    pub async fn until_topic_refused(&mut self, deadline: Duration) -> anyhow::Result<Reply> {
        let started = Instant::now();
        loop {
            self.asked += 1;
            let body = serde_json::json!({ "name": format!("refused-{}", self.asked), "partitions": 1 }).to_string();
            let reply = self.client.call(&RequestBytes::post_json("/v1/topics", body.as_bytes())).await?;
            if reply.status != 201 {
                return Ok(reply);
            }
            ensure!(started.elapsed() < deadline, "topics are created still after {deadline:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Makes a topic and takes it away again: two changes of metadata.
    ///
    /// # Errors
    /// One of them is refused or not answered.
    pub async fn change_topics(&mut self) -> anyhow::Result<()> {
        let topic = NewTopic { name: "fleeting".to_owned(), ..self.topic.clone() };
        self.client.create_topic(&topic).await?;
        self.client.delete_topic(&topic.name).await
    }

    /// Deletes a topic, and asks again while that is refused.
    ///
    /// # Errors
    /// It still is after `deadline`.
    pub async fn until_deleted(&mut self, topic: &str, deadline: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            match self.client.delete_topic(topic).await {
                Err(err) if started.elapsed() > deadline => return Err(err),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Sends messages until one is refused with the code `code`. Answers the refusal.
    ///
    /// # Errors
    /// None is before `deadline`.
    pub async fn until_refused(&mut self, code: &str, deadline: Duration) -> anyhow::Result<Reply> {
        let started = Instant::now();
        loop {
            let reply = self.produce().await?;
            if holds(&reply, &format!("\"code\":\"{code}\"")) {
                return Ok(reply);
            }
            if started.elapsed() > deadline {
                bail!("produce is not refused with {code} after {deadline:?}: {}", told::<std::convert::Infallible>(&Ok(reply)));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The probe's topic; part of what is drained at the end.
#[must_use]
pub fn topic() -> NewTopic {
    NewTopic { name: "stock".to_owned(), partitions: 1, visibility_ms: 2_000, keeps_order: true }
}

/// Does the body hold this text?
#[must_use]
pub fn holds(reply: &Reply, text: &str) -> bool {
    String::from_utf8_lossy(&reply.body).contains(text)
}

fn told<E: std::fmt::Display>(answer: &Result<Reply, E>) -> String {
    match answer {
        Ok(reply) => format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
        Err(err) => err.to_string(),
    }
}
