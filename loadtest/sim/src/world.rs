//! Everything that outlives a life of the node.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use veena_contract::{TenantId, TopicName, TopicRecord};
use veena_loadtest_checker::TopicKey;
use veena_metastore::MemLog;
use veena_storage::disk::mem::MemDisk;

use crate::chance::{Chance, SeededEntropy};
use crate::clock::SimTime;
use crate::disk::Trace;
use crate::history::History;
use crate::once::Once;
use crate::plan::Plan;
use crate::tally::Tally;

/// The world around the node.
pub struct World {
    /// What the seed decided.
    pub plan: Plan,
    /// Time.
    pub time: Arc<SimTime>,
    /// What clients saw.
    pub history: History,
    /// What the disk saw.
    pub trace: Arc<Trace>,
    /// What went wrong.
    pub tally: Arc<Tally>,
    /// The node's randomness.
    pub entropy: Arc<SeededEntropy>,
    /// The metastore's log.
    pub catalog_log: MemLog,
    /// The disk; each life has its own handle of it.
    pub disk: Mutex<MemDisk>,
    /// Topics of which not everything must come: deleted, aged, or attached late.
    pub excused: Mutex<BTreeSet<TopicKey>>,
    /// (parent, child), as the last life's catalog has them.
    pub children: Mutex<Vec<(TopicKey, TopicKey)>>,
    /// When the node died, while it is dead.
    pub died_at: Mutex<Option<u64>>,
    /// What the run itself saw and no history shows.
    pub problems: Mutex<Vec<String>>,
    /// What is sent under idempotency keys.
    pub once: Once,
    /// Acks of some life outlived neither promise: settle state was hurt.
    pub has_hurt_settle: Mutex<bool>,
}

impl World {
    /// The world of a seed.
    #[must_use]
    pub fn new(chance: &mut Chance, aside: &mut Chance, is_trace_kept: bool) -> Arc<Self> {
        let time = Arc::new(SimTime::default());
        let once = Once::of(aside);
        Arc::new(Self {
            plan: Plan::of(chance, aside),
            history: History::new(Arc::clone(&time)),
            time,
            trace: Arc::new(Trace::new(is_trace_kept)),
            tally: Arc::default(),
            entropy: Arc::new(SeededEntropy::new(chance.next_u64())),
            catalog_log: MemLog::new(),
            disk: Mutex::new(MemDisk::new()),
            excused: Mutex::default(),
            children: Mutex::default(),
            died_at: Mutex::default(),
            problems: Mutex::default(),
            once,
            has_hurt_settle: Mutex::new(false),
        })
    }

    /// Something is wrong.
    pub fn complain(&self, what: String) {
        self.trace.line(&what);
        self.problems.lock().push(what);
    }
}

/// The one tenant.
#[must_use]
pub fn tenant() -> TenantId {
    TenantId::default_tenant()
}

/// A topic's name.
///
/// # Panics
/// When the text is no topic name; all texts are the simulator's own.
#[must_use]
pub fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("invariant: the simulator's topic names are valid")
}

/// How the checker calls one incarnation of a topic.
#[must_use]
pub fn key_of(record: &TopicRecord) -> TopicKey {
    TopicKey::new(TenantId::DEFAULT, &format!("{}#{}", record.name, record.id))
}
