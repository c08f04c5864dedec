//! The audit trail of a real node: exported, verified without it, and there after a restart.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::process::Command;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::cluster::{log_of, with};
use crate::support::{BIN, STOP_DEADLINE, scratch, until};

const PASSWORD: &str = "canary-of-root";

/// Runs a command as the root admin.
async fn veena(node: &NodeProcess, words: &[&str]) -> Output {
    let mut command = Command::new(BIN);
    command.args(words).env("VEENA_ADDR", format!("http://{}", node.addr()));
    command.env("VEENA_USER", "admin").env("VEENA_PASSWORD", PASSWORD).stdin(Stdio::null()).kill_on_drop(true);
    command.output().await.expect("the command ends")
}

async fn ok(node: &NodeProcess, words: &[&str]) -> String {
    let output = veena(node, words).await;
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Verifies a file; how that ends, and what is said.
async fn verify(file: &Path) -> (Option<i32>, String) {
    let output = Command::new(BIN).args(["audit", "verify"]).arg(file).env_clear().output().await.expect("the command ends");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_is_exported_and_what_is_done_to_an_export_is_found_without_a_node() {
    let dir = scratch();
    let config = with(NodeConfig::in_dir(Path::new(BIN), dir.path()), "VEENA_SECURITY_ENABLED", "true");
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", PASSWORD)).await.expect("a node starts");
    until("the root admin signs in", || async { veena(&node, &["user", "ls"]).await.status.success() }).await;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "canary-of-joe\n").expect("written");
    let secret = secret.to_str().expect("text");
    ok(&node, &["user", "add", "joe", "--grant", "produce:orders", "--new-password-file", secret]).await;
    for topic in ["orders", "invoices", "payments"] {
        ok(&node, &["topic", "add", topic, "--partitions", "1"]).await;
    }
    ok(&node, &["topic", "rm", "-f", "payments"]).await;
    assert_eq!(
        ok(&node, &["explain", "joe", "produce", "orders"]).await,
        "joe may produce orders: the grant produce on orders covers the topic\n"
    );
    let told = ok(&node, &["explain", "joe", "consume", "orders"]).await;
    let missing = "  missing: the grant consume:orders, which an admin of the tenant default can give\n";
    assert_eq!(told, format!("joe may not consume orders: consume not allowed on this topic\n{missing}"));

    let export = ok(&node, &["audit", "export"]).await;
    let lines: Vec<&str> = export.lines().collect();
    let actions: Vec<String> = lines
        .iter()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
            format!("{} {}", record["actor"].as_str().expect("a text"), record["action"].as_str().expect("a text"))
        })
        .collect();
    let by_root = ["create_user", "create_topic", "create_topic", "create_topic", "delete_topic"]
        .map(|action| format!("user:admin@default {action}"));
    assert!(actions[0].starts_with("node:") && actions[0].ends_with(" create_user"), "{actions:?}");
    assert_eq!(actions[1..], by_root);

    let file = dir.path().join("audit.ndjson");
    let written = async |text: &str| {
        std::fs::write(&file, text).expect("written");
        verify(&file).await
    };
    let joined = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let (code, said) = written(&export).await;
    assert!(code == Some(0) && said.contains("records 1 to 6 of the tenant default are as they were written"), "{said}");
    let (code, said) = written(&joined(&lines[2..])).await;
    assert!(code == Some(0) && said.contains("it begins with record 3"), "{said}");
    for (what, text, seq) in [
        ("a byte is another", export.replacen("invoices", "invoicez", 1), 4),
        ("a line is missing", joined(&[&lines[..2], &lines[3..]].concat()), 3),
        ("two are turned", joined(&[lines[0], lines[1], lines[3], lines[2], lines[4], lines[5]]), 3),
        ("a line is cut", export[..export.len() - 10].to_owned(), 6),
    ] {
        let (code, said) = written(&text).await;
        assert!(code == Some(1) && said.contains(&format!("record {seq}: ")), "{what}: {said}");
    }
    let (code, said) = written("").await;
    assert!(code == Some(0) && said.contains("0 records"), "an empty chain is one: {said}");
    let nosuch = veena(&node, &["audit", "export", "--tenant", "nosuch"]).await;
    let said = String::from_utf8_lossy(&nosuch.stderr).into_owned();
    assert!(nosuch.status.code() == Some(1) && said.contains("tenant not found (status 404) [not_found]"), "{said}");
    assert_eq!(verify(&dir.path().join("none")).await.0, Some(2));

    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    node.start_again().await.expect("it starts");
    until("the root admin signs in", || async { veena(&node, &["user", "ls"]).await.status.success() }).await;
    ok(&node, &["topic", "rm", "-f", "invoices"]).await;
    let again = ok(&node, &["audit", "export", "--after", "6"]).await;
    assert_eq!(written(&format!("{export}{again}")).await.0, Some(0), "one chain, before the restart and after it");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    let all = format!("{export}{again}{}", log_of(node.config()));
    assert!(!all.contains("canary") && !all.contains("$argon2"), "no secret is in it");
}
