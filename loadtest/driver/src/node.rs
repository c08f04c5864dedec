//! A node as a process: started, asked, stopped, killed, frozen.

use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use veena_loadtest_checker::{Down, NodeChange, Op, Outcome};

use crate::api::{Client, Reply};
use crate::recorder::Recorder;

/// How often a condition is looked at while waiting for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The binary.
    pub bin: PathBuf,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Where its output is appended.
    pub log: PathBuf,
    /// Words before the binary: a command that starts it somewhere else, or watches it.
    pub before: Vec<String>,
    /// Flags behind the usual ones.
    pub flags: Vec<String>,
    /// Environment beyond the inherited one, in which security is off: whoever wants it says so here.
    pub env: Vec<(String, String)>,
}

impl NodeConfig {
    /// A node of `bin` with its data in `dir/data` and its log in `dir/node.log`.
    #[must_use]
    pub fn in_dir(bin: &Path, dir: &Path) -> Self {
        Self {
            bin: bin.to_owned(),
            data_dir: dir.join("data"),
            log: dir.join("node.log"),
            before: Vec::new(),
            flags: Vec::new(),
            env: Vec::new(),
        }
    }

    /// With one more flag.
    #[must_use]
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    fn command(&self, addr: SocketAddr) -> anyhow::Result<Command> {
        let log = open_log(&self.log)?;
        let mut command = match self.before.split_first() {
            Some((first, others)) => {
                let mut command = Command::new(first);
                command.args(others).arg(&self.bin);
                command
            }
            None => Command::new(&self.bin),
        };
        command.arg("node").args(["--addr", &addr.to_string()]).arg("--data-dir").arg(&self.data_dir).args(["--log-format", "json"]);
        // What steers the harness is inherited, and a node warns of variables that it does not know.
        for name in ["VEENA_BIN", "VEENA_CHAOS_MINUTES", "VEENA_CHAOS_SEED", "VEENA_CHAOS_INSIDE"] {
            command.env_remove(name);
        }
        command.env("VEENA_SECURITY_ENABLED", "false");
        command.args(&self.flags).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Starts the binary and waits for nothing.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, addr: SocketAddr) -> anyhow::Result<Process> {
        Process::start(&mut self.command(addr)?)
    }

    /// Starts the binary and waits until it has ended by itself.
    ///
    /// # Errors
    /// It cannot be started, or still runs after `deadline`.
    pub async fn run_to_end(&self, addr: SocketAddr, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let mut child = self.command(addr)?.spawn().with_context(|| format!("cannot start {}", self.bin.display()))?;
        let ended = wait_for_end(&mut child, deadline).await;
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path).with_context(|| format!("cannot write {}", path.display()))
}

/// An address on this machine that nobody listens on.
///
/// # Errors
/// There is none.
pub fn free_addr() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

async fn wait_for_end(child: &mut Child, deadline: Duration) -> anyhow::Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() > deadline {
            bail!("the process still runs after {deadline:?}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A child process that does not outlive this value.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self { child })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it ended?
    ///
    /// # Errors
    /// The system does not tell.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, signal).context("cannot signal the process")
    }

    /// Ends it at once and waits for its end.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Asks it to end and waits for that.
    ///
    /// # Errors
    /// It still runs after `deadline`.
    pub async fn terminate(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        wait_for_end(&mut self.child, deadline).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A running node.
#[derive(Debug)]
pub struct NodeProcess {
    process: Process,
    config: NodeConfig,
    addr: SocketAddr,
    recorder: Option<(Arc<Recorder>, usize)>,
}

impl NodeProcess {
    /// Starts a node on a free port and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready after a minute.
    pub async fn start(config: NodeConfig) -> anyhow::Result<Self> {
        Self::start_on(config, free_addr()?).await
    }

    /// Starts a node on `addr` and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started, ends, or is not ready after a minute.
    pub async fn start_on(config: NodeConfig, addr: SocketAddr) -> anyhow::Result<Self> {
        let mut node = Self::spawn_on(config, addr)?;
        node.wait_ready(Duration::from_secs(60)).await?;
        Ok(node)
    }

    /// Starts a node on `addr` and waits for nothing.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_on(config: NodeConfig, addr: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { process: config.spawn(addr)?, config, addr, recorder: None })
    }

    /// Writes what happens to the node into `recorder` from now on.
    #[must_use]
    pub fn recorded(self, recorder: &Arc<Recorder>) -> Self {
        self.recorded_as(recorder, 0)
    }

    /// The same for the node that has this place among the recorder's.
    #[must_use]
    pub fn recorded_as(mut self, recorder: &Arc<Recorder>, place: usize) -> Self {
        self.recorder = Some((recorder.clone(), place));
        self
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it was started with.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// What it will be started with the next time.
    pub fn config_mut(&mut self) -> &mut NodeConfig {
        &mut self.config
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Errors
    /// The process ends, or `deadline` passes; the error holds the end of the log.
    pub async fn wait_ready(&mut self, deadline: Duration) -> anyhow::Result<()> {
        self.wait_probe(|reply| reply.status == 200, deadline).await
    }

    async fn wait_probe(&mut self, wanted: impl Fn(&Reply) -> bool, deadline: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut last = String::from("no answer");
        loop {
            if let Some(status) = self.process.ended()? {
                bail!("the node ended with {status} before it was ready\n{}", self.log_end());
            }
            let mut client = Client::new(self.addr).with_timeout(Duration::from_secs(2));
            match client.get("/readyz").await {
                Ok(reply) if wanted(&reply) => return Ok(()),
                Ok(reply) => last = format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
                Err(err) => last = if last == "no answer" { err.to_string() } else { last },
            }
            if started.elapsed() > deadline {
                bail!("the node is not ready after {deadline:?}: {last}\n{}", self.log_end());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Has its process ended?
    ///
    /// # Errors
    /// The system does not tell.
    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.ended()?.is_some())
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(&self.config.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn open(&self, change: NodeChange) -> Option<(Arc<Recorder>, crate::recorder::Opened)> {
        let (recorder, place) = self.recorder.clone()?;
        let opened = recorder.open(place, 0, Op::Node(change));
        Some((recorder, opened))
    }

    /// kill -9. The data directory stays.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Down(Down::Killed));
        self.process.kill()?;
        close(opened);
        Ok(())
    }

    /// SIGSTOP for `time`, then kill -9: it cannot tidy up, and its timers had no chance.
    ///
    /// # Errors
    /// The system does not tell.
    pub async fn kill_frozen(&mut self, time: Duration) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Down(Down::Killed));
        self.process.signal(Signal::STOP)?;
        tokio::time::sleep(time).await;
        self.process.kill()?;
        close(opened);
        Ok(())
    }

    /// Starts it again and kills it after `time`, ready or not.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_and_kill(&mut self, time: Duration) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Down(Down::Killed));
        self.process = Process::start(&mut self.config.command(self.addr)?)?;
        tokio::time::sleep(time).await;
        self.process.kill()?;
        close(opened);
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// It still runs after `deadline`, or ends with an error.
    pub async fn stop(&mut self, deadline: Duration) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Down(Down::Stopped));
        let status = self.process.terminate(deadline).await?;
        close(opened);
        if !status.success() {
            bail!("the node ended with {status} after SIGTERM\n{}", self.log_end());
        }
        Ok(())
    }

    /// Starts it again, on the same directory and address, and waits until it is ready.
    ///
    /// # Errors
    /// See [`NodeProcess::start`].
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.start_again_until(|reply| reply.status == 200).await
    }

    /// Starts it again, and waits until `/readyz` answers as `wanted`: ready, or not ready for the right reason.
    ///
    /// # Errors
    /// See [`NodeProcess::start`].
    pub async fn start_again_until(&mut self, wanted: impl Fn(&Reply) -> bool) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Started);
        self.process = Process::start(&mut self.config.command(self.addr)?)?;
        self.wait_probe(wanted, Duration::from_secs(60)).await?;
        close(opened);
        Ok(())
    }

    /// Starts it again and waits for nothing: a node of a cluster may need others to be ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_again(&mut self) -> anyhow::Result<()> {
        let opened = self.open(NodeChange::Started);
        self.process = Process::start(&mut self.config.command(self.addr)?)?;
        close(opened);
        Ok(())
    }

    /// SIGSTOP for `time`, then SIGCONT.
    ///
    /// # Errors
    /// It has ended.
    pub async fn pause(&mut self, time: Duration) -> anyhow::Result<()> {
        let frozen = self.freeze()?;
        tokio::time::sleep(time).await;
        self.thaw(frozen)
    }

    /// SIGSTOP, until it is thawed.
    ///
    /// # Errors
    /// It has ended.
    pub fn freeze(&self) -> anyhow::Result<Frozen> {
        let opened = self.open(NodeChange::Paused);
        self.process.signal(Signal::STOP)?;
        Ok(Frozen(opened))
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// It has ended.
    pub fn thaw(&self, frozen: Frozen) -> anyhow::Result<()> {
        self.process.signal(Signal::CONT)?;
        close(frozen.0);
        Ok(())
    }
}

/// A node that stands still.
#[must_use = "it stands still until it is thawed"]
#[derive(Debug)]
pub struct Frozen(Option<(Arc<Recorder>, crate::recorder::Opened)>);

fn close(opened: Option<(Arc<Recorder>, crate::recorder::Opened)>) {
    if let Some((recorder, opened)) = opened {
        recorder.close(opened, Outcome::Ok);
    }
}
