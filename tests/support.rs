//! What the tests share.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Child;
use veena_loadtest_driver::api::{Client, Message, NewTopic};
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

/// The binary under test.
pub const BIN: &str = env!("CARGO_BIN_EXE_veena");

/// Texts of warnings that a healthy node may log. Every entry needs a reason.
pub const LOG_ALLOWED: &[&str] = &[];

/// How long a condition may take to come true.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A directory that is gone after the test.
pub fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("veena-test-").tempdir().expect("a temporary directory")
}

/// A node with its data in `dir`.
pub async fn start(dir: &Path) -> NodeProcess {
    NodeProcess::start(NodeConfig::in_dir(Path::new(BIN), dir)).await.expect("a node starts")
}

/// As `start`, with these variables.
pub async fn start_with(dir: &Path, bin: &Path, env: &[(&str, &str)]) -> NodeProcess {
    let mut config = NodeConfig::in_dir(bin, dir);
    config.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    NodeProcess::start(config).await.expect("a node starts")
}

/// Waits for a condition, with a deadline.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "not within the deadline: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The sum of a metric over its series.
pub async fn metric(addr: SocketAddr, name: &str) -> f64 {
    Client::new(addr).metrics().await.expect("metrics").sum(|found| found == name).unwrap_or_default()
}

/// A topic of several partitions.
pub async fn create_wide(client: &mut Client, name: &str, partitions: u32, visibility_ms: u64) {
    let topic = NewTopic { name: name.to_owned(), partitions, visibility_ms, keeps_order: true };
    client.create_topic(&topic).await.expect("a topic is created");
}

/// The payloads as text.
pub fn texts(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(&message.payload).into_owned()).collect()
}

/// What settles them.
pub fn handles(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.handle.clone().expect("a lease has a handle")).collect()
}

/// Changes a limit of a running process.
pub fn limit(node: &NodeProcess, what: &str) {
    let status = Command::new("prlimit").args(["--pid", &node.pid().to_string(), what]).status().expect("prlimit runs");
    assert!(status.success(), "prlimit {what}");
}

/// The binary, started so that a write over the limit on file sizes fails instead of ending the process.
pub fn unterminated_by_limits(dir: &Path) -> PathBuf {
    let path = dir.join("veena");
    std::fs::write(&path, format!("#!/bin/sh\ntrap '' XFSZ\nexec '{BIN}' \"$@\"\n")).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    path
}

/// A topic of one partition, in which order is certain.
pub async fn create_narrow(client: &mut Client, name: &str, visibility_ms: u64) {
    create_wide(client, name, 1, visibility_ms).await;
}

/// Sends messages, each its own text, and fails if one is not answered 202.
pub async fn produce_all(client: &mut Client, topic: &str, texts: &[String]) {
    for text in texts {
        let reply = client.produce(topic, None, text.as_bytes()).await.expect("an answer");
        assert_eq!(reply.status, 202, "{}", String::from_utf8_lossy(&reply.body));
    }
}

/// Leases messages until `count` have come.
pub async fn consume_exactly(client: &mut Client, topic: &str, count: usize) -> Vec<Message> {
    let started = Instant::now();
    let mut messages = Vec::new();
    while messages.len() < count {
        assert!(started.elapsed() < DEADLINE, "{} of {count} messages came", messages.len());
        let wait = Duration::from_millis(500);
        messages.extend(client.consume(topic, wait, (count - messages.len()).clamp(2, 100)).await.expect("an answer").expect("messages"));
    }
    assert_eq!(messages.len(), count);
    messages
}

/// Nothing is there to be leased.
pub async fn assert_empty(client: &mut Client, topic: &str) {
    let messages = client.consume(topic, Duration::ZERO, 100).await.expect("an answer").expect("no refusal");
    assert!(messages.is_empty(), "{messages:?}");
}

/// The node logged no warning and no error that is not allowed.
pub fn assert_clean_log(node: &NodeProcess) {
    let lines = logs::unexpected(&node.config().log, LOG_ALLOWED).expect("a log");
    assert!(lines.is_empty(), "unexpected in the log ({} texts allowed):\n{}", LOG_ALLOWED.len(), lines.join("\n"));
}

/// How long a clean stop may take.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// A node or a cluster for trying things out, and what it prints until it is ready or ends.
pub async fn dev(args: &[&str], data: &Path) -> (Child, String) {
    let mut command = tokio::process::Command::new(BIN);
    command.arg("dev").args(args).arg("--data-dir").arg(data);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.expect("text") {
        said += &format!("{line}\n");
        if line.starts_with("Ctrl-C") {
            // It goes on telling, and ends if nobody listens.
            child.stdout = Some(lines.into_inner().into_inner());
            return (child, said);
        }
    }
    child.stderr.take().expect("a pipe").read_to_string(&mut said).await.expect("text");
    (child, said)
}
