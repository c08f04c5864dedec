//! A network that can be cut: a network namespace for each node, joined by routes in the namespace in which this process runs.
//!
//! Nothing of it needs root: this process runs again in a user, network and mount namespace of its own. What is cut is dropped on
//! the way without a word to the sender, as a network does it. The clients are in the middle and reach every node at any time.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

/// Says to a process that it runs in namespaces made for it.
pub const INSIDE: &str = "VEENA_CHAOS_INSIDE";

/// Everything that a cut needs, once, in namespaces of its own.
const TRIAL: &str = "ip link set lo up && ip link add veth0 type veth peer name veth1 && echo 1 > /proc/sys/net/ipv4/ip_forward \
    && ip rule add pref 1 from 10.9.1.2 to 10.9.2.2 blackhole && unshare --net true && mount -t tmpfs tmpfs /mnt";

/// The words before a command that is to run in namespaces of its own; without a user namespace only root can.
fn words(has_user_namespace: bool) -> Vec<&'static str> {
    let user = has_user_namespace.then_some(["--user", "--map-root-user"]);
    ["unshare"].into_iter().chain(user.into_iter().flatten()).chain(["--net", "--mount"]).collect()
}

/// Does this process run in namespaces made for it?
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// `program` with `args`, to be started in namespaces of its own.
///
/// # Errors
/// They are refused here, or the tools for them are missing; the error says why.
pub fn inside<S: AsRef<OsStr>>(program: &OsStr, args: impl IntoIterator<Item = S>) -> anyhow::Result<Command> {
    let mut told = Vec::new();
    for has_user_namespace in [true, false] {
        let words = words(has_user_namespace);
        let trial = Command::new(words[0]).args(&words[1..]).args(["sh", "-c", TRIAL]).stdin(Stdio::null()).output();
        match trial {
            Ok(output) if output.status.success() => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]).arg(program).args(args).env(INSIDE, "1");
                return Ok(command);
            }
            Ok(output) => told.push(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(err) => told.push(err.to_string()),
        }
    }
    anyhow::bail!("a network that can be cut needs network namespaces and the tool ip, and they are refused here: {}", told.join("; "))
}

/// Nodes with a namespace each. They end with this value.
#[derive(Debug)]
pub struct Net {
    /// Each keeps a namespace; it ends when its input does, so also when we die.
    holders: Vec<Child>,
    cuts: BTreeSet<(usize, usize)>,
}

impl Net {
    /// Namespaces for `count` nodes, all of which reach each other.
    ///
    /// # Errors
    /// This process does not run in namespaces of its own, or the system refuses.
    pub fn create(count: usize) -> anyhow::Result<Self> {
        ensure!(is_inside(), "a network is only made in namespaces of its own");
        ip(&["link", "set", "lo", "up"])?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("nothing is passed on")?;
        let mut net = Self { holders: Vec::new(), cuts: BTreeSet::new() };
        for at in 0..count {
            net.add(at)?;
        }
        Ok(net)
    }

    fn add(&mut self, at: usize) -> anyhow::Result<()> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo made && exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().context("cannot start unshare")?;
        let stdout = holder.stdout.take().context("no output")?;
        self.holders.push(holder);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == "made", "no network namespace for node {at}");
        let (here, there, pid) = (format!("node{at}"), "eth0", self.holders[at].id().to_string());
        ip(&["link", "add", &here, "type", "veth", "peer", "name", there, "netns", &pid])?;
        let middle = middle(at).to_string();
        ip(&["addr", "add", &format!("{middle}/24"), "dev", &here])?;
        ip(&["link", "set", &here, "up"])?;
        self.ip_of(at, &["link", "set", "lo", "up"])?;
        self.ip_of(at, &["addr", "add", &format!("{}/24", addr(at, 0).ip()), "dev", there])?;
        self.ip_of(at, &["link", "set", there, "up"])?;
        self.ip_of(at, &["route", "add", "default", "via", &middle])
    }

    /// The words before a command that is to run in the namespace of node `at`.
    #[must_use]
    pub fn words(&self, at: usize) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--target={}", self.holders[at].id()), "--net".to_owned(), "--".to_owned()]
    }

    fn ip_of(&self, at: usize, args: &[&str]) -> anyhow::Result<()> {
        let words = self.words(at);
        run(Command::new(&words[0]).args(&words[1..]).arg("ip").args(args))
    }

    /// From now on nothing that `from` sends reaches `to`.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cut(&mut self, from: usize, to: usize) -> anyhow::Result<()> {
        if self.cuts.insert((from, to)) {
            rule("add", from, to)?;
        }
        Ok(())
    }

    /// From now on everything arrives again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn heal(&mut self) -> anyhow::Result<()> {
        for (from, to) in std::mem::take(&mut self.cuts) {
            rule("del", from, to)?;
        }
        Ok(())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

fn subnet(at: usize) -> u8 {
    u8::try_from(at + 1).expect("invariant: a few nodes")
}

fn middle(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, subnet(at), 1)
}

/// The address of node `at`, in its namespace and for all.
#[must_use]
pub fn addr(at: usize, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 9, subnet(at), 2), port).into()
}

fn rule(what: &str, from: usize, to: usize) -> anyhow::Result<()> {
    // Each pair has a place of its own, and is taken away by it.
    let place = (100 + from * 10 + to).to_string();
    let (from, to) = (addr(from, 0).ip().to_string(), addr(to, 0).ip().to_string());
    ip(&["rule", what, "pref", &place, "from", &from, "to", &to, "blackhole"])
}

fn ip(args: &[&str]) -> anyhow::Result<()> {
    run(Command::new("ip").args(args))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
