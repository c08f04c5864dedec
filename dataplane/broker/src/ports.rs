//! What the engine needs from outside, and what can be configured.

use std::path::PathBuf;
use std::sync::Arc;

use veena_contract::{Catalog, CatalogWriter, Entropy, NodeDirectory, NodeId, PeerClient, WallClock, Witness, limits};
use veena_storage::disk::Disk;
use veena_storage::io::Io;
use veena_storage::partition::{Codec, PartitionConfig};
use veena_storage::wal::WalConfig;

use crate::tasks::Tasks;

/// The seams the engine reaches the world through.
#[derive(Clone)]
pub struct BrokerPorts {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Where commits and other writes block.
    pub write_io: Io,
    /// Where reads block; apart, so that no commit waits for a reader.
    pub read_io: Io,
    /// The catalog as this node sees it.
    pub catalog: Arc<dyn Catalog>,
    /// Changes to the catalog.
    pub writer: Arc<dyn CatalogWriter>,
    /// Confirms before anything is destroyed.
    pub witness: Witness,
    /// Time of day.
    pub clock: Arc<dyn WallClock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Starts and ends tasks.
    pub tasks: Tasks,
    /// The other nodes; `None` for a node that is alone, to which every partition belongs.
    pub peers: Option<Peers>,
}

/// The other nodes, as one of them sees them.
#[derive(Clone)]
pub struct Peers {
    /// This node.
    pub me: NodeId,
    /// Makes calls.
    pub client: Arc<dyn PeerClient>,
    /// Who there is.
    pub directory: Arc<dyn NodeDirectory>,
}

/// How fan-out batches.
#[derive(Clone, Copy, Debug)]
pub struct FanoutConfig {
    /// How many records one slab holds.
    pub batch_records_max: usize,
    /// How many bytes one slab holds.
    pub batch_bytes_max: usize,
    /// How long a slab that is not full waits for more.
    pub linger_ms: u64,
}

/// What can be configured.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The node's data directory.
    pub data_dir: PathBuf,
    /// The ingress WAL.
    pub wal: WalConfig,
    /// Partition logs.
    pub partition: PartitionConfig,
    /// How often the settle journal is synced.
    pub settle_sync_ms: u64,
    /// A log unused for this long is closed; 0 is never.
    pub idle_log_eviction_ms: u64,
    /// How often retention is applied.
    pub retention_check_ms: u64,
    /// How much space must be free for produce to be accepted.
    pub disk_reserve_bytes: u64,
    /// Undispatched bytes in memory, in all.
    pub undispatched_bytes_max: usize,
    /// Undispatched bytes of one partition.
    pub undispatched_partition_bytes_max: usize,
    /// Undispatched bytes of one tenant.
    pub undispatched_tenant_bytes_max: u64,
    /// Bytes of records set aside for partitions that take nothing; over it, nothing more is set aside.
    pub parked_bytes_max: u64,
    /// Bytes in quarantine; over it, the oldest go.
    pub quarantine_bytes_max: u64,
    /// Bytes of sealed segments that are read again per second to find damage.
    pub scrub_bytes_per_second: u64,
    /// How many idempotency keys one partition remembers; at most [`limits::DEDUP_KEYS_MAX`].
    pub dedup_keys_max: usize,
    /// Fan-out.
    pub fanout: FanoutConfig,
}

impl BrokerConfig {
    /// The defaults, over one data directory.
    #[must_use]
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            wal: WalConfig::default(),
            partition: PartitionConfig {
                segment_bytes_max: limits::SEGMENT_BYTES_MAX,
                segment_age_ms_max: limits::RETENTION_MS_MIN,
                codec: Codec::None,
            },
            settle_sync_ms: limits::SETTLE_SYNC_MS_DEFAULT,
            idle_log_eviction_ms: 1_800_000,
            retention_check_ms: 60_000,
            disk_reserve_bytes: limits::DISK_RESERVE_BYTES,
            undispatched_bytes_max: limits::UNDISPATCHED_NODE_BYTES_MAX,
            undispatched_partition_bytes_max: limits::UNDISPATCHED_PARTITION_BYTES_MAX,
            undispatched_tenant_bytes_max: limits::UNDISPATCHED_TENANT_BYTES_MAX,
            parked_bytes_max: limits::PARKED_NODE_BYTES_MAX,
            quarantine_bytes_max: limits::QUARANTINE_BYTES_MAX,
            scrub_bytes_per_second: limits::SCRUB_BYTES_PER_SECOND,
            dedup_keys_max: limits::DEDUP_KEYS_MAX,
            fanout: FanoutConfig { batch_records_max: 4096, batch_bytes_max: limits::FRAME_BYTES_MAX, linger_ms: 25 },
        }
    }
}
