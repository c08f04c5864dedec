//! Starts and stops a node inside the test.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use veena_client::Client;
use veena_metastore::MemLog;
use veena_node::Config;
use veena_node::serve::{NodeError, Ready, serve_on};
use veena_storage::disk::Disk;
use veena_storage::disk::real::RealDisk;

/// Nothing here may take longer.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub struct Node {
    pub client: Client,
    pub ready: Ready,
    stop: CancellationToken,
    running: JoinHandle<Result<(), NodeError>>,
}

impl Node {
    /// Starts a node on a free port, with its data in `dir` and its metadata in `log`.
    pub async fn start(dir: &Path, log: &MemLog) -> Self {
        Self::try_start(dir, log).await.expect("the node starts")
    }

    pub async fn try_start(dir: &Path, log: &MemLog) -> Result<Self, NodeError> {
        Self::start_on(Arc::new(RealDisk), dir, log).await
    }

    pub async fn start_on(disk: Arc<dyn Disk>, dir: &Path, log: &MemLog) -> Result<Self, NodeError> {
        Self::start_with(disk, dir, log, |config| config.security.enabled = false).await
    }

    pub async fn start_with(disk: Arc<dyn Disk>, dir: &Path, log: &MemLog, set: impl FnOnce(&mut Config)) -> Result<Self, NodeError> {
        let mut config = Config::default();
        config.http.addr = "127.0.0.1:0".to_owned();
        // Longer than any test may take: whoever is answered early was woken.
        config.http.max_consume_wait = Duration::from_secs(600);
        config.node_id = Some("node-1".to_owned());
        config.storage.data_dir = dir.to_owned();
        set(&mut config);
        let (stop, (ready, is_ready), log) = (CancellationToken::new(), oneshot::channel(), log.clone());
        let stopped = stop.clone().cancelled_owned();
        #[expect(clippy::disallowed_methods, reason = "the test waits for it in `stop`")]
        let running = tokio::spawn(async move {
            serve_on(disk, &config, false, move |_: &Path| Ok::<_, Infallible>(log), |facts| drop(ready.send(facts.clone())), stopped).await
        });
        match timeout(DEADLINE, is_ready).await.expect("started in time") {
            Ok(ready) => {
                let client = Client::builder(&format!("http://{}", ready.addr)).repeats(0).build().expect("a valid address");
                Ok(Self { client, ready, stop, running })
            }
            Err(_) => Err(running.await.expect("no panic").expect_err("it never became ready")),
        }
    }

    /// Stops it as SIGTERM does, and waits until it has ended.
    pub async fn stop(self) {
        self.stop.cancel();
        self.ended().await.expect("stopped cleanly");
    }

    /// Waits until it has ended.
    pub async fn ended(self) -> Result<(), NodeError> {
        timeout(DEADLINE, self.running).await.expect("ended in time").expect("no panic")
    }
}
