//! The contract's table against the real program, once per way of starting it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use veena_loadtest_contract::{Filter, Profile, Report, run};
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

async fn start(profile: Profile, dir: &Path) -> NodeProcess {
    let mut config = NodeConfig::in_dir(Path::new(env!("CARGO_BIN_EXE_veena")), dir);
    config.env.extend(profile.env().iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    NodeProcess::start(config).await.expect("the node is ready")
}

async fn rows(node: &NodeProcess, profile: Profile) -> Report {
    let addr = node.addr();
    let run = move || run(addr, &Filter { contains: None, profile });
    tokio::task::spawn_blocking(run).await.expect("the table runs to its end")
}

async fn holds(profile: Profile) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = start(profile, dir.path()).await;
    let report = rows(&node, profile).await;
    assert!(report.passed > 0 && report.failed.is_empty(), "{report}");
    node.stop(Duration::from_secs(30)).await.expect("the node stops cleanly");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_keeps_the_contract() {
    holds(Profile::Default).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_small_caps_refuses_as_the_contract_says() {
    holds(Profile::SmallCaps).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_guard_takes_bare_requests() {
    holds(Profile::GuardOff).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secured_node_lets_in_whom_the_contract_says() {
    holds(Profile::Secured).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_node_says_so_and_finishes_what_it_began() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut node = start(Profile::Stopping, dir.path()).await;
    let addr = node.addr();

    // One connection, so that the node certainly knows of it when it is stopped.
    let mut begun = BufReader::new(TcpStream::connect(addr).expect("the node listens"));
    let create = r#"{"name":"last"}"#;
    write!(
        begun.get_mut(),
        "POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{create}",
        create.len()
    )
    .expect("the node reads");
    assert!(next_answer(&mut begun).starts_with("HTTP/1.1 201 "));

    // A produce that has begun keeps the node from leaving before it has been asked how it is.
    begun
        .get_mut()
        .write_all(b"POST /v1/topics/last/produce HTTP/1.1\r\nHost: x\r\nX-Veena-Client: t\r\nContent-Length: 2\r\n\r\nx")
        .expect("the node reads");

    let finish = tokio::task::spawn_blocking(move || {
        let report = run(addr, &Filter { contains: None, profile: Profile::Stopping });
        begun.get_mut().write_all(b"y").expect("the node reads");
        let mut answer = String::new();
        begun.read_to_string(&mut answer).expect("the node answers");
        (report, answer)
    });
    let (stopped, finished) = tokio::join!(node.stop(Duration::from_secs(30)), finish);
    let (report, answer) = finished.expect("the rows run to their end");
    assert!(report.passed > 0 && report.failed.is_empty(), "{report}");
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    stopped.expect("the node stops cleanly");
}

/// The head of the next answer on a connection that is kept; its body is passed.
fn next_answer(connection: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(connection.read_line(&mut head).expect("the node answers") > 0, "cut off: {head}");
    }
    let length = head.to_ascii_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("the node answers");
    head
}
