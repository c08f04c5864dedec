//! `veena dev --nodes 3`: three nodes that start, stop and end together.

use std::net::{TcpListener, UdpSocket};
use std::path::Path;
use std::time::Duration;

use tokio::process::Child;
use tokio::time::Instant;
use veena_contract::limits;
use veena_loadtest_driver::node::free_addr;

use crate::support::{self, BIN, scratch, until};

/// By when a node that was killed is taken for dead by all others.
const DEAD_WITHIN: Duration = Duration::from_millis(2 * limits::MEMBER_DEAD_MS);

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
}

/// The first of four ports that nobody has. Below those that the system gives out by itself, of which another test could have one before a
/// node that comes later.
fn ports() -> u16 {
    let mut tried = std::iter::repeat_with(|| 20_000 + free_addr().expect("a free port").port() % 3_000 * 4);
    tried.find(|port| (*port..port + 4).all(is_free)).expect("endless")
}

/// What a cluster for trying things out prints until it is ready; or until it ends, as one that failed.
async fn dev(port: u16, data: &Path) -> (Child, String) {
    let (mut child, said) = support::dev(&["--nodes", "3", "--port", &port.to_string()], data).await;
    if !said.contains("\nCtrl-C") {
        assert_eq!(child.wait().await.expect("it ends").code(), Some(1), "{said}");
    }
    (child, said)
}

fn signal(name: &str, pid: &str) {
    let status = std::process::Command::new("kill").args([name, pid]).status().expect("kill runs");
    assert!(status.success(), "kill {name} {pid}");
}

async fn stop(cluster: &mut Child) {
    signal("-TERM", &cluster.id().expect("it runs").to_string());
    assert!(cluster.wait().await.expect("it ends").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_cluster_is_refused_before_anything_starts_and_the_nodes_end_with_who_started_them() {
    let dir = scratch();
    let (port, data) = (ports(), dir.path().join("first"));
    let (mut first, said) = dev(port, &data).await;
    assert!(said.contains("node-3"), "{said}");
    let (_, said) = dev(ports(), &data).await;
    assert!(said.contains("a cluster runs there already") && !said.contains("is ready"), "{said}");
    let other = dir.path().join("other");
    let (_, said) = dev(port, &other).await;
    assert!(said.contains(&format!("node-1 cannot listen on 127.0.0.1:{port}")) && said.contains("Nothing was started"), "{said}");
    assert!(!other.join("node-1").exists());

    first.kill().await.expect("killed");
    until("its nodes end", async || (port..port + 3).all(is_free)).await;
    let log = std::fs::read_to_string(data.join("node-2.log")).expect("a log");
    assert!(log.trim_end().ends_with("stopped"), "in order: {log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_fails_is_told_with_its_error_and_the_others_stop() {
    let dir = scratch();
    std::fs::write(dir.path().join("node-2"), "in the way").expect("written");
    let port = ports();
    let (_, said) = dev(port, dir.path()).await;
    assert!(said.contains("node-2 has ended (exit status: 1): cannot "), "{said}");
    assert!((port..port + 3).all(is_free));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_no_member_any_more_is_left_out_and_another_takes_its_place() {
    let dir = scratch();
    let port = ports();
    let (mut cluster, said) = dev(port, dir.path()).await;
    let pid = said.lines().find(|line| line.contains("node-3  ")).and_then(|line| line.split("pid ").nth(1)?.split(' ').next());
    signal("-KILL", pid.expect("told"));
    let killed = Instant::now();
    let password = std::fs::read_to_string(dir.path().join("admin-password")).expect("kept").trim().to_owned();
    let forget = || {
        let words = ["cluster", "forget", "node-3", "--yes-lose-what-only-it-has", "-s", &format!("127.0.0.1:{port}")];
        let mut command = std::process::Command::new(BIN);
        command.args(words).env("VEENA_USER", "admin").env("VEENA_PASSWORD", &password);
        command.output().expect("it runs").status.success()
    };
    while !forget() {
        assert!(killed.elapsed() < DEAD_WITHIN, "it is taken for dead in the end");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    stop(&mut cluster).await;

    let (mut cluster, said) = dev(port, dir.path()).await;
    assert!(said.contains("node-3 is no member of the cluster any more, and is left out") && said.contains("is ready"), "{said}");
    assert!(!said.contains("node-3  http"), "{said}");
    stop(&mut cluster).await;
    let (mut cluster, said) = dev(port, dir.path()).await;
    assert!(said.contains(&format!("node-4  http://127.0.0.1:{}", port + 3)) && !said.contains("node-3"), "{said}");
    stop(&mut cluster).await;
}
