//! One consumer that keeps what it has: it extends leases again and again, at any node, and acks in the end. Whatever happens to the partition
//! meanwhile, the handles stay good.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::How;

use super::{Plan, lease, settle};
use crate::api::Client;
use crate::chance::Chance;
use crate::recorder::Recorder;

const WAIT: Duration = Duration::from_millis(300);
const MESSAGES_MAX: u64 = 6;
/// How long messages are kept at most: some leases long.
const KEPT_MS_MAX: u64 = 10_000;
/// How often a lease is extended while it lives.
const EXTENDS_PER_LEASE: u32 = 3;

pub(super) struct Keeper {
    plan: Plan,
    recorder: Arc<Recorder>,
    chance: Chance,
    number: u32,
    client: Client,
}

impl Keeper {
    pub(super) fn new(plan: &Plan, recorder: &Arc<Recorder>, chance: Chance) -> Self {
        let number = recorder.new_client();
        Self { plan: plan.clone(), recorder: recorder.clone(), chance, number, client: plan.client(number) }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let topics: Vec<_> = self.plan.all_topics().collect();
            let at = self.chance.below(u64::try_from(topics.len()).unwrap_or(1));
            let topic = topics[usize::try_from(at).unwrap_or(0)].clone();
            let messages_max = usize::try_from(2 + self.chance.below(MESSAGES_MAX - 1)).unwrap_or(2);
            let Some(messages) = lease(&mut self.client, &self.recorder, self.number, &topic, WAIT, messages_max).await else {
                tokio::time::sleep(WAIT).await;
                continue;
            };
            let until = Instant::now() + Duration::from_millis(self.chance.below(KEPT_MS_MAX));
            let handles: Vec<String> = messages.into_iter().filter_map(|message| message.handle).collect();
            while !handles.is_empty() && Instant::now() < until && !stop.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(topic.visibility_ms) / EXTENDS_PER_LEASE).await;
                for handle in &handles {
                    self.client.turn();
                    settle(&mut self.client, &self.recorder, self.number, &topic.name, handle, How::Extend).await;
                }
            }
            for handle in &handles {
                settle(&mut self.client, &self.recorder, self.number, &topic.name, handle, How::Ack).await;
            }
        }
    }
}
