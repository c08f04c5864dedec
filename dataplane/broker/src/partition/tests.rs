use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use veena_contract::{
    BoxFuture, Catalog, CatalogView, CatalogWriter, Command, Entropy, LeaderPort, LogIndex, NodeDirectory, NodeId, Ownership,
    OwnershipEpoch, PeerAddr, PeerCall, PeerClient, PeerError, ProposeError, Reroute, StreamId, TenantId, TopicName, TopicRecord,
    WallClock, Witness,
};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::io::Io;
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::partition::{FrameCache, Marks, NewRecord, Origin, ReadError, Section, StreamKey};
use veena_storage::wal::Wal;

use super::*;
use crate::ports::{BrokerConfig, BrokerPorts, Peers};
use crate::produce::park::ParkedFiles;
use crate::tasks::Tasks;

/// How many times a thread looks for something another one is about to do.
const LOOKS_MAX: u32 = 10_000;

/// A world in which nothing happens.
struct Still;

impl Catalog for Still {
    fn view(&self) -> Arc<CatalogView> {
        Arc::default()
    }

    fn changed(&self, _: LogIndex) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

impl CatalogWriter for Still {
    fn propose_from(&self, _: veena_contract::Origin, _: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        Box::pin(std::future::pending())
    }
}

impl LeaderPort for Still {
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        Box::pin(std::future::pending())
    }

    fn not_ready_reason(&self) -> Option<String> {
        None
    }
}

impl WallClock for Still {
    fn now_ms(&self) -> u64 {
        1
    }
}

impl Entropy for Still {
    fn next_u64(&self) -> u64 {
        7
    }
}

/// A catalog that never changes.
struct Fixed(Arc<CatalogView>);

impl Catalog for Fixed {
    fn view(&self) -> Arc<CatalogView> {
        Arc::clone(&self.0)
    }

    fn changed(&self, _: LogIndex) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

impl PeerClient for Still {
    fn call<'a>(&'a self, _: &'a PeerAddr, _: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(std::future::pending())
    }
}

impl NodeDirectory for Still {
    fn nodes(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn address_of(&self, _: &NodeId) -> Option<PeerAddr> {
        None
    }
}

fn core() -> Core {
    core_among(Arc::new(Still), None)
}

fn core_among(catalog: Arc<dyn Catalog>, peers: Option<Peers>) -> Core {
    let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
    let config = BrokerConfig::new("/data".into());
    let (wal_dir, settle_dir) = (crate::layout::ingress_dir(&config.data_dir), crate::layout::settle_dir(&config.data_dir));
    for dir in [&wal_dir, &settle_dir] {
        disk.create_dir_all(dir).expect("made");
    }
    let (wal, opened) = Wal::open(Arc::clone(&disk), &wal_dir, config.wal, &Still).expect("opens");
    let (journal, kept) = Journal::open(Arc::clone(&disk), &settle_dir, JournalConfig::default()).expect("opens");
    let ports = BrokerPorts {
        disk,
        write_io: Io::inline(),
        read_io: Io::inline(),
        catalog,
        writer: Arc::new(Still),
        witness: Witness::new(Arc::new(Still)),
        clock: Arc::new(Still),
        entropy: Arc::new(Still),
        tasks: Tasks::new(Handle::current()),
        peers,
    };
    Core::new(config, ports, wal, &opened, SettleStore::new(journal, kept), Arc::new(FrameCache::new(1024)), ParkedFiles::default())
}

fn write_one(owner: &mut Owner) {
    let key = StreamKey { stream: StreamId(1), source: 0 };
    let records = vec![NewRecord { sequence: 1, id: None, key: None, body: Bytes::from_static(b"one") }];
    let section = Section { key, origin: Origin::default(), is_tracked: true, last: 1, records };
    let appended = owner.log.append(&[section], 1, &Marks::new).expect("appended");
    let synced = owner.log.sync(appended).expect("synced");
    let verified = owner.log.verify(synced).expect("verified");
    owner.log.publish(verified);
}

#[tokio::test]
async fn a_lease_that_is_granted_while_its_idle_log_is_closed_finds_the_log_closed() {
    let core = core();
    let id = PartitionId { topic: TopicId(1), index: PartitionIndex(0) };
    let partition = Arc::new(Partition::new(id, "/data/topics/p00000".into(), Arc::default()));
    let mut slot = OwnerSlot::Closed;
    let serving = partition.open_slot(&core, &mut slot).expect("opens");
    let OwnerSlot::Open(owner) = &mut slot else { panic!("it is open") };
    write_one(owner);
    std::thread::scope(|threads| {
        // The close goes no further than to where it keeps what the closed log would say: the old reader and its leases are still there.
        let asleep = partition.asleep.lock();
        let closing = threads.spawn(|| partition.close_if_idle(&core, &mut slot));
        for _ in 0..LOOKS_MAX {
            if serving.reader.is_closed() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let caps = crate::consume::lease::LeaseCaps { in_flight_max: 1, acked_ahead_max: 1 };
        let granted = serving.leases.lock().reserve(0, serving.reader.high_watermark(), caps, 1_000, 1);
        assert!(granted.is_some_and(|granted| granted.offset == Offset(0)));
        let offset = Offset(0);
        let found = serving.reader.cached(offset).map_or_else(|| serving.reader.read(offset), Ok);
        assert!(matches!(found, Err(ReadError::Closed)), "nothing is handed over under a lease that ends with the log: {found:?}");
        drop(asleep);
        assert!(closing.join().expect("no panic"), "nothing was leased when it was asked");
    });
    assert!(partition.serving().is_none());
}

#[tokio::test]
async fn only_the_owner_of_a_partition_opens_its_log() {
    let named = |name: &str| NodeId(Arc::from(name));
    let owned = |name: &str| Ownership::new(named(name), OwnershipEpoch(1));
    let record = Arc::new(TopicRecord {
        tenant: TenantId::default_tenant(),
        name: TopicName::parse("orders").expect("valid"),
        id: TopicId(1),
        // The third has no owner yet.
        partitions: 3,
        earlier_partitions: Vec::new(),
        retention_ms: 0,
        retention_bytes: 0,
        visibility_timeout_ms: 1_000,
        max_in_flight_per_partition: 1,
        max_acked_ahead_per_partition: 1,
        dedup_window_ms: 0,
        reroute: Reroute::Never,
        created_at_ms: 0,
        owner: None,
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        revision: 1,
        owners: vec![owned("a"), owned("b")],
    });
    let mut view = CatalogView::default();
    view.by_id.insert(record.id, Arc::clone(&record));
    let peers = Peers { me: named("a"), client: Arc::new(Still), directory: Arc::new(Still) };
    let core = core_among(Arc::new(Fixed(Arc::new(view))), Some(peers));
    let topic = core.topics.of(&core, &record);
    let opened = topic.partitions().iter().map(|partition| partition.open_slot(&core, &mut OwnerSlot::Closed).is_ok()).collect::<Vec<_>>();
    assert_eq!(opened, [true, false, false]);
    assert_eq!(topic.owned().iter().map(|partition| partition.id.index.get()).collect::<Vec<_>>(), [0]);
    let made = |partition: &Arc<Partition>| core.ports.disk.exists(&partition.dir).expect("asked");
    assert_eq!(topic.partitions().iter().map(made).collect::<Vec<_>>(), [true, false, false]);
}
