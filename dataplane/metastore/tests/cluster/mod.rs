use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use veena_contract::{
    Actor, BoxFuture, CallerGone, Catalog, CatalogWriter, Command, CommandError, FeatureLevel, Grants, LeaderPort, NodeDirectory, NodeId,
    Ownership, OwnershipEpoch, PeerAddr, PeerCall, PeerClient, PeerError, PeerRefusal, PeerRequest, ProposeError, StoredHash, TenantId,
    TopicId, UserKind, UserRecord, Username, Witness,
};
use veena_metastore::{Hold, MemLog, MemberError, Metastore, MetastoreConfig, Runtime, StartError};

use crate::replica::{Counter, create, delete, grow, name};

/// Who listens where.
pub type Listening = Arc<Mutex<BTreeMap<Arc<str>, Metastore>>>;

struct End {
    listening: Listening,
    me: NodeId,
}

impl PeerClient for End {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(async move {
            let node = to.node.clone();
            let there = self.listening.lock().await.get(&to.addr).cloned();
            let Some(there) = there else {
                return Err(PeerError::Unreachable { node, reason: "nobody is there".to_owned() });
            };
            let request = PeerRequest {
                from: self.me.clone(),
                class: call.class,
                op: call.op,
                remaining: call.timeout,
                caller: CallerGone::default(),
                body: call.body,
            };
            let Some(served) = there.serve(request) else {
                return Err(PeerError::Refused { node, refusal: PeerRefusal::UnknownOp });
            };
            match tokio::time::timeout(call.timeout, served).await {
                Ok(Ok(bytes)) => Ok(bytes),
                Ok(Err(refusal)) => Err(PeerError::Refused { node, refusal }),
                Err(_) => Err(PeerError::Silent { node }),
            }
        })
    }
}

pub fn peer(n: u64) -> PeerAddr {
    PeerAddr { node: NodeId(Arc::from(format!("node-{n}"))), addr: Arc::from(format!("node-{n}:1")) }
}

/// The root admin, as whoever makes a change.
fn root_actor() -> Actor {
    Actor { tenant: TenantId::default_tenant(), username: Username::root() }
}

pub fn runtime(n: u64) -> Runtime {
    Runtime::new(Arc::new(Counter::new(n)))
}

async fn open(listening: &Listening, n: u64, log: &MemLog) -> Metastore {
    open_at(listening, n, peer(n), log).await
}

async fn open_at(listening: &Listening, n: u64, at: PeerAddr, log: &MemLog) -> Metastore {
    open_in(listening, n, at, log, "").await
}

/// With a data directory of this name.
pub async fn open_in(listening: &Listening, n: u64, at: PeerAddr, log: &MemLog, directory: &str) -> Metastore {
    let mut config = MetastoreConfig::new(at.node);
    config.consensus.directory = Arc::from(directory);
    config.consensus.addr = at.addr;
    open_with(listening, n, config, log).await
}

/// A program that knows this much.
async fn open_as(listening: &Listening, n: u64, level: FeatureLevel, log: &MemLog) -> Metastore {
    let mut config = MetastoreConfig::new(peer(n).node);
    config.consensus.addr = peer(n).addr;
    config.consensus.level = level;
    open_with(listening, n, config, log).await
}

pub async fn open_with(listening: &Listening, n: u64, config: MetastoreConfig, log: &MemLog) -> Metastore {
    let addr = config.consensus.addr.clone();
    let end = Arc::new(End { listening: listening.clone(), me: config.consensus.node.clone() });
    let metastore = Metastore::open(config, log.clone(), &runtime(n), end).await.expect("opens");
    listening.lock().await.insert(addr, metastore.clone());
    metastore
}

pub async fn stop(listening: &Listening, n: u64, metastore: &Metastore) {
    listening.lock().await.remove(&peer(n).addr);
    metastore.shutdown().await;
}

/// Three nodes of one cluster that all vote; the first has founded it.
async fn three_voters() -> (Listening, [MemLog; 3], Vec<Metastore>) {
    let listening = Listening::default();
    let logs = [MemLog::new(), MemLog::new(), MemLog::new()];
    let mut nodes = Vec::new();
    for n in 1..=3 {
        let node = open(&listening, n, &logs[nodes.len()]).await;
        if n == 1 {
            node.found(&runtime(n)).await.expect("founded");
        } else {
            node.enter(&[peer(1)]).await.expect("entered");
            node.promote(&peer(n).node).await.expect("promoted");
        }
        nodes.push(node);
    }
    (listening, logs, nodes)
}

#[tokio::test(start_paused = true)]
async fn nodes_found_enter_and_show_each_others_changes_also_after_a_restart_of_all() {
    let (listening, logs, nodes) = three_voters().await;
    let lineage = nodes[0].lineage().expect("named");
    for (n, node) in (1..).zip(&nodes) {
        let view = node.propose(create(n)).await.expect("taken");
        assert!(view.topic(&TenantId::default_tenant(), &name(n)).is_some(), "the answering node shows it");
        assert_eq!(node.lineage(), Some(lineage));
        for other in &nodes {
            assert!(other.confirmed_view().await.expect("confirmed").topic_by_id(TopicId(n)).is_some());
        }
    }
    nodes[2].propose(delete(1)).await.expect("taken");
    let witness = Witness::new(Arc::new(nodes[1].clone()));
    witness.topic_gone(&TenantId::default_tenant(), TopicId(1)).await.expect("gone, says another node");
    assert_eq!(nodes[1].status().members.iter().filter(|member| member.is_voter).count(), 3);

    for (n, node) in (1..).zip(&nodes) {
        stop(&listening, n, node).await;
    }
    let mut again = Vec::new();
    for (n, log) in (1..).zip(&logs) {
        again.push(open(&listening, n, log).await);
    }
    again[0].found(&runtime(1)).await.expect("a founder enters what it has founded");
    for node in &again {
        node.enter(&[]).await.expect("entered");
        assert_eq!(node.lineage(), Some(lineage));
        assert_eq!(node.view().topics.len(), 2);
        // A leader that was started again is one once a majority has answered it.
        let ready = async {
            while node.not_ready_reason().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ready).await.expect("ready");
    }
    again[1].propose(create(9)).await.expect("taken");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_elsewhere_gets_what_it_has_missed() {
    let (listening, logs, nodes) = three_voters().await;
    stop(&listening, 3, &nodes[2]).await;
    nodes[1].propose(create(1)).await.expect("taken");
    let elsewhere = PeerAddr { node: peer(3).node, addr: Arc::from("elsewhere:1") };
    let moved = open_at(&listening, 3, elsewhere.clone(), &logs[2]).await;
    moved.enter(&[]).await.expect("entered");
    assert!(moved.view().topic_by_id(TopicId(1)).is_some(), "before it was let in it knew nothing of it");
    for node in [&nodes[0], &nodes[1], &moved] {
        assert_eq!(node.nodes(), [peer(1).node, peer(2).node, peer(3).node]);
        node.confirmed_view().await.expect("confirmed");
        assert_eq!(node.address_of(&elsewhere.node), Some(elsewhere.clone()));
    }
    assert_eq!(moved.address_of(&peer(9).node), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_a_cluster_says_so() {
    let listening = Listening::default();
    let alone = open(&listening, 1, &MemLog::new()).await;
    let error = alone.enter(&[]).await.expect_err("no other node is known");
    assert!(matches!(error, StartError::Member(_)), "{error}");
    let reason = alone.not_ready_reason().expect("not ready");
    assert!(reason.contains("no leader"), "{reason}");
    assert!(tokio::time::timeout(Duration::from_secs(60), alone.confirmed_view()).await.expect("answered").is_err());
}

/// A topic whose partitions all belong to this node.
pub fn given_to(n: u64, node: &NodeId) -> Command {
    match create(n) {
        Command::CreateTopic { mut topic, attach } => {
            let owner = Ownership::new(node.clone(), OwnershipEpoch::default());
            topic.owners = vec![owner; topic.partitions as usize];
            Command::CreateTopic { topic, attach }
        }
        other => other,
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_comes_back_with_the_directory_it_was_let_in_with_and_with_no_other() {
    let listening = Listening::default();
    let first = open_in(&listening, 1, peer(1), &MemLog::new(), "dir-1").await;
    first.found(&runtime(1)).await.expect("founded");
    assert!(first.is_directory_known());
    let second = peer(2);
    // It is let in and gets nothing before it is killed, and then is given partitions.
    let joining = open_in(&listening, 2, second.clone(), &MemLog::new(), "dir-2").await;
    listening.lock().await.remove(&second.addr);
    joining.enter(&[peer(1)]).await.expect_err("nothing reaches it");
    joining.shutdown().await;
    assert!(first.is_member(&second.node));
    first.propose(given_to(1, &second.node)).await.expect("taken");

    for directory in ["dir-3", ""] {
        let wiped = open_in(&listening, 2, second.clone(), &MemLog::new(), directory).await;
        let error = wiped.enter(&[peer(1)]).await.expect_err("its partitions would look empty");
        assert!(matches!(&error, StartError::Member(MemberError::Refused { reason }) if reason.contains("3 of them")), "{error}");
        wiped.shutdown().await;
    }
    for _ in 0..2 {
        let again = open_in(&listening, 2, second.clone(), &MemLog::new(), "dir-2").await;
        again.enter(&[peer(1)]).await.expect("it is the one that was let in, whatever the leader knows of its log");
        assert!(again.is_directory_known() && again.view().topic_by_id(TopicId(1)).is_some());
        stop(&listening, 2, &again).await;
    }

    // Who was taken out and still owns partitions is no newcomer; others may come with whatever they have.
    first.remove(&second.node).await.expect("removed");
    let back = open_in(&listening, 2, second.clone(), &MemLog::new(), "dir-3").await;
    let error = back.enter(&[peer(1)]).await.expect_err("its partitions would look empty");
    assert!(matches!(&error, StartError::Member(MemberError::Refused { .. })), "{error}");
    for directory in ["dir-4", "dir-5", ""] {
        let third = open_in(&listening, 3, peer(3), &MemLog::new(), directory).await;
        third.enter(&[peer(1)]).await.expect("it owns nothing");
        assert_eq!(third.is_directory_known(), !directory.is_empty());
        stop(&listening, 3, &third).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_leader_holds_back_is_refused_to_other_nodes_too() {
    let (_listening, _logs, nodes) = three_voters().await;
    nodes[1].propose(create(1)).await.expect("taken");
    let hold = |is_total| Some(Hold { reason: "the data disk is full".to_owned(), is_total });
    nodes[0].hold_changes(hold(true));
    for held in [create(2), delete(1)] {
        let error = nodes[1].propose(held).await.expect_err("held at the leader");
        assert!(
            matches!(&error, ProposeError::Unavailable { reason } if reason == "at the leader of the metadata: the data disk is full"),
            "{error}"
        );
    }
    nodes[0].hold_changes(hold(false));
    assert!(nodes[1].propose(create(2)).await.is_err(), "nothing is added");
    nodes[1].propose(delete(1)).await.expect("what takes away is let through");
    nodes[0].hold_changes(None);
    // One that does not lead holds back what is its own alone.
    nodes[2].hold_changes(hold(true));
    nodes[1].propose(create(2)).await.expect("taken");
    assert!(nodes[2].propose(create(3)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_an_older_program_does_not_understand_is_written_once_the_last_member_runs_a_newer_one() {
    let (listening, logs) = (Listening::default(), [MemLog::new(), MemLog::new(), MemLog::new()]);
    let drain = |n| Command::SetDraining { node: peer(n).node, draining: true, mark: None, beside: None };
    let first = open_as(&listening, 1, FeatureLevel::FIRST, &logs[0]).await;
    first.found(&runtime(1)).await.expect("founded");
    let second = open(&listening, 2, &logs[1]).await;
    second.enter(&[peer(1)]).await.expect("a newer program may join older ones");
    assert_eq!(second.level(), FeatureLevel::FIRST);
    second.propose(create(1)).await.expect("what all understand is written");
    for (command, why) in [(drain(9), "the first would not go on"), (grow(1, 5), "the first would not remember where keys led before")] {
        let error = second.propose(command).await.expect_err(why);
        assert!(matches!(&error, ProposeError::Unavailable { reason } if reason.contains("older program")), "{error}");
    }

    stop(&listening, 1, &first).await;
    let first = open(&listening, 1, &logs[0]).await;
    first.found(&runtime(1)).await.expect("it comes back as a newer program, and says so");
    second.propose(drain(9)).await.expect("all understand it");
    assert!(second.view().draining.contains(&peer(9).node));
    second.propose(grow(1, 5)).await.expect("all remember it");
    for node in [&first, &second] {
        let view = node.confirmed_view().await.expect("confirmed");
        assert_eq!(view.topic_by_id(TopicId(1)).expect("there").earlier_partitions, [3]);
    }
    let old = open_as(&listening, 3, FeatureLevel::FIRST, &logs[2]).await;
    let error = old.enter(&[peer(1)]).await.expect_err("it could not read what the others have written");
    assert!(matches!(&error, StartError::Member(MemberError::Refused { reason }) if reason.contains("older")), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_a_user_before_every_member_knows_of_users() {
    let (listening, logs) = (Listening::default(), [MemLog::new(), MemLog::new(), MemLog::new()]);
    let root = || Command::CreateUser {
        user: UserRecord {
            tenant: TenantId::default_tenant(),
            username: root_actor().username,
            kind: UserKind::Person,
            hash: Some(StoredHash::new("hash".into())),
            grants: Grants::none(),
            is_root: true,
            created_at_ms: 1,
            updated_at_ms: 1,
            revision: 0,
        },
    };
    let first = open_as(&listening, 1, FeatureLevel::MOVES, &logs[0]).await;
    first.found(&runtime(1)).await.expect("founded");
    let second = open(&listening, 2, &logs[1]).await;
    second.enter(&[peer(1)]).await.expect("a newer program may join older ones");
    for (caller, command) in [(None, root()), (Some(root_actor()), create(1))] {
        let error = second.propose_by(caller, command).await.expect_err("the first would not go on");
        assert!(matches!(&error, ProposeError::Unavailable { reason } if reason.contains("older program")), "{error}");
    }

    stop(&listening, 1, &first).await;
    let first = open(&listening, 1, &logs[0]).await;
    first.found(&runtime(1)).await.expect("it comes back as a newer program, and says so");
    second.propose(root()).await.expect("all understand it");
    let error = first.propose(root()).await.expect_err("there is one already");
    assert!(matches!(error, ProposeError::Refused(CommandError::UserExists)), "{error}");
    second.propose_by(Some(root_actor()), create(1)).await.expect("the root admin may");
    for node in [&first, &second] {
        let view = node.confirmed_view().await.expect("confirmed");
        assert_eq!(view.topic_by_id(TopicId(1)).expect("there").owner.as_deref(), Some("admin"));
        assert!(view.user(&TenantId::default_tenant(), &Username::root()).expect("there").is_root);
    }
    let old = open_as(&listening, 3, FeatureLevel::MOVES, &logs[2]).await;
    let error = old.enter(&[peer(1)]).await.expect_err("it could not read what the others have written");
    assert!(matches!(&error, StartError::Member(MemberError::Refused { reason }) if reason.contains("older")), "{error}");
}
