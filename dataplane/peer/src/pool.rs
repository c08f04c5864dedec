//! Connections to other nodes: one per node and class, made when it is needed, kept while it lives.
//!
//! A node that cannot be reached is not tried again for a while: who asks meanwhile is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{ClientConfig, Connection, VarInt};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};
use veena_auth::{SecretId, tls};
use veena_contract::{NodeId, PeerAddr, PeerClass, limits};

use crate::endpoint::Endpoint;
use crate::hello::{Admission, Greeting, HelloError, greet};

/// The connection of one node and class.
#[derive(Default)]
struct Slot {
    /// And the address it was made to.
    live: Option<(Arc<str>, Connection)>,
    failed: Option<Failed>,
}

struct Failed {
    addr: Arc<str>,
    reason: String,
    /// Until then nobody tries again.
    until: Instant,
    pause: Duration,
}

type Slots = BTreeMap<(NodeId, PeerClass), Arc<tokio::sync::Mutex<Slot>>>;

/// All connections that this node has opened.
pub(crate) struct Pool {
    endpoint: Endpoint,
    admission: Arc<dyn Admission>,
    slots: Mutex<Slots>,
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
    SomebodyElse(String),
    #[error(transparent)]
    Hello(#[from] HelloError),
}

impl Pool {
    pub fn new(endpoint: Endpoint, admission: Arc<dyn Admission>) -> Self {
        Self { endpoint, admission, slots: Mutex::default() }
    }

    /// The connection to a node, or why there is none.
    pub async fn connection(&self, to: &PeerAddr, class: PeerClass) -> Result<Connection, String> {
        let slot = Arc::clone(self.slots.lock().entry((to.node.clone(), class)).or_default());
        // Whoever comes while somebody connects waits for the same connection.
        let mut slot = slot.lock().await;
        if let Some((addr, connection)) = &slot.live {
            if *addr == to.addr && connection.close_reason().is_none() {
                return Ok(connection.clone());
            }
            connection.close(VarInt::from_u32(0), b"the node has moved");
            slot.live = None;
        }
        if let Some(failed) = slot.failed.as_ref().filter(|failed| failed.addr == to.addr && Instant::now() < failed.until) {
            return Err(failed.reason.clone());
        }
        let connecting = timeout(Duration::from_millis(limits::PEER_CONNECT_MS_MAX), self.connect(to, class)).await;
        match connecting.unwrap_or(Err(ConnectError::Silent)) {
            Ok(connection) => {
                info!(node = %to.node, class = %class, addr = %to.addr, "connected");
                *slot = Slot { live: Some((Arc::clone(&to.addr), connection.clone())), failed: None };
                Ok(connection)
            }
            Err(error) => {
                let reason = error.to_string();
                debug!(node = %to.node, class = %class, addr = %to.addr, %reason, "no connection");
                let (pause_min, pause_max) = (limits::PEER_UNREACHABLE_MS_MIN, limits::PEER_UNREACHABLE_MS_MAX);
                let pause = slot.failed.as_ref().map_or(Duration::from_millis(pause_min), |failed| failed.pause * 2);
                let pause = pause.min(Duration::from_millis(pause_max));
                let failed = Failed { addr: Arc::clone(&to.addr), reason: reason.clone(), until: Instant::now() + pause, pause };
                slot.failed = Some(failed);
                Err(reason)
            }
        }
    }

    async fn connect(&self, to: &PeerAddr, class: PeerClass) -> Result<Connection, ConnectError> {
        let mut last = None;
        // A node that does not know our newest secret yet may know the one before.
        for (secret, config) in self.endpoint.clients(class) {
            match self.connect_under(to, secret, config).await {
                Err(ConnectError::Refused(reason)) => last = Some(ConnectError::Refused(reason)),
                done => return done,
            }
        }
        Err(last.unwrap_or(ConnectError::Silent))
    }

    async fn connect_under(&self, to: &PeerAddr, secret: &SecretId, config: &ClientConfig) -> Result<Connection, ConnectError> {
        let mut found = lookup_host(&*to.addr).await.map_err(|error| ConnectError::Resolve(error.to_string()))?;
        let addr = found.next().ok_or_else(|| ConnectError::Resolve("it has no address".to_owned()))?;
        let refused = |error: &dyn std::fmt::Display| ConnectError::Refused(error.to_string());
        let connecting = self.endpoint.quic.connect_with(config.clone(), addr, &tls::server_name(secret)).map_err(|error| refused(&error))?;
        let connection = connecting.await.map_err(|error| match error {
            quinn::ConnectionError::TimedOut => ConnectError::Silent,
            error => refused(&error),
        })?;
        let own = self.admission.hello();
        let greeting = Greeting::new(&connection, &self.endpoint.identity, secret)?;
        let there = match greet(&connection, &greeting, &own).await {
            // With TLS 1.3 the side that connects is done before the other has looked at its certificate.
            Err(HelloError::Ended(reason)) => Err(ConnectError::Refused(reason)),
            other => other.map_err(ConnectError::Hello),
        };
        let there = there.inspect_err(|_| connection.close(VarInt::from_u32(1), b"no hello"))?;
        if there.node != *to.node.0 {
            connection.close(VarInt::from_u32(1), b"somebody else");
            return Err(ConnectError::SomebodyElse(there.node));
        }
        Ok(connection)
    }
}
