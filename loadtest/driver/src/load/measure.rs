//! Runs clients over connections and measures. Single-threaded: it must leave the machine to the server.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use tokio::task::LocalSet;

use super::pace::{Pace, Pacer, Turn};
use crate::cpu;
use crate::http::{Answer, Connection};

/// How a client's step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Done,
    /// There is nothing left to do; the run ends here.
    Exhausted,
}

/// What one connection does, again and again.
pub trait LoadClient {
    /// One turn: one request, or a few that belong together.
    fn step(&mut self, connection: &mut Connection, meter: &mut Meter) -> impl Future<Output = anyhow::Result<Step>>;
}

/// How long and how hard.
#[derive(Clone, Debug)]
pub struct Run {
    /// The servers, each with its process, for its CPU time. Connections go round them.
    pub servers: Vec<(SocketAddr, u32)>,
    /// How many connections.
    pub connections: usize,
    /// When turns begin.
    pub pace: Pace,
    /// Not measured.
    pub warm_up: Duration,
    /// Measured.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// For how long.
    pub seconds: f64,
    /// Answered requests.
    pub requests: u64,
    /// Messages moved.
    pub messages: u64,
    /// Messages accepted from the first to the last moment, warm-up included.
    pub sent_total: u64,
    /// Answered requests from the first to the last moment, warm-up included.
    pub requests_total: u64,
    /// Answers other than the expected one, and connections lost.
    pub errors: u64,
    /// The first of them, in words.
    pub first_error: Option<String>,
    /// Latency of requests, in microseconds.
    pub latency_us: Histogram<u64>,
    /// CPU time of the servers.
    pub server_cpu: Duration,
    /// CPU time of this process.
    pub own_cpu: Duration,
}

impl Measured {
    /// Messages per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        as_f64(self.messages) / self.seconds
    }

    /// Latency at `quantile` (0 to 1), in milliseconds.
    #[must_use]
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        as_f64(self.latency_us.value_at_quantile(quantile)) / 1000.0
    }

    /// `cpu` per request, in microseconds.
    #[must_use]
    pub fn per_request_us(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / as_f64(self.requests.max(1))
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

struct Shared {
    is_measuring: Cell<bool>,
    is_over: Cell<bool>,
    ended: tokio::sync::Notify,
    totals: RefCell<Totals>,
}

impl Shared {
    fn failed(&self, err: &anyhow::Error) {
        let mut totals = self.totals.borrow_mut();
        totals.errors += 1;
        totals.first_error.get_or_insert_with(|| format!("{err:#}"));
    }
}

struct Totals {
    requests: u64,
    messages: u64,
    sent_total: u64,
    requests_total: u64,
    errors: u64,
    latency_us: Histogram<u64>,
    first_error: Option<String>,
}

/// Where a client says what it did.
pub struct Meter {
    shared: Rc<Shared>,
    /// An open-loop turn counts from when it was due.
    due: Option<Instant>,
}

impl Meter {
    /// When the request about to be sent counts from.
    #[must_use]
    pub fn start(&mut self) -> Instant {
        self.due.take().unwrap_or_else(Instant::now)
    }

    /// The request that began at `start` was answered; `wanted` says whether with the expected answer.
    pub fn answered(&mut self, start: Instant, answer: &Answer<'_>, wanted: bool) {
        let mut totals = self.shared.totals.borrow_mut();
        if !wanted {
            totals.errors += 1;
            if totals.first_error.is_none() {
                totals.first_error = Some(format!("{} {}", answer.status, String::from_utf8_lossy(answer.body)));
            }
            return;
        }
        totals.requests_total += 1;
        if self.shared.is_measuring.get() {
            totals.requests += 1;
            let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            totals.latency_us.saturating_record(micros);
        }
    }

    /// So many messages were accepted by the server.
    pub fn sent(&mut self, messages: u64) {
        self.shared.totals.borrow_mut().sent_total += messages;
    }

    /// So many messages were moved: what the rate counts.
    pub fn moved(&mut self, messages: u64) {
        let mut totals = self.shared.totals.borrow_mut();
        if self.shared.is_measuring.get() {
            totals.messages += messages;
        }
    }
}

/// Connects, warms up, measures.
///
/// # Errors
/// The server does not take connections, or its process is gone, or nothing was answered as expected.
pub async fn run<C: LoadClient + 'static>(run: Run, make: impl Fn(usize) -> C) -> anyhow::Result<Measured> {
    let latency_us = Histogram::new_with_bounds(1, 120_000_000, 3)?;
    let totals = Totals { requests: 0, messages: 0, sent_total: 0, requests_total: 0, errors: 0, latency_us, first_error: None };
    let shared = Rc::new(Shared {
        is_measuring: Cell::new(false),
        is_over: Cell::new(false),
        ended: tokio::sync::Notify::new(),
        totals: RefCell::new(totals),
    });
    let set = LocalSet::new();
    let mut tasks = Vec::new();
    let pacer = Rc::new(Pacer::new(run.pace, run.warm_up + run.time));
    for (number, (addr, _)) in run.servers.iter().cycle().take(run.connections).enumerate() {
        let connection = Connection::open(*addr).await.context("the server takes no connection")?;
        tasks.push(set.spawn_local(drive(*addr, connection, make(number), shared.clone(), pacer.clone())));
    }
    tasks.push(set.spawn_local(Rc::clone(&pacer).give()));
    let (seconds, server_cpu, own_cpu) = set.run_until(window(run, shared.clone())).await?;
    pacer.end();
    set.run_until(async {
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })
    .await?;
    drop(set);
    let totals = Rc::into_inner(shared).context("a client is left over")?.totals.into_inner();
    let first = totals.first_error.as_deref().unwrap_or("no answer at all");
    anyhow::ensure!(totals.requests > 0, "no request was answered as expected; first answer: {first}");
    Ok(Measured {
        seconds,
        requests: totals.requests,
        messages: totals.messages,
        sent_total: totals.sent_total,
        requests_total: totals.requests_total,
        errors: totals.errors,
        first_error: totals.first_error,
        latency_us: totals.latency_us,
        server_cpu,
        own_cpu,
    })
}

async fn window(run: Run, shared: Rc<Shared>) -> anyhow::Result<(f64, Duration, Duration)> {
    tokio::time::sleep(run.warm_up).await;
    let started = Instant::now();
    let (servers_before, own_before) = (cpu_of(&run.servers)?, cpu::own());
    shared.is_measuring.set(true);
    let _ = tokio::time::timeout(run.time, shared.ended.notified()).await;
    shared.is_measuring.set(false);
    let seconds = started.elapsed().as_secs_f64();
    shared.is_over.set(true);
    Ok((seconds, cpu_of(&run.servers)?.saturating_sub(servers_before), cpu::own().saturating_sub(own_before)))
}

fn cpu_of(servers: &[(SocketAddr, u32)]) -> anyhow::Result<Duration> {
    servers.iter().map(|(_, pid)| cpu::of_process(*pid)).sum()
}

async fn drive<C: LoadClient>(
    addr: SocketAddr,
    mut connection: Connection,
    mut client: C,
    shared: Rc<Shared>,
    pacer: Rc<Pacer>,
) -> anyhow::Result<()> {
    let mut meter = Meter { shared: shared.clone(), due: None };
    while !shared.is_over.get() {
        match pacer.turn().await {
            Turn::Now => {}
            Turn::Due(due) => meter.due = Some(due),
            Turn::None => break,
        }
        match client.step(&mut connection, &mut meter).await {
            Ok(Step::Done) => {}
            Ok(Step::Exhausted) => {
                shared.is_over.set(true);
                shared.ended.notify_one();
            }
            Err(err) => {
                shared.failed(&err);
                connection = Connection::open(addr).await.context("the server takes no connection any more")?;
            }
        }
    }
    Ok(())
}
