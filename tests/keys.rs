//! Service accounts and their keys: of one node and of several, and where a key must not be.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use veena_client::Client;
use veena_client::bodies::{CreateAccount, CreateKey, CreatedKey};
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::cluster::{config, name, peer_addr, with};
use crate::support::{BIN, STOP_DEADLINE, scratch, until};
use crate::users::{grants_of, root_of, secured, send, status, topic, veena, veena_told};

/// Within this a right that was taken away is gone at every node that is in contact, also for who waits.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

fn with_key(node: &NodeProcess, key: &str) -> Client {
    let url = format!("http://{}", node.addr());
    Client::builder(&url).repeats(0).api_key(key).expect("a key").build().expect("an address")
}

async fn account(root: &Client, name: &str, grants: &[(&str, &str)]) {
    let body = CreateAccount { name: name.to_owned(), grants: Some(grants_of(grants)) };
    root.create_account(&body).await.expect("created");
}

async fn key(root: &Client, account: &str) -> CreatedKey {
    root.create_key(account, &CreateKey::default()).await.expect("created")
}

/// Every file below a directory.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

async fn parked_at(root: &Client) -> u64 {
    let metrics = root.metrics().await.expect("metrics");
    metrics.lines().find_map(|line| line.strip_prefix("veena_consumers_parked ")?.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_deleted_at_one_node_cuts_off_who_waits_with_it_at_another() {
    let dir = scratch();
    let (mut nodes, first_peer) = (Vec::new(), peer_addr());
    for number in 1..=2 {
        let peer = if number == 1 { first_peer } else { peer_addr() };
        let config = secured(config(dir.path(), &name(number), peer));
        let config = match number {
            1 => with(with(config, "VEENA_CLUSTER_BOOTSTRAP", "true"), "VEENA_ADMIN_PASSWORD", "canary-of-root"),
            _ => with(config, "VEENA_CLUSTER_JOIN", &format!("node-1@{first_peer}")),
        };
        nodes.push(NodeProcess::start(config).await.expect("a node starts"));
    }
    let (first, second) = (root_of(&nodes[0], "canary-of-root").await, root_of(&nodes[1], "canary-of-root").await);
    first.create_topic(&topic("orders")).await.expect("created");
    account(&first, "ci", &[("consume", "orders")]).await;
    let (old, new) = (key(&first, "ci").await, key(&first, "ci").await);
    let (parked, kept) = (with_key(&nodes[1], old.key.expose()), with_key(&nodes[1], new.key.expose()));
    until("the other node knows both", || async { parked.whoami().await.is_ok() && kept.whoami().await.is_ok() }).await;
    let wait = |client: Client| tokio::spawn(async move { client.consume("orders", Duration::from_secs(20), None).await });
    let (cut, stays) = (wait(parked), wait(kept));
    until("both wait", || async { parked_at(&first).await + parked_at(&second).await >= 2 }).await;
    let began = Instant::now();
    first.delete_key("ci", &old.record.id).await.expect("deleted");
    let answer = tokio::time::timeout(REVOKED_WITHIN, cut).await.expect("cut off in time").expect("no panic");
    assert_eq!(status(answer), Some(401));
    println!("cut off after {:?}", began.elapsed());
    assert!(!stays.is_finished(), "whoever still may waits on");
    stays.abort();
    for node in &mut nodes {
        node.stop(STOP_DEADLINE).await.expect("a clean stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_in_no_file_of_the_node_and_in_no_line_of_its_log() {
    let dir = scratch();
    let config = secured(NodeConfig::in_dir(Path::new(BIN), dir.path()));
    let config = with(with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root"), "VEENA_LOG_LEVEL", "debug");
    let mut node = NodeProcess::start(config).await.expect("a node starts");
    let root = root_of(&node, "canary-of-root").await;
    root.create_topic(&topic("orders")).await.expect("created");
    account(&root, "ci", &[("produce", "orders")]).await;
    let made = key(&root, "ci").await;
    let ci = with_key(&node, made.key.expose());
    send(&ci, "orders").await.expect("granted");
    assert_eq!(status(ci.users().await), Some(403));
    assert_eq!(status(with_key(&node, &format!("{}x", made.key.expose())).topics().await), Some(401));
    let metrics = root.metrics().await.expect("metrics");
    let backup = root.cluster_backup().await.expect("a copy");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    node.start_again().await.expect("it starts");
    send(&with_key(&node, made.key.expose()), "orders").await.expect("it is known after a restart");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");

    let secret = &made.key.expose()[made.key.expose().len() - 36..];
    let mut found = Vec::new();
    files(dir.path(), &mut found);
    found.push(node.config().log.clone());
    let (mut looked_at, mut knows_the_id) = (0, false);
    for path in &found {
        let bytes = std::fs::read(path).expect("readable");
        assert!(!holds(&bytes, secret), "the key is in {}", path.display());
        looked_at += bytes.len();
        knows_the_id |= holds(&bytes, &made.record.id);
    }
    assert!(looked_at > 10_000 && knows_the_id, "what was looked at has the key's id: {looked_at} bytes in {} files", found.len());
    assert!(holds(&backup, &made.record.id) && !holds(&backup, secret), "the copy of the metadata");
    assert!(!metrics.contains(secret) && !metrics.contains(&made.record.id));
    println!("{looked_at} bytes in {} files", found.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_and_keys_are_handled_from_the_command_line_and_a_key_is_no_word_of_it() {
    let dir = scratch();
    let config = secured(NodeConfig::in_dir(Path::new(BIN), dir.path()));
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root")).await.expect("a node starts");
    root_of(&node, "canary-of-root").await;
    let root: &[(&str, &str)] = &[("VEENA_USER", "admin"), ("VEENA_PASSWORD", "canary-of-root")];

    let added = veena(&node, root, "account add ci --grant produce:orders --grant create:*").await.expect("created");
    assert_eq!(added, "created ci, which may produce orders; create *\n");
    assert_eq!(veena(&node, root, "account ls").await.expect("listed"), "ACCOUNT  MAY\nci       produce orders; create *\n");
    let (printed, said) = veena_told(&node, root, "key add ci -d build --expires-in 720h").await.expect("created");
    let key = printed.strip_suffix('\n').expect("a line");
    let id = key.split('_').nth(2).expect("an id");
    assert!(key.starts_with("veena_sk_") && !key.contains('\n') && !said.contains(key), "nothing but the key: {said}");
    assert_eq!(said, format!("created the key {id} of ci; it is shown this once:\n"));
    let file = dir.path().join("key");
    std::fs::write(&file, &printed).expect("written");
    let from_file = format!("--key-file {}", file.display());

    let by_key: &[(&str, &str)] = &[("VEENA_API_KEY", key)];
    let told = veena(&node, by_key, "whoami").await.expect("known");
    assert_eq!(told, format!("the service account ci, with its key {id}, of the tenant default, may produce orders; create *\n"));
    assert_eq!(veena(&node, &[], &format!("whoami {from_file}")).await.expect("known"), told);
    veena(&node, by_key, "topic add orders --partitions 1").await.expect("granted");
    veena(&node, by_key, "pub orders hello").await.expect("granted");
    assert!(veena(&node, by_key, "user ls").await.expect_err("not granted").1.contains("admin privileges required"));
    let listed = veena(&node, root, "key ls ci").await.expect("listed");
    assert!(listed.starts_with("KEY") && listed.contains(id) && listed.contains("all of it") && listed.contains("build"), "{listed}");
    assert!(
        veena(&node, root, "whoami")
            .await
            .expect("known")
            .starts_with("the user admin, of the tenant default, may do everything, for good")
    );

    assert_eq!(veena(&node, root, &format!("whoami {from_file}")).await.expect("a flag comes before VEENA_USER"), told);
    let (code, said) = veena(&node, root, &format!("whoami -u admin {from_file}")).await.expect_err("two at once");
    assert!(code == 2 && said.contains("--key-file") && said.contains("-u"), "{said}");
    std::fs::write(&file, "veena_sk_\u{1}").expect("written");
    let (code, said) = veena(&node, &[], &format!("whoami {from_file}")).await.expect_err("no key");
    assert!(code == 2 && said.contains("is none"), "{said}");
    let secret = dir.path().join("password");
    std::fs::write(&secret, "canary-of-ci").expect("written");
    let (_, said) =
        veena(&node, root, &format!("user add ci --new-password-file {}", secret.display())).await.expect_err("it is an account's");
    assert!(said.contains("a user or a service account of this name already exists (status 409)"), "{said}");
    assert_eq!(veena(&node, root, "account grant ci --nothing").await.expect("taken away"), "ci may do nothing\n");
    assert_eq!(veena(&node, root, &format!("key rm ci {id}")).await.expect("deleted"), format!("deleted the key {id} of ci\n"));
    let (code, said) = veena(&node, by_key, "whoami").await.expect_err("deleted");
    assert!(code == 1 && said.contains("VEENA_API_KEY") && !said.contains(key), "{said}");
    assert!(veena(&node, root, "account rm ci").await.expect_err("nobody can be asked").1.contains("say -f"));
    assert_eq!(veena(&node, root, "account rm -f ci").await.expect("deleted"), "deleted ci\n");
    assert!(veena(&node, root, "account info ci").await.expect_err("gone").1.contains("account not found (status 404)"));
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert!(!crate::cluster::log_of(node.config()).contains(&key[key.len() - 36..]));
}
