//! Five hundred sign in for the first time at once, and guess on: how much memory that takes, and what others notice of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use veena_contract::limits;

use super::Options;
use super::loaded::{MESSAGE_BYTES, warm_up};
use super::report::Row;
use super::secured::basic;
use super::server::{ADMIN_PASSWORD, Server, TOPIC, fill};
use crate::api::Client;
use crate::chance::Chance;
use crate::cpu;
use crate::http::RequestBytes;
use crate::load::{self, ConsumeAck, Measured, Pace, ProduceBatch, ProduceOne, Run, as_f64};

const LOGINS: u64 = 500;
/// In each the same load runs twice, without and with the others.
const ROUNDS: usize = 3;
/// What those do who are signed in, a second: far from what a node can do.
const PRODUCE_RATE: f64 = 400.0;
const CONSUME_RATE: f64 = 200.0;
const CONNECTIONS: usize = 16;
/// Beyond the memory of the computations: connections of those who sign in, and what is remembered of them.
const SLACK_BYTES: u64 = 32 * 1024 * 1024;
const SAMPLE: Duration = Duration::from_millis(20);
/// How long all may take to be let in.
const ALL_WITHIN: Duration = Duration::from_secs(180);

/// What became of those who sign in.
#[derive(Default)]
struct Logins {
    let_in: AtomicU64,
    /// Told to come back.
    refused: AtomicU64,
    /// Neither let in, nor refused, nor told to come back.
    odd: AtomicU64,
    first_odd: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Logins {
    fn odd(&self, what: String) {
        self.odd.fetch_add(1, Ordering::Relaxed);
        self.first_odd.lock().get_or_insert(what);
    }

    /// Signs in until that works, then guesses: at its own name and at names that nobody has, for those are computed without an end.
    async fn attempt(self: Arc<Self>, addr: SocketAddr, at: u64) -> anyhow::Result<()> {
        let mut client = Client::new(addr);
        let (mut is_in, mut chance) = (false, Chance::seeded(at));
        for guess in 0_u64.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let line = match (is_in, guess % 2) {
                (false, _) => basic(&user(at), ADMIN_PASSWORD),
                (true, 0) => basic(&user(at), &format!("guess {guess}")),
                (true, _) => basic(&format!("stranger-{at}-{guess}"), "a guess"),
            };
            let reply = match client.call(&RequestBytes::get("/v1/whoami").with_header(&line)).await {
                Ok(reply) => reply,
                Err(err) => {
                    self.odd(err.to_string());
                    continue;
                }
            };
            match (reply.status, is_in) {
                (200, false) => {
                    is_in = true;
                    self.let_in.fetch_add(1, Ordering::Relaxed);
                }
                (401, true) => {}
                (429 | 503, _) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    let seconds = reply.retry_after.and_then(|text| text.parse().ok()).unwrap_or(1);
                    // Whoever is to wait for long may still end soon. Clients do not come back all in the same moment.
                    let wait = Duration::from_secs(seconds).min(Duration::from_secs(2));
                    tokio::time::sleep(wait / 2 + wait * u32::try_from(chance.below(1000))? / 1000).await;
                }
                (status, _) => self.odd(format!("{status} {}", String::from_utf8_lossy(&reply.body))),
            }
        }
        Ok(())
    }
}

fn user(at: u64) -> String {
    format!("login-{at}")
}

/// Makes a user who may produce and consume.
async fn make(client: &mut Client, name: &str) -> anyhow::Result<()> {
    let body = format!(
        r#"{{"username":"{name}","password":"{ADMIN_PASSWORD}","grants":[{{"action":"produce","patterns":["{TOPIC}"]}},{{"action":"consume","patterns":["{TOPIC}"]}}]}}"#
    );
    let reply = client.call(&RequestBytes::post_json("/v1/users", body.as_bytes())).await?;
    ensure!(reply.status == 201, "no user could be made: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
    Ok(())
}

/// What those who are signed in notice.
struct Noticed {
    produce: Measured,
    consume: Measured,
}

async fn serve(server: &Server, options: &Options, line: &str) -> anyhow::Result<Noticed> {
    let run = |rate| Run {
        servers: vec![(server.addr, server.pid())],
        connections: CONNECTIONS,
        pace: Pace::Open(rate),
        warm_up: warm_up(options),
        time: window(options),
    };
    let (produce, consume) = tokio::try_join!(
        load::run(run(PRODUCE_RATE), |at| ProduceOne::new(TOPIC, MESSAGE_BYTES, at).signed_in(line)),
        load::run(run(CONSUME_RATE), |_| ConsumeAck::new(TOPIC, 0).signed_in(line)),
    )?;
    Ok(Noticed { produce, consume })
}

fn window(options: &Options) -> Duration {
    (options.time / 2).max(Duration::from_secs(2))
}

/// The largest memory of a process from now until it is told that it is over.
async fn peak_bytes(pid: u32, logins: Arc<Logins>) -> anyhow::Result<u64> {
    let mut peak = 0;
    while !logins.is_over.load(Ordering::Relaxed) {
        peak = peak.max(cpu::resident_bytes(pid)?);
        tokio::time::sleep(SAMPLE).await;
    }
    Ok(peak)
}

/// One round with those who sign in: what others notice, by how much memory grows, and what became of them.
async fn flooded(server: &Server, options: &Options, line: &str) -> anyhow::Result<(Noticed, u64, Arc<Logins>)> {
    let logins = Arc::new(Logins::default());
    let before = cpu::resident_bytes(server.pid())?;
    let mut tasks = JoinSet::new();
    for at in 0..LOGINS {
        tasks.spawn(logins.clone().attempt(server.addr, at));
    }
    let mut peak = JoinSet::new();
    peak.spawn(peak_bytes(server.pid(), logins.clone()));
    let noticed = serve(server, options, line).await?;
    let started = Instant::now();
    while logins.let_in.load(Ordering::Relaxed) < LOGINS && started.elapsed() < ALL_WITHIN {
        tokio::time::sleep(SAMPLE).await;
    }
    logins.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let peak = peak.join_next().await.context("it was started")???;
    Ok((noticed, peak.saturating_sub(before), logins))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn row(name: &str, about: &str, rounds: &[Noticed]) -> Row {
    let p99 = |of: fn(&Noticed) -> &Measured| median(rounds.iter().map(|noticed| of(noticed).latency_ms(0.99)).collect());
    let both = || rounds.iter().flat_map(|noticed| [&noticed.produce, &noticed.consume]);
    let mut row = Row::new(name, about)
        .with("produce_p99_ms", p99(|noticed| &noticed.produce))
        .with("consume_p99_ms", p99(|noticed| &noticed.consume))
        .with("errors", as_f64(both().map(|measured| measured.errors).sum()));
    row.first_error = both().find_map(|measured| measured.first_error.clone());
    row
}

/// Two rows: what those notice who are signed in while nobody else comes, and while five hundred do. The node starts anew before each round, so
/// that it knows nobody and holds no memory for computations.
///
/// # Errors
/// The node cannot be driven.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Vec<Row>> {
    let mut server = Server::start_secured(options).await?;
    make(&mut server.client, "load").await?;
    for at in 0..LOGINS {
        make(&mut server.client, &user(at)).await?;
    }
    let line = basic("load", ADMIN_PASSWORD);
    // A consumer that finds nothing would end the round.
    let seconds = (window(options) + warm_up(options)).as_secs() + 2;
    let wanted = 2 * u64::try_from(ROUNDS)? * seconds * 200;
    let batch = ProduceBatch::new(TOPIC, MESSAGE_BYTES, 0).into_request().with_header(&line);
    fill(server.addr, &batch, wanted).await?;
    let (mut quiet, mut noisy, mut growth) = (Vec::new(), Vec::new(), 0);
    let (mut let_in, mut refused, mut odd, mut first_odd) = (LOGINS, 0, 0, None);
    for _ in 0..ROUNDS {
        server.start_again().await?;
        let known = server.client.get("/v1/whoami").await?;
        ensure!(known.status == 200, "the root admin is answered {}", known.status);
        quiet.push(serve(&server, options, &line).await?);
        let (noticed, grown, logins) = flooded(&server, options, &line).await?;
        noisy.push(noticed);
        growth = growth.max(grown);
        let_in = let_in.min(logins.let_in.load(Ordering::Relaxed));
        refused += logins.refused.load(Ordering::Relaxed);
        odd += logins.odd.load(Ordering::Relaxed);
        first_odd = first_odd.or_else(|| logins.first_odd.lock().clone());
    }
    server.stop().await?;
    let permits = u64::try_from(limits::PASSWORD_COMPUTATIONS_MAX)?;
    let bound = permits * u64::from(limits::PASSWORD_MEMORY_KIB) * 1024 + SLACK_BYTES;
    let mut flooded = row("logins", "the same while 500 sign in for the first time and guess on", &noisy)
        .with("rss_growth_mib", as_f64(growth) / 1_048_576.0)
        .with("rss_share", as_f64(growth) / as_f64(bound))
        .with("let_in", as_f64(let_in))
        .with("refused", as_f64(refused))
        .with("odd_answers", as_f64(odd));
    flooded.first_error = flooded.first_error.or(first_odd);
    Ok(vec![row("logins-none", "produce and consume, open loop, by a user who is signed in", &quiet), flooded])
}
