//! The nodes of a cluster, each in a network namespace of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::net::{self, Net};
use super::small_disk::SmallDisk;
use crate::api::Client;
use crate::cluster;
use crate::node::{NodeConfig, NodeProcess};
use crate::recorder::Recorder;

pub use crate::cluster::{NODES, name};

/// The node whose disk can become full.
pub const SMALL: usize = 2;
/// Below this a node takes no messages.
pub const RESERVE_BYTES: u64 = 192 * 1024 * 1024;

const HTTP_PORT: u16 = 7942;
const PEER_PORT: u16 = 7943;

/// Running nodes. The order matters at the end: processes, then what they stand on.
pub struct Nodes {
    /// The processes.
    pub all: Vec<NodeProcess>,
    /// What joins them.
    pub net: Net,
    /// The disk of one of them.
    pub disk: SmallDisk,
}

impl Nodes {
    /// Founds a cluster with everything in `dir`.
    ///
    /// # Errors
    /// It does not come to be.
    pub async fn start(bin: &Path, dir: &Path, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        let net = Net::create(NODES)?;
        let disk = SmallDisk::create(&dir.join(name(SMALL)).join("disk"))?;
        let mut all = Vec::new();
        for at in 0..NODES {
            let mut config = config(bin, dir, &net, at);
            if at == SMALL {
                config.data_dir = disk.path().join("data");
                config.env.push(("VEENA_STORAGE_RESERVE_BYTES".to_owned(), RESERVE_BYTES.to_string()));
            }
            let node = NodeProcess::start_on(config, net::addr(at, HTTP_PORT)).await.with_context(|| name(at))?;
            all.push(node.recorded_as(recorder, at));
        }
        Ok(Self { all, net, disk })
    }

    /// Where clients reach them.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.all.iter().map(NodeProcess::addr).collect()
    }

    /// A client of node `at` and of no other.
    #[must_use]
    pub fn client(&self, at: usize) -> Client {
        Client::among(&self.addrs(), at).staying()
    }

    /// Their logs.
    #[must_use]
    pub fn logs(&self) -> Vec<PathBuf> {
        self.all.iter().map(|node| node.config().log.clone()).collect()
    }

    /// Waits until every node is ready, sees every other, and names the same leader. Answers who leads.
    ///
    /// # Errors
    /// They are not before `deadline`; the error says what is missing.
    pub async fn settled(&mut self, deadline: Duration) -> anyhow::Result<usize> {
        cluster::settled(&mut self.all, deadline).await
    }

    /// Waits until `asked` says that it does not reach `lost`.
    ///
    /// # Errors
    /// It reaches it still after `deadline`.
    pub async fn lost(&self, asked: usize, lost: usize, deadline: Duration) -> anyhow::Result<()> {
        cluster::lost(&self.all, asked, lost, deadline).await
    }

    /// Words before the node's own: where it runs, then who watches it.
    pub fn set_watcher(&mut self, at: usize, watcher: Vec<String>) {
        let words = self.net.words(at);
        self.all[at].config_mut().before = words.into_iter().chain(watcher).collect();
    }
}

fn config(bin: &Path, dir: &Path, net: &Net, at: usize) -> NodeConfig {
    let mut config = NodeConfig::in_dir(bin, &dir.join(name(at))).flag("--insecure-listen").flag("--node-id").flag(&name(at));
    config.before = net.words(at);
    let peers: Vec<_> = (0..NODES).map(|at| net::addr(at, PEER_PORT)).collect();
    config.env = cluster::env(&peers, at);
    config
}
