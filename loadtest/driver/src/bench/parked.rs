//! Ten thousand parked long polls: what each costs above a bare server that parks, what they cost while nothing happens, and whether one
//! message wakes exactly one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::limits::raise_open_files;
use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use super::{Options, usual_share};
use crate::cpu;
use crate::http::RequestBytes;
use crate::load::as_f64;

const POLLS: u64 = 10_000;
/// Fewer say nothing about the memory that each takes.
const POLLS_MIN: u64 = 500;
/// So many connections are opened before it is seen that the server has them: more would overflow its backlog.
const GROUP: usize = 200;
/// A server that does not take a group of connections within this time takes none.
const GROUP_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than opening all of them takes on a machine that has much to do.
const WAIT: &str = "900s";
/// Caps that stand in the way of ten thousand polls, raised.
const RAISED: [(&str, &str); 5] = [
    ("VEENA_HTTP_MAX_CONNECTIONS", "20000"),
    ("VEENA_HTTP_MAX_CONSUME_IN_FLIGHT_PER_IDENTITY", "20000"),
    ("VEENA_HTTP_MAX_CONSUME_WAIT", WAIT),
    ("VEENA_HTTP_WRITE_TIMEOUT", "960s"),
    ("VEENA_HTTP_SHUTDOWN_GRACE", WAIT),
];
const SETTLED: Duration = Duration::from_secs(20);

/// Parked connections, and what they cost.
struct Parked {
    streams: Vec<TcpStream>,
    bytes_each: f64,
}

async fn wait_for_sockets(pid: u32, wanted: usize) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let open = cpu::open_files(pid, "socket:")?;
        if open >= wanted {
            return Ok(());
        }
        ensure!(started.elapsed() < GROUP_DEADLINE, "the server has {open} connections after {GROUP_DEADLINE:?}, not {wanted}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Parks `polls` polls, group by group, and waits until the server's memory stands still.
async fn park(addr: SocketAddr, pid: u32, polls: u64) -> anyhow::Result<Parked> {
    let request = RequestBytes::get(&format!("/v1/topics/{TOPIC}/consume?wait={WAIT}"));
    let before = cpu::resident_bytes(pid)?;
    let sockets = cpu::open_files(pid, "socket:")?;
    let mut streams = Vec::new();
    let count = usize::try_from(polls)?;
    while streams.len() < count {
        for _ in 0..GROUP.min(count - streams.len()) {
            let mut stream = TcpStream::connect(addr).await.context("the server takes no more connections")?;
            stream.write_all(request.as_bytes()).await?;
            streams.push(stream);
        }
        // A connection of before may have ended meanwhile.
        wait_for_sockets(pid, (sockets + streams.len()).saturating_sub(4)).await?;
    }
    let mut last = cpu::resident_bytes(pid)?;
    let started = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = cpu::resident_bytes(pid)?;
        if now.abs_diff(last) < 64 * 1024 || started.elapsed() > SETTLED {
            return Ok(Parked { streams, bytes_each: as_f64(now.saturating_sub(before)) / as_f64(polls) });
        }
        last = now;
    }
}

/// Notes which of the parked connections were answered, or ended.
fn note_woken(streams: &[TcpStream], woken: &mut BTreeSet<usize>) {
    for (at, stream) in streams.iter().enumerate() {
        let is_parked = stream.try_read(&mut [0; 1]).is_err_and(|err| err.kind() == std::io::ErrorKind::WouldBlock);
        if !is_parked {
            woken.insert(at);
        }
    }
}

/// Sends one message and counts who wakes up.
async fn woken_by_one(server: &mut Server, streams: &[TcpStream]) -> anyhow::Result<u64> {
    let mut woken = BTreeSet::new();
    note_woken(streams, &mut woken);
    ensure!(woken.is_empty(), "{} polls were answered before there was a message", woken.len());
    let reply = server.client.produce(TOPIC, None, b"one message").await?;
    ensure!(reply.status == 202, "produce was answered {}", reply.status);
    let started = Instant::now();
    while woken.is_empty() && started.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        note_woken(streams, &mut woken);
    }
    // Whoever else is woken comes now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    note_woken(streams, &mut woken);
    Ok(u64::try_from(woken.len())?)
}

/// The row.
///
/// # Errors
/// A server does not take the connections (limits of the system or of its configuration).
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let files = raise_open_files(POLLS_MIN + 500, 2 * POLLS)?;
    let wanted = (0..POLLS).filter(|poll| as_f64(*poll) < usual_share(options) * as_f64(POLLS)).count();
    let polls = u64::try_from(wanted)?.max(POLLS_MIN).min(files.saturating_sub(500));
    let bare = Server::start(Kind::Bare, options).await?;
    let Parked { streams, bytes_each: bare_each } = park(bare.addr, bare.pid(), polls).await?;
    drop(streams);
    bare.stop().await?;

    let mut raised = options.clone();
    raised.node_env.extend(RAISED.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut server = Server::start(Kind::Veena, &raised).await?;
    let pid = server.pid();
    let Parked { streams, bytes_each } = park(server.addr, pid, polls).await?;
    let (before, started) = (cpu::of_process(pid)?, Instant::now());
    tokio::time::sleep(options.time.clamp(Duration::from_secs(3), Duration::from_secs(20))).await;
    let spent = cpu::of_process(pid)?.saturating_sub(before);
    let percent = spent.as_secs_f64() * 100.0 / started.elapsed().as_secs_f64();
    let still = server.client.metrics().await?.sum(|name| name == "veena_consumers_parked");
    let woken = woken_by_one(&mut server, &streams).await?;
    drop(streams);
    server.stop().await?;
    let row = Row::default()
        .with("polls", as_f64(polls))
        .with("kib_each", bytes_each / 1024.0)
        .with("kib_each_above_bare", (bytes_each - bare_each) / 1024.0)
        .with("cpu_percent", percent)
        .with("woken_by_one", as_f64(woken));
    Ok(match still {
        Some(parked) => row.with("parked", parked),
        None => row,
    })
}
