//! Who is let in: nodes of the same life of the metadata, and those that belong to none yet.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::warn;
use veena_contract::{LineageId, NodeId, PeerRefusal};
use veena_metastore::Metastore;
use veena_peer::{Admission, Hello};

/// Whom this node talks to. Who was removed from the cluster is no stranger to it: the metastore tells it so, and the
/// [service](super::service::Service) serves it nothing else.
pub(super) struct Gate {
    node: NodeId,
    /// The life of the metadata that the data directory is bound to.
    kept: Option<LineageId>,
    metastore: OnceLock<Metastore>,
    /// Was it told that somebody has the name of this node?
    has_told: AtomicBool,
    /// Who of a cluster was here while this node was of none.
    met: OnceLock<NodeId>,
}

impl Gate {
    pub fn new(node: NodeId, kept: Option<LineageId>) -> Self {
        Self { node, kept, metastore: OnceLock::new(), has_told: AtomicBool::new(false), met: OnceLock::new() }
    }

    /// From here on the metastore says which life it is, once it knows.
    pub fn follow(&self, metastore: Metastore) {
        // There is one, and it is set once.
        let _first = self.metastore.set(metastore);
    }

    /// Who of a cluster was here while this node was of none: it called, or was found where this node was told to look.
    pub fn met(&self) -> Option<NodeId> {
        self.met.get().cloned()
    }

    fn lineage(&self) -> Option<String> {
        let lineage = self.kept.or_else(|| self.metastore.get()?.lineage());
        lineage.map(|lineage| lineage.to_string())
    }
}

impl Admission for Gate {
    fn hello(&self) -> Hello {
        Hello { node: self.node.clone(), lineage: self.lineage() }
    }

    fn admit(&self, hello: &Hello) -> Result<(), PeerRefusal> {
        if hello.node == self.node {
            // It goes on asking.
            if !self.has_told.swap(true, Ordering::Relaxed) {
                warn!(node = %hello.node, "another node has the name of this one, and is not served");
            }
            return Err(PeerRefusal::NotAdmitted);
        }
        match (&hello.lineage, self.lineage()) {
            (Some(theirs), Some(ours)) if *theirs != ours => Err(PeerRefusal::NotAdmitted),
            (Some(_), None) => {
                // The first is enough to know.
                let _known = self.met.set(hello.node.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(node: &str, lineage: Option<u128>) -> Hello {
        Hello { node: NodeId(node.into()), lineage: lineage.map(|lineage| LineageId(lineage).to_string()) }
    }

    #[test]
    fn only_nodes_of_this_cluster_or_of_none_yet_are_let_in() {
        let gate = Gate::new(NodeId("a".into()), Some(LineageId(7)));
        assert_eq!(gate.hello(), hello("a", Some(7)));
        for (from, is_let_in) in
            [(hello("b", Some(7)), true), (hello("b", None), true), (hello("b", Some(8)), false), (hello("a", Some(7)), false)]
        {
            assert_eq!(gate.admit(&from).is_ok(), is_let_in, "{from:?}");
        }
        let new = Gate::new(NodeId("a".into()), None);
        assert_eq!(new.hello(), hello("a", None));
        assert!(new.admit(&hello("b", None)).is_ok() && new.met().is_none());
        assert!(new.admit(&hello("c", Some(8))).is_ok(), "it has to learn first which cluster it joins");
        assert!(new.admit(&hello("d", Some(8))).is_ok());
        assert_eq!((new.met(), gate.met()), (Some(NodeId("c".into())), None), "who has one already learns nothing");
    }
}
