//! The socket of a node's peer plane, and what both sides of a connection agree on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt};
use quinn_proto::RandomConnectionIdGenerator;
use veena_auth::{ClusterIdentity, IdentityError, SecretId};
use veena_contract::{PeerClass, limits};

/// How many bytes of one call may be under way unread.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// How many bytes of one connection may be under way unread.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024 * 1024;

/// Calls that wait to be read must not use up what the one that is being read needs.
const _: () = {
    assert!(limits::PEER_DATA_CALLS_MAX * STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
    assert!(limits::PEER_SETTLE_CALLS_MAX as usize * limits::PEER_SETTLE_BYTES_MAX <= CONNECTION_WINDOW_BYTES as usize);
    assert!(limits::PEER_CONTROL_CALLS_MAX * STREAM_WINDOW_BYTES <= CONNECTION_WINDOW_BYTES);
};

/// The protocol of each class, as both sides name it when they connect.
pub(crate) const PROTOCOLS: [(PeerClass, &str); PeerClass::ALL.len()] = [
    (PeerClass::Control, "veena-control/1"),
    (PeerClass::Data, "veena-data/1"),
    (PeerClass::Wait, "veena-wait/1"),
    (PeerClass::Settle, "veena-settle/1"),
];

/// How many calls of a class may be open on one connection.
pub(crate) const fn calls_max(class: PeerClass) -> u32 {
    match class {
        PeerClass::Control => limits::PEER_CONTROL_CALLS_MAX,
        PeerClass::Data => limits::PEER_DATA_CALLS_MAX,
        PeerClass::Wait => limits::PEER_WAIT_CALLS_MAX,
        PeerClass::Settle => limits::PEER_SETTLE_CALLS_MAX,
    }
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The port cannot be opened.
    #[error("the peer plane cannot listen on {addr}")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// TLS has no cipher that QUIC begins with.
    #[error("QUIC cannot be set up")]
    Quic(#[from] NoInitialCipherSuite),
}

/// A socket that connects to other nodes and takes their connections.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) quic: quinn::Endpoint,
    pub(crate) identity: Arc<ClusterIdentity>,
    clients: Arc<[Client]>,
}

/// How to connect for a class under a secret.
struct Client {
    class: PeerClass,
    secret: SecretId,
    config: ClientConfig,
}

impl Endpoint {
    /// Opens a UDP port. Connections are taken once a [`Server`](crate::Server) runs. Must be called in a runtime.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn bind(addr: SocketAddr, identity: Arc<ClusterIdentity>) -> Result<Self, EndpointError> {
        let tls = identity.server_config(&PROTOCOLS.map(|(_, protocol)| protocol))?;
        let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        // one call, the first exchange; more once that is done
        server.transport_config(Arc::new(transport(1, None))).max_incoming(limits::PEER_CONNECTIONS_MAX);
        let mut clients = Vec::new();
        for (class, protocol) in PROTOCOLS {
            for secret in identity.ids() {
                let Some(tls) = identity.client_config(secret, protocol)? else { continue };
                let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
                // One side probes, the other answers.
                config.transport_config(Arc::new(transport(0, Some(Duration::from_millis(limits::PEER_KEEP_ALIVE_MS)))));
                clients.push(Client { class, secret: secret.clone(), config });
            }
        }
        let listen = |source| EndpointError::Listen { addr, source };
        let socket = std::net::UdpSocket::bind(addr).map_err(listen)?;
        // Whoever still holds a connection to this node's life before is told so, instead of waiting for silence. Names of connections that
        // are checked, as is quinn's default, would be none to the next life, and what comes for them be dropped.
        let mut config = EndpointConfig::new(Arc::new(identity.reset_key()));
        config.cid_generator(|| Box::<RandomConnectionIdGenerator>::default());
        let quic = quinn::Endpoint::new(config, Some(server), socket, Arc::new(quinn::TokioRuntime)).map_err(listen)?;
        Ok(Self { quic, identity, clients: clients.into() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Of the socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.quic.local_addr()
    }

    pub(crate) fn clients(&self, class: PeerClass) -> impl Iterator<Item = (&SecretId, &ClientConfig)> {
        self.clients.iter().filter(move |client| client.class == class).map(|client| (&client.secret, &client.config))
    }

    /// Ends every connection, and waits until the others were told.
    pub async fn close(&self) {
        self.quic.close(VarInt::from_u32(0), b"stopping");
        self.quic.wait_idle().await;
    }
}

fn transport(calls: u32, keep_alive: Option<Duration>) -> TransportConfig {
    let mut transport = TransportConfig::default();
    let silence = u32::try_from(limits::PEER_SILENCE_MS_MAX).unwrap_or(u32::MAX);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(calls))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(u64::from(CONNECTION_WINDOW_BYTES))
        .keep_alive_interval(keep_alive)
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(silence))));
    transport
}
