//! TLS towards clients, on real processes.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::task::JoinSet;
use veena_client::bodies::CreateTopic;
use veena_client::{Client, ProduceOptions};
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess, free_addr};

use crate::cluster::{log_of, with};
use crate::support::{BIN, DEADLINE, STOP_DEADLINE, assert_clean_log, scratch, until};

const PASSWORD: &str = "canary-of-root";

/// A certificate that is its own authority, valid until a year's first day, and its key.
fn pem(until: i32, serial: u64) -> (String, String) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.subject_alt_names.push(rcgen::SanType::IpAddress([127, 0, 0, 1].into()));
    params.serial_number = Some(serial.into());
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().expect("random");
    (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
}

/// Where a node's pair is.
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn in_dir(dir: &Path) -> Self {
        Self { cert: dir.join("cert.pem"), key: dir.join("key.pem") }
    }

    fn write(&self, (cert, key): &(String, String)) {
        std::fs::write(&self.cert, cert).expect("written");
        std::fs::write(&self.key, key).expect("written");
        std::fs::set_permissions(&self.key, std::fs::Permissions::from_mode(0o600)).expect("an own file");
    }

    fn config(&self, dir: &Path) -> NodeConfig {
        let config = with(NodeConfig::in_dir(Path::new(BIN), dir), "VEENA_SECURITY_ENABLED", "true");
        let config = with(config, "VEENA_ADMIN_PASSWORD", PASSWORD);
        let config = with(config, "VEENA_HTTP_TLS_CERT_FILE", &self.cert.display().to_string());
        with(config, "VEENA_HTTP_TLS_KEY_FILE", &self.key.display().to_string())
    }
}

fn root(node: &NodeProcess, authority: &str) -> Client {
    let url = format!("https://localhost:{}", node.addr().port());
    let builder = Client::builder(&url).repeats(0).trust(authority.as_bytes().to_vec());
    builder.sign_in("admin", PASSWORD).build().expect("an address")
}

async fn start(files: &Files, dir: &Path, authority: &str) -> (NodeProcess, Client) {
    let node = NodeProcess::spawn_on(files.config(dir), free_addr().expect("a port")).expect("a node starts");
    let client = root(&node, authority);
    until("the root admin signs in", || async { client.users().await.is_ok() }).await;
    (node, client)
}

fn hang_up(node: &NodeProcess) {
    let pid = i32::try_from(node.pid()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, Signal::HUP).expect("it lives");
}

async fn metric(client: &Client, name: &str) -> u64 {
    let text = client.metrics().await.expect("served");
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).expect("a metric")
}

fn topic(name: &str) -> CreateTopic {
    CreateTopic { name: name.to_owned(), partitions: Some(1), ..CreateTopic::default() }
}

async fn veena(node: &NodeProcess, line: &str, ca: Option<&Path>) -> (bool, String) {
    let mut command = Command::new(BIN);
    command.args(line.split_whitespace()).env("VEENA_ADDR", format!("https://localhost:{}", node.addr().port()));
    command.env("VEENA_USER", "admin").env("VEENA_PASSWORD", PASSWORD).env_remove("VEENA_CA_FILE");
    if let Some(ca) = ca {
        command.env("VEENA_CA_FILE", ca);
    }
    let done = tokio::time::timeout(DEADLINE, command.output()).await.expect("it ends").expect("it starts");
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn users_send_and_read_over_tls_from_the_command_line_too() {
    let dir = scratch();
    let (files, pair) = (Files::in_dir(dir.path()), pem(2090, 7));
    files.write(&pair);
    let (mut node, client) = start(&files, dir.path(), &pair.0).await;
    client.create_topic(&topic("orders")).await.expect("created");
    client.produce("orders", Bytes::from_static(b"by the library"), &ProduceOptions::default()).await.expect("stored");
    let message = client.consume("orders", Duration::from_secs(10), None).await.expect("answered").expect("a message");
    client.ack("orders", &message.receipt_handle.expect("a lease")).await.expect("acked");

    let (is_done, said) = veena(&node, "pub orders word", Some(&files.cert)).await;
    assert!(is_done, "{said}");
    let message = client.consume("orders", Duration::from_secs(10), None).await.expect("answered").expect("a message");
    assert_eq!(message.payload_bytes().expect("as encoded"), "word");
    let (is_done, said) = veena(&node, "topic ls", None).await;
    assert!(!is_done && said.contains("cannot connect to https://localhost") && said.contains("certificate"), "{said}");
    let (is_done, said) = veena(&node, "topic ls", Some(&files.key)).await;
    assert!(!is_done && said.contains("the CA file holds no certificate"), "{said}");

    assert!(log_of(node.config()).contains(&format!("https://127.0.0.1:{}", node.addr().port())), "the start says how it is reached");
    assert_clean_log(&node);
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_exchanged_under_load_and_a_bad_one_is_not_taken() {
    let dir = scratch();
    let (files, first, second) = (Files::in_dir(dir.path()), pem(2090, 7), pem(2091, 0xabc));
    files.write(&first);
    let (mut node, client) = start(&files, dir.path(), &first.0).await;
    client.create_topic(&topic("orders")).await.expect("created");
    // They trust both; every other request is made on a new connection.
    let both = format!("{}{}", first.0, second.0);
    let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = JoinSet::new();
    for _ in 0..4 {
        let (is_over, sent, kept) = (Arc::clone(&is_over), Arc::clone(&sent), root(&node, &both));
        let fresh = {
            let (port, both) = (node.addr().port(), both.clone());
            move || {
                let builder = Client::builder(&format!("https://localhost:{port}")).repeats(0).trust(both.clone().into_bytes());
                builder.sign_in("admin", PASSWORD).build().expect("an address")
            }
        };
        load.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                for client in [&kept, &fresh()] {
                    client.produce("orders", Bytes::from_static(b"x"), &ProduceOptions::default()).await.expect("none fails");
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let goes_on = |what: &'static str| {
        let (before, sent) = (sent.load(Ordering::Relaxed), Arc::clone(&sent));
        async move { until(what, || async { sent.load(Ordering::Relaxed) > before + 50 }).await }
    };
    goes_on("messages come in").await;
    files.write(&second);
    hang_up(&node);
    let trusts_second = root(&node, &second.0);
    until("the second is served", || async { trusts_second.health().await.is_ok() }).await;
    goes_on("messages come in").await;
    root(&node, &first.0).health().await.expect_err("the first is not served any more");
    client.health().await.expect("who was connected stays so");
    assert!(log_of(node.config()).contains("0a:bc"), "the log names the serial number");
    assert_eq!(metric(&client, "veena_client_tls_certificates_replaced_total").await, 1);
    assert_clean_log(&node);

    // A certificate with the key of another; one that has expired; none at all.
    for (nth, bad) in [(pem(2092, 9).0, second.1.clone()), pem(2021, 10), (String::new(), String::new())].iter().enumerate() {
        files.write(bad);
        hang_up(&node);
        let refused = || metric(&client, "veena_client_tls_certificates_refused_total");
        until("it was looked at", || async { refused().await == nth as u64 + 1 }).await;
        hang_up(&node);
        goes_on("messages come in").await;
        root(&node, &second.0).health().await.expect("the one before is served");
        assert_eq!(refused().await, nth as u64 + 1, "once for each");
    }
    let told = logs::unexpected(&node.config().log, &[]).expect("a log");
    assert!(told.len() == 3 && told.iter().all(|line| line.contains("is not taken")), "{told:?}");
    assert!(told[0].contains("not that of the certificate") && told[1].contains("expired"), "{told:?}");
    is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.expect("no request failed");
    }
    let log = log_of(node.config());
    for line in first.1.lines().chain(second.1.lines()).filter(|line| !line.starts_with("-----")) {
        assert!(!log.contains(line), "a private key is in the log");
    }
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_served_stops_the_start_and_says_why() {
    let dir = scratch();
    let (files, first) = (Files::in_dir(dir.path()), pem(2090, 7));
    let refused = async |config: NodeConfig, text: &str| {
        let status = config.run_to_end(free_addr().expect("a port"), DEADLINE).await.expect("it ends");
        let log = log_of(&config);
        assert!(!status.success() && log.contains(text), "{text} is not in {log}");
        std::fs::remove_file(&config.log).expect("a log");
    };
    refused(files.config(dir.path()), "cert.pem cannot be read").await;
    files.write(&(first.0.clone(), pem(2090, 8).1));
    refused(files.config(dir.path()), "the private key is not that of the certificate").await;
    files.write(&first);
    let mut alone = files.config(dir.path());
    alone.env.retain(|(name, _)| name != "VEENA_HTTP_TLS_KEY_FILE");
    refused(alone, "http.tls.cert_file is set and http.tls.key_file is not").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_users_and_tls_may_be_reached_and_one_without_users_may_not() {
    let dir = scratch();
    let (files, pair) = (Files::in_dir(dir.path()), pem(2090, 7));
    files.write(&pair);
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o644)).expect("an own file");
    let everywhere = SocketAddr::from(([0, 0, 0, 0], free_addr().expect("a port").port()));
    let mut node = NodeProcess::spawn_on(files.config(dir.path()), everywhere).expect("it starts");
    let client = root(&node, &pair.0);
    until("the root admin signs in", || async { client.users().await.is_ok() }).await;
    let told = logs::unexpected(&node.config().log, &[]).expect("a log");
    assert!(told.len() == 1 && told[0].contains("may read the private key"), "{told:?}");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");

    let other = scratch();
    let open = with(files.config(other.path()), "VEENA_SECURITY_ENABLED", "false");
    let status = open.run_to_end(everywhere, DEADLINE).await.expect("it ends");
    assert!(!status.success() && log_of(&open).contains("security is off"), "{}", log_of(&open));
}
