//! Ten thousand parked long polls: what each costs above a bare server that parks, and what they cost while nothing happens.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Options;
use super::report::Row;
use super::server::{Kind, Server, TOPIC};
use crate::cpu;
use crate::http::RequestBytes;
use crate::load::as_f64;

const POLLS: u64 = 10_000;
/// Caps that stand in the way of ten thousand polls, raised.
const RAISED: [(&str, &str); 5] = [
    ("VEENA_HTTP_MAX_CONNECTIONS", "20000"),
    ("VEENA_HTTP_MAX_CONSUME_IN_FLIGHT_PER_IDENTITY", "20000"),
    ("VEENA_HTTP_MAX_CONSUME_WAIT", "60s"),
    ("VEENA_HTTP_WRITE_TIMEOUT", "90s"),
    ("VEENA_HTTP_SHUTDOWN_GRACE", "60s"),
];

/// Memory that `POLLS` parked polls add to the process, each, in bytes; gives the parked connections back.
async fn park(addr: SocketAddr, pid: u32) -> anyhow::Result<(f64, Vec<TcpStream>)> {
    let request = RequestBytes::get(&format!("/v1/topics/{TOPIC}/consume?wait=60s"));
    let before = cpu::resident_bytes(pid)?;
    let mut parked = Vec::new();
    for _ in 0..POLLS {
        let mut stream = TcpStream::connect(addr).await.context("the server takes no more connections")?;
        stream.write_all(request.as_bytes()).await?;
        parked.push(stream);
    }
    // Until memory stands still.
    let mut last = cpu::resident_bytes(pid)?;
    let started = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = cpu::resident_bytes(pid)?;
        if now == last || started.elapsed() > Duration::from_secs(10) {
            return Ok((as_f64(now.saturating_sub(before)) / as_f64(POLLS), parked));
        }
        last = now;
    }
}

/// The row.
///
/// # Errors
/// A server does not take ten thousand connections (limits of the system or of its configuration).
pub(super) async fn measure(options: &Options) -> anyhow::Result<Row> {
    let bare = Server::start(Kind::Bare, options).await?;
    let (bare_each, held) = park(bare.addr, bare.pid()).await?;
    drop(held);
    bare.stop().await?;

    let mut raised = options.clone();
    raised.node_env.extend(RAISED.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut server = Server::start(Kind::Veena, &raised).await?;
    let pid = server.pid();
    let (each, mut held) = park(server.addr, pid).await?;
    let (before, started) = (cpu::of_process(pid)?, Instant::now());
    tokio::time::sleep(options.time.clamp(Duration::from_secs(3), Duration::from_secs(10))).await;
    let spent = cpu::of_process(pid)?.saturating_sub(before);
    let percent = spent.as_secs_f64() * 100.0 / started.elapsed().as_secs_f64();

    let reply = server.client.produce(TOPIC, None, b"one message").await?;
    ensure!(reply.status == 202, "produce was answered {}", reply.status);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut woken = 0_u64;
    for stream in &mut held {
        let mut byte = [0; 1];
        if let Ok(read) = tokio::time::timeout(Duration::from_micros(50), stream.read(&mut byte)).await {
            woken += u64::from(read? > 0);
        }
    }
    drop(held);
    server.stop().await?;
    Ok(Row::default()
        .with("kib_each", each / 1024.0)
        .with("kib_each_above_bare", (each - bare_each) / 1024.0)
        .with("cpu_percent", percent)
        .with("woken_by_one", as_f64(woken)))
}
