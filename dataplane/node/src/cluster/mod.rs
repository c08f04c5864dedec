//! A node among others: its peer plane, how it comes into its cluster, and what it knows of the other members.

mod controller;
mod enter;
mod gate;
mod members;
mod plan;
mod service;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{info, warn};
use veena_auth::{ClusterIdentity, ClusterSecretError, IdentityError, Secret};
use veena_broker::tasks::{OnExit, Tasks};
use veena_broker::{Broker, ports::Peers};
use veena_consensus::LogStore;
use veena_contract::{Entropy, Members, NodeId, PeerClient, WallClock, limits};
use veena_metastore::{Metastore, MetastoreConfig, Runtime, StartError};
use veena_peer::{Endpoint, EndpointError, QuicPeers, Server};
use veena_storage::disk::{Disk, OpenMode, read_full_at};

use crate::config::{ClusterConfig, Config, SharedSecrets};
use crate::data_dir::DataDir;
use crate::listen::{ListenError, Port};

use controller::Controller;
pub use enter::EnterError;
use enter::become_voter;
pub(crate) use enter::{check_directory, enter};
use gate::Gate;
use members::ClusterMembers;
use service::Service;
use watch::Watch;

const PEER_PORT: Port = Port { key: "cluster.peer_addr", danger: "whoever has the cluster's secret could read and delete everything" };
/// A file that is larger holds something else.
const SECRET_FILE_BYTES_MAX: usize = 4 * limits::CLUSTER_SECRET_BYTES_MAX;

/// Why a node of a cluster has no peer plane.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The port.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// What is derived from the secret.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The file with the secret cannot be read.
    #[error("cluster.secret_file {} cannot be read", path.display())]
    SecretFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file with the secret holds none.
    #[error("cluster.secret_file {} holds no cluster secret", path.display())]
    Secret {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: ClusterSecretError,
    },
}

/// The port of the peer plane. Nobody is answered yet.
pub struct PeerPort {
    endpoint: Endpoint,
    advertised: Arc<str>,
}

impl PeerPort {
    /// Opens the port of a node of a cluster. `None` for a node alone.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn open(config: &Config, allow_open: bool, disk: &dyn Disk) -> Result<Option<Self>, ClusterError> {
        let cluster = &config.cluster;
        let (Some(peer_addr), Some(advertised), Some(node)) = (&cluster.peer_addr, cluster.advertised(), &config.node_id) else {
            return Ok(None);
        };
        let addr = PEER_PORT.resolve(peer_addr, allow_open).await?;
        let identity = match secrets(cluster, disk)? {
            Some(secrets) => ClusterIdentity::new(&NodeId(node.as_str().into()), secrets.get())?,
            None => return Ok(None),
        };
        Ok(Some(Self { endpoint: Endpoint::bind(addr, Arc::new(identity))?, advertised: advertised.into() }))
    }

    /// Opens the metastore on `log` and answers other nodes from here on: without that it would never become ready.
    ///
    /// # Errors
    /// [`StartError`] when the log cannot be used.
    pub(crate) async fn serve<L: LogStore>(
        self,
        data: &DataDir,
        log: L,
        runtime: &Runtime,
        clock: Arc<dyn WallClock>,
    ) -> Result<PeerPlane, StartError> {
        let Self { endpoint, advertised } = self;
        let gate = Arc::new(Gate::new(data.node.clone(), data.lineage()));
        let client = Arc::new(QuicPeers::new(endpoint.clone(), gate.clone()));
        let mut config = MetastoreConfig::new(data.node.clone());
        config.consensus.addr = Arc::clone(&advertised);
        config.consensus.directory = data.name().into();
        config.consensus.left = data.left().map(|left| left.lineage);
        config.consensus.ready_within = Duration::from_millis(limits::CLUSTER_ENTER_MS_MAX);
        let metastore = Metastore::open(config, log, runtime, client.clone()).await?;
        gate.follow(metastore.clone());
        let watch = Arc::new(Watch::new(data.node.clone(), metastore.clone(), client.clone(), clock));
        let service = Arc::new(Service::new(data.node.clone(), metastore.clone(), watch.clone()));
        let tasks = Tasks::new(Handle::current());
        let server = Server::new(endpoint.clone(), gate.clone(), service.clone());
        tasks.spawn("peer-server", OnExit::Shutdown, server.run(tasks.token().clone()));
        info!(node = %data.node, addr = %advertised, "other nodes are answered");
        let (me, has_left) = (data.node.clone(), data.left().is_some());
        Ok(PeerPlane { me, has_left, metastore, endpoint, gate, client, watch, service, tasks })
    }
}

/// The secrets, from where the operator has put them.
fn secrets(config: &ClusterConfig, disk: &dyn Disk) -> Result<Option<SharedSecrets>, ClusterError> {
    let Some(path) = &config.secret_file else { return Ok(config.secret.clone()) };
    let text = read_secret(disk, path).map_err(|source| ClusterError::SecretFile { path: path.clone(), source })?;
    if is_open_to_others(path) {
        warn!(file = %path.display(), "other users of this machine may read the file with the cluster secret, and so be a node of this cluster: chmod 600");
    }
    SharedSecrets::parse(text.expose()).map(Some).map_err(|source| ClusterError::Secret { path: path.clone(), source })
}

fn is_open_to_others(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO))
}

fn read_secret(disk: &dyn Disk, path: &Path) -> io::Result<Secret<String>> {
    let file = disk.open(path, OpenMode::Read)?;
    // A byte more than it may have shows that it has more.
    let mut bytes = vec![0; SECRET_FILE_BYTES_MAX + 1];
    let read = read_full_at(file.as_ref(), &mut bytes, 0);
    let bytes = Secret::new(bytes);
    let text = bytes.expose().get(..read?).filter(|text| text.len() <= SECRET_FILE_BYTES_MAX);
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let text = text.ok_or_else(|| invalid(format!("it has more than {SECRET_FILE_BYTES_MAX} bytes")))?;
    let text = std::str::from_utf8(text).map_err(|_| invalid("it is no text".to_owned()))?;
    Ok(Secret::new(text.to_owned()))
}

/// The peer plane of a node, and its metastore.
pub struct PeerPlane {
    pub(crate) me: NodeId,
    /// Does the data directory wait for an heir of metadata that it has left? A founded cluster would be none.
    has_left: bool,
    pub(crate) metastore: Metastore,
    endpoint: Endpoint,
    gate: Arc<Gate>,
    client: Arc<QuicPeers>,
    watch: Arc<Watch>,
    service: Arc<Service>,
    tasks: Tasks,
}

impl PeerPlane {
    /// How this node calls others.
    pub(crate) fn client(&self) -> Arc<dyn PeerClient> {
        self.client.clone()
    }

    /// What the engine needs of the other nodes.
    pub(crate) fn peers(&self) -> Peers {
        Peers { me: self.me.clone(), client: self.client(), directory: self.membership() }
    }

    /// What is known of the members.
    pub(crate) fn members(&self) -> Arc<dyn Members> {
        self.membership()
    }

    fn membership(&self) -> Arc<ClusterMembers> {
        let (me, metastore) = (self.me.clone(), self.metastore.clone());
        Arc::new(ClusterMembers { me, metastore, client: self.client(), watch: self.watch.clone() })
    }

    /// Hands the engine's calls to it from here on.
    pub(crate) fn serve_engine(&self, broker: Broker) {
        self.watch.engine(broker.clone());
        self.service.engine(broker);
    }

    /// Starts what a node does among others once it runs: it votes if there are few, watches the others, and looks after them all while it
    /// leads.
    pub(crate) fn take_part(&self, tasks: &Tasks, entropy: Arc<dyn Entropy>) {
        let voting = become_voter(self.metastore.clone(), self.me.clone(), tasks.token().clone());
        tasks.spawn("become-voter", OnExit::Log, voting);
        tasks.spawn("member-watch", OnExit::Shutdown, self.watch.clone().run(tasks.token().clone()));
        let (me, metastore) = (self.me.clone(), self.metastore.clone());
        let controller = Controller { me, metastore, watch: self.watch.clone(), entropy };
        tasks.spawn("controller", OnExit::Shutdown, controller.run(tasks.token().clone()));
    }

    /// Completes once nobody answers other nodes any more.
    pub(crate) async fn died(&self) {
        self.tasks.token().cancelled().await;
    }

    /// Ends the calls that were begun, refuses others, and closes the port.
    pub(crate) async fn stop(self) {
        self.tasks.stop().await;
        // A node that is down hears nothing, and is not waited for.
        let _told = timeout(Duration::from_millis(limits::PEER_CLOSE_MS_MAX), self.endpoint.close()).await;
    }
}

#[cfg(test)]
mod tests {
    use veena_storage::disk::real::RealDisk;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test writes a real file")]
    fn a_secret_file_that_others_may_read_is_noticed() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("secret");
        std::fs::write(&path, "x").expect("written");
        for (mode, is_open) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
            assert_eq!(is_open_to_others(&path), is_open, "{mode:o}");
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test writes a real file")]
    fn a_secret_file_that_holds_something_else_too_is_refused_and_not_cut() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("secret");
        let read = |bytes: usize| {
            let mut text = "0123456789abcdef0123456789abcdef\n".to_owned();
            text.extend(std::iter::repeat_n('\n', bytes - text.len()));
            std::fs::write(&path, text).expect("written");
            secrets(&ClusterConfig { secret_file: Some(path.clone()), ..ClusterConfig::default() }, &RealDisk)
        };
        assert!(read(SECRET_FILE_BYTES_MAX).expect("it holds one secret").is_some());
        let error = read(SECRET_FILE_BYTES_MAX + 1).expect_err("it is larger");
        assert!(matches!(&error, ClusterError::SecretFile { source, .. } if source.to_string().contains("more than")), "{error}");
    }
}
