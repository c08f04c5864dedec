//! Connections to other nodes: one per node and class, made when it is needed, kept while it lives.
//!
//! A node that cannot be reached is not tried again for a while: who asks meanwhile is told at once. A connection is made in a task of its
//! own, so that callers who cannot wait for it do not keep it from being made.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{ClientConfig, Connection, VarInt};
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};
use veena_auth::{SecretId, tls};
use veena_contract::{NodeId, PeerAddr, PeerClass, PeerError, limits};

use crate::endpoint::Endpoint;
use crate::hello::{Admission, Greeting, HelloError, greet};

type Made = Result<Connection, PeerError>;
/// What becomes of a connection that is being made.
type Making = watch::Receiver<Option<Made>>;

/// The connection of one node and class.
struct Slot {
    /// To where.
    addr: Arc<str>,
    /// For how long nobody tries again if this one fails.
    pause: Duration,
    state: State,
}

enum State {
    Making(Making),
    Live(Connection),
    Failed { error: PeerError, until: Instant },
}

/// All connections that this node has opened.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    making: Mutex<JoinSet<()>>,
}

struct Shared {
    endpoint: Endpoint,
    admission: Arc<dyn Admission>,
    slots: Mutex<BTreeMap<(NodeId, PeerClass), Slot>>,
}

/// Why there is no connection. Nothing of a call was sent.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("its name cannot be resolved: {0}")]
    Resolve(String),
    #[error("{0}")]
    Refused(String),
    #[error("it does not answer")]
    Silent,
    #[error("the node there is {0}")]
    SomebodyElse(NodeId),
    #[error("this node does not talk to it")]
    NotAdmitted,
    #[error("it does not know the cluster secret of this node, or is no node of ours ({0})")]
    OtherSecret(String),
    #[error(transparent)]
    Hello(#[from] HelloError),
}

impl Pool {
    pub fn new(endpoint: Endpoint, admission: Arc<dyn Admission>) -> Self {
        let shared = Shared { endpoint, admission, slots: Mutex::default() };
        Self { shared: Arc::new(shared), making: Mutex::default() }
    }

    /// The connection to a node, or why there is none.
    pub async fn connection(&self, to: &PeerAddr, class: PeerClass) -> Made {
        let mut making = match self.find(to, class) {
            State::Live(connection) => return Ok(connection),
            State::Failed { error, .. } => return Err(error),
            State::Making(making) => making,
        };
        let made = making.wait_for(Option::is_some).await.ok().and_then(|made| made.clone());
        made.unwrap_or_else(|| Err(unreachable(&to.node, "the attempt was given up")))
    }

    /// What there is. If there is nothing, a connection begins to be made.
    fn find(&self, to: &PeerAddr, class: PeerClass) -> State {
        let mut slots = self.shared.slots.lock();
        let mut pause = Duration::from_millis(limits::PEER_UNREACHABLE_MS_MIN);
        // A connection to where the node was before is let go; it ends with the calls on it.
        if let Some(slot) = slots.get(&(to.node.clone(), class)).filter(|slot| slot.addr == to.addr) {
            match &slot.state {
                State::Live(connection) if connection.close_reason().is_none() => return State::Live(connection.clone()),
                State::Failed { error, until } if Instant::now() < *until => return State::Failed { error: error.clone(), until: *until },
                State::Failed { .. } => pause = (slot.pause * 2).min(Duration::from_millis(limits::PEER_UNREACHABLE_MS_MAX)),
                // not one whose task broke
                State::Making(making) if making.has_changed().is_ok() => return State::Making(making.clone()),
                State::Live(_) | State::Making(_) => {}
            }
        }
        let (tell, making) = watch::channel(None);
        let slot = Slot { addr: Arc::clone(&to.addr), pause, state: State::Making(making.clone()) };
        slots.insert((to.node.clone(), class), slot);
        let mut tasks = self.making.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(Arc::clone(&self.shared).make(to.clone(), class, tell));
        State::Making(making)
    }
}

impl Shared {
    async fn make(self: Arc<Self>, to: PeerAddr, class: PeerClass, tell: watch::Sender<Option<Made>>) {
        let connecting = timeout(Duration::from_millis(limits::PEER_CONNECT_MS_MAX), self.connect(&to, class)).await;
        let made = connecting.unwrap_or(Err(ConnectError::Silent)).map_err(|error| match error {
            ConnectError::Hello(HelloError::Refused(refusal)) => PeerError::Refused { node: to.node.clone(), refusal },
            error => unreachable(&to.node, &error.to_string()),
        });
        let is_first = |slot: &Slot| slot.pause <= Duration::from_millis(limits::PEER_UNREACHABLE_MS_MIN);
        match &made {
            Ok(_) => info!(node = %to.node, %class, addr = %to.addr, "connected"),
            // Told once: it is tried again and again.
            Err(error) if self.slots.lock().get(&(to.node.clone(), class)).is_some_and(is_first) => {
                info!(%class, addr = %to.addr, %error, "no connection; it is tried again until there is one");
            }
            Err(error) => debug!(%class, addr = %to.addr, %error, "no connection"),
        }
        if let Some(slot) = self.slots.lock().get_mut(&(to.node, class)) {
            // unless the node has moved meanwhile
            if matches!(&slot.state, State::Making(making) if making.same_channel(&tell.subscribe())) {
                slot.state = match &made {
                    Ok(connection) => State::Live(connection.clone()),
                    Err(error) => State::Failed { error: error.clone(), until: Instant::now() + slot.pause },
                };
            }
        }
        tell.send_replace(Some(made));
    }

    async fn connect(&self, to: &PeerAddr, class: PeerClass) -> Result<Connection, ConnectError> {
        let addr = self.resolve(&to.addr).await?;
        let mut last = ConnectError::Silent;
        // A node that does not know our newest secret yet may know the one before.
        for (secret, config) in self.endpoint.clients(class) {
            match self.connect_under(to, addr, secret, config).await {
                Err(error @ (ConnectError::Refused(_) | ConnectError::OtherSecret(_))) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    async fn resolve(&self, name: &str) -> Result<SocketAddr, ConnectError> {
        let error = |error: std::io::Error| ConnectError::Resolve(error.to_string());
        let ours = self.endpoint.local_addr().map_err(error)?;
        let mut found = lookup_host(name).await.map_err(error)?;
        // A socket for IPv6 reaches both kinds.
        found.find(|addr| addr.is_ipv4() || ours.is_ipv6()).ok_or_else(|| ConnectError::Resolve("it has no address".to_owned()))
    }

    async fn connect_under(
        &self,
        to: &PeerAddr,
        addr: SocketAddr,
        secret: &SecretId,
        config: &ClientConfig,
    ) -> Result<Connection, ConnectError> {
        let refused = |error: &dyn std::fmt::Display| ConnectError::Refused(error.to_string());
        let connecting =
            self.endpoint.quic.connect_with(config.clone(), addr, &tls::server_name(secret)).map_err(|error| refused(&error))?;
        let connection = connecting.await.map_err(|error| match error {
            quinn::ConnectionError::TimedOut => ConnectError::Silent,
            error if is_of_tls(&error) => ConnectError::OtherSecret(error.to_string()),
            error => refused(&error),
        })?;
        let there = self.greeted(&connection, secret).await;
        let fitting = there.and_then(|there| match () {
            () if there.node != to.node => Err(ConnectError::SomebodyElse(there.node)),
            () => self.admission.admit(&there).map_err(|_| ConnectError::NotAdmitted),
        });
        fitting.inspect_err(|_| connection.close(VarInt::from_u32(1), b"not whom I want"))?;
        Ok(connection)
    }

    async fn greeted(&self, connection: &Connection, secret: &SecretId) -> Result<crate::Hello, ConnectError> {
        let greeting = Greeting::new(connection, &self.endpoint.identity, secret)?;
        greet(connection, &greeting, &self.admission.hello()).await.map_err(|error| match error {
            // With TLS 1.3 the side that connects is done before the other has looked at its certificate.
            HelloError::Ended(reason) => ConnectError::Refused(reason),
            error => ConnectError::Hello(error),
        })
    }
}

/// Did TLS fail, on either side? Nodes of one cluster always agree on it.
fn is_of_tls(error: &quinn::ConnectionError) -> bool {
    let code = match error {
        quinn::ConnectionError::TransportError(error) => error.code,
        quinn::ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return false,
    };
    // RFC 9001, 4.8: a TLS alert and this
    (0x100..0x200).contains(&u64::from(code))
}

pub(crate) fn unreachable(node: &NodeId, reason: &str) -> PeerError {
    PeerError::Unreachable { node: node.clone(), reason: reason.to_owned() }
}
