//! Who takes part and where to call them, as the membership says that this node knows.

use veena_contract::{NodeDirectory, NodeId, PeerAddr};

use crate::Metastore;

/// Learners count too: who owns data need not vote.
impl NodeDirectory for Metastore {
    fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.status().members.into_iter().map(|member| member.peer.node).collect();
        nodes.sort_unstable();
        nodes
    }

    fn address_of(&self, node: &NodeId) -> Option<PeerAddr> {
        self.consensus().member(node).filter(|peer| !peer.addr.is_empty())
    }
}
