//! The command line against a real node: what it prints, and how it ends.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::free_addr;

use crate::support::{BIN, dev, scratch, start, start_with};

struct Shell {
    server: String,
}

impl Shell {
    /// Runs a command with `input` on its standard input.
    async fn run_with(&self, line: &str, input: &str) -> Output {
        let mut command = Command::new(BIN);
        command.args(line.split_whitespace()).env("VEENA_ADDR", &self.server);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the command starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A command that does not read its input may have ended already.
        let _unread = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await.expect("the command ends")
    }

    /// Runs a command that must succeed; its output.
    async fn ok(&self, line: &str) -> String {
        self.ok_with(line, "").await
    }

    async fn ok_with(&self, line: &str, input: &str) -> String {
        let output = self.run_with(line, input).await;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs a command that must fail with `code`; what it says.
    async fn fails(&self, line: &str, code: i32) -> String {
        let output = self.run_with(line, "").await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}: {text}");
        text
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_and_messages_are_handled_from_the_command_line() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let shell = Shell { server: format!("http://{}", node.addr()) };

    let created = shell.ok("topic add orders --partitions 1 --retention 24h --visibility 1m").await;
    assert_eq!(created, "created orders with 1 partition(s)\n");
    assert!(shell.ok("topic ls").await.contains("orders  1           24h        1m     standalone"));
    assert_eq!(shell.ok("pub orders hello -k alice -H trace=7").await, "sent 1 message(s) to orders\n");
    assert_eq!(shell.ok_with("pub orders", "two\nthree\n").await, "sent 2 message(s) to orders\n");
    assert_eq!(shell.ok("sub orders -n 3").await, "0:0 key=alice trace=7  hello\n0:1  two\n0:2  three\n");
    assert_eq!(shell.ok("sub orders --idle 0s").await, "", "everything is acked");
    assert_eq!(shell.ok("sub orders --idle 11s").await, "", "it ends, though one poll waits for ten seconds at most");
    assert_eq!(shell.ok("replay orders --partition 0 --from 1 --raw").await, "two\nthree\n");
    assert_eq!(shell.ok("sub orders --peek -n 1 --raw").await, "hello\n");

    let detail: serde_json::Value = serde_json::from_str(&shell.ok("topic info orders --json").await).expect("JSON");
    assert_eq!((&detail["retention_ms"], &detail["partition_stats"][0]["frontier"]), (&86_400_000.into(), &3.into()));
    for _ in 0..2 {
        assert_eq!(shell.ok("pub orders paid --idempotency-key order-1").await, "sent 1 message(s) to orders\n");
    }
    assert_eq!(shell.ok("sub orders -n 1").await, "0:3  paid\n");
    assert_eq!(shell.ok("sub orders --idle 0s").await, "", "it was stored once");
    assert!(shell.fails("pub orders other --idempotency-key order-1", 1).await.contains("idempotency_key_reused"));
    assert!(shell.fails("pub orders --idempotency-key order-2", 2).await.contains("stands for one message"));
    assert_eq!(shell.ok("topic edit orders --retention forever --dedup-window 1m --reroute never").await, "changed orders\n");
    let shown = shell.ok("topic info orders").await;
    assert!(shown.contains("keys remembered for") && shown.contains("1m\n") && shown.contains("its messages wait"), "{shown}");
    assert_eq!(shell.ok("topic rm -f orders").await, "deleted orders\n");
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_says_why_it_failed_and_ends_with_the_right_code() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let shell = Shell { server: format!("http://{}", node.addr()) };

    let refused =
        "error: topic not found (status 404) [topic_not_found]\n  nothing was done (effect: none); see docs/errors/topic_not_found.md\n";
    for line in ["topic info nosuch", "topic rm nosuch", "topic rm -f nosuch", "sub nosuch -n 1"] {
        assert_eq!(shell.fails(line, 1).await, refused, "{line}");
    }
    shell.ok("topic add kept").await;
    assert!(shell.fails("topic rm kept", 2).await.contains("say -f"), "nobody can be asked");
    assert!(shell.fails("topic add a --partitions 0", 2).await.contains("at least one partition"));
    assert!(shell.fails("topic edit nosuch --visibility 1m", 2).await.contains("fixed when a topic is created"));
    assert!(shell.fails("topic add a --delay 1s", 2).await.contains("--parent"));
    assert!(shell.fails("topic add a --reroute sometimes", 2).await.contains("want auto or never"));
    assert!(shell.fails("topic add a --retention 5", 2).await.contains("want a number with a unit"));
    assert!(shell.fails("frobnicate", 2).await.contains("unrecognized"));
    assert!(shell.fails("-s nonsense:// topic ls", 2).await.contains("server address"));
    let addr = node.addr();
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
    assert!(shell.fails("topic add orders", 1).await.contains(&format!("cannot connect to http://{addr}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_not_opened_to_others_by_accident() {
    let dir = scratch();
    let shell = Shell { server: String::new() };
    let data = dir.path().display();
    let text = shell.fails(&format!("node --addr 0.0.0.0:0 --data-dir {data}"), 1).await;
    assert!(text.contains("passwords") && text.contains("--insecure-listen"), "{text}");
    let text = shell.fails("node --log-level loud --port 0 --addr nowhere", 2).await;
    assert!(text.contains("config: --log-level"), "{text}");
    let text = shell.fails("node --log-level loud --addr junk", 2).await;
    assert!(text.contains("--log-level") && text.contains("http.addr \"junk\": want host:port"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_sets_nothing_is_told_with_the_one_that_was_meant() {
    let dir = scratch();
    let mut node = start_with(dir.path(), std::path::Path::new(BIN), &[("VEENA_HTTP_READ_TIMOUT", "5s")]).await;
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
    let told = logs::unexpected(&node.config().log, &[]).expect("a log");
    assert!(told.len() == 1 && told[0].contains("VEENA_HTTP_READ_TIMOUT") && told[0].contains("VEENA_HTTP_READ_TIMEOUT"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_to_try_says_how_it_is_reached_and_a_second_one_how_it_runs_beside_it() {
    let dir = scratch();
    let port = || free_addr().expect("a free port").port();
    let (first_port, data) = (port(), dir.path().join("first"));
    let dev = async |port: u16, data: &Path| dev(&["--port", &port.to_string(), "--log-level", "error"], data).await;
    let (_first, said) = dev(first_port, &data).await;
    assert!(said.contains(&format!("veena topic ls -s http://127.0.0.1:{first_port}\n")), "{said}");
    for (port, data) in [(first_port, dir.path().join("second")), (port(), data)] {
        let (mut second, said) = dev(port, &data).await;
        assert_eq!(second.wait().await.expect("it ends").code(), Some(1), "{said}");
        assert!(said.contains("a node runs there already") && said.contains("--port 7943 --data-dir DIR"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_names_file_and_offset_of_a_flipped_bit() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let data = node.config().data_dir.clone();
    let shell = Shell { server: format!("http://{}", node.addr()) };
    shell.ok("topic add orders --partitions 1").await;
    // The damaged frame is not the last: a bad last frame cannot be told from a write that a crash cut short.
    shell.ok("pub orders hello --wait-for commit").await;
    shell.ok("pub orders later --wait-for commit").await;
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");

    let verify = format!("log verify {}", data.display());
    assert!(shell.ok(&verify).await.contains("0 damaged range(s)"));
    let listing = shell.ok(&format!("log inspect {} --json", data.display())).await;
    let files = listing.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let log = files.filter(|file| file["kind"] == "partition").find_map(|file| file["file"].as_str().map(|name| data.join(name)));
    let log = log.expect("a partition log");
    let mut bytes = std::fs::read(&log).expect("readable");
    let middle = bytes.windows(5).position(|window| window == b"hello").expect("the payload is stored as it is");
    bytes[middle] ^= 1;
    std::fs::write(&log, bytes).expect("written");

    let output = shell.run_with(&verify, "").await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("damaged: {}", log.display())), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let shell = Shell { server: format!("http://{}", node.addr()) };
    shell.ok("topic add orders --partitions 1").await;
    shell.ok("pub orders hello").await;
    assert_eq!(shell.ok("sub orders -n 1 --raw").await, "hello\n");
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
    let topics = dir.path().join("data/topics/default");
    let topic = std::fs::read_dir(topics).expect("listed").next().expect("one topic").expect("listed").path();
    std::fs::rename(topic.join("p00000"), topic.join("away")).expect("moved");
    std::fs::write(topic.join("p00000"), b"in the way").expect("written");
    node.start_again().await.expect("it starts");
    let shell = Shell { server: format!("http://{}", node.addr()) };
    for line in ["replay orders --partition 0", "replay orders --partition 0 --from 0 --to 1", "sub orders --peek"] {
        let told = shell.fails(line, 1).await;
        assert!(told.contains("cannot be read now"), "{line}: {told}");
    }
}
