//! The table of contents of the process: port, parts, service, stop.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use veena_broker::tasks::OnExit;
use veena_consensus::LogStore;
use veena_contract::limits;
use veena_metastore::{MemberError, StartError};
use veena_storage::disk::Disk;
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::slow::SlowDisk;

use crate::boot::{BootError, NodeParts, boot};
use crate::client_tls::{ClientTls, ClientTlsError};
use crate::cluster::{ClusterError, EnterError, PeerPort};
use crate::config::{Config, ConfigError};
use crate::listen::{ListenError, Way, listen};
use crate::system::SystemClock;
use crate::{data_dir, early};

/// How long the engine and the metastore may take to stop, once no request is under way.
const STOP_TIMEOUT: Duration = Duration::from_millis(limits::STOP_MS_MAX);

/// Why a node did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// What it was told does not do.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What clients are to be shown.
    #[error(transparent)]
    ClientTls(#[from] ClientTlsError),
    /// The port for other nodes.
    #[error(transparent)]
    Peers(#[from] ClusterError),
    /// A part did not open.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The HTTP plane ended.
    #[error("the HTTP plane ended")]
    Http(#[source] std::io::Error),
    /// Something the node cannot do without has died; the log says what.
    #[error("a task the node cannot do without has ended; the log says which")]
    TaskDied,
    /// The parts did not stop in time. Nothing that was answered is lost: the next start replays it.
    #[error("the node did not stop within {} s; the next start recovers what was not flushed", STOP_TIMEOUT.as_secs())]
    StopTimedOut,
    /// The parts stopped, and the last settle state could not be written or synced.
    #[error("the last acks could not be made durable; those messages come again")]
    NotDurable,
}

impl NodeError {
    /// Is this node no member of its cluster any more, so that it need not be started again?
    #[must_use]
    pub const fn is_removed(&self) -> bool {
        matches!(self, Self::Boot(BootError::Cluster(EnterError::Metastore(StartError::Member(MemberError::NotAMember)))))
    }
}

/// What is known once the node takes work.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where it listens.
    pub addr: SocketAddr,
    /// Its name.
    pub node: String,
    /// Was the data directory created just now?
    pub is_new: bool,
    /// How long starting took.
    pub boot: Duration,
}

/// Runs one node until `stop` completes, then stops it in order.
///
/// `open_log` opens the metadata log in the folder it is given. `allow_open` lets other machines in although they speak plain HTTP, or nobody is asked who they are.
///
/// # Errors
/// [`NodeError`].
pub async fn serve<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
    config: &Config,
    allow_open: bool,
    open_log: impl FnOnce(&Path) -> Result<L, E> + Send + 'static,
    on_ready: impl FnOnce(&Ready),
    stop: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    serve_on(disk(config), config, allow_open, open_log, on_ready, stop).await
}

/// As [`serve`], on a disk of the caller's.
///
/// # Errors
/// [`NodeError`].
pub async fn serve_on<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
    disk: Arc<dyn Disk>,
    config: &Config,
    allow_open: bool,
    open_log: impl FnOnce(&Path) -> Result<L, E> + Send + 'static,
    on_ready: impl FnOnce(&Ready),
    stop: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let began = Instant::now();
    raise_open_files();
    let config = &config.clone().named(|path| data_dir::name_in(disk.as_ref(), path))?;
    let client_tls = ClientTls::open(&config.http.tls, &disk, Arc::new(SystemClock)).await?;
    let way = Way { is_secured: config.security.enabled, has_tls: client_tls.is_some(), allow_open };
    let listening = listen(&config.http.addr, way).await?;
    if !config.security.enabled {
        info!("security is off: nobody is asked who they are");
    }
    if listening.is_open && !(way.is_secured && way.has_tls) {
        let danger = if config.security.enabled {
            "other machines are let in without TLS: passwords and messages can be read on the way, unless a proxy with TLS stands in front"
        } else {
            "other machines are let in and security is off: anybody can read and delete everything"
        };
        warn!(addr = %listening.addr, "{danger}");
    }
    let port = PeerPort::open(config, way.may_be_reached(), disk.as_ref()).await?;
    let tls = client_tls.as_ref().map(ClientTls::served);
    let mut stop = std::pin::pin!(stop);

    // The port answers while the parts open; who asks for work is told to come back.
    let ready = CancellationToken::new();
    let leaving = CancellationToken::new();
    let booting = async {
        let parts = boot(config, disk, port, tls.clone(), &leaving, open_log).await;
        ready.cancel();
        parts
    };
    let parts = {
        let mut starting =
            Box::pin(async { tokio::join!(booting, early::answer_until(&listening.listener, tls.clone(), ready.clone())).0 });
        tokio::select! {
            parts = &mut starting => parts?,
            () = &mut stop => {
                leaving.cancel();
                // Nothing was answered yet: what does not end in time is left as a crash would leave it.
                return match timeout(STOP_TIMEOUT, starting).await {
                    Ok(Ok(parts)) => stop_parts(parts).await,
                    Ok(Err(BootError::Stopped)) => {
                        info!("stopped");
                        Ok(())
                    }
                    Ok(Err(error)) => Err(error.into()),
                    Err(_) => Ok(()),
                };
            }
        }
    };

    let facts = Ready { addr: listening.addr, node: parts.data.node.to_string(), is_new: parts.data.is_new, boot: began.elapsed() };
    let scheme = if tls.is_some() { "https" } else { "http" };
    info!(url = %format_args!("{scheme}://{}", facts.addr), addr = %facts.addr, node = %facts.node, boot_ms = facts.boot.as_millis(), "ready");
    on_ready(&facts);
    if let Some(client_tls) = client_tls {
        parts.tasks.spawn("client-tls", OnExit::Shutdown, client_tls.run(parts.tasks.token().clone()));
    }

    let stopping = CancellationToken::new();
    let mut http = std::pin::pin!(veena_api::serve(listening.listener, parts.api.clone(), stopping.clone()));
    let why = tokio::select! {
        () = &mut stop => None,
        () = parts.died() => Some(NodeError::TaskDied),
        ended = &mut http => Some(NodeError::Http(ended.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()))),
    };
    if matches!(why, Some(NodeError::Http(_))) {
        stop_parts(parts).await?;
        return why.map_or(Ok(()), Err);
    }

    // 1 probes red, parked consumers answered, no new produce   2 requests under way finish   3 the parts, in reverse
    parts.broker.begin_stop();
    stopping.cancel();
    http.await.map_err(NodeError::Http)?;
    stop_parts(parts).await?;
    info!("stopped");
    why.map_or(Ok(()), Err)
}

/// Ends the parts in reverse: the engine flushes settle state, then other nodes are answered no more, then the metastore, then the lock is
/// released.
async fn stop_parts(parts: NodeParts) -> Result<(), NodeError> {
    let NodeParts { data, metastore, peers, tasks: _, broker, api } = parts;
    drop(api);
    let stopped = timeout(STOP_TIMEOUT, async {
        let is_durable = broker.stop().await;
        if let Some(plane) = peers {
            plane.stop().await;
        }
        metastore.shutdown().await;
        is_durable
    });
    let outcome = match stopped.await {
        Ok(true) => Ok(()),
        Ok(false) => Err(NodeError::NotDurable),
        Err(_) => Err(NodeError::StopTimedOut),
    };
    drop((broker, metastore));
    drop(data);
    outcome
}

fn disk(config: &Config) -> Arc<dyn Disk> {
    let (sync_delay, stall) = (config.slow_flush, config.stall_file.clone());
    if sync_delay.is_zero() && stall.is_none() {
        return Arc::new(RealDisk);
    }
    warn!(sync_delay_ms = sync_delay.as_millis(), stall_file = ?stall, "every sync is made slower on purpose");
    Arc::new(SlowDisk { inner: Arc::new(RealDisk), sync_delay, stall })
}

/// Connections and logs each hold a file open: takes as many as the system lets us have.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "the number of open files cannot be raised");
    }
}
