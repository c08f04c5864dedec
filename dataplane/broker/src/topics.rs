//! What this node keeps in memory for each living topic: its partitions, its parked consumers, its rotation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use veena_contract::map::Map;
use veena_contract::{PartitionIndex, TopicId, TopicRecord};

use crate::consume::waiters::Waiters;
use crate::core::Core;
use crate::layout;
use crate::partition::{Partition, PartitionId};
use crate::produce::committed::KeysEnded;
use crate::produce::partitioner::Rotation;
use crate::usage::TenantUsage;

/// One living topic on this node.
pub struct Topic {
    /// The catalog's record, as last seen.
    pub record: ArcSwap<TopicRecord>,
    /// Where keyless messages go.
    pub rotation: Rotation,
    /// Parked consumers.
    pub waiters: Mutex<Waiters<Arc<Notify>>>,
    /// Partitions that need not be asked for idempotency keys any more.
    pub keys_ended: Mutex<KeysEnded>,
    /// What its tenant has used.
    pub usage: Arc<TenantUsage>,
    partitions: RwLock<Partitions>,
    scan: AtomicU32,
    is_gone: AtomicBool,
}

/// The partitions of a topic, whoever owns them.
#[derive(Default)]
struct Partitions {
    /// By index.
    all: Vec<Arc<Partition>>,
    /// Those of this node.
    owned: Vec<Arc<Partition>>,
}

impl Partitions {
    /// Adds those that the record has more, and looks whose each is.
    fn follow(&mut self, core: &Core, record: &TopicRecord) {
        let wanted = usize::try_from(record.partitions).unwrap_or(usize::MAX);
        let usage = core.usage.of(&record.tenant);
        while self.all.len() < wanted {
            let index = PartitionIndex(u32::try_from(self.all.len()).expect("invariant: below a u32 count"));
            let dir = layout::partition_dir(&core.config.data_dir, &record.tenant, record.id, index);
            self.all.push(Arc::new(Partition::new(PartitionId { topic: record.id, index }, dir, Arc::clone(&usage))));
        }
        self.owned = self.all.iter().filter(|partition| core.is_mine(record, partition.id.index)).cloned().collect();
    }
}

impl Topic {
    /// Its partition of this index, if the topic has it; whoever owns it.
    #[must_use]
    pub fn partition(&self, index: PartitionIndex) -> Option<Arc<Partition>> {
        self.partitions.read().all.get(usize::try_from(index.get()).ok()?).cloned()
    }

    /// All its partitions, by index, whoever owns them.
    #[must_use]
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().all.clone()
    }

    /// Those that this node owns: the only ones whose logs it opens.
    #[must_use]
    pub fn owned(&self) -> Vec<Arc<Partition>> {
        self.partitions.read().owned.clone()
    }

    /// Calls `visit` on each partition of this node, from a start that rotates, until it says stop.
    pub fn scan(&self, mut visit: impl FnMut(&Arc<Partition>) -> bool) {
        let partitions = &self.partitions.read().owned;
        let count = partitions.len();
        let start = usize::try_from(self.scan.fetch_add(1, Ordering::Relaxed)).unwrap_or(0) % count.max(1);
        for step in 0..count {
            if !visit(&partitions[(start + step) % count]) {
                break;
            }
        }
    }

    /// Has the topic been deleted?
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// The topic has been deleted: parked consumers are told. Says whether nobody knew before.
    pub fn set_gone(&self) -> bool {
        let was_gone = self.is_gone.swap(true, Ordering::AcqRel);
        self.wake_all();
        !was_gone
    }

    /// Wakes every parked consumer.
    pub fn wake_all(&self) {
        for waker in self.waiters.lock().all() {
            waker.notify_one();
        }
    }

    /// At most `count` messages of a partition became takeable: wakes as many of those who can use them.
    pub fn wake(&self, partition: PartitionIndex, count: usize) {
        let woken = {
            let mut waiters = self.waiters.lock();
            if waiters.parked() == 0 || veena_contract::sabotage::is("wake_lost") {
                return;
            }
            waiters.wake(partition, count)
        };
        for waker in woken {
            waker.notify_one();
        }
    }

    /// The catalog has this record now, or had: an older one changes nothing.
    fn follow(&self, core: &Core, record: &Arc<TopicRecord>) {
        let mut partitions = self.partitions.write();
        if self.record.load().revision < record.revision {
            partitions.follow(core, record);
            self.record.store(Arc::clone(record));
        }
    }
}

/// Every topic this node serves, by incarnation.
#[derive(Default)]
pub struct Topics {
    by_id: RwLock<Map<TopicId, Arc<Topic>>>,
}

impl Topics {
    /// The topic of a catalog record, made when it is first asked for.
    pub fn of(&self, core: &Core, record: &Arc<TopicRecord>) -> Arc<Topic> {
        if let Some(topic) = self.by_id.read().get(&record.id) {
            if topic.record.load().revision < record.revision {
                topic.follow(core, record);
            }
            return Arc::clone(topic);
        }
        let mut by_id = self.by_id.write();
        let topic = by_id.entry(record.id).or_insert_with(|| {
            let mut partitions = Partitions::default();
            partitions.follow(core, record);
            Arc::new(Topic {
                record: ArcSwap::new(Arc::clone(record)),
                rotation: Rotation::starting_at(core.ports.entropy.next_u64()),
                waiters: Mutex::default(),
                keys_ended: Mutex::default(),
                usage: core.usage.of(&record.tenant),
                partitions: RwLock::new(partitions),
                scan: AtomicU32::new(0),
                is_gone: AtomicBool::new(false),
            })
        });
        let topic = Arc::clone(topic);
        drop(by_id);
        // The record may be of a view that is old by now: a deleted topic does not come back through a late request.
        if core.ports.catalog.view().topic_by_id(record.id).is_none() {
            topic.set_gone();
            self.remove(record.id);
        }
        topic
    }

    /// The topic of this incarnation, if it was ever asked for.
    pub fn get(&self, id: TopicId) -> Option<Arc<Topic>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Forgets a deleted topic.
    pub fn remove(&self, id: TopicId) {
        self.by_id.write().remove(&id);
    }

    /// Every topic, by incarnation.
    pub fn all(&self) -> Vec<(TopicId, Arc<Topic>)> {
        let mut all: Vec<_> = self.by_id.read().iter().map(|(&id, topic)| (id, Arc::clone(topic))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }
}
