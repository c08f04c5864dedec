//! `veena dev --nodes N`: a cluster on this machine. Each node is a process of its own, so that one can be killed and the others watched.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::fs::{self, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use veena_client::Client;
use veena_contract::Entropy as _;
use veena_node::{AdminPassword, OsEntropy};

use super::admin::{self, SignIn};
use crate::output::{self, Failure, Outcome};

/// How long the nodes may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the nodes are started with.
pub struct LocalCluster {
    /// How many there are.
    pub nodes: u16,
    /// The port of the first one; the others follow.
    pub port: u16,
    /// Where everything is kept, each node's below its name.
    pub dir: PathBuf,
    /// What is logged.
    pub log_level: String,
}

struct Node {
    name: String,
    addr: SocketAddr,
    log: PathBuf,
    child: Child,
}

impl LocalCluster {
    /// Runs the nodes until the user presses Ctrl-C.
    pub async fn run(&self) -> Outcome {
        fs::create_dir_all(&self.dir).await.with_context(|| format!("cannot create {}", self.dir.display()))?;
        self.make_secret().await?;
        let kept = admin::keep_in(&self.dir).await?;
        let mut nodes = Vec::new();
        for number in 1..=self.nodes {
            nodes.push(self.start(number, &kept.password).await?);
        }
        let stop = async {
            if veena_node::shutdown::told_to_stop().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let running = async {
            wait_ready(&mut nodes).await?;
            let sign_in = kept.sign_in(&format!("http://{}", nodes[0].addr)).await;
            welcome(&nodes, &sign_in)?;
            tell_ends(&mut nodes).await
        };
        let outcome = tokio::select! {
            outcome = running => outcome,
            () = stop => Ok(()),
        };
        end(nodes).await;
        outcome
    }

    /// The secret of this cluster, drawn once.
    async fn make_secret(&self) -> Result<(), Failure> {
        let path = self.secret();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await {
            Ok(mut file) => {
                file.write_all(format!("{:032x}{:032x}\n", OsEntropy.next_u128(), OsEntropy.next_u128()).as_bytes()).await?;
                file.flush().await?;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(anyhow::Error::from(error).context(format!("cannot write {}", path.display())).into()),
        }
    }

    fn secret(&self) -> PathBuf {
        self.dir.join("secret")
    }

    fn addr(&self, number: u16) -> Result<SocketAddr, Failure> {
        let port =
            self.port.checked_add(number - 1).ok_or_else(|| Failure::Usage("there are not so many ports above --port".to_owned()))?;
        Ok(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    async fn start(&self, number: u16, password: &AdminPassword) -> Result<Node, Failure> {
        let (name, addr) = (name(number), self.addr(number)?);
        let (data, log) = (self.dir.join(&name), self.dir.join(format!("{name}.log")));
        let binary = std::env::current_exe().context("this program does not know where it is")?;
        let mut command = Command::new(binary);
        for (variable, _) in std::env::vars_os().filter(|(variable, _)| variable.to_string_lossy().starts_with("VEENA_")) {
            command.env_remove(variable);
        }
        // The same number serves clients over TCP, and other nodes over UDP.
        command.arg("node").args(["--addr", &addr.to_string(), "--node-id", &name, "--log-format", "text", "--log-level", &self.log_level]);
        command.arg("--data-dir").arg(&data).env("VEENA_CLUSTER_PEER_ADDR", addr.to_string());
        command.env("VEENA_CLUSTER_SECRET_FILE", self.secret()).env("VEENA_ADMIN_PASSWORD", password.expose());
        let mut known = vec![1];
        if number == 1 {
            command.env("VEENA_CLUSTER_BOOTSTRAP", "true");
            known = (2..=self.nodes).collect();
        }
        let known = known.into_iter().map(|number| Ok(format!("{}@{}", self::name(number), self.addr(number)?)));
        command.env("VEENA_CLUSTER_JOIN", known.collect::<Result<Vec<_>, Failure>>()?.join(","));
        let file =
            OpenOptions::new().create(true).append(true).open(&log).await.with_context(|| format!("cannot write {}", log.display()))?;
        let file = file.into_std().await;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).kill_on_drop(true);
        let child = command.spawn().context("cannot start a node")?;
        Ok(Node { name, addr, log, child })
    }
}

fn name(number: u16) -> String {
    format!("node-{number}")
}

async fn wait_ready(nodes: &mut [Node]) -> Result<(), Failure> {
    let until = Instant::now() + READY_WITHIN;
    for node in nodes {
        let client = Client::new(&format!("http://{}", node.addr)).map_err(|error| Failure::Usage(error.text))?;
        loop {
            if let Some(status) = node.child.try_wait()? {
                return Err(node.ended(status).into());
            }
            match client.ready().await {
                Ok(_) => break,
                Err(error) if Instant::now() >= until => {
                    return Err(anyhow::anyhow!("{} is not ready: {error}; its log is {}", node.name, node.log.display()).into());
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
    Ok(())
}

impl Node {
    fn ended(&self, status: ExitStatus) -> anyhow::Error {
        anyhow::anyhow!("{} has ended ({status}); its log is {}", self.name, self.log.display())
    }
}

/// Tells of each node that ends by itself; the others go on.
async fn tell_ends(nodes: &mut [Node]) -> Outcome {
    let mut told = vec![false; nodes.len()];
    while told.contains(&false) {
        for (node, told) in nodes.iter_mut().zip(&mut told).filter(|(_, told)| !**told) {
            if let Some(status) = node.child.try_wait()? {
                *told = true;
                output::line(format!("{}. The others go on; the next start brings it back.", node.ended(status)))?;
            }
        }
        sleep(LOOK_EVERY).await;
    }
    Err(anyhow::anyhow!("every node has ended").into())
}

/// Stops the nodes, all at once, and waits for them.
async fn end(nodes: Vec<Node>) {
    let mut ending = JoinSet::new();
    for mut node in nodes {
        if let Some(pid) = node.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            // One that has just ended by itself needs no telling.
            let _told = kill_process(pid, Signal::TERM);
        }
        ending.spawn(async move { node.child.wait().await });
    }
    while ending.join_next().await.is_some() {}
}

fn welcome(nodes: &[Node], sign_in: &SignIn) -> Outcome {
    let mut text = "\nA cluster is ready; any node takes any request:\n".to_owned();
    for node in nodes {
        let pid = node.child.id().map(|pid| format!("  pid {pid}")).unwrap_or_default();
        text += &format!("  {}  http://{}{pid}  log {}\n", node.name, node.addr, node.log.display());
    }
    let url = |at: usize| format!("http://{}", nodes[at % nodes.len()].addr);
    text += &format!(
        "\nSign in: {}\n\n\
         Try, in another terminal:\n  \
           {}\n  \
           curl -u \"$VEENA_USER:$VEENA_PASSWORD\" -X POST {}/v1/topics -H 'Content-Type: application/json' -d '{{\"name\":\"hello\",\"partitions\":3}}'\n  \
           curl -u \"$VEENA_USER:$VEENA_PASSWORD\" {}/v1/topics/hello\n  \
           veena cluster members -s {}\n\n\
         Ctrl-C stops all nodes.\n",
        sign_in.told,
        sign_in.export,
        url(0),
        url(1),
        url(2)
    );
    output::line(text)
}
