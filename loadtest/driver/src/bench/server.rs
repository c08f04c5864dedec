//! The servers under test, each fresh and on the disk that is measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use super::{Options, secured};
use crate::api::{Client, NewTopic};
use crate::http::RequestBytes;
use crate::load::{ProduceBatch, as_f64};
use crate::node::{NodeConfig, NodeProcess, Process, free_addr};

pub(super) const TOPIC: &str = "bench";
/// Of the users of a server that asks who they are.
pub(super) const ADMIN_PASSWORD: &str = "for this measurement only";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Answers 202.
    Bare,
    /// Answers 202 after a sync.
    Logged,
    /// Veena.
    Veena,
}

enum Running {
    Yardstick(Process),
    Veena(Box<NodeProcess>),
}

/// A running server with its directory.
pub(super) struct Server {
    running: Running,
    pub addr: SocketAddr,
    pub client: Client,
    _dir: TempDir,
}

impl Server {
    pub(super) async fn start(kind: Kind, options: &Options) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(&options.dir).context("no directory for data")?;
        let (running, addr) = match kind {
            Kind::Veena => {
                let node = NodeProcess::start(node_config(options, dir.path())).await?;
                let addr = node.addr();
                (Running::Veena(Box::new(node)), addr)
            }
            Kind::Bare | Kind::Logged => {
                let addr = free_addr()?;
                let mut command = Command::new(&options.yardstick);
                command.stdin(Stdio::null());
                if kind == Kind::Bare {
                    command.args(["serve-bare", "--addr", &addr.to_string()]);
                } else {
                    let slow = format!("{}ms", options.slow_flush.as_millis());
                    command.args(["serve-wal", "--addr", &addr.to_string(), "--slow-flush", &slow, "--file"]).arg(dir.path().join("log"));
                }
                (Running::Yardstick(Process::start(&mut command)?), addr)
            }
        };
        let mut server = Self { running, addr, client: Client::new(addr), _dir: dir };
        server.wait_for("/readyz").await?;
        if kind == Kind::Veena {
            server.create_topic().await?;
        }
        Ok(server)
    }

    /// Veena, asking everybody who they are; the server's own client is the root admin.
    pub(super) async fn start_secured(options: &Options) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(&options.dir).context("no directory for data")?;
        let mut config = node_config(options, dir.path());
        config.env.push(("VEENA_SECURITY_ENABLED".to_owned(), "true".to_owned()));
        config.env.push(("VEENA_ADMIN_PASSWORD".to_owned(), ADMIN_PASSWORD.to_owned()));
        let node = NodeProcess::start(config).await?;
        let addr = node.addr();
        let client = Client::new(addr).signed_in(&secured::basic("admin", ADMIN_PASSWORD));
        let mut server = Self { running: Running::Veena(Box::new(node)), addr, client, _dir: dir };
        server.wait_for("/v1/users").await?;
        server.create_topic().await?;
        Ok(server)
    }

    async fn create_topic(&mut self) -> anyhow::Result<()> {
        let topic = NewTopic { name: TOPIC.to_owned(), partitions: 3, visibility_ms: 30_000, keeps_order: true };
        self.client.create_topic(&topic).await
    }

    /// Waits until this is answered as it should be: the node takes work, and has made its root admin.
    async fn wait_for(&mut self, target: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        while self.client.get(target).await.map_or(true, |reply| reply.status != 200) {
            ensure!(started.elapsed() < Duration::from_secs(30), "the server does not answer {target} after 30 s");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// The node ends cleanly and starts anew, with what is on disk.
    pub(super) async fn start_again(&mut self) -> anyhow::Result<()> {
        if let Running::Veena(node) = &mut self.running {
            node.stop(Duration::from_secs(30)).await?;
            node.start_again().await?;
        }
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        match &self.running {
            Running::Yardstick(process) => process.pid(),
            Running::Veena(node) => node.pid(),
        }
    }

    /// How often files were synced so far, if the server tells.
    pub(super) async fn syncs(&mut self) -> Option<f64> {
        syncs(std::slice::from_mut(&mut self.client)).await
    }

    /// As [`Server::lag_and_ledger_of`], of the one topic that most loads use.
    pub(super) async fn lag_and_ledger(&mut self, sent: u64, errors: u64) -> anyhow::Result<(f64, String)> {
        self.lag_and_ledger_of(&[TOPIC.to_owned()], sent, errors).await
    }

    /// As [`lag_and_ledger`] of this server alone.
    pub(super) async fn lag_and_ledger_of(&mut self, topics: &[String], sent: u64, errors: u64) -> anyhow::Result<(f64, String)> {
        lag_and_ledger(std::slice::from_mut(&mut self.client), topics, sent, errors).await
    }

    /// Fills the topic with `messages` messages and waits until they are visible; gives how many there are.
    pub(super) async fn preload(&mut self, messages: u64, bytes: usize) -> anyhow::Result<u64> {
        self.preload_into(TOPIC, messages, bytes).await
    }

    /// As [`Server::preload`], into any topic.
    pub(super) async fn preload_into(&mut self, topic: &str, messages: u64, bytes: usize) -> anyhow::Result<u64> {
        let request = ProduceBatch::new(topic, bytes, 0).into_request();
        let sent = fill(self.addr, &request, messages).await?;
        let started = Instant::now();
        let topics = [topic.to_owned()];
        while visible(&mut self.client, &topics).await? < sent {
            ensure!(started.elapsed() < Duration::from_secs(120), "the messages are not visible after two minutes");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(sent)
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        match self.running {
            Running::Yardstick(mut process) => process.kill().map(drop),
            Running::Veena(mut node) => node.stop(Duration::from_secs(30)).await,
        }
    }
}

/// Sends batches of a hundred until `messages` messages are taken; gives how many were.
pub(super) async fn fill(addr: SocketAddr, batch: &RequestBytes, messages: u64) -> anyhow::Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    let batches = messages.div_ceil(100);
    for lane in 0..4_u64 {
        let batch = batch.clone();
        tasks.spawn(async move {
            let mut client = Client::new(addr);
            let mut accepted = 0;
            for _ in (lane..batches).step_by(4) {
                accepted += accept(&mut client, &batch).await?;
            }
            anyhow::Ok(accepted)
        });
    }
    let mut sent = 0;
    while let Some(ended) = tasks.join_next().await {
        sent += ended??;
    }
    Ok(sent)
}

/// How often files were synced so far at these nodes, if all of them tell.
pub(super) async fn syncs(clients: &mut [Client]) -> Option<f64> {
    let mut syncs = 0.0;
    for client in clients {
        syncs += client.metrics().await.ok()?.syncs()?;
    }
    Some(syncs)
}

/// How many messages wait at the nodes to be dispatched, if all of them tell.
async fn backlog(clients: &mut [Client]) -> Option<f64> {
    let mut backlog = 0.0;
    for client in clients {
        backlog += client.metrics().await.ok()?.wal_lag()?;
    }
    Some(backlog)
}

/// How many of `sent` messages wait at these nodes to be dispatched; waits until all are visible, and says whether that is exactly as many.
/// `errors` messages more may be there: what was not answered may have been stored.
pub(super) async fn lag_and_ledger(clients: &mut [Client], topics: &[String], sent: u64, errors: u64) -> anyhow::Result<(f64, String)> {
    let waiting = backlog(clients).await;
    let mut visible = visible(&mut clients[0], topics).await?;
    let lag = waiting.unwrap_or_else(|| as_f64(sent.saturating_sub(visible)));
    let started = Instant::now();
    while visible < sent && started.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        visible = self::visible(&mut clients[0], topics).await?;
    }
    // Whatever came twice has come when nothing is on its way any more.
    while backlog(clients).await.is_some_and(|lag| lag > 0.0) {
        ensure!(started.elapsed() < Duration::from_secs(60), "messages are still on their way after a minute");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    visible = self::visible(&mut clients[0], topics).await?;
    let ledger = match visible {
        _ if visible < sent => format!("LOST {}", sent - visible),
        _ if visible > sent + errors => format!("TWICE {}", visible - sent),
        _ => format!("ok {sent}"),
    };
    Ok((lag, ledger))
}

/// What a node is started with whose data goes below `dir`.
pub(super) fn node_config(options: &Options, dir: &Path) -> NodeConfig {
    let mut config = NodeConfig::in_dir(&options.veena, dir);
    if !options.slow_flush.is_zero() {
        config.flags.extend(["--slow-flush".to_owned(), format!("{}ms", options.slow_flush.as_millis())]);
    }
    config.flags.extend(options.node_flags.iter().cloned());
    config.env.extend(options.node_env.iter().cloned());
    config
}

/// How many messages the topics hold, visible ones only.
pub(super) async fn visible(client: &mut Client, topics: &[String]) -> anyhow::Result<u64> {
    let mut visible = 0;
    for topic in topics {
        visible += client.describe(topic).await?.iter().map(|numbers| numbers.high_watermark).sum::<u64>();
    }
    Ok(visible)
}

/// Sends a batch of a hundred until it is taken: a server that is behind says so.
async fn accept(client: &mut Client, request: &RequestBytes) -> anyhow::Result<u64> {
    for _ in 0..1000 {
        let reply = client.call(request).await?;
        match reply.status {
            202 => return Ok(100),
            429 | 503 => tokio::time::sleep(Duration::from_millis(20)).await,
            status => bail!("a batch was answered {status}: {}", String::from_utf8_lossy(&reply.body)),
        }
    }
    bail!("the server takes no batch")
}
