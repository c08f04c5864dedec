//! What three nodes move beside what one moves, on the same machine and in the same run.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Cluster, NODES, VISIBILITY_MS, is_refused};
use crate::api::{Client, NewTopic};
use crate::bench::Options;
use crate::bench::loaded::{Bench, MESSAGE_BYTES, figures, warm_up, with_syncs};
use crate::bench::report::Row;
use crate::bench::server::{Kind, Server, TOPIC, lag_and_ledger, syncs};
use crate::http::{Connection, RequestBytes};
use crate::load::{self, LoadClient, Meter, Pace, ProduceBatch, ProduceOne, Run, Step, as_f64};

const CONNECTIONS: usize = 64;
const BATCH_CONNECTIONS: usize = 16;
/// Of the six partitions of three nodes so many are elsewhere; one node has as many.
const DESTINATIONS: u32 = 4;
const BATCH_TOPIC: &str = "batches";
const BATCH: u64 = 100;
/// How long a client stays away that was told that the node is behind.
const AWAY: Duration = Duration::from_millis(20);

/// Single messages through one node, and through all three on as many connections.
///
/// # Errors
/// The nodes cannot be driven.
pub(in crate::bench) async fn three_nodes(options: &Options) -> anyhow::Result<Vec<Row>> {
    let one = Bench::veena(options, CONNECTIONS).run(0, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let mut cluster = Cluster::start(options).await?;
    cluster.create(TOPIC, u32::try_from(NODES)?).await?;
    let run = run_of(options, cluster.servers(&[0, 1, 2]), CONNECTIONS);
    let syncs_before = syncs(&mut cluster.clients).await;
    let measured = load::run(run, |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at)).await?;
    let syncs_after = syncs(&mut cluster.clients).await;
    let (lag, ledger) = cluster.lag_and_ledger(&[TOPIC.to_owned()], measured.sent_total, measured.errors).await?;
    cluster.stop().await?;
    let three = with_syncs(figures(&measured, CONNECTIONS).with("wal_lag", lag), &measured, syncs_before, syncs_after);
    let three = Row { ledger: Some(ledger), ..three };
    Ok(vec![named(one, "one-node", "produce at one node"), named(three, "three-nodes", "produce through all three nodes")])
}

fn run_of(options: &Options, servers: Vec<(SocketAddr, u32)>, connections: usize) -> Run {
    Run { servers, connections, pace: Pace::Closed, warm_up: warm_up(options), time: options.time }
}

fn named(row: Row, name: &str, about: &str) -> Row {
    Row { name: name.to_owned(), about: about.to_owned(), ..row }
}

/// Batches, again and again; a node that is behind is left alone for a moment.
struct Batches {
    request: RequestBytes,
    refused: Rc<Cell<u64>>,
}

impl LoadClient for Batches {
    async fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> anyhow::Result<Step> {
        let start = meter.start();
        let answer = connection.exchange(self.request.as_bytes()).await?;
        if is_refused(&answer) {
            self.refused.set(self.refused.get() + 1);
            tokio::time::sleep(AWAY).await;
            return Ok(Step::Done);
        }
        let is_accepted = answer.status == 202;
        meter.answered(start, &answer, is_accepted);
        meter.sent(if is_accepted { BATCH } else { 0 });
        Ok(Step::Done)
    }
}

/// Batches for `partitions`, all at the first of the servers. The rate is that of commits: what is accepted, by when all of it is visible.
async fn batches(options: &Options, servers: Vec<(SocketAddr, u32)>, clients: &mut [Client], partitions: &[u32]) -> anyhow::Result<Row> {
    let request = ProduceBatch::to(BATCH_TOPIC, MESSAGE_BYTES, 0, partitions).into_request();
    let refused = Rc::new(Cell::new(0));
    let syncs_before = syncs(clients).await;
    let started = Instant::now();
    let run = run_of(options, servers, BATCH_CONNECTIONS);
    let measured = load::run(run, |_| Batches { request: request.clone(), refused: refused.clone() }).await?;
    let accepted_rate = as_f64(measured.sent_total) / started.elapsed().as_secs_f64();
    let (lag, ledger) = lag_and_ledger(clients, &[BATCH_TOPIC.to_owned()], measured.sent_total, measured.errors * BATCH).await?;
    let committed = started.elapsed();
    let row = figures(&measured, BATCH_CONNECTIONS)
        .with("rate", as_f64(measured.sent_total) / committed.as_secs_f64())
        .with("accepted_rate", accepted_rate)
        .with("refused", as_f64(refused.get()))
        .with("wal_lag", lag);
    let row = with_syncs(row, &measured, syncs_before, syncs(clients).await);
    Ok(Row { ledger: Some(ledger), ..row })
}

/// Batches of a hundred at one node alone, and at one of three of which the others own the partitions.
///
/// # Errors
/// The nodes cannot be driven.
pub(in crate::bench) async fn batches_elsewhere(options: &Options) -> anyhow::Result<Vec<Row>> {
    let mut server = Server::start(Kind::Veena, options).await?;
    server
        .client
        .create_topic(&NewTopic { name: BATCH_TOPIC.to_owned(), partitions: DESTINATIONS, visibility_ms: VISIBILITY_MS, keeps_order: true })
        .await?;
    let all: Vec<u32> = (0..DESTINATIONS).collect();
    let here = batches(options, vec![(server.addr, server.pid())], std::slice::from_mut(&mut server.client), &all).await?;
    server.stop().await?;

    let mut cluster = Cluster::start(options).await?;
    let owned = cluster.create(BATCH_TOPIC, DESTINATIONS / 2 * u32::try_from(NODES)?).await?;
    let elsewhere: Vec<u32> = owned[1..].concat();
    let servers = cluster.servers(&[0]);
    let there = batches(options, servers, &mut cluster.clients, &elsewhere).await?;
    cluster.stop().await?;
    Ok(vec![
        named(here, "batches-here", "batches of 100 committed at the node that takes them, alone"),
        named(there, "batches-elsewhere", "batches of 100 committed at the two nodes that own the partitions"),
    ])
}
