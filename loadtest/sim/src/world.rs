//! Everything that outlives a life of a node.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use veena_broker::ports::BrokerConfig;
use veena_contract::{NodeId, TenantId, TopicName, TopicRecord};
use veena_loadtest_checker::{NodeChange, TopicKey};
use veena_metastore::MemLog;
use veena_storage::disk::mem::MemDisk;

use crate::chance::{Chance, SeededEntropy};
use crate::clock::{SimClock, SimTime};
use crate::cluster::moves::Moves;
use crate::disk::Trace;
use crate::history::History;
use crate::once::Once;
use crate::plan::Plan;
use crate::tally::Tally;

/// What a node runs on, life after life.
pub struct Machine {
    /// The node's name.
    pub name: Arc<str>,
    /// The engine's settings.
    pub config: BrokerConfig,
    /// The wall clock.
    pub clock: Arc<SimClock>,
    /// The node's randomness.
    pub entropy: Arc<SeededEntropy>,
    /// The metastore's log.
    pub catalog_log: MemLog,
    /// The disk; each life has its own handle of it.
    pub disk: Mutex<MemDisk>,
    /// When the node died, while it is dead.
    pub died_at: Mutex<Option<u64>>,
}

impl Machine {
    fn new(name: &str, config: BrokerConfig, time: &Arc<SimTime>, entropy_seed: u64) -> Self {
        Self {
            name: Arc::from(name),
            config,
            clock: Arc::new(SimClock::new(Arc::clone(time))),
            entropy: Arc::new(SeededEntropy::new(entropy_seed)),
            catalog_log: MemLog::new(),
            disk: Mutex::new(MemDisk::new()),
            died_at: Mutex::default(),
        }
    }

    /// The node's name, as nodes call each other.
    #[must_use]
    pub fn id(&self) -> NodeId {
        NodeId(Arc::clone(&self.name))
    }

    /// Everything that was wrong with it is mended, but for the node.
    pub fn mend(&self) {
        let disk = self.disk.lock();
        disk.clear_faults();
        disk.set_capacity(u64::MAX);
    }
}

/// The world around the nodes.
pub struct World {
    /// What the seed decided.
    pub plan: Plan,
    /// Time.
    pub time: Arc<SimTime>,
    /// What clients saw.
    pub history: History,
    /// What the disks saw.
    pub trace: Arc<Trace>,
    /// What went wrong.
    pub tally: Arc<Tally>,
    /// What the nodes run on.
    pub machines: Vec<Machine>,
    /// Topics of which not everything must come: deleted, aged, or attached late.
    pub excused: Mutex<BTreeSet<TopicKey>>,
    /// Whose keys keep no order.
    pub unordered: Mutex<BTreeSet<TopicKey>>,
    /// Topics that got more partitions: their keys keep no order either.
    pub grown: Mutex<BTreeSet<TopicKey>>,
    /// (parent, child), as the last life's catalog has them.
    pub children: Mutex<Vec<(TopicKey, TopicKey)>>,
    /// What the run itself saw and no history shows.
    pub problems: Mutex<Vec<String>>,
    /// What is sent under idempotency keys.
    pub once: Once,
    /// Partitions that go to other nodes.
    pub moves: Moves,
    /// Acks of some life outlived neither promise: settle state was hurt.
    pub has_hurt_settle: Mutex<bool>,
}

impl World {
    /// The world of a seed, with one node.
    #[must_use]
    pub fn new(chance: &mut Chance, aside: &mut Chance, is_trace_kept: bool) -> Arc<Self> {
        let plan = Plan::of(chance, aside);
        Self::with_plan(plan, Once::of(aside), Moves::of(aside), &["n1"], chance, is_trace_kept)
    }

    /// The world of a plan, with nodes of these names. The data directory of one among others carries its name, so that its calls can be
    /// told from those of the others.
    #[must_use]
    pub fn with_plan(plan: Plan, once: Once, moves: Moves, names: &[&str], chance: &mut Chance, is_trace_kept: bool) -> Arc<Self> {
        let time = Arc::new(SimTime::default());
        let machine = |name: &&str| {
            let mut config = plan.config.clone();
            if names.len() > 1 {
                config.data_dir = format!("/{name}").into();
            }
            Machine::new(name, config, &time, chance.next_u64())
        };
        let machines = names.iter().map(machine).collect();
        Arc::new(Self {
            plan,
            history: History::new(Arc::clone(&time)),
            time,
            trace: Arc::new(Trace::new(is_trace_kept)),
            tally: Arc::default(),
            machines,
            excused: Mutex::default(),
            unordered: Mutex::default(),
            grown: Mutex::default(),
            children: Mutex::default(),
            problems: Mutex::default(),
            once,
            moves,
            has_hurt_settle: Mutex::new(false),
        })
    }

    /// The machine of the node that is alone.
    ///
    /// # Panics
    /// Never: there is a machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        self.machines.first().expect("invariant: there is a machine")
    }

    /// Something is wrong.
    pub fn complain(&self, what: String) {
        self.trace.line(&what);
        self.problems.lock().push(what);
    }

    /// A node that is dead, or dies while it starts, runs no timer: what was on its way to the disk when it died is no older when it starts.
    /// The checker measures the windows for forgotten acks in running time.
    pub fn note_dead_time(&self, machine: &Machine) {
        if let Some(died) = machine.died_at.lock().take() {
            self.history.node(&machine.name, died, NodeChange::Paused);
        }
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
