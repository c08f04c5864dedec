//! What this node knows of the members.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use veena_contract::{
    BoxFuture, Member, Members, NodeDirectory, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, limits,
};
use veena_metastore::Metastore;

/// The membership that the metastore knows, and who of it answers.
pub(super) struct ClusterMembers {
    pub me: NodeId,
    pub metastore: Metastore,
    pub client: Arc<dyn PeerClient>,
}

/// Asks a node whether it is there.
pub(super) async fn ask(client: &dyn PeerClient, peer: &PeerAddr) -> Result<(), PeerError> {
    let timeout = Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX);
    client.call(peer, PeerCall { class: PeerClass::Control, op: PeerOp::NODE_ALIVE, timeout, body: Bytes::new() }).await.map(drop)
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
                let is_alive = peer.node == self.me || ask(self.client.as_ref(), &peer).await.is_ok();
                Member { peer, is_alive, is_voter: member.is_voter, is_leader }
            });
            let mut members = join_all(asked).await;
            members.sort_unstable_by(|a, b| a.peer.node.cmp(&b.peer.node));
            members
        })
    }
}
