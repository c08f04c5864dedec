//! One life of a node among others: wired as the program wires it, with the simulated network in place of QUIC.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use veena_broker::Broker;
use veena_broker::ports::{BrokerPorts, Peers};
use veena_broker::tasks::{OnExit, Tasks};
use veena_contract::{BoxFuture, Entropy, LeaderPort, NodeId, PeerOp, PeerRefusal, PeerRequest, PeerService, Witness, limits};
use veena_loadtest_checker::NodeChange;
use veena_metastore::{MemLog, MemberError, Metastore, MetastoreConfig, Runtime, StartError};
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::io::Io;

use super::net::{Line, address};
use super::{Cluster, Finds, Stage};
use crate::disk::{Watch, WatchedDisk};
use crate::node::Node;

/// A node that is not let in asks again.
const ENTER_AGAIN: Duration = Duration::from_millis(100);

/// What other nodes ask of this one: the metastore's calls first, then the engine's, of members alone.
pub(super) struct Service {
    metastore: Metastore,
    engine: OnceLock<Broker>,
}

impl Service {
    async fn serve_engine(&self, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
        if !self.metastore.is_member(&request.from) {
            return Err(PeerRefusal::NotAdmitted);
        }
        match self.engine.get().ok_or(PeerRefusal::NotServing)?.serve_peer(request) {
            Some(served) => served.await,
            None => Err(PeerRefusal::UnknownOp),
        }
    }
}

impl PeerService for Service {
    fn serve(&self, request: PeerRequest) -> BoxFuture<'_, Result<Bytes, PeerRefusal>> {
        if request.op == PeerOp::NODE_ALIVE {
            return Box::pin(std::future::ready(Ok(Bytes::new())));
        }
        match self.metastore.serve(request.clone()) {
            Some(served) => served,
            None => Box::pin(self.serve_engine(request)),
        }
    }
}

/// Starts a node, and says in its seat what became of it. Called inside the runtime of its life.
pub(super) async fn boot(cluster: Arc<Cluster>, at: usize, finds: Finds, watch: Arc<Watch>) {
    let world = &cluster.world;
    let started = start(&cluster, at, finds, &watch).await;
    let mut seat = cluster.seats[at].lock();
    match started {
        Ok(_) if finds == Finds::Nothing => {
            world.complain(format!("{} was let in, and has lost its directory", world.machines[at].name));
            seat.stage = Stage::Failed("it should have".to_owned());
        }
        Ok(node) => {
            let (machine, now) = (&world.machines[at], world.time.stamp_us());
            world.note_dead_time(machine);
            world.history.node(&machine.name, now, NodeChange::Started);
            seat.node = Some(node);
            seat.stage = Stage::Up;
        }
        Err(reason) => seat.stage = Stage::Failed(reason),
    }
}

async fn start(cluster: &Arc<Cluster>, at: usize, finds: Finds, watch: &Arc<Watch>) -> Result<Node, String> {
    let machine = &cluster.world.machines[at];
    let (disk, log, directory) = match finds {
        Finds::Everything => (machine.disk.lock().clone(), machine.catalog_log.clone(), Arc::clone(&machine.name)),
        Finds::Nothing => (MemDisk::new(), MemLog::new(), Arc::from("another")),
    };
    let disk: Arc<dyn Disk> = Arc::new(WatchedDisk::new(disk, Arc::clone(watch)));
    let config = machine.config.clone();
    veena_storage::disk::create_dir_durably(disk.as_ref(), &config.data_dir).map_err(|error| error.to_string())?;
    let entropy: Arc<dyn Entropy> = machine.entropy.clone();
    let runtime = Runtime::new(Arc::clone(&entropy));

    let mut settings = MetastoreConfig::new(machine.id());
    settings.consensus.addr = address(&machine.id()).addr;
    settings.consensus.directory = directory;
    settings.consensus.ready_within = Duration::from_millis(limits::CLUSTER_ENTER_MS_MAX);
    settings.consensus.snapshot_every = cluster.world.plan.snapshot_every;
    settings.consensus.entries_kept = cluster.world.plan.entries_kept;
    let line = Arc::new(Line::new(&cluster.net, at));
    let opened = Metastore::open(settings, log, &runtime, line.clone()).await;
    let metastore = opened.map_err(|error| error.to_string())?;
    let service = Arc::new(Service { metastore: metastore.clone(), engine: OnceLock::new() });
    cluster.net.listen(at, Handle::current(), service.clone());
    enter(cluster, at, &metastore, &runtime).await.map_err(|error| error.to_string())?;

    let tasks = Tasks::new(Handle::current());
    let ports = BrokerPorts {
        disk,
        write_io: Io::inline(),
        read_io: Io::inline(),
        catalog: Arc::new(metastore.clone()),
        writer: Arc::new(metastore.clone()),
        witness: Witness::new(Arc::new(metastore.clone()) as Arc<dyn LeaderPort>),
        clock: machine.clock.clone(),
        entropy,
        tasks: tasks.clone(),
        peers: Some(Peers { me: machine.id(), client: line, directory: Arc::new(metastore.clone()) }),
    };
    let broker = Broker::open(config, ports).await.map_err(|error| error.to_string())?;
    // There is one, and it is set once.
    let _first = service.engine.set(broker.clone());
    let (stop, voting) = (tasks.token().clone(), become_voter(metastore.clone(), machine.id()));
    tasks.spawn("become-voter", OnExit::Log, async move {
        let _ended = stop.run_until_cancelled(voting).await;
    });
    Ok(Node { broker, metastore, tasks, entropy: Arc::clone(&machine.entropy), clock: Arc::clone(&machine.clock) })
}

/// Founds the cluster or comes into it; goes on trying while the others may only be down.
async fn enter(cluster: &Cluster, at: usize, metastore: &Metastore, runtime: &Runtime) -> Result<(), StartError> {
    let others = cluster.world.machines.iter().enumerate().filter(|(other, _)| *other != at);
    let known: Vec<_> = others.map(|(_, machine)| address(&machine.id())).collect();
    loop {
        let entered = if at == 0 { metastore.found(runtime).await } else { metastore.enter(&known).await };
        match entered {
            Err(
                StartError::NotReady { .. }
                | StartError::Member(MemberError::NoLeader { .. } | MemberError::Lost { .. } | MemberError::Timeout { .. }),
            ) => tokio::time::sleep(ENTER_AGAIN).await,
            other => return other,
        }
    }
}

async fn become_voter(metastore: Metastore, me: NodeId) {
    while !metastore.status().members.iter().any(|member| member.is_voter && member.peer.node == me) {
        if metastore.promote(&me).await.is_err() {
            tokio::time::sleep(Duration::from_millis(limits::PROMOTE_AGAIN_MS)).await;
        }
    }
}
