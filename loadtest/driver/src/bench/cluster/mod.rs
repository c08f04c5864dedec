//! Scenarios of three nodes that are one broker, all on this machine.

mod down;
mod idle;
mod latency;
mod leader;
mod moving;
mod rates;
mod revocation;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use memchr::memmem;
use tempfile::TempDir;

use super::Options;
use super::secured::basic;
use super::server::{ADMIN_PASSWORD, lag_and_ledger, node_config};
use crate::api::{Client, NewTopic};
use crate::cluster::{self, NODES, name};
use crate::http::Answer;
use crate::node::{NodeProcess, free_addr};

pub(super) use {down::measure as owner_down, idle::measure as idle, latency::measure as latency, leader::measure as leader_killed};
pub(super) use {moving::measure as move_1gib, rates::batches_elsewhere, rates::three_nodes, revocation::measure as revocation};

const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// How long the nodes may take to be one cluster.
const WHOLE_WITHIN: Duration = Duration::from_secs(60);
const VISIBILITY_MS: u64 = 30_000;

/// Was this refused for now, and certainly not done?
fn is_refused(answer: &Answer<'_>) -> bool {
    let says_none = || memmem::find(answer.body, b"\"effect\":\"none\"").is_some();
    matches!(answer.status, 429 | 503) && (answer.effect == Some("none") || says_none())
}

/// The nodes, each with a client that asks it and no other.
struct Cluster {
    nodes: Vec<NodeProcess>,
    clients: Vec<Client>,
    /// As whom the clients sign in, if nodes ask.
    line: Option<String>,
    dir: TempDir,
}

impl Cluster {
    /// Three nodes, all of which vote.
    async fn start(options: &Options) -> anyhow::Result<Self> {
        Self::start_as(options, None).await
    }

    /// The same, asking everybody who they are; the clients are the root admin.
    async fn start_secured(options: &Options) -> anyhow::Result<Self> {
        let mut options = options.clone();
        options.node_env.extend([
            ("VEENA_SECURITY_ENABLED".to_owned(), "true".to_owned()),
            ("VEENA_ADMIN_PASSWORD".to_owned(), ADMIN_PASSWORD.to_owned()),
        ]);
        Self::start_as(&options, Some(basic("admin", ADMIN_PASSWORD))).await
    }

    async fn start_as(options: &Options, line: Option<String>) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(&options.dir).context("no directory for data")?;
        // One number is free over TCP, for clients, and hardly ever taken over UDP, for nodes.
        let addrs = (0..NODES).map(|_| free_addr()).collect::<anyhow::Result<Vec<_>>>()?;
        let mut nodes = Vec::new();
        for (at, addr) in addrs.iter().enumerate() {
            let mut config = node_config(options, &dir.path().join(name(at))).flag("--node-id").flag(&name(at));
            config.env.extend(cluster::env(&addrs, at));
            nodes.push(NodeProcess::start_on(config, *addr).await.with_context(|| name(at))?);
        }
        let signed_in = |client: Client| match &line {
            Some(line) => client.signed_in(line),
            None => client,
        };
        let clients = addrs.into_iter().map(|addr| signed_in(Client::new(addr))).collect();
        let mut cluster = Self { nodes, clients, line, dir };
        cluster.settled().await?;
        Ok(cluster)
    }

    /// Waits until all nodes agree; answers who leads.
    async fn settled(&mut self) -> anyhow::Result<usize> {
        cluster::settled_as(&mut self.nodes, self.line.as_deref(), WHOLE_WITHIN).await
    }

    /// Where the nodes at these places are reached, and what their processes are.
    fn servers(&self, places: &[usize]) -> Vec<(SocketAddr, u32)> {
        places.iter().map(|at| (self.nodes[*at].addr(), self.nodes[*at].pid())).collect()
    }

    /// Creates a topic; the partitions that each node owns.
    async fn create(&mut self, topic: &str, partitions: u32) -> anyhow::Result<Vec<Vec<u32>>> {
        self.clients[0]
            .create_topic(&NewTopic { name: topic.to_owned(), partitions, visibility_ms: VISIBILITY_MS, keeps_order: true })
            .await?;
        self.owned(topic, partitions).await
    }

    /// The partitions of a topic that each node owns.
    async fn owned(&mut self, topic: &str, partitions: u32) -> anyhow::Result<Vec<Vec<u32>>> {
        let started = Instant::now();
        let described = loop {
            // Owners that have not heard of the topic yet are left out.
            let described = self.clients[0].describe(topic).await?;
            if described.len() == usize::try_from(partitions)? {
                break described;
            }
            ensure!(started.elapsed() < WHOLE_WITHIN, "{topic} has {partitions} partitions, and {} are described", described.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let mut owned = vec![Vec::new(); NODES];
        for numbers in described {
            let at = (0..NODES).find(|at| numbers.owner_node.as_ref() == Some(&name(*at)));
            owned[at.with_context(|| format!("nobody owns a partition of {topic}"))?].push(numbers.index);
        }
        ensure!(owned.iter().all(|partitions| !partitions.is_empty()), "{topic} is not spread over all nodes: {owned:?}");
        Ok(owned)
    }

    async fn lag_and_ledger(&mut self, topics: &[String], sent: u64, errors: u64) -> anyhow::Result<(f64, String)> {
        lag_and_ledger(&mut self.clients, topics, sent, errors).await
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        for node in &mut self.nodes {
            node.stop(STOP_DEADLINE).await?;
        }
        Ok(())
    }
}
