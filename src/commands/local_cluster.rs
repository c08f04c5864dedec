//! `veena dev --nodes N`: a cluster on this machine. Each node is a process of its own, so that one can be killed and the others watched.

use std::io::{self, SeekFrom};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::fs::{self, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use veena_client::Client;
use veena_contract::Entropy as _;
use veena_node::{AdminPassword, OsEntropy};
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::{DirLock, Disk as _};

use super::admin::{self, SignIn};
use crate::EXIT_REMOVED;
use crate::output::{self, Failure, Outcome};

/// How long the nodes may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How much of the end of a log is searched for the error with which its node ended.
const LOG_END_BYTES: u64 = 8 * 1024;

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
    /// Where in its log this start begins.
    log_from: u64,
    is_ready: bool,
    child: Child,
}

impl LocalCluster {
    /// Runs the nodes until the user presses Ctrl-C.
    pub async fn run(&self) -> Outcome {
        fs::create_dir_all(&self.dir).await.with_context(|| format!("cannot create {}", self.dir.display()))?;
        let _lock = self.lock()?;
        self.make_secret().await?;
        let kept = admin::keep_in(&self.dir).await?;
        let numbers = self.numbers()?;
        for number in &numbers {
            self.check_free(*number)?;
        }
        let mut nodes = Vec::new();
        for number in &numbers {
            nodes.push(self.start(*number, &numbers, kept.password()).await?);
        }
        let stop = async {
            if veena_node::shutdown::told_to_stop().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let running = async {
            self.wait_ready(&mut nodes).await?;
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

    /// One cluster at a time in a directory; the kernel ends the lock with this process.
    fn lock(&self) -> Result<Box<dyn DirLock>, Failure> {
        RealDisk.lock_dir(&self.dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => anyhow::anyhow!(
                "a cluster runs there already: another `veena dev --nodes` uses {}; Ctrl-C there stops it",
                self.dir.display()
            )
            .into(),
            _ => anyhow::Error::from(error).context(format!("cannot lock {}", self.dir.display())).into(),
        })
    }

    /// The numbers of the nodes: the first ones that have not left for good.
    fn numbers(&self) -> Result<Vec<u16>, Failure> {
        let mut numbers = Vec::new();
        for number in 1..=u16::MAX {
            if numbers.len() == usize::from(self.nodes) {
                break;
            }
            if !self.left(&name(number)).try_exists()? {
                numbers.push(number);
            }
        }
        Ok(numbers)
    }

    /// The file which says that a node is no member any more. Its name may be that of an owner, and is not used again.
    fn left(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.left"))
    }

    /// Before anything is started: one node that cannot listen would stop all others.
    fn check_free(&self, number: u16) -> Result<(), Failure> {
        let addr = self.addr(number)?;
        let taken = TcpListener::bind(addr).map(drop).and_then(|()| UdpSocket::bind(addr).map(drop));
        taken.map_err(|error| {
            anyhow::anyhow!(
                "{} cannot listen on {addr}: {error}\n  Most likely a node runs there already: stop it, or say --port for the first of {} other \
                 ports, and --data-dir for another cluster. (Nodes whose `veena dev` was killed stop by themselves, within seconds.) Nothing was \
                 started.",
                name(number),
                self.nodes
            )
            .into()
        })
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

    /// Waits until all are ready. One that is no member any more is left out, now and from then on.
    async fn wait_ready(&self, nodes: &mut Vec<Node>) -> Result<(), Failure> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let mut waits_for = None;
            for node in nodes.iter_mut() {
                if let Some(status) = node.child.try_wait()? {
                    if status.code() != Some(EXIT_REMOVED) {
                        return Err(node.ended(status).await.into());
                    }
                    self.leave_out(&node.name).await?;
                } else if !node.is_ready {
                    let client = Client::new(&format!("http://{}", node.addr)).map_err(|error| Failure::Usage(error.text))?;
                    match client.ready().await {
                        Ok(_) => node.is_ready = true,
                        Err(error) => waits_for = Some((node.name.clone(), node.log.clone(), error)),
                    }
                }
            }
            nodes.retain(|node| !self.left(&node.name).exists());
            match waits_for {
                _ if nodes.is_empty() => return Err(anyhow::anyhow!("no node is a member of the cluster any more").into()),
                None => return Ok(()),
                Some((name, log, error)) if Instant::now() >= until => {
                    return Err(anyhow::anyhow!("{name} is not ready: {error}; its log is {}", log.display()).into());
                }
                Some(_) => sleep(LOOK_EVERY).await,
            }
        }
    }

    async fn leave_out(&self, name: &str) -> Outcome {
        let path = self.left(name);
        fs::write(&path, "").await.with_context(|| format!("cannot write {}", path.display()))?;
        output::line(format!(
            "{name} is no member of the cluster any more, and is left out; its directory {} may be removed. From the next start on a new node \
             takes its place.",
            self.dir.join(name).display()
        ))
    }

    fn secret(&self) -> PathBuf {
        self.dir.join("secret")
    }

    fn addr(&self, number: u16) -> Result<SocketAddr, Failure> {
        let port =
            self.port.checked_add(number - 1).ok_or_else(|| Failure::Usage("there are not so many ports above --port".to_owned()))?;
        Ok(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    async fn start(&self, number: u16, all: &[u16], password: &AdminPassword) -> Result<Node, Failure> {
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
        if number == 1 {
            command.env("VEENA_CLUSTER_BOOTSTRAP", "true");
        }
        let known = all.iter().filter(|other| **other != number).map(|other| Ok(format!("{}@{}", self::name(*other), self.addr(*other)?)));
        command.env("VEENA_CLUSTER_JOIN", known.collect::<Result<Vec<_>, Failure>>()?.join(","));
        let file =
            OpenOptions::new().create(true).append(true).open(&log).await.with_context(|| format!("cannot write {}", log.display()))?;
        let (file, log_from) = (file.try_clone().await?.into_std().await, file.metadata().await?.len());
        // The other end of the pipe closes with this process, however it ends; then the node stops.
        command.arg("--stop-with-stdin").stdin(Stdio::piped()).stdout(file.try_clone()?).stderr(file).kill_on_drop(true);
        let child = command.spawn().context("cannot start a node")?;
        Ok(Node { name, addr, log, log_from, is_ready: false, child })
    }
}

fn name(number: u16) -> String {
    format!("node-{number}")
}

impl Node {
    async fn ended(&self, status: ExitStatus) -> anyhow::Error {
        // The log has it all, also when it cannot be read here.
        let said = self.last_error().await.ok().flatten().map_or_else(|| ";".to_owned(), |said| format!(": {said}\n "));
        anyhow::anyhow!("{} has ended ({status}){said} its log is {}", self.name, self.log.display())
    }

    /// The error with which it ended, if it said one.
    async fn last_error(&self) -> io::Result<Option<String>> {
        let mut file = fs::File::open(&self.log).await?;
        let from = file.metadata().await?.len().saturating_sub(LOG_END_BYTES).max(self.log_from);
        file.seek(SeekFrom::Start(from)).await?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).await?;
        let end = format!("\n{}", String::from_utf8_lossy(&end));
        Ok(end.rsplit_once("\nerror: ").map(|(_, said)| said.trim_end().to_owned()))
    }
}

/// Tells of each node that ends by itself; the others go on.
async fn tell_ends(nodes: &mut [Node]) -> Outcome {
    let mut told = vec![false; nodes.len()];
    while told.contains(&false) {
        for (node, told) in nodes.iter_mut().zip(&mut told).filter(|(_, told)| !**told) {
            if let Some(status) = node.child.try_wait()? {
                *told = true;
                output::line(format!("{}. The others go on; the next start brings it back.", node.ended(status).await))?;
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
