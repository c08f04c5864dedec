//! Opening the port: who is let in, before anything else is started.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, lookup_host};

/// The port cannot be opened, or must not be.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address is not `host:port`.
    #[error("http.addr {addr:?}: want host:port")]
    Malformed {
        /// What was configured.
        addr: String,
    },
    /// The name cannot be resolved.
    #[error("http.addr {addr:?}: cannot be resolved")]
    Unresolved {
        /// What was configured.
        addr: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Other machines would be let in, without accounts.
    #[error(
        "http.addr {addr} is reachable from other machines and this version has no accounts: anybody could read and delete everything; \
         listen on 127.0.0.1, or say --insecure-listen"
    )]
    NotLoopback {
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

/// Opens the port. An address that other machines can reach is refused unless `allow_open`.
///
/// # Errors
/// [`ListenError`].
pub async fn listen(addr: &str, allow_open: bool) -> Result<Listening, ListenError> {
    let (host, port) = host_and_port(addr).ok_or_else(|| ListenError::Malformed { addr: addr.to_owned() })?;
    let host = if host.is_empty() { "0.0.0.0" } else { host.trim_start_matches('[').trim_end_matches(']') };
    let unresolved = |source| ListenError::Unresolved { addr: addr.to_owned(), source };
    let mut found = lookup_host((host, port)).await.map_err(unresolved)?;
    let target = found.next().ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
    let is_open = !target.ip().is_loopback();
    if is_open && !allow_open {
        return Err(ListenError::NotLoopback { addr: target });
    }
    let refused = |source| ListenError::Refused { addr: target, source };
    let listener = TcpListener::bind(target).await.map_err(refused)?;
    let addr = listener.local_addr().map_err(refused)?;
    Ok(Listening { listener, addr, is_open })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_others_can_reach_is_refused_unless_allowed() {
        for addr in [":0", "0.0.0.0:0"] {
            assert!(matches!(listen(addr, false).await, Err(ListenError::NotLoopback { .. })), "{addr}");
            assert!(listen(addr, true).await.expect("allowed").is_open);
        }
        let listening = listen("127.0.0.1:0", false).await.expect("loopback");
        assert!(!listening.is_open && listening.addr.port() != 0);
    }

    #[tokio::test]
    async fn an_address_without_a_port_is_refused() {
        for addr in ["", "localhost", "localhost:", "localhost:x", "localhost:70000"] {
            assert!(matches!(listen(addr, true).await, Err(ListenError::Malformed { .. })), "{addr}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_said_to_be_taken() {
        let first = listen("127.0.0.1:0", false).await.expect("a free port");
        let again = listen(&first.addr.to_string(), false).await;
        assert!(matches!(again, Err(ListenError::Refused { .. })));
    }
}
