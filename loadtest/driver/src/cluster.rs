//! Nodes that are one broker: what each is started with, and when all of them agree.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::api::{Client, Member};
use crate::node::NodeProcess;

/// How many nodes there are where nothing else is said: the fewest of which one may be away.
pub const NODES: usize = 3;

const SECRET: &str = "a secret that only this run knows";
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a node may take to answer what it only needs to look up.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// The name of the node at place `at`, as its cluster and the history call it.
#[must_use]
pub fn name(at: usize) -> String {
    format!("node-{}", at + 1)
}

/// Environment of the node at place `at` of those that reach each other at `peers`: the first founds the cluster, the others join it.
#[must_use]
pub fn env(peers: &[SocketAddr], at: usize) -> Vec<(String, String)> {
    let first = (name(0), peers[0]);
    env_among(peers[at], if at == 0 { &[] } else { std::slice::from_ref(&first) })
}

/// Environment of a node that others reach at `peer`, and which joins them through one of `known`; without any it founds their cluster.
#[must_use]
pub fn env_among(peer: SocketAddr, known: &[(String, SocketAddr)]) -> Vec<(String, String)> {
    let mut env = vec![("PEER_ADDR", peer.to_string()), ("SECRET", SECRET.to_owned())];
    let join: Vec<String> = known.iter().map(|(name, addr)| format!("{name}@{addr}")).collect();
    env.push(if join.is_empty() { ("BOOTSTRAP", "true".to_owned()) } else { ("JOIN", join.join(",")) });
    env.into_iter().map(|(key, value)| (format!("VEENA_CLUSTER_{key}"), value)).collect()
}

/// What the node at place `at` says of the members.
///
/// # Errors
/// It does not answer.
pub async fn members(nodes: &[NodeProcess], at: usize) -> anyhow::Result<Vec<Member>> {
    asker(nodes, at, None).members().await
}

fn asker(nodes: &[NodeProcess], at: usize, line: Option<&str>) -> Client {
    let client = Client::new(nodes[at].addr()).with_timeout(LOOK_PATIENCE);
    match line {
        Some(line) => client.signed_in(line),
        None => client,
    }
}

/// Waits until every node is ready, sees every other, and names the same leader. Answers who leads.
///
/// # Errors
/// They are not before `deadline`; the error says what is missing.
pub async fn settled(nodes: &mut [NodeProcess], deadline: Duration) -> anyhow::Result<usize> {
    settled_as(nodes, None, deadline).await
}

/// As [`settled`], of nodes that ask who one is: an operator, by this `Authorization` line.
///
/// # Errors
/// As [`settled`].
pub async fn settled_as(nodes: &mut [NodeProcess], line: Option<&str>, deadline: Duration) -> anyhow::Result<usize> {
    let started = Instant::now();
    loop {
        let missing = match look(nodes, line).await {
            Ok(leader) => return Ok(leader),
            Err(missing) => missing,
        };
        for (at, node) in nodes.iter_mut().enumerate() {
            ensure!(!node.has_ended()?, "{} ended by itself; its log is {}", name(at), node.config().log.display());
        }
        if started.elapsed() > deadline {
            return Err(missing.context(format!("the cluster is not whole after {deadline:?}")));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(nodes: &[NodeProcess], line: Option<&str>) -> anyhow::Result<usize> {
    let mut leaders = Vec::new();
    for at in 0..nodes.len() {
        let ready = asker(nodes, at, line).get("/readyz").await.with_context(|| name(at))?;
        ensure!(ready.status == 200, "{} is not ready: {}", name(at), String::from_utf8_lossy(&ready.body));
        let members = asker(nodes, at, line).members().await.with_context(|| name(at))?;
        ensure!(members.len() == nodes.len(), "{} knows {} members", name(at), members.len());
        for member in &members {
            ensure!(member.status == "alive" && member.voter == Some(true), "{} is told by {}: {member:?}", member.id, name(at));
        }
        let leader = members.iter().find(|member| member.leader == Some(true));
        leaders.push(leader.with_context(|| format!("{} knows no leader", name(at)))?.id.clone());
    }
    leaders.dedup();
    let [leader] = leaders.as_slice() else { bail!("they name several leaders: {leaders:?}") };
    (0..nodes.len()).find(|at| name(*at) == *leader).with_context(|| format!("{leader} is none of them"))
}
