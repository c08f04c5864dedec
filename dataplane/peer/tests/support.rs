//! Nodes of a cluster in one process, with a service whose calls can be held.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use veena_auth::{ClusterIdentity, ClusterSecret, ClusterSecrets};
use veena_contract::{
    BoxFuture, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, PeerRefusal, PeerRequest, PeerService,
};
use veena_peer::{Admission, Endpoint, Hello, QuicPeers, Server};

pub const SECRET: &str = "the secret of the cluster, for tests and nothing else";
pub const OTHER_SECRET: &str = "the secret of another cluster, for tests as well";

/// Nothing in these tests takes this long; who waits longer has failed.
pub const LONG: Duration = Duration::from_secs(30);

/// Answers with its argument.
pub const ECHO: PeerOp = PeerOp(1);
/// Answers once the gate lets it.
pub const HOLD: PeerOp = PeerOp(2);
/// Panics.
pub const BREAK: PeerOp = PeerOp(3);
/// Answers with as many bytes as its argument says.
pub const LARGE: PeerOp = PeerOp(4);
/// Works until its caller has gone.
pub const WATCH: PeerOp = PeerOp(5);
/// Answers who called, how.
pub const WHO: PeerOp = PeerOp(6);

/// What the service has done, and what holds it.
pub struct Bench {
    pub gate: Semaphore,
    pub begun: watch::Sender<usize>,
    pub ended: watch::Sender<usize>,
}

impl Default for Bench {
    fn default() -> Self {
        Self { gate: Semaphore::new(0), begun: watch::Sender::new(0), ended: watch::Sender::new(0) }
    }
}

/// Waits until a count is reached.
pub async fn reached(count: &watch::Sender<usize>, at_least: usize) {
    let mut count = count.subscribe();
    timeout(LONG, count.wait_for(|count| *count >= at_least)).await.expect("the count is reached").expect("it is there");
}

impl PeerService for Bench {
    fn serve(&self, request: PeerRequest) -> BoxFuture<'_, Result<Bytes, PeerRefusal>> {
        Box::pin(async move {
            self.begun.send_modify(|count| *count += 1);
            let answer = match request.op {
                ECHO => request.body.clone(),
                HOLD => {
                    self.gate.acquire().await.expect("never closed").forget();
                    request.body.clone()
                }
                BREAK => panic!("as it was told"),
                LARGE => vec![7; u32::from_be_bytes((*request.body).try_into().expect("four bytes")) as usize].into(),
                WATCH => {
                    while !request.caller.is_gone() {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Bytes::new()
                }
                WHO => format!("{} {}", request.from, request.class).into(),
                _ => return Err(PeerRefusal::UnknownOp),
            };
            self.ended.send_modify(|count| *count += 1);
            Ok(answer)
        })
    }
}

struct TestAdmission(Hello);

impl Admission for TestAdmission {
    fn hello(&self) -> Hello {
        self.0.clone()
    }

    fn admit(&self, hello: &Hello) -> Result<(), PeerRefusal> {
        // As a node that is not yet of any lineage would: it takes what it finds.
        let fits = self.0.lineage.is_none() || self.0.lineage == hello.lineage;
        fits.then_some(()).ok_or(PeerRefusal::NotAdmitted)
    }
}

pub fn identity(node: &str, current: &str, previous: Option<&str>) -> Arc<ClusterIdentity> {
    let parse = |text| ClusterSecret::parse(text).expect("long enough");
    let secrets = ClusterSecrets { current: parse(current), previous: previous.map(parse) };
    Arc::new(ClusterIdentity::new(&NodeId(node.into()), &secrets).expect("an identity"))
}

/// A node.
pub struct Node {
    pub name: NodeId,
    pub endpoint: Endpoint,
    pub peers: Arc<QuicPeers>,
    pub bench: Arc<Bench>,
    pub stop: CancellationToken,
    pub running: JoinHandle<()>,
}

pub const ANY: &str = "127.0.0.1:0";

/// A node of the cluster.
pub fn node(name: &str) -> Node {
    Node::of(name, identity(name, SECRET, None), None, ANY)
}

impl Node {
    pub fn of(name: &str, identity: Arc<ClusterIdentity>, lineage: Option<&str>, addr: &str) -> Self {
        let addr = addr.parse().expect("an address");
        Self::try_of(name, identity, lineage, addr).expect("a free port")
    }

    pub fn try_of(
        name: &str,
        identity: Arc<ClusterIdentity>,
        lineage: Option<&str>,
        addr: SocketAddr,
    ) -> Result<Self, veena_peer::EndpointError> {
        let name = NodeId(name.into());
        let endpoint = Endpoint::bind(addr, identity)?;
        let admission: Arc<dyn Admission> = Arc::new(TestAdmission(Hello { node: name.clone(), lineage: lineage.map(str::to_owned) }));
        let (bench, stop) = (Arc::new(Bench::default()), CancellationToken::new());
        let server = Server::new(endpoint.clone(), Arc::clone(&admission), Arc::clone(&bench) as Arc<dyn PeerService>);
        let running = tokio::spawn(server.run(stop.clone()));
        let peers = Arc::new(QuicPeers::new(endpoint.clone(), admission));
        Ok(Self { name, endpoint, peers, bench, stop, running })
    }

    pub fn socket(&self) -> SocketAddr {
        self.endpoint.local_addr().expect("an address")
    }

    pub fn addr(&self) -> PeerAddr {
        peer(&self.name.0, self.socket())
    }

    /// Calls with time enough.
    pub async fn call(&self, to: &PeerAddr, class: PeerClass, op: PeerOp, body: impl Into<Bytes>) -> Result<Bytes, PeerError> {
        self.call_within(to, class, op, body, LONG).await
    }

    pub async fn call_within(
        &self,
        to: &PeerAddr,
        class: PeerClass,
        op: PeerOp,
        body: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes, PeerError> {
        self.peers.call(to, PeerCall { class, op, timeout, body: body.into() }).await
    }

    /// A call that goes on by itself.
    pub fn begin(&self, to: &PeerAddr, class: PeerClass, op: PeerOp, body: impl Into<Bytes>) -> JoinHandle<Result<Bytes, PeerError>> {
        let (peers, to, body) = (Arc::clone(&self.peers), to.clone(), body.into());
        tokio::spawn(async move { peers.call(&to, PeerCall { class, op, timeout: LONG, body }).await })
    }
}

pub fn peer(name: &str, addr: SocketAddr) -> PeerAddr {
    PeerAddr { node: NodeId(name.into()), addr: addr.to_string().into() }
}

/// A node in a process of its own, as far as the others can tell: when that goes, nobody is told.
pub struct Process {
    pub node: Node,
    runtime: Runtime,
}

impl Process {
    pub fn start(name: &str) -> Self {
        Self::start_at(name, ANY.parse().expect("an address")).expect("a free port")
    }

    fn start_at(name: &str, addr: SocketAddr) -> Result<Self, veena_peer::EndpointError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let guard = runtime.enter();
        let node = Node::try_of(name, identity(name, SECRET, None), None, addr);
        drop(guard);
        match node {
            Ok(node) => Ok(Self { node, runtime }),
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Ends without a word. Its calls hang, its port is free soon.
    pub fn kill(self) -> SocketAddr {
        let addr = self.node.socket();
        self.runtime.shutdown_background();
        addr
    }

    /// Starts where another was killed.
    pub async fn restart(name: &str, addr: SocketAddr) -> Self {
        let started = async {
            loop {
                match Self::start_at(name, addr) {
                    Ok(process) => return process,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(LONG, started).await.expect("the port becomes free")
    }

    pub fn end(self) {
        self.runtime.shutdown_background();
    }
}
