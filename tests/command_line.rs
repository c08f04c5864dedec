//! The command line against a real node: what it prints, and how it ends.

use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{BIN, scratch, start};

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
    assert_eq!(shell.ok("topic edit orders --retention forever").await, "changed orders\n");
    assert_eq!(shell.ok("topic rm -f orders").await, "deleted orders\n");
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_says_why_it_failed_and_ends_with_the_right_code() {
    let dir = scratch();
    let mut node = start(dir.path()).await;
    let shell = Shell { server: format!("http://{}", node.addr()) };

    assert!(shell.fails("topic info nosuch", 1).await.contains("topic not found (status 404) [topic_not_found]"));
    assert!(shell.fails("topic rm nosuch", 2).await.contains("say -f"), "nobody can be asked");
    assert!(shell.fails("topic edit nosuch --visibility 1m", 2).await.contains("fixed when a topic is created"));
    assert!(shell.fails("topic add a --delay 1s", 2).await.contains("--parent"));
    assert!(shell.fails("topic add a --retention 5", 2).await.contains("want a number with a unit"));
    assert!(shell.fails("frobnicate", 2).await.contains("unrecognized"));
    assert!(shell.fails("-s nonsense:// topic ls", 2).await.contains("server address"));
    let addr = node.addr();
    node.stop(crate::support::STOP_DEADLINE).await.expect("a clean stop");
    assert!(shell.fails("topic add orders", 1).await.contains(&format!("cannot connect to http://{addr}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_accounts_is_not_opened_to_others_by_accident() {
    let dir = scratch();
    let shell = Shell { server: String::new() };
    let data = dir.path().display();
    let text = shell.fails(&format!("node --addr 0.0.0.0:0 --data-dir {data}"), 1).await;
    assert!(text.contains("--insecure-listen"), "{text}");
    let text = shell.fails("node --log-level loud --port 0 --addr nowhere", 2).await;
    assert!(text.contains("config: --log-level"), "{text}");
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
