//! More of what users of queues have met in the field: see `edge_cases`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use veena_client::{ProduceOptions, SettleMode};
use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::support::{
    BIN, DEADLINE, STOP_DEADLINE, assert_clean_log, assert_empty, consume_exactly, create_narrow, create_wide, metric, produce_all,
    scratch, start, texts, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn producers_that_repeat_at_once_after_a_pause_are_all_served() {
    const PRODUCERS: u32 = 100;
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let addr = node.addr();
    let mut client = Client::new(addr);
    create_wide(&mut client, "orders", 4, 60_000).await;
    let attempts = Arc::new(AtomicU32::new(0));
    let mut producers = JoinSet::new();
    let storm = async {
        for producer in 0..PRODUCERS {
            let attempts = Arc::clone(&attempts);
            producers.spawn(async move {
                loop {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    let mut client = Client::new(addr).with_timeout(Duration::from_millis(200));
                    match client.produce("orders", None, producer.to_string().as_bytes()).await {
                        Ok(reply) if reply.status == 202 => return,
                        Ok(reply) => assert!(matches!(reply.status, 429 | 503) && reply.retry_after.is_some(), "{reply:?}"),
                        // No answer in time: again, at once.
                        Err(_) => {}
                    }
                }
            });
        }
    };
    let (paused, ()) = tokio::join!(node.pause(Duration::from_secs(2)), storm);
    paused.expect("the node lives");
    let all = async { while producers.join_next().await.map(|ended| ended.expect("no panic")).is_some() {} };
    tokio::time::timeout(DEADLINE, all).await.expect("every producer is served");
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(attempts > 2 * PRODUCERS, "they did repeat: {attempts}");

    until("those who gave up are forgotten", || async { metric(addr, "veena_http_connections_open").await <= 2.0 }).await;
    until("all of it is visible", || async { metric(addr, "veena_ingress_dispatch_backlog_records").await == 0.0 }).await;
    let mut seen = BTreeMap::new();
    loop {
        let messages = client.consume("orders", Duration::from_millis(500), 100).await.expect("an answer").expect("messages");
        if messages.is_empty() {
            break;
        }
        for text in texts(&messages) {
            *seen.entry(text).or_insert(0_u32) += 1;
        }
    }
    assert_eq!(seen.len(), usize::try_from(PRODUCERS).expect("few"), "each message is there");
    assert!(seen.values().sum::<u32>() <= attempts, "none more often than it was sent");
    assert_clean_log(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_directory_in_use_starts_or_says_what_stands_still() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let addr = node.addr();
    let mut client = Client::new(addr);
    create_wide(&mut client, "orders", 3, 60_000).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..4 {
        let is_over = Arc::clone(&is_over);
        load.spawn(async move {
            let mut client = Client::new(addr);
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let reply = client.produce("orders", None, format!("{number} {}", "x".repeat(500)).as_bytes()).await.expect("an answer");
                assert_eq!(reply.status, 202);
                if number % 3 == 0 {
                    let taken = client.consume("orders", Duration::ZERO, 10).await.expect("an answer").expect("messages");
                    let acked = client.ack_batch("orders", &crate::support::handles(&taken)).await;
                    assert!(taken.is_empty() || acked.is_ok());
                }
            }
        });
    }
    for nth in 0..2 {
        until("messages come in", || async { metric(addr, "veena_messages_produced_total").await > f64::from(nth + 1) * 200.0 }).await;
        let copy = dir.path().join(format!("copy-{nth}"));
        std::fs::create_dir(&copy).expect("a folder");
        // File after file, while all of them are written to.
        let mut cp = Command::new("cp");
        cp.arg("-a").arg(&node.config().data_dir).arg(copy.join("data")).env("LC_ALL", "C");
        let complaints = String::from_utf8_lossy(&cp.output().expect("cp runs").stderr).into_owned();
        // Files come and go under it.
        assert!(complaints.lines().all(|line| line.ends_with("No such file or directory")), "{complaints}");
        let config = NodeConfig::in_dir(Path::new(BIN), &copy);
        let data = config.data_dir.display().to_string();
        match NodeProcess::start(config).await {
            Ok(mut second) => {
                let mut client = Client::new(second.addr());
                create_narrow(&mut client, "fresh", 60_000).await;
                for topic in ["orders", "fresh"] {
                    produce_all(&mut client, topic, &["what is new".to_owned()]).await;
                    loop {
                        let messages = client.consume(topic, Duration::from_secs(2), 100).await.expect("an answer").expect("messages");
                        if texts(&messages).iter().any(|text| text == "what is new") {
                            break;
                        }
                        // Where the copied log ends behind what it is said to have sent, nothing goes on until somebody has looked.
                        let told = logs::unexpected(&second.config().log, &[]).expect("a log");
                        let stands_still = topic == "orders" && told.iter().any(|line| line.contains("source_behind"));
                        assert!(!messages.is_empty() || stands_still, "the new message of {topic} is not handed out: {told:?}");
                        if messages.is_empty() {
                            break;
                        }
                    }
                }
                second.stop(STOP_DEADLINE).await.expect("the copy's node stops");
            }
            Err(refused) => {
                let text = format!("{refused:#}");
                assert!(text.contains("ended with exit status: 1") && text.contains(&data), "it does not say what is wrong: {text}");
            }
        }
    }
    is_over.store(true, Ordering::Relaxed);
    while load.join_next().await.map(|ended| ended.expect("no panic")).is_some() {}
    assert_clean_log(&node);
}

/// Somebody between client and node: passes everything on, but for one answer when told so.
struct Middleman {
    addr: SocketAddr,
    swallows: Arc<AtomicBool>,
    _running: JoinSet<()>,
}

impl Middleman {
    async fn start(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let swallows = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let told = Arc::clone(&swallows);
        running.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let told = Arc::clone(&told);
                connections.spawn(async move {
                    if let Ok(node) = TcpStream::connect(node).await {
                        pass_on(client, node, &told).await;
                    }
                });
            }
        });
        Self { addr, swallows, _running: running }
    }
}

/// Until one side closes, or an answer was swallowed.
async fn pass_on(client: TcpStream, node: TcpStream, swallows: &AtomicBool) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_node, mut to_node) = node.into_split();
    let requests = async { tokio::io::copy(&mut from_client, &mut to_node).await.map(drop) };
    let answers = async {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from_node.read(&mut bytes).await {
            if swallows.swap(false, Ordering::SeqCst) || to_client.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = requests => {}
        () = answers => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_whose_answer_was_swallowed_has_landed_and_one_that_was_not_sent_has_not() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut direct = Client::new(node.addr());
    create_narrow(&mut direct, "orders", 60_000).await;
    let middleman = Middleman::start(node.addr()).await;
    let client = veena_client::Client::new(&format!("http://{}", middleman.addr)).expect("a client");
    for text in ["acked", "handed back", "not reached"] {
        client.produce("orders", Bytes::from_static(text.as_bytes()), &ProduceOptions::default()).await.expect("stored");
    }
    let mut leases = Vec::new();
    while leases.len() < 3 {
        leases.extend(client.consume_batch("orders", 3, Duration::from_secs(5), None).await.expect("messages"));
    }
    let handle = |nth: usize| leases[nth].receipt_handle.clone().expect("a lease has a handle");

    middleman.swallows.store(true, Ordering::SeqCst);
    client.ack("orders", &handle(0)).await.expect("asked again, it turns out to have landed");
    assert!(!middleman.swallows.load(Ordering::SeqCst), "an answer was swallowed");
    middleman.swallows.store(true, Ordering::SeqCst);
    client.settle("orders", &handle(1), SettleMode::Nack).await.expect("asked again, it turns out to have landed");
    assert!(!middleman.swallows.load(Ordering::SeqCst), "an answer was swallowed");
    assert_eq!(texts(&consume_exactly(&mut direct, "orders", 1).await), ["handed back"], "free again, and nothing else is");

    node.stop(STOP_DEADLINE).await.expect("the node stops");
    let nobody = veena_client::Client::builder(&format!("http://{}", node.addr())).repeats(0).build().expect("a client");
    let unsent = nobody.ack("orders", &handle(2)).await.expect_err("nobody listens");
    assert_eq!(unsent.effect, veena_contract::Effect::None, "{unsent}");
    node.start_again().await.expect("the node starts again");
    let mut left = texts(&consume_exactly(&mut direct, "orders", 2).await);
    left.sort();
    assert_eq!(left, ["handed back", "not reached"], "what was acked stays so, what was not sent was not applied");
    assert_empty(&mut direct, "orders").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_another_protocol_is_turned_away_and_leaves_nothing_behind() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let addr = node.addr();
    let tls = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[0x5a; 500]].concat();
    let http2 = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let cut_tls = vec![22, 3, 1];
    let strangers: [Arc<[u8]>; 5] = [tls.into(), http2.into(), cut_tls.into(), (*b"SSH-2.0-x\r\n").into(), [0; 4096].into()];
    let mut talking = JoinSet::new();
    for bytes in strangers.iter().map(Arc::clone).cycle().take(100) {
        talking.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("listening");
            // It may have been closed before all of it was sent.
            let _sent = stream.write_all(&bytes).await;
            let _ended = stream.shutdown().await;
            let mut answer = Vec::new();
            let reading = stream.read_to_end(&mut answer);
            let _reset = tokio::time::timeout(DEADLINE, reading).await.expect("closed in time");
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4") || answer.starts_with(b"HTTP/1.1 505"), "{answer:?}");
        });
    }
    while let Some(ended) = talking.join_next().await {
        ended.expect("turned away");
    }
    until("their connections are gone", || async { metric(addr, "veena_http_connections_open").await <= 1.0 }).await;
    let mut client = Client::new(addr);
    create_narrow(&mut client, "orders", 60_000).await;
    produce_all(&mut client, "orders", &["served".to_owned()]).await;
    assert_eq!(texts(&consume_exactly(&mut client, "orders", 1).await), ["served"]);
    assert_clean_log(&node);
}
