//! Opening the parts, each on top of the one before: directory, metadata log, metastore, engine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use veena_api::{ApiConfig, ApiParts, ApiState, TopicDefaults};
use veena_auth::{Authenticator, ServerTls};
use veena_broker::Broker;
use veena_broker::ports::{BrokerConfig, BrokerPorts, FanoutConfig};
use veena_broker::tasks::{OnExit, Tasks};
use veena_consensus::LogStore;
use veena_contract::{Catalog, Entropy, LogIndex, NodeId, Ownership, PartitionIndex, TopicRecord, WallClock, Witness, limits};
use veena_metastore::{Metastore, MetastoreConfig, Runtime, StartError};
use veena_storage::disk::Disk;
use veena_storage::io::Io;
use veena_storage::partition::Codec;

use crate::ballast;
use crate::cluster::{self, EnterError, PeerPlane, PeerPort};
use crate::config::{CodecChoice, Config};
use crate::data_dir::{DataDir, DataDirError, keep_reached};
use crate::room::RoomWatch;
use crate::root_admin::RootAdmin;
use crate::system::{OsEntropy, SystemClock};
use crate::tenant_end::TenantEnd;

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The metadata log cannot be opened.
    #[error("the metadata log {} cannot be opened", path.display())]
    MetadataLog {
        /// Where it is.
        path: PathBuf,
        /// What its store says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The metadata log was opened, and its name cannot be made durable.
    #[error("cannot sync {}", path.display())]
    SyncDirectory {
        /// Which directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The metastore.
    #[error("the metastore cannot start")]
    Metastore(#[from] StartError),
    /// The cluster.
    #[error(transparent)]
    Cluster(#[from] EnterError),
    /// Nothing can be made up that nobody guesses.
    #[error(transparent)]
    Randomness(#[from] veena_auth::NoRandomness),
    /// The engine.
    #[error("the engine cannot start")]
    Engine(#[from] veena_broker::OpenError),
    /// It was told to stop before it had started.
    #[error("the node was stopped while it started")]
    Stopped,
}

/// The running parts of a node, in the order in which they were opened. They end in reverse.
pub struct NodeParts {
    /// The data directory and its lock; the last thing to go.
    pub data: DataDir,
    /// The metastore.
    pub metastore: Metastore,
    /// The peer plane of a node of a cluster.
    pub peers: Option<PeerPlane>,
    /// The engine's tasks.
    pub tasks: Tasks,
    /// The engine.
    pub broker: Broker,
    /// What HTTP handlers reach.
    pub api: ApiState,
}

impl NodeParts {
    /// Completes once a task that the node cannot do without has died.
    pub async fn died(&self) {
        let peers = async {
            match &self.peers {
                Some(plane) => plane.died().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.tasks.token().cancelled() => {}
            () = peers => {}
        }
    }
}

/// Opens everything below the data directory. With a port for other nodes, this one is a node of a cluster. Gives up when told to by
/// `leaving`: a node may wait for its cluster for ever.
///
/// # Errors
/// [`BootError`]; what was opened is closed again.
pub async fn boot<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
    config: &Config,
    disk: Arc<dyn Disk>,
    port: Option<PeerPort>,
    tls: Option<Arc<ServerTls>>,
    leaving: &CancellationToken,
    open_log: impl FnOnce(&Path) -> Result<L, E> + Send + 'static,
) -> Result<NodeParts, BootError> {
    let entropy: Arc<dyn Entropy> = Arc::new(OsEntropy);
    let clock: Arc<dyn WallClock> = Arc::new(SystemClock);
    let write_io = Io::threads(limits::PARTITION_SYNCS_MAX);
    let authenticator = Authenticator::new()?;

    // 1 the directory: nothing below it is touched without its lock
    let data = open_data_dir(config, &disk, &write_io, &entropy).await?;
    // A relative path says little in a log that is read elsewhere.
    let path = std::path::absolute(&data.path).unwrap_or_else(|_| data.path.clone());
    info!(node = %data.node, path = %path.display(), new = data.is_new, "data directory opened");

    // 2 the metadata log and the metastore: the engine must know which topics live
    let data = make_private(data, &disk, &write_io).await?;
    let log = open_metadata_log(&data, &disk, &write_io, open_log).await?;
    let runtime = Runtime::new(Arc::clone(&entropy)).with_clock(Arc::clone(&clock));
    let (metastore, peers) = open_metastore(&data, log, port, &runtime, &clock).await?;
    let settled = leaving.run_until_cancelled(settle_in(data, &metastore, config, peers.as_ref(), &runtime, &disk, &write_io)).await;
    let data = match settled.unwrap_or(Err(BootError::Stopped)) {
        Ok(data) => data,
        Err(error) => return Err(closed(peers, &metastore, error).await),
    };
    let catalog = Arc::new(metastore.clone());
    let follow = {
        let (disk, io, data_dir) = (Arc::clone(&disk), write_io.clone(), data.path.clone());
        |stop| follow_metadata(disk, io, data_dir, catalog.clone(), stop)
    };
    let room = RoomWatch {
        disk: Arc::clone(&disk),
        io: write_io.clone(),
        data_dir: data.path.clone(),
        reserve: config.storage.reserve_bytes,
        metastore: metastore.clone(),
    };

    // 3 the engine: WAL and settle journal are verified, dispatch goes on where it stopped
    let tasks = Tasks::new(Handle::current());
    let ports = BrokerPorts {
        disk,
        write_io,
        read_io: Io::threads(limits::READS_MAX),
        catalog: catalog.clone(),
        writer: catalog.clone(),
        witness: Witness::new(catalog.clone()),
        clock: Arc::clone(&clock),
        entropy: Arc::clone(&entropy),
        tasks: tasks.clone(),
        peers: peers.as_ref().map(PeerPlane::peers),
    };
    let opened = leaving.run_until_cancelled(Broker::open(broker_config(config, data.path.clone()), ports)).await;
    let broker = match opened.map_or(Err(BootError::Stopped), |opened| Ok(opened?)) {
        Ok(broker) => broker,
        Err(error) => return Err(closed(peers, &metastore, error).await),
    };

    if let Some(plane) = &peers {
        plane.serve_engine(broker.clone());
        plane.take_part(&tasks, Arc::clone(&entropy));
    }
    // With security off too: another node of the cluster may have it on, and would let nobody in.
    let root_admin = RootAdmin {
        me: data.node.clone(),
        metastore: metastore.clone(),
        authenticator: authenticator.clone(),
        clock: Arc::clone(&clock),
        security: config.security.clone(),
        dir: data.path.clone(),
    };
    tasks.spawn("root-admin", OnExit::Shutdown, root_admin.run(tasks.token().clone()));
    let tenant_end = TenantEnd {
        me: data.node.clone(),
        metastore: metastore.clone(),
        broker: broker.clone(),
        members: peers.as_ref().map(PeerPlane::members),
    };
    tasks.spawn("tenant-end", OnExit::Shutdown, tenant_end.run(tasks.token().clone()));
    tasks.spawn("room-watch", OnExit::Shutdown, room.run(tasks.token().clone()));
    tasks.spawn("follow-metadata", OnExit::Shutdown, follow(tasks.token().clone()));

    let parts = ApiParts {
        broker: broker.clone(),
        catalog: catalog.clone(),
        writer: catalog.clone(),
        leader: catalog,
        clock,
        entropy,
        node: data.node.clone(),
        authenticator,
        tls,
        cluster: peers.as_ref().map(PeerPlane::members),
        version: env!("CARGO_PKG_VERSION"),
    };
    let api = ApiState::new(api_config(config), parts);
    Ok(NodeParts { data, metastore, peers, tasks, broker, api })
}

/// The metastore: of a node alone, which leads it; or of a node among others, who are answered from here on.
async fn open_metastore<L: LogStore>(
    data: &DataDir,
    log: L,
    port: Option<PeerPort>,
    runtime: &Runtime,
    clock: &Arc<dyn WallClock>,
) -> Result<(Metastore, Option<PeerPlane>), StartError> {
    match port {
        None => Ok((Metastore::start(MetastoreConfig::new(data.node.clone()), log, runtime.clone()).await?, None)),
        Some(port) => {
            let plane = port.serve(data, log, runtime, Arc::clone(clock)).await?;
            Ok((plane.metastore.clone(), Some(plane)))
        }
    }
}

/// Closes what was opened, since a later part cannot be, or is not wanted any more: the peer plane, then the metastore.
async fn closed(peers: Option<PeerPlane>, metastore: &Metastore, error: BootError) -> BootError {
    if let Some(plane) = peers {
        plane.stop().await;
    }
    metastore.shutdown().await;
    error
}

/// Makes sure that the metadata and the data directory belong together, and that this node is in its cluster, if it has one.
async fn settle_in(
    data: DataDir,
    metastore: &Metastore,
    config: &Config,
    peers: Option<&PeerPlane>,
    runtime: &Runtime,
    disk: &Arc<dyn Disk>,
    io: &Io,
) -> Result<DataDir, BootError> {
    let end = metastore.log_end_at_start();
    let Some(plane) = peers else {
        let data = bind(data, metastore, false, disk, io).await?;
        return Ok(check_reached(data, end, disk, io).await?);
    };
    // Before anybody takes this log for what it was: one that has forgotten must not join anew.
    let data = check_reached(data, end, disk, io).await?;
    cluster::enter(&config.cluster, plane, runtime).await?;
    cluster::check_directory(&data, metastore.is_directory_known(), &metastore.view())?;
    Ok(bind(data, metastore, true, disk, io).await?)
}

async fn open_data_dir(config: &Config, disk: &Arc<dyn Disk>, io: &Io, entropy: &Arc<dyn Entropy>) -> Result<DataDir, DataDirError> {
    let (disk, entropy) = (Arc::clone(disk), Arc::clone(entropy));
    let (path, node) = (config.storage.data_dir.clone(), config.node_id.clone());
    io.run(move || DataDir::open(disk.as_ref(), &path, node.as_deref(), entropy.as_ref())).await
}

async fn make_private(data: DataDir, disk: &Arc<dyn Disk>, io: &Io) -> Result<DataDir, DataDirError> {
    let disk = Arc::clone(disk);
    io.run(move || data.make_private(disk.as_ref()).map(|()| data)).await
}

async fn check_reached(data: DataDir, end: LogIndex, disk: &Arc<dyn Disk>, io: &Io) -> Result<DataDir, DataDirError> {
    let disk = Arc::clone(disk);
    io.run(move || data.check_reached(disk.as_ref(), end).map(|()| data)).await
}

async fn bind(mut data: DataDir, metastore: &Metastore, has_peers: bool, disk: &Arc<dyn Disk>, io: &Io) -> Result<DataDir, DataDirError> {
    let Some(lineage) = metastore.lineage() else { return Ok(data) };
    let (disk, former, view) = (Arc::clone(disk), metastore.former(), metastore.view());
    io.run(move || {
        let (path, node) = (data.path.clone(), data.node.clone());
        let me = has_peers.then_some(&node);
        let set_aside = |left| {
            let own = |topic| view.topic_by_id(topic).map(|record| own_partitions(record, me));
            let kept = veena_broker::offline::keep_unknown(disk.as_ref(), &path, left, &own)?;
            let (kept, unknown) = (kept.path.display(), kept.unknown.len());
            warn!(%left, %lineage, %kept, unknown, "this directory has followed its former metadata further than what is known of it here: what is not known was set aside");
            Ok(())
        };
        data.bind(disk.as_ref(), lineage, &former, set_aside).map(|()| data)
    })
    .await
}

/// The partitions of a topic that are this node's or on their way to it: all that no other node has, if this one has peers.
fn own_partitions(record: &TopicRecord, me: Option<&NodeId>) -> BTreeSet<PartitionIndex> {
    let is_own = |owner: &Ownership, me: &NodeId| owner.node == *me || owner.moving.as_ref().is_some_and(|moving| moving.to == *me);
    let may_stay = |index: &PartitionIndex| me.is_none_or(|me| record.owner_of(*index).is_none_or(|owner| is_own(owner, me)));
    (0..record.partitions).map(PartitionIndex).filter(may_stay).collect()
}

/// How soon what could not be kept is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Keeps how far the metadata was followed, so that an older copy of it is known for one at the next start.
async fn follow_metadata(disk: Arc<dyn Disk>, io: Io, data_dir: PathBuf, catalog: Arc<dyn Catalog>, stop: CancellationToken) {
    let mut seen = LogIndex(0);
    let mut is_failing = false;
    while !stop.is_cancelled() {
        seen = catalog.view().applied.max(seen);
        let (disk, data_dir) = (Arc::clone(&disk), data_dir.clone());
        let kept = io.run(move || keep_reached(disk.as_ref(), &data_dir, seen)).await;
        let was_failing = std::mem::replace(&mut is_failing, kept.is_err());
        if let Err(error) = kept.as_ref()
            && !was_failing
        {
            warn!(err = error as &dyn std::error::Error, "how far the metadata was followed is not kept; tried again until it is");
        }
        tokio::select! {
            () = catalog.changed(seen) => {}
            () = tokio::time::sleep(KEEP_AGAIN), if is_failing => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn open_metadata_log<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
    data: &DataDir,
    disk: &Arc<dyn Disk>,
    io: &Io,
    open_log: impl FnOnce(&Path) -> Result<L, E> + Send + 'static,
) -> Result<L, BootError> {
    let (disk, path, parent) = (Arc::clone(disk), data.metastore(), data.path.clone());
    io.run(move || {
        match ballast::spend(disk.as_ref(), &parent) {
            Ok(0) => {}
            Ok(freed) => warn!(freed, "the data disk is full: room that was held back is used to start"),
            Err(error) => warn!(%error, "the data disk is full, and the room that was held back cannot be used"),
        }
        let log = open_log(&path).map_err(|error| BootError::MetadataLog { path, source: Box::new(error) })?;
        disk.sync_dir(&parent).map_err(|source| BootError::SyncDirectory { path: parent, source })?;
        Ok(log)
    })
    .await
}

fn broker_config(config: &Config, data_dir: PathBuf) -> BrokerConfig {
    let mut broker = BrokerConfig::new(data_dir);
    broker.partition.codec = match config.storage.codec {
        CodecChoice::None => Codec::None,
        CodecChoice::Zstd => Codec::Zstd,
    };
    broker.disk_reserve_bytes = config.storage.reserve_bytes;
    broker.settle_sync_ms = config.storage.consumer_offset_commit_interval_ms;
    broker.idle_log_eviction_ms = config.storage.idle_log_eviction_ms;
    broker.fanout = FanoutConfig {
        batch_records_max: config.fanout.max_batch_records,
        batch_bytes_max: config.fanout.max_batch_bytes,
        linger_ms: config.fanout.linger_ms,
    };
    broker
}

fn api_config(config: &Config) -> ApiConfig {
    let (http, topic) = (&config.http, &config.topic);
    ApiConfig {
        cross_site_guard: http.cross_site_guard,
        metrics_unauthenticated: http.metrics_unauthenticated,
        metrics_tenant_labels: config.metrics.tenant_labels,
        security_enabled: config.security.enabled,
        security_stale_after: Duration::from_millis(config.security.stale_after_ms),
        max_consume_wait: http.max_consume_wait,
        read_timeout: http.read_timeout,
        write_timeout: http.write_timeout,
        idle_timeout: http.idle_timeout,
        shutdown_grace: http.shutdown_grace,
        max_header_bytes: http.max_header_bytes,
        max_connections: http.max_connections,
        max_consume_in_flight_per_identity: http.max_consume_in_flight_per_identity,
        max_produce_in_flight_per_identity: http.max_produce_in_flight_per_identity,
        max_batch_body_bytes_in_flight: http.max_batch_body_bytes_in_flight,
        topics: TopicDefaults {
            partitions: topic.default_partitions,
            min_partitions: topic.min_partitions,
            max_partitions: topic.max_partitions,
            retention_ms: topic.default_retention_age_ms,
            visibility_timeout_ms: topic.default_visibility_timeout_ms,
            max_in_flight_per_partition: topic.default_max_in_flight_per_partition,
            max_acked_ahead_per_partition: topic.default_max_acked_ahead_per_partition,
        },
        ..ApiConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{Move, MoveToken, OwnershipEpoch};

    use super::*;

    #[test]
    fn a_partition_stays_in_a_directory_unless_another_node_has_it() {
        let node = |name: &str| NodeId(name.into());
        let mut topic: TopicRecord = serde_json::from_value(serde_json::json!({
            "tenant": "default", "name": "orders", "id": "0000000000000001", "partitions": 4, "retention_ms": 0, "visibility_timeout_ms": 1,
            "max_in_flight_per_partition": 1, "max_acked_ahead_per_partition": 1, "created_at_ms": 0,
        }))
        .expect("a record");
        let mut comes = Ownership::new(node("b"), OwnershipEpoch(1));
        comes.moving = Some(Move { to: node("a"), token: MoveToken(7), frozen: None });
        topic.owners = vec![Ownership::new(node("a"), OwnershipEpoch(1)), Ownership::new(node("b"), OwnershipEpoch(1)), comes];
        let own = |me: Option<&str>| own_partitions(&topic, me.map(node).as_ref()).iter().map(|index| index.0).collect::<Vec<_>>();
        assert_eq!(own(Some("a")), [0, 2, 3], "its own, one that comes, and one that nobody was given");
        assert_eq!(own(Some("b")), [1, 2, 3]);
        assert_eq!(own(None), [0, 1, 2, 3], "a node alone has all");
    }
}
