//! A disk that stands still for a minute under two thousand producers: memory stays bounded, whoever is not served is told when to come
//! back, and the rate is back soon after.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::limits::raise_open_files;
use super::loaded::{MESSAGE_BYTES, warm_up};
use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use super::{Options, usual_share};
use crate::cpu;
use crate::http::{Connection, Exchange, RequestBytes};
use crate::load::as_f64;

const PRODUCERS: usize = 2_000;
const STALL: Duration = Duration::from_secs(60);
/// The variable that names the file which stalls the disk, and the flag that puts such a disk in.
const STALL_VARIABLE: &str = "VEENA_STALL_FILE";
const STALL_FLAG: [&str; 2] = ["--slow-flush", "1ns"];
/// Nobody stays away longer, whatever the answer says: the wish to send must be there when the disk is back.
const AWAY_MAX: Duration = Duration::from_secs(1);
/// A server that has not answered by then never will: the disk has been back for long.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// How long is waited for the rate to be back.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
const RECOVERED_SHARE: f64 = 0.8;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What all producers together were answered.
#[derive(Default)]
struct Tally {
    accepted: AtomicU64,
    /// 429 or 503 with a time to come back.
    refused: AtomicU64,
    /// The same without one.
    refused_bare: AtomicU64,
    /// Any other answer, or none.
    odd: AtomicU64,
    /// Not accepted, and perhaps stored.
    uncertain: AtomicU64,
    first_odd: parking_lot::Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Tally {
    fn odd(&self, what: String) {
        self.odd.fetch_add(1, Ordering::Relaxed);
        self.first_odd.lock().get_or_insert(what);
    }

    async fn produce(self: Arc<Self>, addr: SocketAddr) -> anyhow::Result<()> {
        let headers = ["X-Veena-Client: load", "Content-Type: application/octet-stream"];
        let request = RequestBytes::new("POST", &format!("/v1/topics/{TOPIC}/produce"), &headers, &[b'v'; MESSAGE_BYTES]);
        let mut connection = Connection::open(addr).await.context("the server takes no connection")?;
        while !self.is_over.load(Ordering::Relaxed) {
            let mut away = Duration::ZERO;
            let answered = tokio::time::timeout(ANSWER_MAX, connection.exchange(request.as_bytes())).await;
            match answered.unwrap_or_else(|_| Err(Exchange::Unanswered(std::io::ErrorKind::TimedOut.into()))) {
                Ok(answer) if answer.status == 202 => {
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                }
                Ok(answer) => {
                    let is_certain = answer.effect == Some("none");
                    self.uncertain.fetch_add(u64::from(!is_certain), Ordering::Relaxed);
                    match (answer.status, answer.retry_after.and_then(|text| text.parse().ok())) {
                        (429 | 503, Some(seconds)) => {
                            self.refused.fetch_add(1, Ordering::Relaxed);
                            away = Duration::from_secs(seconds).min(AWAY_MAX);
                        }
                        (429 | 503, None) => {
                            self.refused_bare.fetch_add(1, Ordering::Relaxed);
                            away = AWAY_MAX;
                        }
                        (status, _) => self.odd(format!("{status} {}", String::from_utf8_lossy(answer.body))),
                    }
                }
                Err(err) => {
                    self.uncertain.fetch_add(1, Ordering::Relaxed);
                    self.odd(err.to_string());
                }
            }
            if !away.is_zero() {
                tokio::time::sleep(away).await;
            }
            if connection.is_over() {
                connection = Connection::open(addr).await.context("the server takes no connection any more")?;
            }
        }
        Ok(())
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// Accepted messages a second, over `time`.
async fn rate(tally: &Tally, time: Duration) -> f64 {
    let (before, started) = (tally.accepted(), Instant::now());
    tokio::time::sleep(time).await;
    as_f64(tally.accepted() - before) / started.elapsed().as_secs_f64()
}

/// Stalls the disk for `time`; the largest resident memory meanwhile, in bytes.
async fn stall(file: &Path, pid: u32, time: Duration) -> anyhow::Result<u64> {
    std::fs::write(file, b"")?;
    let started = Instant::now();
    let mut peak = 0;
    while started.elapsed() < time {
        peak = peak.max(cpu::resident_bytes(pid)?);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    std::fs::remove_file(file)?;
    Ok(peak)
}

/// How long until a whole second went by at `wanted` a second or more; `RECOVERY_MAX` if none did.
async fn recovery(tally: &Tally, wanted: f64) -> Duration {
    let started = Instant::now();
    let mut counts = std::collections::VecDeque::from([(started, tally.accepted())]);
    while started.elapsed() < RECOVERY_MAX {
        tokio::time::sleep(LOOK_EVERY).await;
        let (now, count) = (Instant::now(), tally.accepted());
        counts.push_back((now, count));
        while let Some(&(then, before)) = counts.front()
            && now - then >= Duration::from_secs(1)
        {
            if as_f64(count - before) / (now - then).as_secs_f64() >= wanted {
                return started.elapsed();
            }
            counts.pop_front();
        }
    }
    RECOVERY_MAX
}

/// The row.
///
/// # Errors
/// The node cannot be driven, or ends.
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    raise_open_files(2_500, 8_000)?;
    let own = tempfile::tempdir_in(&options.dir)?;
    let file = own.path().join("stall");
    let mut stallable = options.clone();
    stallable.node_env.push((STALL_VARIABLE.to_owned(), file.display().to_string()));
    if stallable.slow_flush.is_zero() {
        stallable.node_flags.extend(STALL_FLAG.map(str::to_owned));
    }
    let mut server = Server::start(Kind::Veena, &stallable).await?;
    let (addr, pid) = (server.addr, server.pid());
    let tally = Arc::new(Tally::default());
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        producers.spawn(tally.clone().produce(addr));
    }
    tokio::time::sleep(warm_up(options).max(Duration::from_secs(1))).await;
    let before = rate(&tally, options.time.min(Duration::from_secs(10))).await;
    let time = STALL.mul_f64(usual_share(options)).max(Duration::from_secs(5));
    let peak = stall(&file, pid, time).await?;
    let recovered = recovery(&tally, before * RECOVERED_SHARE).await;
    let after = rate(&tally, options.time.min(Duration::from_secs(5))).await;
    tally.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = producers.join_next().await {
        ended??;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (_, ledger) = server.lag_and_ledger(tally.accepted(), count(&tally.uncertain)).await?;
    server.stop().await?;
    let mut row = Row::default()
        .with("connections", as_f64(u64::try_from(PRODUCERS)?))
        .with("rate", before)
        .with("rate_after", after)
        .with("stall_s", time.as_secs_f64())
        .with("peak_rss_mib", as_f64(peak) / 1_048_576.0)
        .with("refused", as_f64(count(&tally.refused)))
        .with("refused_bare", as_f64(count(&tally.refused_bare)))
        .with("odd_answers", as_f64(count(&tally.odd)))
        .with("recovered_s", recovered.as_secs_f64());
    row.first_error = tally.first_odd.lock().as_ref().map(|text| text.chars().take(200).collect());
    row.ledger = Some(ledger);
    Ok(row)
}
