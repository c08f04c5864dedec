use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use veena_contract::{
    BoxFuture, CallerGone, Catalog, CatalogWriter, LeaderPort, NodeDirectory, NodeId, PeerAddr, PeerCall, PeerClient, PeerError,
    PeerRefusal, PeerRequest, TenantId, TopicId, Witness,
};
use veena_metastore::{MemLog, Metastore, MetastoreConfig, Runtime, StartError};

use crate::replica::{Counter, create, delete, name};

/// Who listens where.
type Listening = Arc<Mutex<BTreeMap<Arc<str>, Metastore>>>;

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

fn peer(n: u64) -> PeerAddr {
    PeerAddr { node: NodeId(Arc::from(format!("node-{n}"))), addr: Arc::from(format!("node-{n}:1")) }
}

fn runtime(n: u64) -> Runtime {
    Runtime::new(Arc::new(Counter::new(n)))
}

async fn open(listening: &Listening, n: u64, log: &MemLog) -> Metastore {
    open_at(listening, n, peer(n), log).await
}

async fn open_at(listening: &Listening, n: u64, at: PeerAddr, log: &MemLog) -> Metastore {
    let PeerAddr { node, addr } = at;
    let mut config = MetastoreConfig::new(node.clone());
    config.consensus.addr = addr.clone();
    let end = Arc::new(End { listening: listening.clone(), me: node });
    let metastore = Metastore::open(config, log.clone(), &runtime(n), end).await.expect("opens");
    listening.lock().await.insert(addr, metastore.clone());
    metastore
}

async fn stop(listening: &Listening, n: u64, metastore: &Metastore) {
    listening.lock().await.remove(&peer(n).addr);
    metastore.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_found_enter_and_show_each_others_changes_also_after_a_restart_of_all() {
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
