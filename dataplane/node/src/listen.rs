//! Opening the port: who is let in, before anything else is started.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, lookup_host};

/// The port cannot be opened, or must not be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not `host:port`.
    #[error("{key} {addr:?}: want host:port")]
    Malformed {
        /// Which setting.
        key: &'static str,
        /// What was configured.
        addr: String,
    },
    /// The name cannot be resolved.
    #[error("{key} {addr:?}: cannot be resolved")]
    Unresolved {
        /// Which setting.
        key: &'static str,
        /// What was configured.
        addr: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Other machines would be let in.
    #[error("{key} {addr} is reachable from other machines: {danger}; listen on 127.0.0.1, or say --insecure-listen")]
    NotLoopback {
        /// Which setting.
        key: &'static str,
        /// What could happen.
        danger: &'static str,
        /// What it resolved to.
        addr: SocketAddr,
    },
    /// The port is taken, or not ours.
    #[error("cannot listen on {addr}")]
    Refused {
        /// What was tried.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An open port.
#[derive(Debug)]
pub struct Listening {
    /// Accepts connections; they wait in its backlog until somebody does.
    pub listener: TcpListener,
    /// Where it listens; the port is real even when 0 was asked for.
    pub addr: SocketAddr,
    /// Can other machines reach it?
    pub is_open: bool,
}

/// The two halves of `host:port`; the host may be empty.
pub(crate) fn host_and_port(addr: &str) -> Option<(&str, u16)> {
    let (host, port) = addr.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// A setting that says where to listen.
#[derive(Clone, Copy)]
pub(crate) struct Port {
    pub key: &'static str,
    /// What could happen if other machines reached it.
    pub danger: &'static str,
}

/// Where clients come in, when nobody is asked who they are.
pub(crate) const HTTP_OPEN: Port = Port { key: "http.addr", danger: "security is off, and anybody could read and delete everything" };
/// Where clients come in as users: without TLS passwords and messages pass as they are.
pub(crate) const HTTP: Port = Port {
    key: "http.addr",
    danger: "passwords and messages could be read on the way, unless a proxy with TLS stands in front of it: set http.tls.cert_file and http.tls.key_file",
};

impl Port {
    /// Where to listen. An address that other machines can reach is refused unless `allow_open`.
    pub(crate) async fn resolve(self, addr: &str, allow_open: bool) -> Result<SocketAddr, ListenError> {
        let Self { key, danger } = self;
        let (host, port) = host_and_port(addr).ok_or_else(|| ListenError::Malformed { key, addr: addr.to_owned() })?;
        let host = if host.is_empty() { "0.0.0.0" } else { host.trim_start_matches('[').trim_end_matches(']') };
        let unresolved = |source| ListenError::Unresolved { key, addr: addr.to_owned(), source };
        let mut found = lookup_host((host, port)).await.map_err(unresolved)?;
        let target = found.next().ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
        if !target.ip().is_loopback() && !allow_open {
            return Err(ListenError::NotLoopback { key, danger, addr: target });
        }
        Ok(target)
    }
}

/// How callers come in.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Callers are users.
    pub is_secured: bool,
    /// What they send cannot be read on the way.
    pub has_tls: bool,
    /// Somebody has said that others are let in without these.
    pub allow_open: bool,
}

impl Way {
    /// May an address be one that other machines can reach?
    pub(crate) const fn may_be_reached(self) -> bool {
        self.allow_open || (self.is_secured && self.has_tls)
    }
}

/// Opens the port for clients. An address that other machines can reach is refused, unless callers are users and speak TLS, or it is allowed.
///
/// # Errors
/// [`ListenError`].
pub async fn listen(addr: &str, way: Way) -> Result<Listening, ListenError> {
    let port = if way.is_secured { HTTP } else { HTTP_OPEN };
    let target = port.resolve(addr, way.may_be_reached()).await?;
    let refused = |source| ListenError::Refused { addr: target, source };
    let listener = TcpListener::bind(target).await.map_err(refused)?;
    let addr = listener.local_addr().map_err(refused)?;
    Ok(Listening { listener, addr, is_open: !target.ip().is_loopback() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn way(is_secured: bool, has_tls: bool, allow_open: bool) -> Way {
        Way { is_secured, has_tls, allow_open }
    }

    #[tokio::test]
    async fn an_address_that_others_can_reach_is_refused_unless_allowed() {
        for (addr, is_secured, has_tls, danger) in [
            (":0", true, false, "passwords"),
            ("0.0.0.0:0", true, false, "passwords"),
            (":0", false, false, "security is off"),
            (":0", false, true, "security is off"),
        ] {
            let refused = listen(addr, way(is_secured, has_tls, false)).await.expect_err("refused");
            assert!(matches!(refused, ListenError::NotLoopback { .. }) && refused.to_string().contains(danger), "{addr}: {refused}");
            assert!(listen(addr, way(is_secured, has_tls, true)).await.expect("allowed").is_open);
        }
        assert!(listen(":0", way(true, true, false)).await.expect("users, and TLS").is_open);
        let listening = listen("127.0.0.1:0", way(true, false, false)).await.expect("loopback");
        assert!(!listening.is_open && listening.addr.port() != 0);
    }

    #[tokio::test]
    async fn an_address_without_a_port_is_refused() {
        for addr in ["", "localhost", "localhost:", "localhost:x", "localhost:70000"] {
            assert!(matches!(listen(addr, way(true, false, true)).await, Err(ListenError::Malformed { .. })), "{addr}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_said_to_be_taken() {
        let first = listen("127.0.0.1:0", way(true, false, false)).await.expect("a free port");
        let again = listen(&first.addr.to_string(), way(true, false, false)).await;
        assert!(matches!(again, Err(ListenError::Refused { .. })));
    }
}
