//! Several nodes on one network. Each node has a runtime of its own, so that it can die whole or stand still, as a process does; the runtimes
//! are moved on together, a millisecond at a time ([`lockstep`]). Clients and faults run outside of all nodes, in a runtime of their own.

pub mod growth;
pub mod lockstep;
pub mod member;
pub mod moves;
pub mod net;
pub mod scenario;
pub mod storm;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use veena_contract::NodeId;

use crate::disk::Watch;
use crate::door::NoAnswer;
use crate::life::End;
use crate::node::Node;
use crate::world::World;
use net::Net;

/// A request is answered within this, whatever happens to other nodes; the node that is asked may stand still for a part of it.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a node that stops waits for requests under way.
const REQUESTS_END_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a process does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    #[default]
    Down,
    /// It starts.
    Starting,
    /// It serves.
    Up,
    /// It could not start.
    Failed(String),
    /// It was told to stop, then.
    Stopping(u64),
    /// It has stopped, and was told to then.
    Stopped(u64),
}

/// What a process finds where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finds {
    /// What the one before it has left.
    Everything,
    /// Nothing: another directory was put in the place of its own.
    Nothing,
}

/// What is to be done to a node before time goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// It starts, if it is down.
    Start(usize, Finds),
    /// It ends, if it is not down.
    End(usize, End),
    /// It stands still.
    Pause(usize, Duration),
}

/// The process of a node, as others see it.
#[derive(Default)]
pub(crate) struct Seat {
    stage: Stage,
    handle: Option<Handle>,
    node: Option<Node>,
    watch: Option<Arc<Watch>>,
    /// What clients have asked of it, and some of what was answered.
    requests: Vec<Asking>,
    /// It cannot go on: the power goes at some call of its disk, which may not have come yet, or it has lost its directory.
    is_doomed: bool,
}

/// A request to a node, as the node's process has it.
struct Asking {
    task: AbortHandle,
    /// Dropped with the process, in the order in which was asked: a runtime that ends drops its tasks in an order that depends on how many
    /// tasks there ever were, and whoever asked would go on in that order.
    _process: oneshot::Sender<()>,
}

/// Several nodes.
pub struct Cluster {
    /// The world.
    pub world: Arc<World>,
    /// What is between them.
    pub net: Arc<Net>,
    seats: Vec<Mutex<Seat>>,
    orders: Mutex<Vec<Order>>,
}

/// Takes a request back when dropped.
struct Asked(AbortHandle);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    /// Nodes that are all down.
    #[must_use]
    pub fn new(world: Arc<World>, net: Arc<Net>) -> Arc<Self> {
        let seats = world.machines.iter().map(|_| Mutex::default()).collect();
        Arc::new(Self { world, net, seats, orders: Mutex::default() })
    }

    /// How many nodes there are, up or down.
    #[must_use]
    pub fn size(&self) -> usize {
        self.seats.len()
    }

    /// Which machine a node is on.
    #[must_use]
    pub fn place_of(&self, node: &NodeId) -> Option<usize> {
        self.world.machines.iter().position(|machine| machine.name == node.0)
    }

    /// A node that serves.
    #[must_use]
    pub fn node(&self, at: usize) -> Option<Node> {
        self.seats[at].lock().node.clone()
    }

    /// All that serve.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        (0..self.size()).filter_map(|at| self.node(at))
    }

    /// What the process of a node does.
    #[must_use]
    pub fn stage(&self, at: usize) -> Stage {
        self.seats[at].lock().stage.clone()
    }

    /// The watch over the life of a node.
    #[must_use]
    pub fn watch(&self, at: usize) -> Option<Arc<Watch>> {
        self.seats[at].lock().watch.clone()
    }

    /// Asks a node that serves. Dropped, the request is taken back.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn ask<T, F>(&self, at: usize, ask: impl FnOnce(Node) -> F + Send + 'static) -> Result<T, NoAnswer>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (process, process_ends) = oneshot::channel();
        let task = {
            let mut seat = self.seats[at].lock();
            let (Stage::Up, Some(handle), Some(node)) = (&seat.stage, &seat.handle, seat.node.clone()) else {
                return Err(NoAnswer::Refused);
            };
            let task = handle.spawn(async move { ask(node).await });
            seat.requests.retain(|request| !request.task.is_finished());
            seat.requests.push(Asking { task: task.abort_handle(), _process: process });
            task
        };
        let _asked = Asked(task.abort_handle());
        let name = &self.world.machines[at].name;
        let answered = tokio::select! {
            biased;
            answered = timeout(ANSWER_WITHIN, task) => answered,
            _ = process_ends => return Err(NoAnswer::Lost),
        };
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failed)) => {
                if failed.is_panic() {
                    self.world.complain(format!("{name} panicked while it was asked"));
                }
                Err(NoAnswer::Lost)
            }
            Err(_) => {
                self.world.complain(format!("{name} has not answered within {ANSWER_WITHIN:?}"));
                Err(NoAnswer::Lost)
            }
        }
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.lock().push(order);
    }

    /// A node starts, if it is down.
    pub(crate) fn start(&self, at: usize) {
        self.order(Order::Start(at, Finds::Everything));
    }

    /// The power goes at one of the next calls of a node's disk.
    pub(crate) fn doom(&self, at: usize, call: u64) {
        self.seats[at].lock().is_doomed = true;
        self.world.machines[at].disk.lock().cut_power_at(call);
    }

    pub(crate) fn is_doomed(&self, at: usize) -> bool {
        self.seats[at].lock().is_doomed
    }

    /// Tells a node to stop, and does not wait for it. As in the program, clients are shut out first.
    pub(crate) fn stop(self: &Arc<Self>, at: usize) {
        let mut seat = self.seats[at].lock();
        let (Stage::Up, Some(handle), Some(node)) = (&seat.stage, seat.handle.clone(), seat.node.clone()) else { return };
        let since = self.world.time.stamp_us();
        seat.stage = Stage::Stopping(since);
        drop(seat);
        let cluster = Arc::clone(self);
        drop(handle.spawn(async move {
            node.broker.begin_stop();
            let is_idle = |cluster: &Self| cluster.seats[at].lock().requests.iter().all(|request| request.task.is_finished());
            if !cluster.until(REQUESTS_END_WITHIN, is_idle).await {
                cluster.seats[at].lock().requests.iter().for_each(|request| request.task.abort());
            }
            node.broker.stop().await;
            cluster.net.hang_up(at);
            node.metastore.shutdown().await;
            cluster.seats[at].lock().stage = Stage::Stopped(since);
        }));
    }

    /// Waits until something is so, at most this long; says whether it is.
    pub(crate) async fn until(&self, within: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let waiting = async {
            while !is_so(self) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        timeout(within, waiting).await.is_ok()
    }
}
