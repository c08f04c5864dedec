//! Users: of one node and of several, from the first one on.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use veena_client::bodies::{CreateTopic, CreateUser, Grant, SetGrants, SetPassword};
use veena_client::{Client, ClientError, ProduceOptions};
use veena_loadtest_driver::logs;
use veena_loadtest_driver::node::{NodeConfig, NodeProcess};

use crate::cluster::{config, log_of, name, peer_addr, with};
use crate::support::{BIN, DEADLINE, STOP_DEADLINE, scratch, until};

/// Texts that must be in no log.
const CANARIES: [&str; 3] = ["canary-of-root", "canary-of-joe", "canary-of-ann"];

pub(crate) fn secured(config: NodeConfig) -> NodeConfig {
    with(config, "VEENA_SECURITY_ENABLED", "true")
}

pub(crate) fn as_user(node: &NodeProcess, user: &str, password: &str) -> Client {
    let url = format!("http://{}", node.addr());
    Client::builder(&url).repeats(0).sign_in(user, password).build().expect("an address")
}

/// Waits until the root admin can sign in.
pub(crate) async fn root_of(node: &NodeProcess, password: &str) -> Client {
    let root = as_user(node, "admin", password);
    until("the root admin signs in", || async { root.users().await.is_ok() }).await;
    root
}

fn user(name: &str, password: &str, grants: &[(&str, &str)]) -> CreateUser {
    CreateUser { username: name.to_owned(), password: password.to_owned().into(), grants: Some(grants_of(grants)) }
}

pub(crate) fn grants_of(grants: &[(&str, &str)]) -> Vec<Grant> {
    grants.iter().map(|(action, pattern)| Grant { action: (*action).to_owned(), patterns: vec![(*pattern).to_owned()] }).collect()
}

pub(crate) fn topic(name: &str) -> CreateTopic {
    CreateTopic { name: name.to_owned(), partitions: Some(1), ..CreateTopic::default() }
}

pub(crate) fn status<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> Option<u16> {
    answer.expect_err("refused").status
}

pub(crate) async fn send(client: &Client, topic: &str) -> Result<(), ClientError> {
    client.produce(topic, "m".into(), &ProduceOptions::default()).await.map(drop)
}

fn assert_no_canary(node: &NodeProcess) {
    let log = log_of(node.config());
    for canary in CANARIES {
        assert!(!log.contains(canary), "{canary} is in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_knows_its_users_and_what_they_may_do_also_after_a_restart() {
    let dir = scratch();
    let config = secured(NodeConfig::in_dir(Path::new(BIN), dir.path()));
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root")).await.expect("a node starts");
    let root = root_of(&node, "canary-of-root").await;
    assert_eq!(status(Client::new(&format!("http://{}", node.addr())).expect("an address").topics().await), Some(401));
    assert_eq!(status(as_user(&node, "admin", "canary-of-joe").topics().await), Some(401));

    root.create_topic(&topic("orders")).await.expect("created");
    let joe = user("joe", "canary-of-joe", &[("produce", "orders"), ("create", "joe.*")]);
    root.create_user(&joe).await.expect("created");
    let joe = as_user(&node, "joe", "canary-of-joe");
    send(&joe, "orders").await.expect("granted");
    assert_eq!(status(joe.users().await), Some(403));
    assert_eq!(status(joe.delete_topic("orders").await), Some(403));
    let own = joe.create_topic(&topic("joe.1")).await.expect("granted");
    assert_eq!(own.owner.as_deref(), Some("joe"));
    let new = SetPassword { new_password: "canary-of-ann".to_owned().into(), current_password: Some("canary-of-joe".to_owned().into()) };
    joe.set_password("joe", &new).await.expect("changed");
    assert_eq!(status(joe.topics().await), Some(401), "the password of before is none any more");

    // Another password at the next start is not looked at, and everything is as it was.
    node.config_mut().env.retain(|(known, _)| known != "VEENA_ADMIN_PASSWORD");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    node.start_again().await.expect("it starts");
    let joe = as_user(&node, "joe", "canary-of-ann");
    send(&joe, "orders").await.expect("granted");
    joe.delete_topic("joe.1").await.expect("his own");
    let root = root_of(&node, "canary-of-root").await;
    root.set_grants("joe", &SetGrants { grants: Vec::new() }).await.expect("taken away");
    assert_eq!(status(send(&joe, "orders").await), Some(403));
    root.delete_user("joe").await.expect("deleted");
    assert_eq!(status(send(&joe, "orders").await), Some(401));
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert_no_canary(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_was_made_up_is_in_a_file_and_no_log_and_a_lost_one_is_set_with_security_off() {
    let dir = scratch();
    let mut node = NodeProcess::start(secured(NodeConfig::in_dir(Path::new(BIN), dir.path()))).await.expect("a node starts");
    let told = |node: &NodeProcess| logs::unexpected(&node.config().log, &[]).expect("a log");
    until("it is told where the password is", || async { !told(&node).is_empty() }).await;
    let file = node.config().data_dir.join("admin-password");
    let password = std::fs::read_to_string(&file).expect("kept").trim_end().to_owned();
    let lines = told(&node);
    assert!(lines.len() == 1 && lines[0].contains(&file.display().to_string()) && !lines[0].contains(&password), "{lines:?}");
    root_of(&node, &password).await;
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    node.start_again().await.expect("it starts");
    root_of(&node, &password).await;
    assert_eq!(told(&node).len(), 1, "it is not told again");

    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    *node.config_mut() = with(node.config().clone(), "VEENA_SECURITY_ENABLED", "false");
    node.start_again().await.expect("it starts");
    let nobody = Client::new(&format!("http://{}", node.addr())).expect("an address");
    let new = SetPassword { new_password: "canary-of-root".to_owned().into(), current_password: None };
    nobody.set_password("admin", &new).await.expect("nobody is asked");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    *node.config_mut() = secured(node.config().clone());
    node.start_again().await.expect("it starts");
    root_of(&node, "canary-of-root").await;
    assert_eq!(status(as_user(&node, "admin", &password).users().await), Some(401));
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert_no_canary(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_security_off_makes_the_root_admin_who_signs_in_once_it_is_on() {
    let dir = scratch();
    let config = with(NodeConfig::in_dir(Path::new(BIN), dir.path()), "VEENA_SECURITY_ENABLED", "false");
    let mut node = NodeProcess::start(config).await.expect("a node starts");
    let file = node.config().data_dir.join("admin-password");
    let nobody = Client::new(&format!("http://{}", node.addr())).expect("an address");
    until("the root admin is there", || async { nobody.user("admin").await.is_ok_and(|admin| admin.root) }).await;
    let password = std::fs::read_to_string(&file).expect("kept").trim_end().to_owned();
    assert_eq!(logs::unexpected(&node.config().log, &[]).expect("a log"), Vec::<String>::new(), "nobody has to do anything yet");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    *node.config_mut() = secured(node.config().clone());
    node.start_again().await.expect("it starts");
    root_of(&node, &password).await;
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert!(!log_of(node.config()).contains(&password));
}

/// Runs a command on a terminal, and types each answer once its question is there; what was to be seen.
async fn typed(node: &NodeProcess, line: &str, answers: &[(&str, &str)]) -> String {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &format!("{BIN} {line}"), "/dev/null"]);
    command.env("VEENA_ADDR", format!("http://{}", node.addr())).env_remove("VEENA_USER").env_remove("VEENA_PASSWORD");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("script (util-linux) is there");
    let (mut stdin, mut stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut seen = Vec::new();
    let mut from = 0;
    for (question, answer) in answers {
        let asked = async {
            while !String::from_utf8_lossy(&seen[from..]).contains(question) {
                assert!(
                    stdout.read_buf(&mut seen).await.expect("output") > 0,
                    "it has ended without {question:?}: {}",
                    String::from_utf8_lossy(&seen)
                );
            }
        };
        tokio::time::timeout(DEADLINE, asked).await.expect("it asks in time");
        from = seen.len();
        stdin.write_all(format!("{answer}\n").as_bytes()).await.expect("it reads");
    }
    tokio::time::timeout(DEADLINE, stdout.read_to_end(&mut seen)).await.expect("it ends in time").expect("output");
    String::from_utf8_lossy(&seen).replace("\r\n", "\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_asked_for_on_a_terminal_which_does_not_show_it() {
    let dir = scratch();
    let config = secured(NodeConfig::in_dir(Path::new(BIN), dir.path()));
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root")).await.expect("a node starts");
    root_of(&node, "canary-of-root").await;
    let own = ("Password of admin: ", "canary-of-root");
    let told = typed(&node, "user ls -u admin", &[own]).await;
    assert_eq!(told, "Password of admin: \nUSER   MAY\nadmin  do everything, for good\n");
    let new = [own, ("New password of joe: ", "canary-of-joe"), ("The same again: ", "canary-of-joe")];
    let told = typed(&node, "user add joe -u admin", &new).await;
    assert!(told.contains("created joe, who may do nothing") && !told.contains("canary"), "{told}");
    let other = [own, ("New password of ann: ", "canary-of-joe"), ("The same again: ", "canary-of-ann")];
    let told = typed(&node, "user add ann -u admin", &other).await;
    assert!(told.contains("the two are not the same") && !told.contains("canary"), "{told}");
    let told = typed(&node, "user rm joe -u admin", &[own, ("Delete the user joe?", "n")]).await;
    assert!(told.contains("not deleted"), "{told}");
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert_no_canary(&node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_a_cluster_is_known_at_every_node_and_has_one_root_admin() {
    let dir = scratch();
    let (mut nodes, first_peer) = (Vec::new(), peer_addr());
    for number in 1..=3 {
        let peer = if number == 1 { first_peer } else { peer_addr() };
        let config = secured(config(dir.path(), &name(number), peer));
        let config = match number {
            1 => with(config, "VEENA_CLUSTER_BOOTSTRAP", "true"),
            _ => with(config, "VEENA_CLUSTER_JOIN", &format!("node-1@{first_peer}")),
        };
        // Only the one that founds the cluster leads before there is a root admin.
        let config = if number == 1 { with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root") } else { config };
        nodes.push(NodeProcess::start(config).await.expect("a node starts"));
    }
    let mut roots = Vec::new();
    for node in &nodes {
        roots.push(root_of(node, "canary-of-root").await);
    }
    roots[1].create_topic(&topic("orders")).await.expect("created");
    roots[2].create_user(&user("joe", "canary-of-joe", &[("produce", "orders")])).await.expect("created");
    for node in &nodes {
        let joe = as_user(node, "joe", "canary-of-joe");
        until("joe may send", || async { send(&joe, "orders").await.is_ok() }).await;
        assert_eq!(status(joe.users().await), Some(403));
    }
    let started = std::time::Instant::now();
    roots[0].delete_user("joe").await.expect("deleted");
    for node in &nodes {
        let joe = as_user(node, "joe", "canary-of-joe");
        until("joe is nobody", || async { send(&joe, "orders").await.is_err_and(|error| error.is(401)) }).await;
    }
    assert!(started.elapsed() < DEADLINE);
    for node in &mut nodes {
        node.stop(STOP_DEADLINE).await.expect("a clean stop");
        assert_no_canary(node);
        assert_eq!(logs::unexpected(&node.config().log, &[]).expect("a log"), Vec::<String>::new());
    }
}

/// Runs a command as a user; what it printed, or what it said and its exit code.
pub(crate) async fn veena(node: &NodeProcess, who: &[(&str, &str)], line: &str) -> Result<String, (i32, String)> {
    veena_told(node, who, line).await.map(|(printed, _)| printed)
}

/// As `veena`, with what it said beside.
pub(crate) async fn veena_told(node: &NodeProcess, who: &[(&str, &str)], line: &str) -> Result<(String, String), (i32, String)> {
    let mut command = Command::new(BIN);
    command.args(line.split_whitespace()).env("VEENA_ADDR", format!("http://{}", node.addr()));
    command.env_remove("VEENA_USER").env_remove("VEENA_PASSWORD").env_remove("VEENA_API_KEY").envs(who.iter().copied());
    let output = command.stdin(Stdio::null()).output().await.expect("the command ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    match output.status.code() {
        Some(0) => Ok((text(output.stdout), text(output.stderr))),
        code => Err((code.unwrap_or(-1), text(output.stderr))),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_handled_from_the_command_line_and_passwords_are_no_words_of_it() {
    let dir = scratch();
    let config = secured(NodeConfig::in_dir(Path::new(BIN), dir.path()));
    let mut node = NodeProcess::start(with(config, "VEENA_ADMIN_PASSWORD", "canary-of-root")).await.expect("a node starts");
    root_of(&node, "canary-of-root").await;
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (root_file, joe_file, ann_file) =
        (file("root", "canary-of-root\nnot this\n"), file("joe", "canary-of-joe\r\n"), file("ann", "canary-of-ann"));
    let root: &[(&str, &str)] = &[("VEENA_USER", "admin"), ("VEENA_PASSWORD", "canary-of-root")];
    let joe: &[(&str, &str)] = &[("VEENA_USER", "joe"), ("VEENA_PASSWORD", "canary-of-joe")];

    let add = format!("user add joe --grant produce:orders,o* --grant create:orders --new-password-file {joe_file}");
    assert_eq!(veena(&node, root, &add).await.expect("created"), "created joe, who may produce orders,o*; create orders\n");
    let listed = veena(&node, &[], &format!("user ls -u admin --password-file {root_file}")).await.expect("listed");
    assert_eq!(listed, "USER   MAY\nadmin  do everything, for good\njoe    produce orders,o*; create orders\n");
    veena(&node, joe, "topic add orders --partitions 1").await.expect("granted");
    veena(&node, joe, "pub orders hello").await.expect("granted");
    let (code, said) = veena(&node, joe, "sub orders -n 1").await.expect_err("not granted");
    assert!(code == 1 && said.contains("consume not allowed on this topic (status 403)"), "{said}");
    let granted = veena(&node, root, "user grant joe --grant consume:orders").await.expect("granted");
    assert_eq!(granted, "joe may consume orders\n");
    assert_eq!(veena(&node, joe, "sub orders -n 1 --raw").await.expect("granted"), "hello\n");
    assert!(veena(&node, root, "user grant joe").await.expect_err("what?").1.contains("--nothing"));
    veena(&node, joe, &format!("user passwd --new-password-file {ann_file}")).await.expect("his own");
    let (code, said) = veena(&node, joe, "topic ls").await.expect_err("the password of before");
    assert!(code == 1 && said.contains("-u NAME"), "{said}");
    veena(&node, root, &format!("user passwd joe --new-password-file {joe_file}")).await.expect("an admin's right");
    veena(&node, joe, "topic ls").await.expect("it is that again");

    let (code, said) = veena(&node, &[("VEENA_USER", "joe")], "topic ls").await.expect_err("no password");
    assert!(code == 2 && said.contains("VEENA_PASSWORD"), "{said}");
    assert!(veena(&node, &[], "topic ls --password-file x").await.expect_err("no user").1.contains("-u NAME"));
    assert!(veena(&node, root, "user rm joe").await.expect_err("nobody can be asked").1.contains("say -f"));
    assert_eq!(veena(&node, root, "user rm -f joe").await.expect("deleted"), "deleted joe\n");
    assert!(veena(&node, root, "user info joe").await.expect_err("gone").1.contains("status 404"));
    assert!(veena(&node, root, "user add eve").await.expect_err("no password").1.contains("--new-password-file"));
    node.stop(STOP_DEADLINE).await.expect("a clean stop");
    assert_no_canary(&node);
}
