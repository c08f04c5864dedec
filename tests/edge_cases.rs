//! What users of queues have met in the field, tried on a real process. `docs/cases.md` says which case each test shows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use veena_loadtest_checker::How;
use veena_loadtest_driver::api::{Client, NewTopic};
use veena_loadtest_driver::http::RequestBytes;
use veena_loadtest_driver::node::NodeProcess;
use veena_loadtest_driver::{cpu, logs};

use crate::support::{
    BIN, DEADLINE, STOP_DEADLINE, assert_clean_log, assert_empty, consume_exactly, create_narrow, create_wide, handles, limit, metric,
    produce_all, scratch, start, start_with, texts, unterminated_by_limits, until,
};

/// Longer than any test: whoever is answered before was woken.
const PATIENT: [(&str, &str); 3] =
    [("VEENA_HTTP_MAX_CONSUME_WAIT", "60s"), ("VEENA_HTTP_WRITE_TIMEOUT", "120s"), ("VEENA_HTTP_SHUTDOWN_GRACE", "60s")];

async fn post(client: &mut Client, target: &str, body: &str) -> u16 {
    client.call(&RequestBytes::post_json(target, body.as_bytes())).await.expect("an answer").status
}

/// Warnings and errors in the node's log.
fn complaints(node: &NodeProcess) -> Vec<String> {
    logs::unexpected(&node.config().log, &[]).expect("a log")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_answers_every_consumer_and_keeps_all_that_was_answered_202() {
    let dir = scratch();
    let mut node = start_with(dir.path(), Path::new(BIN), &[("VEENA_HTTP_MAX_CONSUME_WAIT", "9s")]).await;
    let addr = node.addr();
    let mut client = Client::new(addr);
    create_wide(&mut client, "orders", 4, 30_000).await;
    create_wide(&mut client, "quiet", 2, 30_000).await;
    let mut consumers = JoinSet::new();
    for _ in 0..50 {
        consumers.spawn(async move { Client::new(addr).consume("quiet", Duration::from_secs(9), 1).await });
    }
    let mut producers = JoinSet::new();
    for producer in 0..10 {
        producers.spawn(async move {
            let (mut client, mut stored, mut refused) = (Client::new(addr), Vec::new(), Vec::new());
            for number in 0.. {
                let text = format!("{producer}/{number}");
                match client.produce("orders", Some(&text), text.as_bytes()).await {
                    Ok(reply) if reply.status == 202 => stored.push(text),
                    Ok(reply) => {
                        assert_eq!(reply.status, 503, "{}", String::from_utf8_lossy(&reply.body));
                        refused.push(text);
                        break;
                    }
                    Err(_) => break,
                }
            }
            (stored, refused)
        });
    }
    until("all consumers are parked", || async { metric(addr, "veena_http_requests_in_flight").await > 50.0 }).await;
    until("messages come in", || async { metric(addr, "veena_messages_produced_total").await > 100.0 }).await;
    node.stop(STOP_DEADLINE).await.expect("the node stops with success");
    while let Some(answered) = consumers.join_next().await {
        match answered.expect("no panic").expect("an answer, not a cut connection") {
            Ok(messages) => assert!(messages.is_empty()),
            Err(refusal) => assert_eq!(refusal.status, 503),
        }
    }
    let (mut stored, mut refused) = (BTreeSet::new(), BTreeSet::new());
    while let Some(ended) = producers.join_next().await {
        let (kept, not) = ended.expect("no panic");
        stored.extend(kept);
        refused.extend(not);
    }
    node.start_again().await.expect("the node starts again");
    let mut found = BTreeSet::new();
    let started = Instant::now();
    while !stored.is_subset(&found) {
        assert!(started.elapsed() < DEADLINE, "{} of {} came back", found.len(), stored.len());
        let messages = client.consume("orders", Duration::from_millis(500), 100).await.expect("an answer").expect("messages");
        found.extend(texts(&messages));
        client.ack_batch("orders", &handles(&messages)).await.expect("an answer");
    }
    assert!(found.is_disjoint(&refused), "what was refused was not stored");
    assert_clean_log(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_keep_the_node_busy_cause_no_redelivery() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let addr = node.addr();
    let mut client = Client::new(addr);
    create_wide(&mut client, "orders", 4, 10_000).await;
    let texts: Vec<String> = (0..4000).map(|number| format!("message {number}")).collect();
    for hundred in texts.chunks(100) {
        let messages: Vec<(Option<&str>, &[u8])> = hundred.iter().map(|text| (None, text.as_bytes())).collect();
        assert_eq!(client.produce_batch("orders", &messages).await.expect("an answer").status, 202);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let mut consumers = JoinSet::new();
    for _ in 0..20 {
        let is_over = is_over.clone();
        consumers.spawn(async move {
            let (mut client, mut taken) = (Client::new(addr), Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let messages = client.consume("orders", Duration::from_millis(200), 50).await.expect("an answer").expect("messages");
                if messages.is_empty() {
                    continue;
                }
                assert!(messages.iter().all(|message| message.delivery_count == Some(1)), "a second delivery");
                let statuses = client.ack_batch("orders", &handles(&messages)).await.expect("an answer");
                assert!(statuses.iter().all(|status| *status == 204), "{statuses:?}");
                taken.extend(messages.into_iter().map(|message| message.payload));
            }
            taken
        });
    }
    until("all is acked", || async { metric(addr, "veena_leases_acked_total").await >= 4000.0 }).await;
    is_over.store(true, Ordering::Relaxed);
    let mut taken: Vec<Vec<u8>> = Vec::new();
    while let Some(ended) = consumers.join_next().await {
        taken.extend(ended.expect("no panic"));
    }
    taken.sort();
    let mut sent: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    sent.sort();
    assert_eq!(taken, sent, "each message once");
}

#[tokio::test]
async fn a_clean_stop_leaves_every_number_as_it_was() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_wide(&mut client, "orders", 3, 30_000).await;
    for _ in 0..10 {
        let messages: Vec<(Option<&str>, &[u8])> = vec![(None, b"x"); 100];
        assert_eq!(client.produce_batch("orders", &messages).await.expect("an answer").status, 202);
    }
    let messages = consume_exactly(&mut client, "orders", 1000).await;
    for hundred in handles(&messages).chunks(100) {
        assert_eq!(client.ack_batch("orders", hundred).await.expect("an answer"), vec![204; hundred.len()]);
    }
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let described = client.describe("orders").await.expect("described");
        numbers.push(described.iter().map(|p| (p.index, p.next_offset, p.high_watermark, p.frontier)).collect::<Vec<_>>());
        node.stop(STOP_DEADLINE).await.expect("the node stops");
        node.start_again().await.expect("the node starts again");
        assert_empty(&mut client, "orders").await;
    }
    assert_eq!(numbers[0], numbers[1]);
    assert!(numbers[0].iter().all(|(_, _, end, frontier)| *frontier == Some(*end)), "{numbers:?}");
    assert_clean_log(&node);
}

#[tokio::test]
async fn a_batch_ack_repeated_after_a_restart_finds_no_lease_and_takes_nothing_back() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    produce_all(&mut client, "orders", &(0..10).map(|number| number.to_string()).collect::<Vec<_>>()).await;
    let taken = handles(&consume_exactly(&mut client, "orders", 10).await);
    assert_eq!(client.ack_batch("orders", &taken[..9]).await.expect("an answer"), [204; 9]);
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    node.start_again().await.expect("the node starts again");
    assert_eq!(client.ack_batch("orders", &taken).await.expect("an answer"), [410; 10]);
    assert_eq!(texts(&consume_exactly(&mut client, "orders", 1).await), ["9"]);
    node.kill().expect("the node was alive");
    node.start_again().await.expect("the node starts again");
    assert_eq!(client.ack_batch("orders", &taken).await.expect("an answer"), [410; 10]);
}

#[tokio::test]
async fn after_a_kill_a_backlog_is_served_without_anyone_producing() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    for name in ["parent", "child", "late"] {
        create_narrow(&mut client, name, 30_000).await;
    }
    assert_eq!(post(&mut client, "/v1/topics/parent/children", r#"{"child":"child"}"#).await, 200);
    assert_eq!(post(&mut client, "/v1/topics/parent/children", r#"{"child":"late","delay_ms":1500}"#).await, 200);
    let sent: Vec<String> = (0..100).map(|number| format!("message {number}")).collect();
    produce_all(&mut client, "parent", &sent).await;
    node.kill().expect("the node was alive");
    node.start_again().await.expect("the node starts again");
    for topic in ["parent", "child", "late"] {
        assert_eq!(texts(&consume_exactly(&mut client, topic, 100).await), sent, "{topic}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_starting_node_asks_to_come_back_and_never_says_not_found() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let addr = node.addr();
    let mut client = Client::new(addr);
    create_wide(&mut client, "orders", 8, 30_000).await;
    for _ in 0..20 {
        let messages: Vec<(Option<&str>, &[u8])> = vec![(None, &[b'x'; 1000]); 100];
        assert_eq!(client.produce_batch("orders", &messages).await.expect("an answer").status, 202);
    }
    node.kill().expect("the node was alive");
    let asking = tokio::spawn(async move {
        let mut seen = Vec::new();
        loop {
            // Nobody listens yet, or the port is just being taken over: no answer at all is honest too.
            let Ok(reply) = Client::new(addr).get("/v1/topics/orders").await else { continue };
            seen.push((reply.status, reply.retry_after.is_some()));
            if reply.status == 200 {
                return seen;
            }
        }
    });
    node.start_again().await.expect("the node starts again");
    let seen = tokio::time::timeout(DEADLINE, asking).await.expect("in time").expect("no panic");
    assert!(seen.iter().all(|answer| matches!(answer, (503, true) | (200, false))), "{seen:?}");
}

/// Reads until the other side closes.
async fn closed(mut stream: TcpStream) {
    let mut rest = [0; 4096];
    let reading = async { while matches!(stream.read(&mut rest).await, Ok(1..)) {} };
    tokio::time::timeout(DEADLINE, reading).await.expect("closed in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_silent_connections_are_closed_and_their_descriptors_come_back() {
    let dir = scratch();
    let short = [
        ("VEENA_HTTP_READ_TIMEOUT", "1s"),
        ("VEENA_HTTP_IDLE_TIMEOUT", "1s"),
        ("VEENA_HTTP_WRITE_TIMEOUT", "4s"),
        ("VEENA_HTTP_MAX_CONSUME_WAIT", "3s"),
    ];
    let node = start_with(dir.path(), Path::new(BIN), &short).await;
    let (addr, pid) = (node.addr(), node.pid());
    let mut client = Client::new(addr);
    create_narrow(&mut client, "orders", 30_000).await;
    create_narrow(&mut client, "large", 60_000).await;
    for _ in 0..6 {
        assert_eq!(client.produce("large", None, &vec![b'x'; 1 << 20]).await.expect("an answer").status, 202);
    }
    until("all of it is visible", || async { metric(addr, "veena_ingress_dispatch_backlog_records").await == 0.0 }).await;
    let baseline = cpu::open_files(pid, "socket:").expect("the node lives");
    let mut bad = JoinSet::new();
    for _ in 0..30 {
        bad.spawn(async move { closed(TcpStream::connect(addr).await.expect("listening")).await });
        bad.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("listening");
            // A byte now and then does not help.
            for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: 0123456789012345678901234567890123456789".chunks(1) {
                if stream.write_all(byte).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
            closed(stream).await;
        });
        bad.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("listening");
            let head = b"POST /v1/topics/orders/produce HTTP/1.1\r\nHost: x\r\nX-Veena-Client: x\r\nContent-Length: 100\r\n\r\nab";
            stream.write_all(head).await.expect("taken");
            closed(stream).await;
        });
        bad.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("listening");
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("taken");
            closed(stream).await;
        });
    }
    // Takes an answer of megabytes and does not read it.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("an option of every socket");
    let mut deaf = socket.connect(addr).await.expect("listening");
    deaf.write_all(b"GET /v1/topics/large/consume?max=100 HTTP/1.1\r\nHost: x\r\nX-Veena-Client: x\r\n\r\n").await.expect("taken");
    // A long poll outlasts all timers but its own, and producers are served on.
    let polling = tokio::spawn(async move { Client::new(addr).consume("orders", Duration::from_secs(3), 1).await });
    let mut served = Client::new(addr);
    create_narrow(&mut served, "busy", 30_000).await;
    while !bad.is_empty() {
        assert_eq!(served.produce("busy", None, b"x").await.expect("an answer").status, 202);
        let _ended =
            tokio::time::timeout(Duration::from_millis(20), bad.join_next()).await.map(|ended| ended.expect("some").expect("closed"));
    }
    assert!(polling.await.expect("no panic").expect("answered").expect("empty").is_empty());
    let started = Instant::now();
    loop {
        let messages = served.consume("large", Duration::from_millis(100), 100).await.expect("an answer").expect("messages");
        assert!(messages.iter().all(|message| message.delivery_count == Some(1)), "an answer that nobody took is no delivery");
        if !messages.is_empty() {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "what the deaf client was sent never came free");
    }
    drop(deaf);
    drop((client, served));
    until("their descriptors are back", || async { cpu::open_files(pid, "socket:").expect("the node lives") <= baseline + 1 }).await;
    assert!(metric(addr, "veena_http_connections_expired_total").await >= 60.0);
    assert_clean_log(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_out_of_descriptors_neither_spins_nor_lies_and_serves_on_when_they_are_back() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let (addr, pid) = (node.addr(), node.pid());
    let mut client = Client::new(addr);
    create_narrow(&mut client, "orders", 60_000).await;
    produce_all(&mut client, "orders", &["first".to_owned()]).await;
    let used = cpu::open_files(pid, "").expect("the node lives");
    limit(&node, &format!("--nofile={0}:{0}", used + 40));
    let mut crowd = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(addr).await.expect("the kernel's backlog takes it");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("taken");
        crowd.push(stream);
    }
    until("the node has run out", || async { cpu::open_files(pid, "").expect("the node lives") >= used + 39 }).await;
    // Topics whose files cannot be opened now. Whatever is answered 202 is a promise.
    let mut promised = Vec::new();
    for number in 0..5 {
        let name = format!("starved-{number}");
        let topic = NewTopic { name: name.clone(), partitions: 1, visibility_ms: 60_000, keeps_order: true };
        if client.create_topic(&topic).await.is_ok() && client.produce(&name, None, b"x").await.expect("an answer").status == 202 {
            promised.push(name);
        }
    }
    let spent = cpu::of_process(pid).expect("the node lives");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let spent = cpu::of_process(pid).expect("the node lives") - spent;
    assert!(spent < Duration::from_millis(500), "{spent:?} of CPU time in a second of waiting");
    drop(crowd);
    let mut late = Client::new(addr).with_timeout(DEADLINE);
    assert_eq!(texts(&consume_exactly(&mut late, "orders", 1).await), ["first"]);
    for name in &promised {
        assert_eq!(texts(&consume_exactly(&mut late, name, 1).await), ["x"], "{name}");
    }
    let lines = complaints(&node);
    assert!(lines.len() < 60, "{} lines of complaint:\n{}", lines.len(), lines.join("\n"));
    assert!(lines.iter().any(|line| line.contains("cannot accept connections")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_idle_long_polls_cost_next_to_nothing_and_are_woken_one_by_one() {
    const POLLS: usize = 400;
    let dir = scratch();
    let node = start_with(dir.path(), Path::new(BIN), &PATIENT).await;
    let (addr, pid) = (node.addr(), node.pid());
    let mut client = Client::new(addr);
    for number in 0..20 {
        create_wide(&mut client, &format!("t{number}"), 2, 60_000).await;
    }
    let before = cpu::resident_bytes(pid).expect("the node lives");
    let mut polls = JoinSet::new();
    for number in 0..POLLS {
        polls.spawn(async move {
            Client::new(addr).with_timeout(2 * DEADLINE).consume(&format!("t{}", number % 20), Duration::from_secs(60), 1).await
        });
    }
    until("all are parked", || async { metric(addr, "veena_consumers_parked").await >= 400.0 }).await;
    let each = cpu::resident_bytes(pid).expect("the node lives").saturating_sub(before) / POLLS as u64;
    // Unoptimized: what it is in a release is measured by `make bench-long`.
    assert!(each < 48 * 1024, "{each} bytes a poll");
    let spent = cpu::of_process(pid).expect("the node lives");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let spent = cpu::of_process(pid).expect("the node lives") - spent;
    assert!(spent < Duration::from_millis(400), "{spent:?} of CPU time in two seconds of waiting");
    for number in 0..100 {
        let topic = format!("t{}", number % 20);
        assert_eq!(client.produce(&topic, None, b"x").await.expect("an answer").status, 202);
    }
    for _ in 0..100 {
        let answered = tokio::time::timeout(DEADLINE, polls.join_next()).await.expect("in time").expect("some are left");
        assert_eq!(answered.expect("no panic").expect("an answer").expect("a message").len(), 1);
    }
    until("the others wait on", || async { metric(addr, "veena_consumers_parked").await == 300.0 }).await;
}

/// The file below `dir` that holds `wanted` and lies in a folder of a partition.
fn partition_file(dir: &Path, wanted: &[u8]) -> PathBuf {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("listed").path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if std::fs::read(&entry).expect("readable").windows(wanted.len()).any(|window| window == wanted) {
                return entry;
            }
        }
    }
    panic!("no file holds it");
}

#[tokio::test]
async fn damage_met_again_and_again_is_logged_a_few_times_and_costs_its_own_record_alone() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 60_000).await;
    for number in 0..10 {
        let path = "/v1/topics/orders/produce?wait_for=commit";
        assert_eq!(post(&mut client, path, &format!("payload number {number}")).await, 200);
    }
    node.stop(STOP_DEADLINE).await.expect("the node stops");
    let file = partition_file(&node.config().data_dir.join("topics"), b"payload number 4");
    let mut bytes = std::fs::read(&file).expect("readable");
    let at = bytes.windows(16).position(|window| window == b"payload number 4").expect("it is there");
    bytes[at] ^= 4;
    std::fs::write(&file, bytes).expect("written");
    node.start_again().await.expect("the node starts");
    for _ in 0..200 {
        let reply = client.get("/v1/topics/orders/consume?partition=0&offset=4").await.expect("an answer");
        assert_eq!(reply.status, 410, "{}", String::from_utf8_lossy(&reply.body));
    }
    let rest = consume_exactly(&mut client, "orders", 9).await;
    assert_eq!(rest.iter().map(|message| message.offset).collect::<Vec<_>>(), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    for message in &rest {
        let handle = message.handle.as_deref().expect("a lease has a handle");
        assert_eq!(client.settle("orders", handle, How::Ack).await.expect("an answer").status, 204);
    }
    assert_empty(&mut client, "orders").await;
    let lines = complaints(&node);
    assert!((1..=10).contains(&lines.len()), "{} lines:\n{}", lines.len(), lines.join("\n"));
}

#[tokio::test]
async fn a_node_whose_disk_takes_nothing_is_alive_says_that_it_is_not_ready_and_lies_to_nobody() {
    let dir = scratch();
    let mut node = start_with(dir.path(), &unterminated_by_limits(dir.path()), &[]).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 60_000).await;
    let mut stored = Vec::new();
    for number in 0..40 {
        let text = format!("{number:03} {}", "x".repeat(4000));
        produce_all(&mut client, "orders", std::slice::from_ref(&text)).await;
        stored.push(text);
    }
    // From here on no file may grow, nor be written beyond its first 64 KiB.
    limit(&node, "--fsize=65536:unlimited");
    let mut refused = Vec::new();
    until("the node says that it is not ready", || async {
        let mut client = Client::new(node.addr());
        let text = format!("late {}", "x".repeat(4000));
        let reply = client.produce("orders", None, text.as_bytes()).await.expect("an answer");
        assert_ne!(reply.status, 202, "nothing was stored");
        client.get("/readyz").await.expect("an answer").status == 503
    })
    .await;
    for _ in 0..200 {
        refused.push(client.produce("orders", None, b"never stored").await.expect("an answer"));
    }
    let lines = complaints(&node);
    assert!((1..=20).contains(&lines.len()), "{} lines of complaint:\n{}", lines.len(), lines.join("\n"));
    assert!(refused.iter().all(|reply| matches!(reply.status, 500 | 503)), "{refused:?}");
    let ready = client.get("/readyz").await.expect("an answer");
    let text = String::from_utf8_lossy(&ready.body).into_owned();
    assert!(
        ready.status == 503 && ready.retry_after.is_some() && text.contains("\"error\":\"") && !text.contains("\"error\":\"\""),
        "{text}"
    );
    assert_eq!(client.get("/healthz").await.expect("an answer").status, 200);
    assert_eq!((metric(node.addr(), "veena_ready").await, metric(node.addr(), "veena_ingress_wal_failed").await), (0.0, 1.0));
    assert!(metric(node.addr(), "veena_data_dir_available_bytes").await > 0.0);
    assert!(metric(node.addr(), "veena_storage_fsync_duration_seconds_count").await > 0.0);
    let served = client.consume("orders", Duration::ZERO, 1).await.expect("an answer").expect("a message");
    assert_eq!(served[0].offset, 0, "what is stored is served");
    node.kill().expect("the node was alive");
    node.start_again().await.expect("with room again the node starts");
    let mut got = texts(&consume_exactly(&mut client, "orders", stored.len()).await);
    got.sort();
    assert_eq!(got, stored);
}
