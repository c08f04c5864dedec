//! `veena dev` and `veena node`: start a node in this process.

use std::io;
use std::path::PathBuf;

use clap::Args;
use rustix::fs::Mode;
use veena_node::config::{LogConfig, SecurityConfig};
use veena_node::{BootError, Config, DataDirError, Flags, ListenError, LogFormat, LogLevel, NodeError, Ready};
use veena_raftstore::RaftStore;

use super::SERVER;
use super::admin::{self, SignIn};
use super::local_cluster::LocalCluster;
use crate::output::{self, Failure, Outcome};

/// How a second node is started beside one that runs.
const DEV_ELSEWHERE: &str = "veena dev --port 7943 --data-dir DIR, or make dev ARGS='--port 7943 --data-dir DIR'";
const NODE_ELSEWHERE: &str = "veena node --addr 127.0.0.1:7943 --data-dir DIR";

/// A node for trying things out: this machine only, text logs, a password that is told.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// The port to listen on.
    #[arg(long, default_value_t = 7942, value_name = "PORT")]
    port: u16,
    /// Where everything is kept; created if it is not there (default: ~/.veena/data, or ~/.veena/cluster for several nodes).
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How many nodes: several are a cluster, each in a process and on a port of its own.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// What is logged: debug, info, warn or error.
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

/// A node, as it is configured.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// A JSON file with settings.
    #[arg(long, value_name = "PATH")]
    config: Option<String>,
    /// host:port to listen on.
    #[arg(long, value_name = "HOST:PORT")]
    addr: Option<String>,
    /// Replaces the port of the address.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// This node's name; fixed once the data directory exists.
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// Where everything is kept; created if it is not there (default: ./data, below the current directory).
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// What is logged: debug, info, warn or error.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How logs are written: json or text.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Let other machines in by plain HTTP: put a proxy with TLS in front, or everybody on the way reads passwords and messages. A node with
    /// http.tls.cert_file and http.tls.key_file, and security on, does not need it. With security off anybody who reaches the port can read and delete everything.
    #[arg(long)]
    insecure_listen: bool,
    /// Added to each sync, to measure what a slow volume would do.
    #[arg(long, hide = true, value_name = "DURATION")]
    slow_flush: Option<String>,
    /// Stop in order when the standard input ends: whoever holds the other end is gone.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// Runs a node for trying things out.
pub fn dev(args: DevArgs) -> Outcome {
    keep_files_private();
    let below_home = if args.nodes > 1 { ".veena/cluster" } else { ".veena/data" };
    let data_dir = match args.data_dir {
        Some(dir) => dir,
        None => home()?.join(below_home),
    };
    if args.nodes > 1 {
        let cluster = LocalCluster { nodes: args.nodes, port: args.port, dir: data_dir, log_level: args.log_level };
        return tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(cluster.run());
    }
    let kept = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?.block_on(admin::keep_in(&data_dir))?;
    let security = SecurityConfig {
        admin_password: Some(kept.password().clone()),
        password_from: "the file admin-password",
        ..SecurityConfig::default()
    };
    let base = Config { log: LogConfig { level: LogLevel::Info, format: LogFormat::Text }, security, ..Config::default() };
    let flags = Flags::default()
        .with("http.addr", Some(format!("127.0.0.1:{}", args.port)))
        .with("storage.data_dir", Some(data_dir.display()))
        .with("log.level", Some(args.log_level));
    let config = Config::load(base, None, |_| None, &flags).map_err(|error| Failure::Usage(error.to_string()))?;
    veena_node::telemetry::init(&config.log).map_err(anyhow::Error::from)?;
    let shown = data_dir.display().to_string();
    start(&config, false, false, DEV_ELSEWHERE, move |ready| {
        let ready = ready.clone();
        // Nobody waits for it: the root admin is created once requests are answered.
        #[expect(clippy::disallowed_methods, reason = "it only prints, and ends with the process")]
        tokio::spawn(async move {
            let url = format!("http://{}", ready.addr);
            welcome(&url, &shown, ready.is_new, &kept.sign_in(&url).await);
        });
    })
}

/// Whatever this process makes is for its user alone, also what libraries make.
fn keep_files_private() {
    let _former = rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Runs a node.
pub fn run(args: NodeArgs) -> Outcome {
    keep_files_private();
    let file = match &args.config {
        Some(path) => Some(read_config(path)?),
        None => None,
    };
    let flags = Flags::default()
        .with("http.addr", args.addr)
        .with("http.port", args.port)
        .with("cluster.node_id", args.node_id)
        .with("storage.data_dir", args.data_dir)
        .with("log.level", args.log_level)
        .with("log.format", args.log_format)
        .with("storage.slow_flush", args.slow_flush);
    let env = |name: &str| std::env::var(name).ok();
    let config = Config::load(Config::default(), file.as_deref(), env, &flags).map_err(|error| Failure::Usage(error.to_string()))?;
    veena_node::telemetry::init(&config.log).map_err(anyhow::Error::from)?;
    veena_node::warn_of_unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()));
    start(&config, args.insecure_listen, args.stop_with_stdin, NODE_ELSEWHERE, |_| {})
}

fn home() -> Result<PathBuf, Failure> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(PathBuf::from).ok_or_else(|| Failure::Usage("HOME is not set: say --data-dir".to_owned()))
}

fn read_config(path: &str) -> Result<String, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let bytes = runtime.block_on(crate::flags::read_file(path))?;
    String::from_utf8(bytes).map_err(|_| Failure::Usage(format!("{path} is not UTF-8")))
}

fn start(config: &Config, allow_open: bool, stop_with_stdin: bool, elsewhere: &str, on_ready: impl FnOnce(&Ready)) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("veena").build()?;
    let outcome = runtime.block_on(async {
        let told = async {
            if veena_node::shutdown::told_to_stop().await.is_err() {
                // Without signals only SIGKILL is left, which is safe: every start recovers.
                std::future::pending::<()>().await;
            }
        };
        let stop = async {
            tokio::select! {
                () = told => {}
                () = veena_node::shutdown::stdin_ended(), if stop_with_stdin => {}
            }
        };
        let serving = veena_node::serve(config, allow_open, RaftStore::open, on_ready, stop);
        tokio::select! {
            outcome = serving => outcome.map_err(|error| failure(error, elsewhere)),
            () = insisted() => Err(Failure::Failed(anyhow::anyhow!("stopped without waiting; the next start recovers"))),
        }
    });
    // Blocking calls that are still under way are not worth waiting for: everything durable is synced.
    runtime.shutdown_background();
    outcome
}

/// Why a node did not start or ended; who met a node that runs already is told how to start another.
fn failure(error: NodeError, elsewhere: &str) -> Failure {
    let is_taken = match &error {
        NodeError::Listen(ListenError::Refused { source, .. }) => source.kind() == io::ErrorKind::AddrInUse,
        NodeError::Boot(BootError::DataDir(DataDirError::InUse { .. })) => true,
        _ => false,
    };
    let is_removed = error.is_removed();
    let error = anyhow::Error::from(error);
    if is_removed {
        return Failure::Removed(error);
    }
    Failure::Failed(if is_taken {
        anyhow::anyhow!(
            "{error:#}\n  most likely a node runs there already. Another one needs another port and another directory: {elsewhere}"
        )
    } else {
        error
    })
}

/// Completes when the user presses Ctrl-C a second time.
async fn insisted() {
    for _ in 0..2 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn welcome(url: &str, data_dir: &str, is_new: bool, sign_in: &SignIn) {
    let server = if url == SERVER { String::new() } else { format!(" -s {url}") };
    let text = format!(
        "\nVeena is ready: {url}\n\
         Data: {data_dir}{}\n\
         Sign in: {}\n\n\
         Try, in another terminal:\n  \
           {}\n  \
           curl -u \"$VEENA_USER:$VEENA_PASSWORD\" -X POST {url}/v1/topics -H 'Content-Type: application/json' -d '{{\"name\":\"hello\",\"partitions\":1}}'\n  \
           curl -u \"$VEENA_USER:$VEENA_PASSWORD\" -X POST {url}/v1/topics/hello/produce -H 'X-Veena-Client: me' --data-binary 'first message'\n  \
           curl -u \"$VEENA_USER:$VEENA_PASSWORD\" '{url}/v1/topics/hello/consume?wait=5s'\n\n\
         Or:\n  \
           veena topic ls{server}\n  \
           veena pub hello 'second message'{server}\n  \
           veena sub hello{server}\n\n\
         Ctrl-C stops the node.\n",
        if is_new { " (new)" } else { "" },
        sign_in.told,
        sign_in.export,
    );
    // A closed terminal is no reason to stop.
    let _printed = output::line(text);
}
