//! Clients that behave like clients, with a ledger: everything they ask is written down before it is sent.

mod changer;
mod consumer;
mod drain;
mod keeper;
mod observer;
mod once;
mod producer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::TopicKey;

use crate::api::{Client, NewTopic};
use crate::chance::Chance;
use crate::recorder::Recorder;

pub use changer::Changes;
pub(crate) use consumer::{lease, settle};
pub use drain::drain;

/// A topic that gets what another gets.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// The name of its parent.
    pub parent: String,
    /// The child.
    pub topic: NewTopic,
    /// How much later it gets it.
    pub delay_ms: u64,
}

/// Who does what, how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where: one node, or those of a cluster.
    pub addrs: Vec<SocketAddr>,
    /// The topics that are produced to; created when the workload starts.
    pub topics: Vec<NewTopic>,
    /// Topics that get what their parents get; created when the workload starts.
    pub children: Vec<NewChild>,
    /// How long a client waits for an answer.
    pub patience: Duration,
    /// How many producers; each has a few keys of its own and one request at a time.
    pub producers: u32,
    /// How many producers that send under idempotency keys.
    pub keyed: u32,
    /// How many consumers.
    pub consumers: u32,
    /// How many consumers that keep what they have over several leases.
    pub keepers: u32,
    /// Longest pause of a producer between two requests; zero for none.
    pub pause_max: Duration,
    /// Of 100 messages, how many a consumer hands back.
    pub nack_percent: u64,
    /// Of 100 messages, how many a consumer extends before it acks.
    pub extend_percent: u64,
    /// Of 100 messages, how many a consumer forgets.
    pub forget_percent: u64,
    /// Of 100 consumes, how many are given up while they wait.
    pub leave_percent: u64,
    /// Of 100 produces, how many are batches.
    pub batch_percent: u64,
    /// Decides everything above.
    pub seed: u64,
}

impl Plan {
    /// A mixed load on `topics`.
    #[must_use]
    pub fn mixed(addr: SocketAddr, topics: Vec<NewTopic>, seed: u64) -> Self {
        Self {
            addrs: vec![addr],
            topics,
            children: Vec::new(),
            patience: Duration::from_secs(30),
            producers: 4,
            keyed: 0,
            consumers: 4,
            keepers: 0,
            pause_max: Duration::from_millis(4),
            nack_percent: 4,
            extend_percent: 4,
            forget_percent: 2,
            leave_percent: 5,
            batch_percent: 10,
            seed,
        }
    }

    /// All topics that can be read.
    pub fn all_topics(&self) -> impl Iterator<Item = &NewTopic> {
        self.topics.iter().chain(self.children.iter().map(|child| &child.topic))
    }

    /// The client number `number`: clients are spread over the nodes.
    #[must_use]
    pub fn client(&self, number: u32) -> Client {
        Client::among(&self.addrs, usize::try_from(number).unwrap_or(0)).with_timeout(self.patience)
    }

    /// The topics as the checker names them.
    #[must_use]
    pub fn topic_keys(&self) -> Vec<TopicKey> {
        self.topics.iter().map(|topic| topic_key(&topic.name)).collect()
    }
}

/// A topic of the tenant `default`.
#[must_use]
pub fn topic_key(topic: &str) -> TopicKey {
    TopicKey::new("default", topic)
}

/// Running clients.
#[derive(Debug)]
pub struct Workload {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    recorder: Arc<Recorder>,
}

impl Workload {
    /// Creates the topics and starts the clients.
    ///
    /// # Errors
    /// A topic cannot be created.
    pub async fn start(plan: &Plan, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        let mut client = plan.client(0);
        for topic in plan.all_topics() {
            client.create_topic(topic).await?;
        }
        for child in &plan.children {
            client.attach(&child.parent, &child.topic.name, child.delay_ms).await?;
        }
        let mut chance = Chance::seeded(plan.seed);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for _ in 0..plan.producers {
            let producer = producer::Producer::new(plan, recorder, chance.fork());
            tasks.spawn(producer.run(stop.clone()));
        }
        for _ in 0..plan.consumers {
            let consumer = consumer::Consumer::new(plan, recorder, chance.fork());
            tasks.spawn(consumer.run(stop.clone()));
        }
        for _ in 0..plan.keyed {
            let producer = once::OnceProducer::new(plan, recorder, chance.fork());
            tasks.spawn(producer.run(stop.clone()));
        }
        for _ in 0..plan.keepers {
            let keeper = keeper::Keeper::new(plan, recorder, chance.fork());
            tasks.spawn(keeper.run(stop.clone()));
        }
        tasks.spawn(observer::run(plan.clone(), recorder.clone(), stop.clone()));
        Ok(Self { stop, tasks, recorder: recorder.clone() })
    }

    /// Lets every client finish what it is at.
    ///
    /// # Errors
    /// A client broke: an answer was not what the contract promises.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended?;
        }
        let complaints = self.recorder.complaints();
        if complaints.is_empty() { Ok(()) } else { anyhow::bail!("answers outside the contract: {}", complaints.join("; ")) }
    }
}
