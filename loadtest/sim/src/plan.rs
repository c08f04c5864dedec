//! What a seed decides before anything runs: topics, bounds, how many lives, how much traffic.

use veena_broker::ports::BrokerConfig;
use veena_storage::partition::Codec;

use crate::chance::Chance;

/// What is promised about a topic in this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Lives from the start to the end: everything sent must come.
    Steady,
    /// Is deleted and created again at times.
    Doomed,
    /// Has a short retention.
    Aging,
    /// A child that is attached while its parent is used.
    Late,
}

/// One topic.
#[derive(Clone, Debug)]
pub struct TopicPlan {
    /// Its name.
    pub name: &'static str,
    /// How many partitions.
    pub partitions: u32,
    /// How long leases last.
    pub visibility_ms: u64,
    /// Bound on leases.
    pub in_flight_max: u64,
    /// Bound on acks ahead.
    pub acked_ahead_max: u64,
    /// 0 is for ever.
    pub retention_ms: u64,
    /// Goes what came for a partition to another while its owner is away? Then keys keep no order.
    pub is_rerouted: bool,
    /// Its parent and delay.
    pub parent: Option<(&'static str, u64)>,
    /// What is promised.
    pub role: Role,
}

/// The whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Topics, parents before children.
    pub topics: Vec<TopicPlan>,
    /// How many lives end by something before the last one is judged.
    pub lives: u64,
    /// The engine's settings.
    pub config: BrokerConfig,
    /// How many producers.
    pub producers: u32,
    /// The longest pause of a producer.
    pub pace_ms: u64,
    /// How many consumers each topic has.
    pub consumers: u32,
    /// Logs of some partitions take nothing for seconds, and bounds are so low that their records are parked.
    pub has_stuck: bool,
    /// After so many changes of the catalog a snapshot of it is taken, by nodes among others.
    pub snapshot_every: u64,
    /// How many changes below a snapshot such nodes keep.
    pub entries_kept: u64,
}

impl Plan {
    /// The plan of a seed. What was added after seeds had their stories is drawn from `aside`, so that the stories stay true.
    #[must_use]
    pub fn of(chance: &mut Chance, aside: &mut Chance) -> Self {
        let mut plan = Self {
            topics: topics(chance),
            lives: chance.between(2, 5),
            config: config(chance),
            producers: u32::try_from(chance.between(1, 3)).unwrap_or(1),
            pace_ms: *chance.pick(&[20, 60, 200, 600]),
            consumers: u32::try_from(chance.between(1, 2)).unwrap_or(1),
            has_stuck: aside.percent(25),
            snapshot_every: 5_000,
            entries_kept: 1_000,
        };
        if plan.has_stuck {
            plan.config.undispatched_bytes_max = *aside.pick(&[2 * 1024, 8 * 1024, 32 * 1024]);
            plan.config.undispatched_partition_bytes_max = *aside.pick(&[4 * 1024, 64 * 1024]);
            plan.config.wal.undispatched_bytes_max = 4 * plan.config.wal.segment_bytes;
        }
        plan
    }
}

impl Plan {
    /// The plan of a seed for several nodes.
    #[must_use]
    pub fn among(chance: &mut Chance) -> Self {
        let mut aside = chance.fork();
        Self {
            has_stuck: false,
            snapshot_every: *chance.pick(&[4, 12, 5_000]),
            entries_kept: *chance.pick(&[1, 8, 1_000]),
            ..Self::of(chance, &mut aside)
        }
    }
}

fn topics(chance: &mut Chance) -> Vec<TopicPlan> {
    let mut topics = vec![topic(chance, "alpha", 4, Role::Steady)];
    if chance.percent(60) {
        topics.push(TopicPlan { parent: Some(("alpha", 0)), ..topic(chance, "alpha-copy", 5, Role::Steady) });
    }
    if chance.percent(40) {
        let delay_ms = chance.between(200, 4_000);
        topics.push(TopicPlan { parent: Some(("alpha", delay_ms)), ..topic(chance, "alpha-later", 3, Role::Steady) });
    }
    if chance.percent(50) {
        topics.push(TopicPlan { is_rerouted: true, ..topic(chance, "beta", 2, Role::Steady) });
        if chance.percent(60) {
            let delay_ms = *chance.pick(&[0, 0, 700]);
            topics.push(TopicPlan { parent: Some(("beta", delay_ms)), ..topic(chance, "beta-late", 3, Role::Late) });
        }
    }
    if chance.percent(40) {
        topics.push(topic(chance, "gamma", 2, Role::Doomed));
    }
    if chance.percent(30) {
        let retention_ms = chance.between(500, 3_000);
        topics.push(TopicPlan { retention_ms, ..topic(chance, "delta", 2, Role::Aging) });
    }
    topics
}

fn topic(chance: &mut Chance, name: &'static str, partitions_max: u64, role: Role) -> TopicPlan {
    TopicPlan {
        name,
        partitions: u32::try_from(chance.between(1, partitions_max)).unwrap_or(1),
        visibility_ms: chance.between(200, 3_000),
        in_flight_max: *chance.pick(&[2, 10, 1024]),
        acked_ahead_max: *chance.pick(&[4, 50, 1024]),
        retention_ms: 0,
        is_rerouted: false,
        parent: None,
        role,
    }
}

fn config(chance: &mut Chance) -> BrokerConfig {
    let mut config = BrokerConfig::new("/data".into());
    config.wal.segment_bytes = *chance.pick(&[160 * 1024, 256 * 1024]);
    config.wal.rotate_bytes_min = *chance.pick(&[4 * 1024, 32 * 1024]);
    config.wal.spare_max = usize::try_from(chance.between(1, 2)).unwrap_or(1);
    config.partition.segment_bytes_max = *chance.pick(&[6 * 1024, 24 * 1024, 96 * 1024]);
    config.partition.segment_age_ms_max = *chance.pick(&[1_000, 60_000]);
    config.partition.codec = *chance.pick(&[Codec::None, Codec::Zstd]);
    config.idle_log_eviction_ms = *chance.pick(&[0, 700, 3_000]);
    config.retention_check_ms = 400;
    config.disk_reserve_bytes = 0;
    config.fanout.batch_records_max = *chance.pick(&[3, 40, 4096]);
    config.fanout.linger_ms = *chance.pick(&[1, 25]);
    config
}
