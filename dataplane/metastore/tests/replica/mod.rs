use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use veena_contract::records::{Command, CommandError};
use veena_contract::{
    Catalog, CatalogWriter, Copy, Effect, Entropy, FeatureLevel, LeaderPort, MoveToken, NodeId, Offset, Ownership, OwnershipEpoch,
    PartitionAt, PartitionIndex, ProposeError, Reroute, TenantId, TopicId, TopicName, TopicRecord, Witness,
};
use veena_metastore::{Hold, MemLog, Metastore, MetastoreConfig, Runtime};

const DEADLINE: Duration = Duration::from_secs(20);

pub struct Counter(AtomicU64);

impl Counter {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Entropy for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9, Ordering::Relaxed)
    }
}

async fn start(log: &MemLog, seed: u64) -> Metastore {
    let config = MetastoreConfig::new(NodeId(Arc::from("node-1")));
    let runtime = Runtime::new(Arc::new(Counter::new(seed)));
    Metastore::start(config, log.clone(), runtime).await.expect("starts")
}

pub fn name(n: u64) -> TopicName {
    TopicName::parse(&format!("topic-{n}")).expect("a good name")
}

pub fn create(n: u64) -> Command {
    let topic = TopicRecord {
        tenant: TenantId::default_tenant(),
        name: name(n),
        id: TopicId(n),
        partitions: 3,
        earlier_partitions: Vec::new(),
        retention_ms: 0,
        retention_bytes: 0,
        visibility_timeout_ms: 30_000,
        max_in_flight_per_partition: 1024,
        max_acked_ahead_per_partition: 1024,
        dedup_window_ms: 0,
        reroute: Reroute::Auto,
        created_at_ms: 1,
        owner: None,
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        owners: Vec::new(),
        revision: 0,
    };
    Command::CreateTopic { topic, attach: None }
}

pub fn delete(n: u64) -> Command {
    Command::DeleteTopic { tenant: TenantId::default_tenant(), name: name(n), id: TopicId(n) }
}

pub fn grow(n: u64, partitions: u32) -> Command {
    Command::GrowPartitions { tenant: TenantId::default_tenant(), name: name(n), id: TopicId(n), partitions, owners: Vec::new() }
}

#[tokio::test]
async fn a_node_alone_writes_what_its_program_knows_though_an_older_one_made_its_log() {
    let log = MemLog::new();
    let mut config = MetastoreConfig::new(NodeId(Arc::from("node-1")));
    config.consensus.level = FeatureLevel::FIRST;
    let older = Metastore::start(config, log.clone(), Runtime::new(Arc::new(Counter::new(1)))).await.expect("starts");
    older.propose(create(1)).await.expect("taken");
    assert!(older.propose(grow(1, 5)).await.is_err(), "it does not know how");
    older.shutdown().await;
    let newer = start(&log, 2).await;
    let view = newer.propose(grow(1, 5)).await.expect("taken");
    assert_eq!(view.topic_by_id(TopicId(1)).expect("there").earlier_partitions, [3]);
    newer.shutdown().await;
}

#[tokio::test]
async fn an_answered_change_is_in_the_view_of_this_node() {
    let metastore = start(&MemLog::new(), 1).await;
    let view = metastore.propose(create(1)).await.expect("taken");
    assert!(view.topic(&TenantId::default_tenant(), &name(1)).is_some());
    assert!(metastore.view().topic_by_id(TopicId(1)).is_some());
    assert!(metastore.view().applied >= view.applied);
    metastore.shutdown().await;
}

#[tokio::test]
async fn a_refusal_is_the_rules_own_and_certainly_not_applied() {
    let metastore = start(&MemLog::new(), 1).await;
    metastore.propose(create(1)).await.expect("taken");
    let error = metastore.propose(create(1)).await.expect_err("exists");
    assert!(matches!(error, ProposeError::Refused(CommandError::AlreadyExists)));
    assert_eq!(error.effect(), Effect::None);
    assert!(metastore.propose(delete(2)).await.is_err_and(|e| matches!(e, ProposeError::Refused(CommandError::TopicNotFound))));
    metastore.shutdown().await;
}

#[tokio::test]
async fn who_waits_for_a_newer_view_is_woken_by_a_change() {
    let metastore = start(&MemLog::new(), 1).await;
    let seen = metastore.view().applied;
    let (_, changed) = tokio::join!(
        async { metastore.propose(create(1)).await.expect("taken") },
        tokio::time::timeout(DEADLINE, metastore.changed(seen)),
    );
    changed.expect("woken");
    assert!(metastore.view().applied > seen);
    tokio::time::timeout(DEADLINE, metastore.changed(seen)).await.expect("a view that is newer already is answered at once");
    metastore.shutdown().await;
}

#[tokio::test]
async fn the_witness_confirms_only_what_is_gone() {
    let metastore = start(&MemLog::new(), 1).await;
    metastore.propose(create(1)).await.expect("taken");
    let witness = Witness::new(Arc::new(metastore.clone()));
    let tenant = TenantId::default_tenant();
    assert!(witness.topic_gone(&tenant, TopicId(1)).await.is_err());
    let gone_at = metastore.propose(delete(1)).await.expect("taken").applied;
    let confirmed = witness.topic_gone(&tenant, TopicId(1)).await.expect("gone");
    assert!(confirmed.applied() >= gone_at);
    metastore.shutdown().await;
    assert!(witness.topic_gone(&tenant, TopicId(1)).await.is_err(), "nobody confirms after the end");
}

#[tokio::test]
async fn a_restart_keeps_lineage_and_topics_and_another_log_is_another_life() {
    let log = MemLog::new();
    let metastore = start(&log, 1).await;
    for n in 0..20 {
        metastore.propose(create(n)).await.expect("taken");
    }
    metastore.propose(delete(7)).await.expect("taken");
    let (lineage, term) = (metastore.lineage().expect("named"), metastore.status().term);
    metastore.shutdown().await;
    let again = start(&log, 2).await;
    assert_eq!(again.lineage(), Some(lineage));
    assert_eq!(again.view().topics.len(), 19);
    assert!(again.status().term >= term);
    let other = start(&MemLog::new(), 3).await;
    assert_ne!(other.lineage(), Some(lineage));
    again.shutdown().await;
    other.shutdown().await;
}

#[tokio::test]
async fn a_latched_log_refuses_changes_and_says_so_while_reads_go_on() {
    let log = MemLog::new();
    let metastore = start(&log, 1).await;
    metastore.propose(create(1)).await.expect("taken");
    assert!(metastore.not_ready_reason().is_none());
    log.fail_writes("sync failed");
    let first = metastore.propose(create(2)).await.expect_err("cannot be written");
    assert!(matches!(first, ProposeError::Uncertain { .. }), "{first}");
    tokio::time::timeout(DEADLINE, async {
        while metastore.status().latched.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("latched");
    let later = metastore.propose(create(3)).await.expect_err("latched");
    assert!(matches!(later, ProposeError::Unavailable { .. }), "{later}");
    assert!(later.to_string().starts_with("control plane temporarily unavailable"));
    let reason = metastore.not_ready_reason().expect("not ready");
    assert!(reason.starts_with("metastore: node is not ready:") && reason.contains("sync failed"), "{reason}");
    assert!(metastore.confirmed_view().await.is_err());
    assert!(metastore.view().topic_by_id(TopicId(1)).is_some());

    log.heal();
    let again = start(&log, 2).await;
    assert!(again.view().topic_by_id(TopicId(1)).is_some());
    again.propose(create(3)).await.expect("takes changes again");
    again.shutdown().await;
}

#[tokio::test]
async fn changes_asked_for_at_once_are_all_applied() {
    let metastore = start(&MemLog::new(), 1).await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..50 {
        let metastore = metastore.clone();
        tasks.spawn(async move { metastore.propose(create(n)).await.map(|view| view.topic_by_id(TopicId(n)).is_some()) });
    }
    for shown in tasks.join_all().await {
        assert!(shown.expect("taken"), "the answering view shows the change");
    }
    assert_eq!(metastore.confirmed_view().await.expect("confirmed").topics.len(), 50);
    metastore.shutdown().await;
}

#[tokio::test]
async fn held_changes_are_refused_until_they_are_let_go() {
    let metastore = start(&MemLog::new(), 1).await;
    metastore.propose(create(1)).await.expect("taken");
    let hold = |is_total| Some(Hold { reason: "the data disk is nearly full".to_owned(), is_total });
    metastore.hold_changes(hold(true));
    for held in [create(2), delete(1)] {
        let error = metastore.propose(held).await.expect_err("held");
        assert!(matches!(&error, ProposeError::Unavailable { reason } if reason.contains("nearly full")), "{error}");
    }
    metastore.hold_changes(hold(false));
    assert!(metastore.propose(create(2)).await.is_err(), "nothing is added");
    metastore.propose(delete(1)).await.expect("what takes away is let through");
    metastore.hold_changes(None);
    metastore.propose(create(2)).await.expect("taken");
    metastore.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn two_runs_with_the_same_entropy_are_the_same() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let log = MemLog::new();
        let metastore = start(&log, 5).await;
        for n in 0..10 {
            metastore.propose(create(n)).await.expect("taken");
        }
        let status = metastore.status();
        metastore.shutdown().await;
        runs.push((status.lineage, metastore.view().applied, status.term, log.entries()));
    }
    assert_eq!(runs[0], runs[1]);
}

#[tokio::test]
async fn a_copy_is_confirmed_as_left_behind_only_once_another_node_owns_what_it_was_a_copy_of() {
    let metastore = start(&MemLog::new(), 1).await;
    let (a, b, c) = (NodeId("a".into()), NodeId("b".into()), NodeId("c".into()));
    let Command::CreateTopic { mut topic, .. } = create(1) else { unreachable!() };
    topic.owners = vec![Ownership::new(a.clone(), OwnershipEpoch(1)); 3];
    metastore.propose(Command::CreateTopic { topic, attach: None }).await.expect("taken");
    let witness = Witness::new(Arc::new(metastore.clone()));
    let index = PartitionIndex(0);
    let at = |epoch| PartitionAt { tenant: TenantId::default_tenant(), topic: TopicId(1), index, epoch: OwnershipEpoch(epoch) };
    let (first, second) = (MoveToken(1), MoveToken(2));
    let (served, incoming) = (|epoch| Copy::Served(OwnershipEpoch(epoch)), Copy::Incoming);
    let moved = async |holder: &NodeId, copy| witness.copy_moved(TopicId(1), index, holder, copy).await.is_ok();
    let take = async |command| drop(metastore.propose(command).await.expect("taken"));

    assert!(!moved(&a, served(1)).await && !moved(&b, served(1)).await, "nobody owned it since");
    take(Command::BeginMove { at: at(1), to: b.clone(), token: first }).await;
    assert!(!moved(&b, incoming(first)).await, "it is being made");
    assert!(moved(&c, incoming(second)).await, "of another move");
    take(Command::AbortMove { at: at(1), token: first }).await;
    assert!(moved(&b, incoming(first)).await, "its move is gone");
    take(Command::BeginMove { at: at(1), to: b.clone(), token: second }).await;
    take(Command::FreezePartition { at: at(1), token: second, end: Offset(0) }).await;
    assert!(!moved(&a, served(1)).await, "it may be thawed");
    take(Command::FlipOwner { at: at(1), token: second }).await;
    assert!(moved(&a, served(1)).await, "it left");
    assert!(!moved(&b, served(2)).await && !moved(&b, incoming(second)).await && !moved(&b, served(1)).await, "the owner's own");
    assert!(!moved(&a, served(2)).await, "of an epoch that has not ended");
    metastore.propose(delete(1)).await.expect("taken");
    assert!(!moved(&a, served(1)).await, "that is for another witness");
    metastore.shutdown().await;
}
