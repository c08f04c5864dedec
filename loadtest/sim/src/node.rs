//! One life of the node: the real engine and the real metastore, wired as the program wires them, on the simulated world.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;
use veena_broker::Broker;
use veena_broker::ports::BrokerPorts;
use veena_broker::tasks::Tasks;
use veena_contract::records::Attachment;
use veena_contract::{
    AttachEpoch, CatalogWriter, Command, Entropy, LeaderPort, NodeDirectory, Ownership, OwnershipEpoch, Reroute, StreamId, TopicId,
    TopicRecord, WallClock, Witness, placement,
};
use veena_loadtest_checker::TopicKey;
use veena_metastore::{Metastore, MetastoreConfig, Runtime};
use veena_storage::disk::Disk;
use veena_storage::io::Io;

use crate::chance::SeededEntropy;
use crate::clock::SimClock;
use crate::disk::{Watch, WatchedDisk};
use crate::plan::{Role, TopicPlan};
use crate::world::{World, key_of, name, tenant};

const START_WITHIN: Duration = Duration::from_secs(120);
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// A running node. Clones are handles to the same one.
#[derive(Clone)]
pub struct Node {
    /// The engine.
    pub broker: Broker,
    /// The catalog.
    pub metastore: Metastore,
    pub(crate) tasks: Tasks,
    pub(crate) entropy: Arc<SeededEntropy>,
    pub(crate) clock: Arc<SimClock>,
}

impl Node {
    /// Starts the node on the disk as it is.
    ///
    /// # Errors
    /// Why it did not start.
    pub async fn start(world: &World, watch: &Arc<Watch>) -> Result<Self, String> {
        match timeout(START_WITHIN, Self::start_now(world, watch)).await {
            Ok(started) => started,
            Err(_) => Err("the node did not start in two minutes".to_owned()),
        }
    }

    async fn start_now(world: &World, watch: &Arc<Watch>) -> Result<Self, String> {
        let machine = world.machine();
        let disk: Arc<dyn Disk> = Arc::new(WatchedDisk::new(machine.disk.lock().clone(), Arc::clone(watch)));
        let config = machine.config.clone();
        veena_storage::disk::create_dir_durably(disk.as_ref(), &config.data_dir).map_err(|error| error.to_string())?;
        let entropy: Arc<dyn Entropy> = machine.entropy.clone();
        let settings = MetastoreConfig::new(machine.id());
        let metastore = Metastore::start(settings, machine.catalog_log.clone(), Runtime::new(entropy.clone()))
            .await
            .map_err(|error| error.to_string())?;
        let tasks = Tasks::new(Handle::current());
        let ports = BrokerPorts {
            disk,
            write_io: Io::inline(),
            read_io: Io::inline(),
            catalog: Arc::new(metastore.clone()),
            writer: Arc::new(metastore.clone()),
            witness: Witness::new(Arc::new(metastore.clone()) as Arc<dyn LeaderPort>),
            clock: machine.clock.clone(),
            entropy,
            tasks: tasks.clone(),
            peers: None,
        };
        let broker = Broker::open(config, ports).await.map_err(|error| error.to_string())?;
        Ok(Self { broker, metastore, tasks, entropy: Arc::clone(&machine.entropy), clock: Arc::clone(&machine.clock) })
    }

    /// A clean stop.
    ///
    /// # Errors
    /// It did not end in time.
    pub async fn stop(&self) -> Result<(), String> {
        let both = async {
            self.broker.stop().await;
            self.metastore.shutdown().await;
        };
        timeout(STOP_WITHIN, both).await.map_err(|_| "a clean stop did not end in a minute".to_owned())
    }

    /// The living topic of this name.
    #[must_use]
    pub fn topic(&self, text: &str) -> Option<Arc<TopicRecord>> {
        self.broker.catalog().topic(&tenant(), &name(text)).cloned()
    }

    /// Creates what the plan has and the catalog has not.
    ///
    /// # Errors
    /// A topic cannot be created now.
    pub async fn create_topics(&self, world: &World) -> Result<(), String> {
        for plan in world.plan.topics.iter().filter(|plan| plan.role != Role::Late) {
            if self.topic(plan.name).is_none() {
                self.create_topic(world, plan).await?;
            }
        }
        Ok(())
    }

    /// Creates one topic, as a child if it is one.
    ///
    /// # Errors
    /// It cannot be created now.
    pub async fn create_topic(&self, world: &World, plan: &TopicPlan) -> Result<(), String> {
        let id = TopicId(self.entropy.next_u64().max(1));
        let topic = TopicRecord {
            tenant: tenant(),
            name: name(plan.name),
            id,
            partitions: plan.partitions,
            earlier_partitions: Vec::new(),
            retention_ms: plan.retention_ms,
            retention_bytes: 0,
            visibility_timeout_ms: plan.visibility_ms,
            max_in_flight_per_partition: plan.in_flight_max,
            max_acked_ahead_per_partition: plan.acked_ahead_max,
            dedup_window_ms: crate::once::WINDOW_MS,
            reroute: if plan.is_rerouted { Reroute::Auto } else { Reroute::Never },
            created_at_ms: self.clock.now_ms(),
            owner: None,
            parent: None,
            children: Vec::new(),
            schemas: Vec::new(),
            owners: self.owners(id, plan.partitions),
            revision: 0,
        };
        let attach = match plan.parent {
            None => None,
            Some((parent, delay_ms)) => Some(self.attachment(parent, delay_ms).await?),
        };
        if plan.is_rerouted && world.machines.len() > 1 {
            world.unordered.lock().insert(key_of(&topic));
        }
        if plan.role != Role::Steady {
            world.excused.lock().insert(key_of(&topic));
        }
        let created = self.metastore.propose(Command::CreateTopic { topic, attach }).await;
        created.map(drop).map_err(|error| error.to_string())
    }

    /// Owners for the partitions of a topic; a node alone names nobody.
    fn owners(&self, topic: TopicId, count: u32) -> Vec<Ownership> {
        let members = self.metastore.nodes();
        if members.len() < 2 {
            return Vec::new();
        }
        let owners = placement::owners_of_added(&members, topic, &[], &[], count);
        owners.into_iter().map(|node| Ownership::new(node, OwnershipEpoch::default())).collect()
    }

    async fn attachment(&self, parent: &str, delay_ms: u64) -> Result<Attachment, String> {
        let parent_id = self.topic(parent).ok_or("the parent is not there")?.id;
        let attach_offsets = self.broker.attach_offsets(&tenant(), &name(parent)).await.map_err(|error| error.to_string())?;
        let (epoch, stream) = (AttachEpoch(self.entropy.next_u64()), StreamId(self.entropy.next_u128()));
        Ok(Attachment { parent: name(parent), parent_id, epoch, stream, delay_ms, attach_offsets })
    }

    /// Deletes the living topic of this name.
    ///
    /// # Errors
    /// It was not deleted, or may have been.
    pub async fn delete_topic(&self, world: &World, text: &str) -> Result<(), String> {
        let record = self.topic(text).ok_or("it is not there")?;
        world.excused.lock().insert(key_of(&record));
        let command = Command::DeleteTopic { tenant: tenant(), name: name(text), id: record.id };
        self.metastore.propose(command).await.map(drop).map_err(|error| error.to_string())
    }

    /// Every link of the catalog, as the checker calls its ends.
    #[must_use]
    pub fn links(&self) -> Vec<(TopicKey, TopicKey)> {
        let view = self.broker.catalog();
        let ends = |parent: &Arc<TopicRecord>| {
            let children = parent.children.iter().filter_map(|link| view.topic_by_id(link.child_id));
            children.map(|child| (key_of(parent), key_of(child))).collect::<Vec<_>>()
        };
        view.topics.values().flat_map(ends).collect()
    }

    /// Counters that must stay at zero as long as no bit of the disk is flipped.
    pub fn judge_counters(&self, world: &World, watch: &Watch) {
        let metrics = self.broker.metrics();
        world.tally.add_many(crate::tally::Kind::Retention, metrics.segments_retired.get());
        world.tally.add_many(crate::tally::Kind::Parked, metrics.records_parked.get());
        world.tally.add_many(crate::tally::Kind::Rerouted, metrics.records_rerouted.get());
        let mut wrong = vec![("streams_forked", metrics.streams_forked.get()), ("stream_gaps", metrics.stream_gaps.get())];
        if !watch.has_hurt_reads() {
            wrong.push(("damage_found", metrics.damage_found.get()));
            wrong.push(("messages_corrupt_skipped", metrics.messages_corrupt_skipped.get()));
            wrong.push(("fanout_records_dropped", metrics.fanout_records_dropped.get()));
        }
        for (counter, value) in wrong.into_iter().filter(|(_, value)| *value > 0) {
            world.complain(format!("the node counts {counter} {value}, and nothing was damaged"));
        }
    }

    /// The token of a node that nobody stopped is cancelled by a panic alone.
    pub fn judge_tasks(&self, world: &World) {
        if self.tasks.token().is_cancelled() {
            world.complain("a task of the node has panicked".to_owned());
        }
    }
}
