//! What this node knows of the members.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use veena_broker::tasks::{OnExit, Tasks};
use veena_contract::{
    BoxFuture, Member, Members, NodeDirectory, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, limits,
};
use veena_metastore::Metastore;

/// How long another node may take to say that it is there; and how soon one that did not is asked again.
const ANSWER: Duration = Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX);

/// The membership that the metastore knows, and who of it answers.
pub(super) struct ClusterMembers {
    me: NodeId,
    metastore: Metastore,
    client: Arc<dyn PeerClient>,
    tasks: Tasks,
    /// Those that did not answer when they were last asked. They are asked again on the side, so that nobody waits for them.
    silent: Arc<Mutex<BTreeSet<NodeId>>>,
}

/// What a node says of itself. Only grows; what is not said is not so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Alive {
    /// It serves partitions.
    #[serde(rename = "ready")]
    pub is_ready: bool,
}

impl Alive {
    pub fn encode(self) -> Bytes {
        serde_json::to_vec(&self).expect("invariant: flags can be written as JSON").into()
    }

    fn decode(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }
}

/// Asks a node whether it is there.
pub(super) async fn ask(client: &dyn PeerClient, peer: &PeerAddr) -> Result<Alive, PeerError> {
    let call = PeerCall { class: PeerClass::Control, op: PeerOp::NODE_ALIVE, timeout: ANSWER, body: Bytes::new() };
    client.call(peer, call).await.map(|body| Alive::decode(&body))
}

impl ClusterMembers {
    pub fn new(me: NodeId, metastore: Metastore, client: Arc<dyn PeerClient>, tasks: Tasks) -> Self {
        Self { me, metastore, client, tasks, silent: Arc::default() }
    }

    /// What a member says of itself; nothing if it is silent.
    async fn hear(&self, peer: &PeerAddr) -> Option<Alive> {
        if peer.node == self.me {
            return Some(Alive { is_ready: true });
        }
        if self.silent.lock().contains(&peer.node) {
            return None;
        }
        let heard = ask(self.client.as_ref(), peer).await.ok();
        if heard.is_none() && self.silent.lock().insert(peer.node.clone()) {
            self.listen_for(peer.node.clone());
        }
        heard
    }

    /// Asks a silent member until it answers, or is none any more.
    fn listen_for(&self, node: NodeId) {
        let (metastore, client, silent) = (self.metastore.clone(), Arc::clone(&self.client), Arc::clone(&self.silent));
        let stop = self.tasks.token().clone();
        self.tasks.spawn("silent-member", OnExit::Log, async move {
            while stop.run_until_cancelled(tokio::time::sleep(ANSWER)).await.is_some() {
                let Some(addr) = metastore.address_of(&node) else { break };
                match stop.run_until_cancelled(ask(client.as_ref(), &addr)).await {
                    Some(Err(_)) => {}
                    Some(Ok(_)) | None => break,
                }
            }
            silent.lock().remove(&node);
        });
    }
}

impl NodeDirectory for ClusterMembers {
    fn nodes(&self) -> Vec<NodeId> {
        self.metastore.nodes()
    }

    fn address_of(&self, node: &NodeId) -> Option<PeerAddr> {
        self.metastore.address_of(node)
    }
}

impl Members for ClusterMembers {
    fn members(&self) -> BoxFuture<'_, Vec<Member>> {
        Box::pin(async move {
            let status = self.metastore.status();
            let asked = status.members.iter().map(|member| async {
                let peer = member.peer.clone();
                let is_leader = status.leader.as_ref().map(|leader| *leader == peer.node);
                let heard = self.hear(&peer).await;
                let is_ready = heard.is_some_and(|alive| alive.is_ready);
                Member { peer, is_alive: heard.is_some(), is_ready, is_voter: member.is_voter, is_leader }
            });
            let mut members = join_all(asked).await;
            members.sort_unstable_by(|a, b| a.peer.node.cmp(&b.peer.node));
            members
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use serde_json::json;
    use tokio::runtime::Handle;
    use veena_consensus::NoPeers;
    use veena_contract::{CallerGone, PeerRequest};
    use veena_metastore::{MemLog, MetastoreConfig, Runtime};

    use super::*;
    use crate::system::OsEntropy;

    /// The network to one other node, which says this, or nothing.
    #[derive(Default)]
    struct Other(Mutex<Option<Bytes>>);

    impl PeerClient for Other {
        fn call<'a>(&'a self, to: &'a PeerAddr, _: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
            let said = self.0.lock().clone();
            Box::pin(async move {
                tokio::task::yield_now().await;
                said.ok_or_else(|| PeerError::Silent { node: to.node.clone() })
            })
        }
    }

    #[test]
    fn what_is_not_said_is_not_so() {
        assert_eq!(Alive { is_ready: true }.encode(), r#"{"ready":true}"#);
        for (body, is_ready) in
            [(r#"{"ready":true}"#, true), (r#"{"ready":true,"later":1}"#, true), (r#"{"ready":false}"#, false), ("{}", false), ("", false)]
        {
            assert_eq!(Alive::decode(body.as_bytes()), Alive { is_ready }, "{body}");
        }
    }

    #[tokio::test]
    async fn a_member_that_was_silent_is_not_waited_for_until_it_has_been_heard_again() {
        let me = NodeId("a".into());
        let runtime = Runtime::new(Arc::new(OsEntropy));
        let metastore = Metastore::open(MetastoreConfig::new(me.clone()), MemLog::new(), &runtime, Arc::new(NoPeers)).await.expect("opens");
        metastore.found(&runtime).await.expect("founded");
        let joins = PeerRequest {
            from: NodeId("b".into()),
            class: PeerClass::Control,
            op: PeerOp::METADATA_MEMBERS,
            remaining: Duration::from_secs(10),
            caller: CallerGone::default(),
            body: json!({"v": 1, "body": {"join": {"name": "b", "addr": "b:1"}}}).to_string().into(),
        };
        metastore.serve(joins).expect("a call of the metastore").await.expect("served");

        let (other, tasks) = (Arc::new(Other::default()), Tasks::new(Handle::current()));
        let members = ClusterMembers::new(me, metastore.clone(), other.clone(), tasks.clone());
        let of_b = |found: Vec<Member>| (found[1].is_alive, found[1].is_ready);
        assert!(members.members().now_or_never().is_none(), "it is waited for");
        assert_eq!(of_b(members.members().await), (false, false));
        assert_eq!(of_b(members.members().now_or_never().expect("nobody waits any more")), (false, false));
        *other.0.lock() = Some(Bytes::new());
        while !of_b(members.members().await).0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(of_b(members.members().await), (true, false), "it is there, and serves nothing");
        *other.0.lock() = Some(Alive { is_ready: true }.encode());
        assert_eq!(of_b(members.members().await), (true, true));
        tasks.stop().await;
        metastore.shutdown().await;
    }
}
