//! Tenants: two of a cluster that never notice each other, whoever of its nodes they ask.

use std::time::Duration;

use veena_client::bodies::{AttachChild, CreateTopic, Grant, PutTenant, PutUser};
use veena_client::{Client, ClientError, ProduceOptions};
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::NodeProcess;

use crate::cluster::{config, log_of, name, peer_addr, with};
use crate::support::{STOP_DEADLINE, scratch, until};
use crate::users::{as_user, grants_of, root_of, secured, topic, veena};

/// Texts that must be in no log.
const ROOT: &str = "canary-of-root";
const PASSWORD: &str = "canary-of-all";
const TENANTS: [&str; 2] = ["acme", "twin"];

/// Three nodes of a cluster, with security on.
async fn cluster(dir: &std::path::Path) -> Vec<NodeProcess> {
    let (mut nodes, first_peer) = (Vec::new(), peer_addr());
    for number in 1..=3 {
        let peer = if number == 1 { first_peer } else { peer_addr() };
        let config = with(secured(config(dir, &name(number), peer)), "VEENA_ADMIN_PASSWORD", ROOT);
        let config = match number {
            1 => with(config, "VEENA_CLUSTER_BOOTSTRAP", "true"),
            _ => with(config, "VEENA_CLUSTER_JOIN", &format!("node-1@{first_peer}")),
        };
        nodes.push(NodeProcess::start(config).await.expect("a node starts"));
    }
    nodes
}

async fn furnish(root: &Client, tenant: &str) {
    let state = PutTenant { state: "active".to_owned(), revision: None };
    root.put_tenant(tenant, &state).await.expect("created");
    let user = |grants: Vec<Grant>| PutUser { password: Some(PASSWORD.to_owned().into()), grants: Some(grants), revision: None };
    let admin = vec![Grant { action: "admin".to_owned(), patterns: Vec::new() }];
    root.put_user_of(tenant, "boss", &user(admin)).await.expect("created");
    let joe = grants_of(&[("produce", "*"), ("consume", "*"), ("create", "*")]);
    root.put_user_of(tenant, "joe", &user(joe)).await.expect("created");
}

/// What a refusal says.
fn said<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (Option<u16>, Option<String>, String) {
    let error = answer.expect_err("refused");
    (error.status, error.code, error.text)
}

/// Sends through a topic with a child, at three nodes; what was read.
async fn flow(joes: &[Client], tenant: &str) -> Vec<String> {
    let [one, two, three] = joes else { panic!("three nodes") };
    until("the user is known everywhere", || async {
        two.topics().await.is_ok() && three.topics().await.is_ok() && one.topics().await.is_ok()
    })
    .await;
    one.create_topic(&topic("orders")).await.expect("created");
    one.create_topic(&topic("copy")).await.expect("created");
    let attach = AttachChild { child: "copy".to_owned(), ..AttachChild::default() };
    one.attach("orders", &attach).await.expect("attached");
    for (at, client) in joes.iter().enumerate() {
        client.produce("orders", format!("{tenant}-{at}").into(), &ProduceOptions::default()).await.expect("taken");
    }
    let mut read = Vec::new();
    for (client, topic) in [(two, "orders"), (three, "copy")] {
        let mut of_topic = Vec::new();
        while of_topic.len() < 3 {
            let message = client.consume(topic, Duration::from_secs(10), None).await.expect("an answer").expect("a message");
            client.ack(topic, message.receipt_handle.as_deref().expect("a handle")).await.expect("acked");
            of_topic.push(String::from_utf8_lossy(&message.payload_bytes().expect("text")).into_owned());
        }
        of_topic.sort();
        read.extend(of_topic);
        assert!(client.consume(topic, Duration::ZERO, None).await.expect("an answer").is_none(), "nothing of another tenant is among them");
    }
    let mut replayed = Vec::new();
    for offset in 0..3 {
        let message = three.replay("orders", 0, offset).await.expect("an answer").expect("a message");
        replayed.push(String::from_utf8_lossy(&message.payload_bytes().expect("text")).into_owned());
    }
    replayed.sort();
    read.extend(replayed);
    read
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_of_a_cluster_with_the_same_names_never_notice_each_other() {
    let dir = scratch();
    let mut nodes = cluster(dir.path()).await;
    let mut roots = Vec::new();
    for node in &nodes {
        roots.push(root_of(node, ROOT).await);
    }
    for tenant in TENANTS {
        furnish(&roots[0], tenant).await;
    }
    let of = |tenant: &str, user: &str| nodes.iter().map(|node| as_user(node, &format!("{user}@{tenant}"), PASSWORD)).collect::<Vec<_>>();
    let (acme, twin) = (of("acme", "joe"), of("twin", "joe"));
    let (read_by_acme, read_by_twin) = tokio::join!(flow(&acme, "acme"), flow(&twin, "twin"));
    for (tenant, read) in TENANTS.into_iter().zip([read_by_acme, read_by_twin]) {
        let all: Vec<String> = (0..3).map(|at| format!("{tenant}-{at}")).collect();
        assert_eq!(read, [all.clone(), all.clone(), all].concat());
    }

    // What is another's is told of like what is not there, by every node.
    acme[0].create_topic(&CreateTopic { ..topic("only-acmes") }).await.expect("created");
    for twin in &twin {
        let (theirs, absent) = ("only-acmes", "nobodys");
        assert_eq!(said(twin.topic(theirs, None).await), said(twin.topic(absent, None).await));
        assert_eq!(said(twin.schema(theirs).await), said(twin.schema(absent).await));
        let (send, wait) = (ProduceOptions::default(), Duration::ZERO);
        assert_eq!(said(twin.produce(theirs, "m".into(), &send).await), said(twin.produce(absent, "m".into(), &send).await));
        assert_eq!(said(twin.consume(theirs, wait, None).await), said(twin.consume(absent, wait, None).await));
        assert_eq!(said(twin.replay(theirs, 0, 0).await), said(twin.replay(absent, 0, 0).await));
        let names: Vec<String> = twin.topics().await.expect("a list").into_iter().map(|topic| topic.name).collect();
        assert_eq!(names, ["copy", "orders"]);
        assert_eq!(said(twin.cluster_members().await).0, Some(403));
    }
    for root in &roots {
        assert!(root.topics().await.expect("a list").is_empty(), "an operator does not see a tenant's topics");
        let metrics = root.metrics().await.expect("metrics");
        for name in ["orders", "acme", "twin", "joe"] {
            assert!(!metrics.contains(name), "the counters name {name}");
        }
    }

    // Suspended at one node, a poll that is parked at another ends, and only that tenant's.
    let (parked, other) = (acme[2].clone(), twin[2].clone());
    let parked = tokio::spawn(async move { parked.consume("orders", Duration::from_secs(60), None).await });
    let other = tokio::spawn(async move { other.consume("orders", Duration::from_secs(60), None).await });
    let line = "veena_consumers_parked 2";
    until("both are parked", || async { roots[2].metrics().await.is_ok_and(|metrics| metrics.lines().any(|found| found == line)) }).await;
    let suspended = PutTenant { state: "suspended".to_owned(), revision: None };
    roots[0].put_tenant("acme", &suspended).await.expect("suspended");
    let (status, code, text) = said(parked.await.expect("it ends"));
    assert_eq!((status, code.as_deref(), text.as_str()), (Some(403), Some("tenant_suspended"), "tenant is suspended"));
    for client in &acme {
        until("it is suspended everywhere", || async { client.topics().await.is_err_and(|error| error.is(403)) }).await;
    }
    twin[1].produce("orders", "after".into(), &ProduceOptions::default()).await.expect("taken");
    assert!(other.await.expect("it ends").expect("an answer").is_some(), "another tenant's waits on");

    // Deleted, nothing is left but what waits in quarantine, and the other has all.
    let operator: &[(&str, &str)] = &[("VEENA_USER", "admin"), ("VEENA_PASSWORD", ROOT)];
    let said = veena(&nodes[1], operator, "tenant rm -f acme").await.expect("begun");
    assert!(said.starts_with("acme is being deleted"), "{said}");
    assert_eq!(acme[1].topics().await.expect_err("nobody").status, Some(401));
    until("only quarantine is left", || async {
        let left = roots[1].tenant("acme").await.ok().and_then(|tenant| tenant.left);
        left.is_some_and(|left| {
            let nodes = &left.on_nodes;
            let is_clean = left.topics + left.users + nodes.open_topics + nodes.directories + nodes.orphans + nodes.positions == 0;
            is_clean && left.unknown.is_empty() && nodes.quarantined > 0
        })
    })
    .await;
    let message = twin[0].replay("orders", 0, 0).await.expect("an answer");
    assert!(message.is_some(), "the other has all");
    for node in &mut nodes {
        node.stop(STOP_DEADLINE).await.expect("a clean stop");
        let log = log_of(node.config());
        assert!(!log.contains(ROOT) && !log.contains(PASSWORD), "a password is in the log");
        assert!(!node.config().data_dir.join("topics/acme").exists(), "{}", node.config().data_dir.display());
        assert_eq!(logs::unexpected(&node.config().log, &[]).expect("a log"), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_handled_from_the_command_line() {
    let dir = scratch();
    let config = secured(veena_loadtest_driver::node::NodeConfig::in_dir(std::path::Path::new(crate::support::BIN), dir.path()));
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", ROOT)).await.expect("a node starts");
    root_of(&node, ROOT).await;
    let file = dir.path().join("password");
    std::fs::write(&file, PASSWORD).expect("written");
    let file = file.display();
    let root: &[(&str, &str)] = &[("VEENA_USER", "admin"), ("VEENA_PASSWORD", ROOT)];
    let boss: &[(&str, &str)] = &[("VEENA_USER", "boss@acme"), ("VEENA_PASSWORD", PASSWORD)];

    assert_eq!(veena(&node, root, "tenant add acme").await.expect("created"), "acme is there and active\n");
    let add = format!("user add boss --tenant acme --grant admin --new-password-file {file}");
    assert_eq!(veena(&node, root, &add).await.expect("created"), "created boss, who may do everything\n");
    assert!(veena(&node, root, &add).await.expect_err("there").1.contains("user already exists"));
    assert_eq!(veena(&node, root, "user ls --tenant acme").await.expect("listed"), "USER  MAY\nboss  do everything\n");
    assert_eq!(veena(&node, boss, "user ls").await.expect("listed"), "USER  MAY\nboss  do everything\n");
    veena(&node, boss, "topic add orders --partitions 1").await.expect("an admin");
    veena(&node, boss, &format!("user passwd --new-password-file {file}")).await.expect("his own, without the tenant in the name");
    let listed = veena(&node, root, "tenant ls").await.expect("listed");
    assert_eq!(listed, "TENANT   STATE   TOPICS  USERS\nacme     active  1       1\ndefault  active  0       1\n");
    assert!(veena(&node, boss, "tenant ls").await.expect_err("no operator").1.contains("operator privileges required"));
    assert_eq!(veena(&node, root, "tenant suspend acme").await.expect("suspended"), "acme is suspended\n");
    assert!(veena(&node, boss, "topic ls").await.expect_err("suspended").1.contains("tenant is suspended"));
    assert_eq!(veena(&node, root, "tenant resume acme").await.expect("resumed"), "acme is active\n");
    veena(&node, boss, "topic ls").await.expect("as before");
    assert!(veena(&node, root, "tenant suspend nobody").await.expect_err("there is none").1.contains("status 404"));
    assert_eq!(veena(&node, root, "user grant boss --tenant acme --nothing").await.expect("taken"), "boss may do nothing\n");
    let told = veena(&node, root, "explain boss admin --tenant acme").await.expect("told");
    assert!(told.contains("boss may not admin") && told.contains("the grant admin, which an admin of the tenant acme can give"), "{told}");
    let (code, said) = veena(&node, root, &add).await.expect_err("they are there");
    assert!(
        code == 1 && said.contains("user already exists (status 409) [already_exists]") && said.contains("already_exists.md"),
        "{said}"
    );
    assert_eq!(veena(&node, root, "user rm -f boss --tenant acme").await.expect("deleted"), "deleted boss\n");
    let (code, said) = veena(&node, root, "user info boss --tenant acme").await.expect_err("gone");
    assert!(code == 1 && said.contains("user not found (status 404) [not_found]") && said.contains("not_found.md"), "{said}");
    assert!(veena(&node, root, "tenant rm acme").await.expect_err("nobody can be asked").1.contains("say -f"));
    assert!(veena(&node, root, "tenant rm -f default").await.expect_err("it stays").1.contains("can be neither suspended nor deleted"));
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
}
