//! A node's engine on an in-memory disk, with a catalog that is a plain value: enough to run every path without a network or a file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::watch;
use veena_broker::Broker;
use veena_broker::message::{ConsumeRequest, Delivery, NewMessage, Settle};
use veena_broker::ports::{BrokerConfig, BrokerPorts, Peers};
use veena_broker::tasks::Tasks;
use veena_contract::{
    AttachEpoch, BoxFuture, Catalog, CatalogView, CatalogWriter, ChildLink, Command, CommandError, DrainMark, Entropy, Frozen, Key,
    LeaderPort, LogIndex, Move, Offset, Origin, Ownership, ParentLink, PartitionIndex, ProposeError, Quota, QuotaRecord, Reroute, StreamId,
    TenantId, TenantRecord, TopicId, TopicName, TopicRecord, WallClock, Witness,
};
use veena_storage::disk::Disk;
use veena_storage::io::Io;

/// What becomes of a proposed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// It is made, or refused.
    Made,
    /// It certainly is not made.
    NeverSent,
    /// It is made, and nobody hears of it.
    MadeUnheard,
    /// It is on its way for long, and nobody hears of it.
    Late,
}

/// A catalog that tests change by hand.
pub struct FakeCatalog {
    view: RwLock<Arc<CatalogView>>,
    version: watch::Sender<u64>,
    is_leaderless: AtomicBool,
    asked: AtomicU64,
    /// What the node sees while it is behind.
    behind: RwLock<Option<Arc<CatalogView>>>,
    /// What becomes of the next proposals.
    proposals: Mutex<VecDeque<Proposal>>,
    /// Proposals that were lost on the way, and may still come.
    late: Mutex<Vec<Command>>,
    /// Who knows first; then this is what one node sees of it.
    leader: Option<Arc<Self>>,
    /// The node that this is seen by stands still, and sees nothing new.
    stands_still: watch::Sender<bool>,
    /// What happens while somebody looks: after the view was taken, and before they have it.
    while_looking: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl FakeCatalog {
    pub fn new() -> Arc<Self> {
        let is_leaderless = AtomicBool::new(false);
        let (view, behind) = (RwLock::default(), RwLock::default());
        let (proposals, late, while_looking) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (version, stands_still) = (watch::channel(0).0, watch::channel(false).0);
        let (leader, asked) = (None, AtomicU64::new(0));
        Arc::new(Self { view, version, is_leaderless, asked, behind, proposals, late, leader, stands_still, while_looking })
    }

    /// What one node sees of this catalog: the same, up to so many milliseconds later. At first it sees everything, as a node that has come
    /// into its cluster does.
    pub fn follow(self: &Arc<Self>, entropy: Arc<Seeded>, lag_ms_max: u64) -> Arc<Self> {
        let mut follower = Arc::into_inner(Self::new()).expect("just made");
        follower.leader = Some(Arc::clone(self));
        *follower.view.get_mut() = Arc::clone(&self.view.read());
        follower.version.send_replace(self.view.read().applied.0);
        let follower = Arc::new(follower);
        let (weak, mut newer) = (Arc::downgrade(&follower), self.version.subscribe());
        tokio::spawn(async move {
            while newer.changed().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(entropy.next_u64() % lag_ms_max.max(1))).await;
                let Some(follower) = weak.upgrade() else { return };
                let Some(leader) = &follower.leader else { return };
                let mut stands_still = follower.stands_still.subscribe();
                let Ok(_) = stands_still.wait_for(|stands_still| !*stands_still).await else { return };
                let _seen = newer.borrow_and_update();
                let view = Arc::clone(&leader.view.read());
                let applied = view.applied.0;
                *follower.view.write() = view;
                follower.version.send_replace(applied);
            }
        });
        follower
    }

    /// The next proposals fare so, in this order.
    pub fn next_proposals(&self, fates: impl IntoIterator<Item = Proposal>) {
        self.proposals.lock().extend(fates);
    }

    /// Proposals fare well again.
    pub fn forget_proposals(&self) {
        self.proposals.lock().clear();
    }

    /// What was lost on the way comes after all.
    pub fn deliver_late(&self) {
        for command in std::mem::take(&mut *self.late.lock()) {
            let _refused = self.apply(command);
        }
    }

    /// Changes who owns a partition, by the rules of the metastore.
    pub fn apply(&self, command: Command) -> Result<(), CommandError> {
        let at = match &command {
            Command::BeginMove { at, .. }
            | Command::FreezePartition { at, .. }
            | Command::FlipOwner { at, .. }
            | Command::AbortMove { at, .. } => at.clone(),
            other => panic!("tests change the catalog by hand: {other:?}"),
        };
        let record = self.view.read().topic_by_id(at.topic).cloned().ok_or(CommandError::TopicNotFound)?;
        let mut record = TopicRecord::clone(&record);
        let owner = &mut record.owners[usize::try_from(at.index.0).expect("small")];
        let of = |owner: &Ownership, token| owner.moving.as_ref().is_some_and(|moving| moving.token == token);
        let is_so = owner.epoch == at.epoch
            && match &command {
                Command::BeginMove { to, .. } => owner.moving.is_none() && owner.node != *to,
                Command::FreezePartition { token, end, .. } => {
                    let frozen = owner.moving.as_ref().and_then(|moving| moving.frozen);
                    of(owner, *token) && frozen.is_none_or(|frozen| frozen.end == *end)
                }
                Command::FlipOwner { token, .. } => of(owner, *token) && owner.is_frozen(),
                Command::AbortMove { token, .. } => of(owner, *token),
                _ => false,
            };
        if !is_so {
            return Err(CommandError::OwnershipChanged);
        }
        match command {
            Command::BeginMove { to, token, .. } => owner.moving = Some(Move { to, token, frozen: None }),
            Command::FreezePartition { end, .. } => {
                if let Some(moving) = &mut owner.moving {
                    moving.frozen = Some(Frozen { end });
                }
            }
            Command::FlipOwner { .. } => {
                let to = owner.moving.take().expect("a move").to;
                *owner = Ownership::new(to, owner.epoch.next());
            }
            _ => owner.moving = None,
        }
        record.revision += 1;
        self.put(record);
        Ok(())
    }

    /// From here on the node sees this; the leader knows better.
    pub fn fall_behind(&self, view: Arc<CatalogView>) {
        self.version.send_replace(view.applied.0);
        *self.behind.write() = Some(view);
    }

    /// Lets this happen the next time somebody looks, once.
    pub fn while_looking(&self, act: impl FnOnce() + Send + 'static) {
        *self.while_looking.lock() = Some(Box::new(act));
    }

    /// The node sees everything again.
    pub fn catch_up(&self) {
        *self.behind.write() = None;
        self.version.send_replace(self.view.read().applied.0);
    }

    /// The node that this is seen by stands still: it sees nothing new, until it goes on, and a little longer.
    pub fn stand_still(&self, stands_still: bool) {
        self.stands_still.send_replace(stands_still);
    }

    /// How often the leader was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// While there is no leader, nothing can be confirmed.
    pub fn set_leaderless(&self, is_leaderless: bool) {
        self.is_leaderless.store(is_leaderless, Ordering::Relaxed);
    }

    fn change(&self, change: impl FnOnce(&mut CatalogView)) {
        let mut view = self.view.read().as_ref().clone();
        change(&mut view);
        view.applied = view.applied.next();
        let applied = view.applied.0;
        *self.view.write() = Arc::new(view);
        self.version.send_replace(applied);
    }

    pub fn put(&self, record: TopicRecord) {
        let record = Arc::new(record);
        self.change(|view| {
            view.topics.insert((record.tenant.clone(), record.name.clone()), Arc::clone(&record));
            view.by_id.insert(record.id, record);
        });
    }

    /// There is this tenant.
    pub fn put_tenant(&self, tenant: &TenantId) {
        let record = TenantRecord { tenant: tenant.clone(), revision: 1, ..TenantRecord::of_default() };
        self.change(|view| drop(view.tenants.insert(tenant.clone(), Arc::new(record))));
    }

    /// The tenant, or a topic of it, has these limits.
    pub fn limit(&self, topic: Option<&str>, quota: Quota) {
        let topic = topic.map(name);
        self.change(|view| {
            let record = QuotaRecord { tenant: tenant(), topic: topic.clone(), quota, revision: view.applied.0 };
            view.quotas.insert(record);
        });
    }

    /// It has none, and never had.
    pub fn unlimit(&self, topic: Option<&str>) {
        self.change(|view| view.quotas.remove(&tenant(), topic.map(name).as_ref()));
    }

    /// A node is being taken out of the cluster, or is not.
    pub fn drain(&self, node: &str, draining: bool) {
        let node = veena_contract::NodeId(Arc::from(node));
        self.change(|view| {
            if draining {
                // Each time under a mark of its own.
                view.marks.insert(node.clone(), DrainMark(view.applied.0.into()));
                view.draining.insert(node);
            } else {
                view.draining.remove(&node);
                view.marks.remove(&node);
            }
        });
    }

    pub fn remove(&self, id: TopicId) {
        self.change(|view| {
            if let Some(record) = view.by_id.remove(&id) {
                view.topics.remove(&(record.tenant.clone(), record.name.clone()));
            }
        });
    }
}

impl Catalog for FakeCatalog {
    fn view(&self) -> Arc<CatalogView> {
        let behind = self.behind.read().clone();
        let view = behind.unwrap_or_else(|| Arc::clone(&self.view.read()));
        let act = self.while_looking.lock().take();
        if let Some(act) = act {
            act();
        }
        view
    }

    fn changed(&self, seen: LogIndex) -> BoxFuture<'_, ()> {
        let mut version = self.version.subscribe();
        Box::pin(async move { version.wait_for(|applied| *applied > seen.0).await.map(drop).expect("invariant: the sender lives here") })
    }
}

impl CatalogWriter for FakeCatalog {
    #[expect(clippy::only_used_in_recursion, reason = "this catalog knows no users")]
    fn propose_from(&self, origin: Origin, command: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        if let Some(leader) = &self.leader {
            return Box::pin(async move {
                let made = leader.propose_from(origin, command).await;
                // As the answer to a change is given once the node that asked for it has applied it; a refusal too.
                let applied = leader.view.read().applied.0;
                let mut version = self.version.subscribe();
                version.wait_for(|seen| *seen >= applied).await.map(drop).expect("invariant: the sender lives here");
                made
            });
        }
        Box::pin(async move {
            let reason = || "in this test".to_owned();
            match self.proposals.lock().pop_front().unwrap_or(Proposal::Made) {
                Proposal::Made => self.apply(command)?,
                Proposal::NeverSent => return Err(ProposeError::Unavailable { reason: reason() }),
                Proposal::MadeUnheard => {
                    let _refused = self.apply(command);
                    return Err(ProposeError::Uncertain { reason: reason() });
                }
                Proposal::Late => {
                    self.late.lock().push(command);
                    return Err(ProposeError::Uncertain { reason: reason() });
                }
            }
            Ok(Arc::clone(&self.view.read()))
        })
    }
}

impl LeaderPort for FakeCatalog {
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(leader) = &self.leader {
            return leader.confirmed_view();
        }
        Box::pin(async {
            if self.is_leaderless.load(Ordering::Relaxed) {
                return Err(ProposeError::Unavailable { reason: "there is no leader".into() });
            }
            Ok(Arc::clone(&self.view.read()))
        })
    }

    fn not_ready_reason(&self) -> Option<String> {
        None
    }
}

/// A seeded source of randomness (splitmix64).
pub struct Seeded(AtomicU64);

impl Seeded {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(seed)))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Wall time that follows the runtime's paused clock.
pub struct PausedClock(tokio::time::Instant);

impl PausedClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(tokio::time::Instant::now()))
    }
}

impl WallClock for PausedClock {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).expect("short test")
    }
}

pub fn topic(name: &str, id: u64, partitions: u32) -> TopicRecord {
    TopicRecord {
        tenant: TenantId::default_tenant(),
        name: TopicName::parse(name).expect("valid name"),
        id: TopicId(id),
        partitions,
        earlier_partitions: Vec::new(),
        retention_ms: 0,
        retention_bytes: 0,
        visibility_timeout_ms: 30_000,
        max_in_flight_per_partition: 1024,
        max_acked_ahead_per_partition: 1024,
        dedup_window_ms: 0,
        reroute: Reroute::Auto,
        created_at_ms: 0,
        owner: None,
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        owners: Vec::new(),
        revision: 1,
    }
}

/// Links `child` under `parent`, from the beginning.
pub fn link(parent: &mut TopicRecord, child: &mut TopicRecord, delay_ms: u64, attach_offsets: Vec<Offset>) {
    let epoch = AttachEpoch(child.id.0 * 1000 + parent.revision);
    let stream = StreamId(u128::from(epoch.0) << 64);
    parent.children.push(ChildLink { child: child.name.clone(), child_id: child.id, epoch, stream, delay_ms, attach_offsets });
    parent.revision += 1;
    child.parent = Some(ParentLink { parent: parent.name.clone(), parent_id: parent.id, epoch, delay_ms });
    child.revision += 1;
}

/// One life of a node.
pub struct Node {
    pub broker: Broker,
    pub tasks: Tasks,
}

pub fn small_config() -> BrokerConfig {
    let mut config = BrokerConfig::new("/data".into());
    config.wal.segment_bytes = 256 * 1024;
    config.wal.rotate_bytes_min = 32 * 1024;
    config.partition.segment_bytes_max = 64 * 1024;
    config.disk_reserve_bytes = 0;
    config
}

impl Node {
    pub async fn start(disk: Arc<dyn Disk>, catalog: &Arc<FakeCatalog>, seed: u64) -> Self {
        Self::start_with(disk, catalog, seed, small_config()).await
    }

    pub async fn start_with(disk: Arc<dyn Disk>, catalog: &Arc<FakeCatalog>, seed: u64, config: BrokerConfig) -> Self {
        Self::try_start(disk, catalog, seed, config).await.expect("the engine opens")
    }

    /// As `start_with`, for starts that may be refused.
    pub async fn try_start(
        disk: Arc<dyn Disk>,
        catalog: &Arc<FakeCatalog>,
        seed: u64,
        config: BrokerConfig,
    ) -> Result<Self, veena_broker::OpenError> {
        Self::try_start_on(disk, catalog, seed, config, Io::inline()).await
    }

    /// As `start_with`, with file calls on threads, as in a real node: one that stands still holds up who waits for it alone.
    pub async fn start_on_threads(disk: Arc<dyn Disk>, catalog: &Arc<FakeCatalog>, seed: u64, config: BrokerConfig) -> Self {
        Self::try_start_on(disk, catalog, seed, config, Io::threads(8)).await.expect("the engine opens")
    }

    /// As `start_with`, as one node of several.
    pub async fn start_among(
        disk: Arc<dyn Disk>,
        catalog: &Arc<FakeCatalog>,
        seed: u64,
        config: BrokerConfig,
        io: Io,
        peers: Peers,
    ) -> Self {
        Self::try_open(disk, catalog, seed, config, io, Some(peers)).await.expect("the engine opens")
    }

    /// As `try_start`, with blocking calls on `io`.
    pub async fn try_start_on(
        disk: Arc<dyn Disk>,
        catalog: &Arc<FakeCatalog>,
        seed: u64,
        config: BrokerConfig,
        io: Io,
    ) -> Result<Self, veena_broker::OpenError> {
        Self::try_open(disk, catalog, seed, config, io, None).await
    }

    async fn try_open(
        disk: Arc<dyn Disk>,
        catalog: &Arc<FakeCatalog>,
        seed: u64,
        config: BrokerConfig,
        io: Io,
        peers: Option<Peers>,
    ) -> Result<Self, veena_broker::OpenError> {
        disk.create_dir_all(&config.data_dir).expect("data directory");
        disk.sync_dir("/".as_ref()).expect("its name is durable");
        let tasks = Tasks::new(Handle::current());
        let ports = BrokerPorts {
            disk,
            write_io: io.clone(),
            read_io: io,
            catalog: Arc::clone(catalog) as Arc<dyn Catalog>,
            writer: Arc::clone(catalog) as Arc<dyn CatalogWriter>,
            witness: Witness::new(Arc::clone(catalog) as Arc<dyn LeaderPort>),
            clock: PausedClock::new(),
            entropy: Seeded::new(seed),
            tasks: tasks.clone(),
            peers,
        };
        let broker = Broker::open(config, ports).await?;
        Ok(Self { broker, tasks })
    }

    pub async fn produce(&self, topic: &str, key: Option<&str>, payload: &str) -> bool {
        let key = key.and_then(|key| Key::parse(Bytes::copy_from_slice(key.as_bytes())).expect("short key"));
        let message = NewMessage {
            key,
            partition: None,
            headers: Vec::new(),
            idempotency_key: None,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        };
        self.broker.produce(&tenant(), &name(topic), message).await.is_ok()
    }

    pub async fn consume(&self, topic: &str, wait_ms: u64) -> Option<Delivery> {
        let mut found = self.consume_many(topic, 1, wait_ms).await;
        found.pop()
    }

    pub async fn consume_many(&self, topic: &str, messages_max: usize, wait_ms: u64) -> Vec<Delivery> {
        let request = ConsumeRequest {
            tenant: tenant(),
            topic: name(topic),
            partition: None,
            messages_max,
            bytes_max: 4 * 1024 * 1024,
            wait: Duration::from_millis(wait_ms),
        };
        let deliveries = self.broker.consume(request).await.expect("consume");
        let messages = deliveries.messages().to_vec();
        deliveries.written();
        messages
    }

    pub fn ack(&self, topic: &str, delivery: &Delivery) -> bool {
        self.settle(topic, delivery, Settle::Ack)
    }

    pub fn settle(&self, topic: &str, delivery: &Delivery, how: Settle) -> bool {
        let handle = delivery.lease.expect("a leased delivery").handle;
        let (tenant, topic) = (tenant(), name(topic));
        self.broker.settle(&tenant, &topic, handle, how).now_or_never().expect("a lease of this node is settled at once").is_ok()
    }

    /// Reads and acks until nothing comes for a while; every payload with the number of times it came.
    pub async fn drain(&self, topic: &str) -> BTreeMap<String, usize> {
        let mut seen = BTreeMap::new();
        loop {
            let batch = self.consume_many(topic, 100, 2_000).await;
            if batch.is_empty() {
                return seen;
            }
            for delivery in &batch {
                assert!(self.ack(topic, delivery), "a fresh lease can be acked");
                *seen.entry(text(delivery)).or_insert(0) += 1;
            }
        }
    }
}

pub fn tenant() -> TenantId {
    TenantId::default_tenant()
}

pub fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("valid name")
}

pub fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload.to_vec()).expect("tests send text")
}

/// Every offset of a partition with its payload, read without a lease.
pub async fn replay_all(node: &Node, topic: &str, partition: u32) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    for offset in 0.. {
        match node.broker.replay(&tenant(), &name(topic), PartitionIndex(partition), Offset(offset)).await.expect("replay") {
            Some(delivery) => all.push((offset, text(&delivery))),
            None => break,
        }
    }
    all
}
