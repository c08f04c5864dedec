//! How a node takes part in a cluster. A node alone sets nothing of it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use veena_auth::{ClusterSecretError, ClusterSecrets};
use veena_contract::{NodeId, PeerAddr};

use super::value::no_node_name;
use crate::listen::host_and_port;

/// Where a node of a cluster is found, and whom it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `host:port` (UDP) on which other nodes reach this one; `None` for a node alone.
    pub peer_addr: Option<String>,
    /// The same as others see it, if they do not see `peer_addr`.
    pub advertise_addr: Option<String>,
    /// What all nodes of the cluster share.
    pub secret: Option<SharedSecrets>,
    /// The file that it is in.
    pub secret_file: Option<PathBuf>,
    /// Found the cluster, if the data directory is empty.
    pub bootstrap: bool,
    /// Nodes through which this one joins, if its data directory is empty; of one that founds: which have to say that there is no cluster yet.
    pub join: Vec<PeerAddr>,
}

impl ClusterConfig {
    /// Where others reach this node.
    #[must_use]
    pub fn advertised(&self) -> Option<&str> {
        self.advertise_addr.as_deref().or(self.peer_addr.as_deref())
    }

    /// What is wrong, each with what to do.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        let Some(peer_addr) = &self.peer_addr else {
            let set = [
                (self.advertise_addr.is_some(), "cluster.advertise_addr"),
                (self.secret.is_some(), "cluster.secret"),
                (self.secret_file.is_some(), "cluster.secret_file"),
                (self.bootstrap, "cluster.bootstrap"),
                (!self.join.is_empty(), "cluster.join"),
            ];
            for (_, key) in set.into_iter().filter(|(is_set, _)| *is_set) {
                errors.push(format!("{key} is set and cluster.peer_addr is not: set it too, or neither for a node alone"));
            }
            return;
        };
        let mut require = |holds: bool, text: String| {
            if !holds {
                errors.push(text);
            }
        };
        require(host_and_port(peer_addr).is_some(), format!("cluster.peer_addr {peer_addr:?}: want host:port"));
        match &self.advertise_addr {
            Some(addr) => require(is_callable(addr), format!("cluster.advertise_addr {addr:?}: want host:port as other nodes reach it")),
            None => require(
                host_and_port(peer_addr).is_none() || is_callable(peer_addr),
                format!("cluster.peer_addr {peer_addr:?} names no address that other nodes could call: set cluster.advertise_addr"),
            ),
        }
        match (&self.secret, &self.secret_file) {
            (None, None) => require(false, "a node of a cluster needs cluster.secret_file or VEENA_CLUSTER_SECRET".to_owned()),
            (Some(_), Some(_)) => {
                require(false, "cluster.secret_file and VEENA_CLUSTER_SECRET are both set: one of them is enough".to_owned())
            }
            _ => {}
        }
    }
}

/// Can this be called: does it name a host and a port?
fn is_callable(addr: &str) -> bool {
    host_and_port(addr).is_some_and(|(host, port)| !matches!(host, "" | "0.0.0.0" | "[::]") && port != 0)
}

/// Reads `node@host:port`.
pub(super) fn known_node(text: &str) -> Result<PeerAddr, String> {
    let wrong = || format!("want node@host:port, not {text:?}");
    let (node, addr) = text.rsplit_once('@').filter(|(node, addr)| !node.is_empty() && is_callable(addr)).ok_or_else(wrong)?;
    Ok(PeerAddr { node: NodeId::parse(node).ok_or_else(|| no_node_name(node))?, addr: addr.into() })
}

/// The secrets of a cluster as an operator gave them. Shows only their public names.
#[derive(Clone)]
pub struct SharedSecrets(Arc<ClusterSecrets>);

impl SharedSecrets {
    /// Reads them.
    ///
    /// # Errors
    /// [`ClusterSecretError`], which holds nothing of them.
    pub fn parse(text: &str) -> Result<Self, ClusterSecretError> {
        Ok(Self(Arc::new(ClusterSecrets::parse(text)?)))
    }

    /// The secrets.
    #[must_use]
    pub fn get(&self) -> &ClusterSecrets {
        &self.0
    }
}

impl fmt::Debug for SharedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.ids().map(|id| id.as_str())).finish()
    }
}

impl PartialEq for SharedSecrets {
    fn eq(&self, other: &Self) -> bool {
        self.0.ids().eq(other.0.ids())
    }
}

impl Eq for SharedSecrets {}
