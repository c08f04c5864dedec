//! The clients of a partition that moves: when they were answered, and everything they asked, for the checker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use veena_loadtest_checker::{Digest, How, Label, Op, Outcome, Sent, Settled};

use super::topic;
use crate::api::{Client, outcome_of};
use crate::bench::loaded::MESSAGE_BYTES;
use crate::bench::server::TOPIC;
use crate::chance::Chance;
use crate::http::RequestBytes;
use crate::payload::{self, Shape};
use crate::recorder::Recorder;
use crate::workload::{lease, topic_key};

/// How long a client rests after each thing it got done.
const REST: Duration = Duration::from_millis(5);
/// Who was refused for now asks again as good as at once, and leaves the processors to the nodes meanwhile.
const AGAIN: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_millis(500);
/// How many messages a consumer takes at once when it is to be done with them.
const TAKEN_AT_ONCE: usize = 100;
/// How long a lease is held that is held across a move: much longer than nobody serves the partition, and so short that what others ack
/// meanwhile stays below what may be acked ahead of it.
const HOLD: Duration = Duration::from_secs(1);
const HELD_AT_ONCE: usize = 20;

/// A payload of random bytes behind its label, which no codec makes smaller.
pub(super) fn random(label: Label, bytes: usize) -> Vec<u8> {
    let mut payload = payload::make(label, Shape::Binary, 0);
    let mut chance = Chance::seeded(label.0);
    while payload.len() < bytes {
        payload.extend_from_slice(&chance.next_u64().to_le_bytes());
    }
    payload.truncate(bytes);
    payload
}

/// When clients got something done, and which.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<Vec<(u32, Instant)>>);

impl Answers {
    fn came(&self, client: u32) {
        self.0.lock().push((client, Instant::now()));
    }

    /// The longest time between `from` and `until` in which no client got anything done.
    pub(super) fn gap(&self, from: Instant, until: Instant) -> Duration {
        longest(self.0.lock().iter().map(|(_, at)| *at), from, until)
    }

    /// The longest time in which one client got nothing done, though it wanted to.
    pub(super) fn gap_of_one(&self, from: Instant, until: Instant) -> Duration {
        let all = self.0.lock();
        let mut clients: Vec<u32> = all.iter().map(|(client, _)| *client).collect();
        clients.sort_unstable();
        clients.dedup();
        let gap = |of: u32| longest(all.iter().filter(|(client, _)| *client == of).map(|(_, at)| *at), from, until);
        clients.into_iter().map(gap).max().unwrap_or(until - from)
    }
}

fn longest(times: impl Iterator<Item = Instant>, from: Instant, until: Instant) -> Duration {
    let (mut last, mut longest) = (from, Duration::ZERO);
    for at in times.filter(|at| (from..=until).contains(at)).chain([until]) {
        longest = longest.max(at.duration_since(last));
        last = at;
    }
    longest
}

/// What clients got done, and what went wrong.
#[derive(Debug)]
pub(super) struct Load {
    pub recorder: Arc<Recorder>,
    pub produced: Answers,
    pub consumed: Answers,
    pub settled: Answers,
    /// Refused for now without effect: as often as it was asked again.
    pub refused: AtomicU64,
    /// Not answered, or answered in a way that leaves open whether it was done.
    pub uncertain: AtomicU64,
    /// Settles that were answered otherwise than 204.
    pub leases_lost: AtomicU64,
    pub first_error: Mutex<Option<String>>,
    /// Leases that were held for a while: when they were taken, and acked.
    held: Mutex<Vec<(Instant, Instant)>>,
    is_over: AtomicBool,
    is_hurried: AtomicBool,
}

impl Load {
    pub(super) fn new(recorder: &Arc<Recorder>) -> Arc<Self> {
        Arc::new(Self::empty(recorder))
    }

    fn empty(recorder: &Arc<Recorder>) -> Self {
        Self {
            recorder: recorder.clone(),
            produced: Answers::default(),
            consumed: Answers::default(),
            settled: Answers::default(),
            refused: AtomicU64::new(0),
            uncertain: AtomicU64::new(0),
            leases_lost: AtomicU64::new(0),
            first_error: Mutex::new(None),
            held: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_hurried: AtomicBool::new(false),
        }
    }

    /// For other clients, with what has gone wrong so far.
    pub(super) fn renewed(before: &Self) -> Arc<Self> {
        let mut new = Self::empty(&before.recorder);
        let count = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
        new.refused = count(&before.refused);
        new.uncertain = count(&before.uncertain);
        new.leases_lost = count(&before.leases_lost);
        new.first_error = Mutex::new(before.first_error.lock().clone());
        Arc::new(new)
    }

    /// Tells the clients to end.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Tells consumers to be done with all there is.
    pub(super) fn hurry(&self) {
        self.is_hurried.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, counter: &AtomicU64, what: impl FnOnce() -> String) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.first_error.lock().get_or_insert_with(what);
    }

    /// Sends one message after the other, each answered once it is committed; one that was certainly not taken is sent again.
    pub(super) async fn produce(self: Arc<Self>, mut client: Client) {
        let number = self.recorder.new_client();
        let target = format!("/v1/topics/{TOPIC}/produce?wait_for=commit");
        let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
        let mut made = None;
        while !self.is_over() {
            let (label, payload) = made.take().unwrap_or_else(|| {
                let label = self.recorder.new_label();
                (label, random(label, MESSAGE_BYTES))
            });
            let sent = Sent { topic: topic_key(TOPIC), label, key: None, digest: Digest::of(&payload), once: false };
            let opened = self.recorder.open(client.node(), number, Op::Produce(sent));
            let answered = client.call(&RequestBytes::new("POST", &target, &headers, &payload)).await;
            let outcome = answered.as_ref().map_or_else(outcome_of, crate::api::Reply::outcome);
            self.recorder.close(opened, outcome);
            match outcome {
                Outcome::Ok => {
                    self.produced.came(number);
                    tokio::time::sleep(REST).await;
                }
                Outcome::Fail => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    made = Some((label, payload));
                    tokio::time::sleep(AGAIN).await;
                }
                Outcome::Unknown => self.note(&self.uncertain, || format!("produce: {answered:?}")),
            }
        }
    }

    /// Takes messages and acks them.
    pub(super) async fn consume(self: Arc<Self>, mut client: Client) {
        let (number, topic) = (self.recorder.new_client(), topic());
        while !self.is_over() {
            let is_hurried = self.is_hurried.load(Ordering::Relaxed);
            let most = if is_hurried { TAKEN_AT_ONCE } else { 1 };
            let Some(messages) = lease(&mut client, &self.recorder, number, &topic, WAIT, most).await else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            if !messages.is_empty() {
                self.consumed.came(number);
            }
            for handle in messages.iter().filter_map(|message| message.handle.as_deref()) {
                self.settle(&mut client, number, handle, How::Ack).await;
            }
            if !is_hurried {
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// Takes messages, holds them for a while, some of them extended meanwhile, and acks them.
    pub(super) async fn hold(self: Arc<Self>, mut client: Client) {
        let (number, topic) = (self.recorder.new_client(), topic());
        while !self.is_over() {
            let Some(messages) = lease(&mut client, &self.recorder, number, &topic, WAIT, HELD_AT_ONCE).await else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let (taken, handles) = (Instant::now(), messages.into_iter().filter_map(|message| message.handle).collect::<Vec<_>>());
            tokio::time::sleep(HOLD / 2).await;
            for handle in handles.iter().step_by(2) {
                self.settle(&mut client, number, handle, How::Extend).await;
            }
            tokio::time::sleep(HOLD / 2).await;
            for handle in &handles {
                self.settle(&mut client, number, handle, How::Ack).await;
                self.held.lock().push((taken, Instant::now()));
            }
        }
    }

    /// How many leases were taken before `from` and acked after `until`.
    pub(super) fn held_over(&self, from: Instant, until: Instant) -> usize {
        self.held.lock().iter().filter(|(taken, acked)| *taken < from && *acked > until).count()
    }

    /// Settles one lease, again as long as that was certainly not done. Anything but 204 in the end is a lost lease.
    async fn settle(&self, client: &mut Client, number: u32, handle: &str, how: How) {
        loop {
            let settled = Settled { topic: topic_key(TOPIC), handle: handle.into(), how };
            let opened = self.recorder.open(client.node(), number, Op::Settle(settled));
            let answered = client.settle(TOPIC, handle, how).await;
            let outcome = answered.as_ref().map_or_else(outcome_of, crate::api::Reply::outcome);
            self.recorder.close(opened, outcome);
            match answered {
                Ok(reply) if reply.status == 204 => return self.settled.came(number),
                Ok(reply) if matches!(reply.status, 429 | 503) && outcome == Outcome::Fail => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(AGAIN).await;
                }
                answered => return self.note(&self.leases_lost, || format!("{how:?}: {answered:?}")),
            }
        }
    }
}

/// Fills the topic with as many messages of `bytes` bytes, in batches, through all these clients at once.
pub(super) async fn fill(recorder: &Arc<Recorder>, clients: Vec<Client>, messages: u64, bytes: usize) -> anyhow::Result<()> {
    const BATCH: u64 = 100;
    let left = Arc::new(AtomicU64::new(messages.div_ceil(BATCH)));
    let mut lanes = JoinSet::new();
    for mut client in clients {
        let (recorder, left) = (recorder.clone(), left.clone());
        lanes.spawn(async move {
            let number = recorder.new_client();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                let labels: Vec<Label> = (0..BATCH).map(|_| recorder.new_label()).collect();
                let payloads: Vec<Vec<u8>> = labels.iter().map(|label| random(*label, bytes)).collect();
                let entries: Vec<(Option<&str>, &[u8])> = payloads.iter().map(|payload| (None, payload.as_slice())).collect();
                loop {
                    let open = |(label, payload): (&Label, &Vec<u8>)| {
                        let sent = Sent { topic: topic_key(TOPIC), label: *label, key: None, digest: Digest::of(payload), once: false };
                        recorder.open(client.node(), number, Op::Produce(sent))
                    };
                    let opened: Vec<_> = labels.iter().zip(&payloads).map(open).collect();
                    let reply = client.produce_batch(TOPIC, &entries).await?;
                    opened.into_iter().for_each(|one| recorder.close(one, reply.outcome()));
                    match reply.outcome() {
                        Outcome::Ok => break,
                        // The node is behind.
                        Outcome::Fail if matches!(reply.status, 429 | 503) => tokio::time::sleep(4 * REST).await,
                        _ => anyhow::bail!("a batch was answered {}: {}", reply.status, String::from_utf8_lossy(&reply.body)),
                    }
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = lanes.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_the_longest_time_without_an_answer_and_begins_and_ends_with_what_is_looked_at() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let answers =
            Answers(Mutex::new([(1, 0), (1, 10), (2, 15), (2, 45), (1, 50), (2, 99)].map(|(client, ms)| (client, at(ms))).into()));
        assert_eq!(answers.gap(at(5), at(60)), Duration::from_millis(30));
        assert_eq!(answers.gap_of_one(at(5), at(60)), Duration::from_millis(40));
        assert_eq!(answers.gap(at(50), at(90)), Duration::from_millis(40), "nothing came until the end");
        assert_eq!(Answers::default().gap_of_one(at(0), at(7)), Duration::from_millis(7));
    }

    #[test]
    fn a_payload_carries_its_label_and_is_made_of_random_bytes() {
        let payload = random(Label(0x1234), 4096);
        assert_eq!((payload.len(), payload::label_of(&payload)), (4096, Some(Label(0x1234))));
        assert_ne!(payload[100..200], payload[200..300]);
        assert_ne!(random(Label(0x1235), 4096)[100..], payload[100..]);
    }
}
