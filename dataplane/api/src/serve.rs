//! Listening: accepting without spinning, one task a connection, all of them owned here and ended here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};
use veena_contract::{Quiet, limits};

use crate::body::RequestBody;
use crate::conn::{Conn, PhaseLimits, Watch};
use crate::edge;
use crate::handshake::shake_hands;
use crate::io::ClientIo;
use crate::state::ApiState;

/// hyper's read buffer holds the head and this much besides, so that it is we who answer 431.
const HEAD_SLACK_BYTES: usize = 16 * 1024;
/// How long after a stop has begun a connection without a request may take to send one. A client that rests longer between requests may find
/// the connection closed under one that it has just sent: nobody can spare it that.
pub(crate) const LATE_HEAD: Duration = Duration::from_secs(1);
/// How often, and how long each time, the listener's last place is tried for before it is closed.
const CLOSE_TRIES: u32 = 5;
const CLOSE_TRY: Duration = Duration::from_millis(50);
/// How often it is looked whether there is a leader.
const LEADER_LOOK: Duration = Duration::from_millis(limits::SECURITY_STALE_LOOK_MS);
const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(5);
const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Serves the plane until `shutdown` is cancelled and every request under way has been answered, or the grace period is over.
///
/// After the cancellation the probes are red, parked consumers are answered at once, connections are closed behind the next answer, which
/// says so, or when no request has come for a while; and the listener is the last thing to close.
///
/// # Errors
/// None at present: trouble with accepting is waited out, trouble with a connection ends that connection.
pub async fn serve(listener: TcpListener, state: ApiState, shutdown: CancellationToken) -> io::Result<()> {
    let mut writing = JoinSet::new();
    writing.spawn(state.clone().keep_writing_denials());
    let served = serve_connections(listener, &state, shutdown).await;
    writing.shutdown().await;
    state.write_last_denials().await;
    served
}

async fn serve_connections(listener: TcpListener, state: &ApiState, shutdown: CancellationToken) -> io::Result<()> {
    let max = if state.config.max_connections == 0 { Semaphore::MAX_PERMITS } else { state.config.max_connections };
    let mut accepting = Accepting {
        listener,
        places: Places::new(max, state.parts.tls.is_some()),
        failures: 0,
        not_before: Instant::now(),
        lines: Quiet::default(),
    };
    let mut connections = JoinSet::new();
    let mut grace_ends: Option<Instant> = None;
    let mut looks = interval(LEADER_LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => state.look_for_leader(),
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(panic) = ended {
                    error!(error = %panic, "a connection's task panicked");
                }
                state.metrics.connections_closed.add(1);
            }
            () = shutdown.cancelled(), if grace_ends.is_none() => {
                state.begin_stop();
                grace_ends = Some(Instant::now() + state.config.shutdown_grace);
            }
            () = until(grace_ends), if grace_ends.is_some() => break,
            accepted = accepting.next() => match accepted {
                Ok(accepted) => start_connection(&mut connections, accepted, state),
                Err(error) => {
                    state.metrics.accept_errors.add(1);
                    accepting.back_off(&error);
                }
            },
        }
        if grace_ends.is_some() && connections.is_empty() {
            break;
        }
    }
    for accepted in accepting.close().await {
        start_connection(&mut connections, accepted, state);
    }
    let ended = async {
        while connections.join_next().await.is_some() {
            state.metrics.connections_closed.add(1);
        }
    };
    if timeout_at(grace_ends.unwrap_or_else(Instant::now), ended).await.is_ok() {
        return Ok(());
    }
    warn!(connections = connections.len(), "the grace period is over; closing connections that are still busy");
    connections.shutdown().await;
    Ok(())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How many connections may be open, and how many of them may be in their handshake.
struct Places {
    open: Arc<Semaphore>,
    /// `None` where no TLS is spoken.
    handshakes: Option<Arc<Semaphore>>,
}

/// What a connection occupies.
struct Place {
    _open: OwnedSemaphorePermit,
    /// Until its handshake is over.
    handshake: Option<OwnedSemaphorePermit>,
}

impl Places {
    fn new(open: usize, has_tls: bool) -> Self {
        let handshakes = has_tls.then(|| Arc::new(Semaphore::new(limits::TLS_HANDSHAKES_MAX)));
        Self { open: Arc::new(Semaphore::new(open)), handshakes }
    }

    /// Waits for a free one. Cancel-safe.
    async fn free(&self) -> io::Result<Place> {
        let open = Arc::clone(&self.open).acquire_owned().await.map_err(io::Error::other)?;
        let handshake = match &self.handshakes {
            Some(handshakes) => Some(Arc::clone(handshakes).acquire_owned().await.map_err(io::Error::other)?),
            None => None,
        };
        Ok(Place { _open: open, handshake })
    }

    /// A free one, if there is.
    fn free_now(&self) -> Option<Place> {
        let open = Arc::clone(&self.open).try_acquire_owned().ok()?;
        let handshake = match &self.handshakes {
            Some(handshakes) => Some(Arc::clone(handshakes).try_acquire_owned().ok()?),
            None => None,
        };
        Some(Place { _open: open, handshake })
    }
}

/// The listener, its free places, and how long to leave it alone after an error.
struct Accepting {
    listener: TcpListener,
    places: Places,
    failures: u32,
    not_before: Instant,
    lines: Quiet,
}

impl Accepting {
    /// The next connection. Cancel-safe. Beyond the bounds on connections and handshakes, callers wait in the kernel's backlog.
    async fn next(&mut self) -> io::Result<(TcpStream, SocketAddr, Place)> {
        if self.failures > 0 {
            sleep_until(self.not_before).await;
        }
        let place = self.places.free().await?;
        let (stream, peer) = self.listener.accept().await?;
        self.failures = 0;
        Ok((stream, peer, place))
    }

    /// Closes the listener, and answers who is in the kernel's queue: they have a connection, may have sent a request, and are to be served,
    /// as many as there are places. Whoever comes between a look into the queue and the close would be cut off. So the queue is made one place
    /// long, and that place is taken by us: with a full queue the kernel lets nobody in, and who tries is told after the close that nobody
    /// listens.
    async fn close(self) -> Vec<(TcpStream, SocketAddr, Place)> {
        let mut waiting = Vec::new();
        let addr = self.listener.local_addr();
        // What the runtime knows of the queue may be old.
        let Ok(listener) = self.listener.into_std() else { return waiting };
        let is_short = rustix::net::listen(&listener, 0).is_ok();
        for _ in 0..CLOSE_TRIES {
            while let Some(place) = self.places.free_now()
                && let Ok((stream, peer)) = listener.accept()
            {
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                waiting.extend(stream.map(|stream| (stream, peer, place)));
            }
            let Some(addr) = addr.as_ref().ok().filter(|_| is_short) else { break };
            // If somebody was faster, the place is theirs, and nobody answers us: then they are served, and it is tried again.
            if let Ok(Ok(_place)) = timeout(CLOSE_TRY, TcpStream::connect(addr)).await {
                drop(listener);
                break;
            }
        }
        waiting
    }

    /// Out of descriptors, or a client that left in the queue: wait before the next try, ever longer while it lasts.
    fn back_off(&mut self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused) {
            return;
        }
        if self.failures == 0
            && let Some(left_out) = self.lines.admit(Instant::now().into_std())
        {
            warn!(error = error as &dyn std::error::Error, left_out, "cannot accept connections; trying again");
        }
        let pause = ACCEPT_BACKOFF_MIN.saturating_mul(1 << self.failures.min(10)).min(ACCEPT_BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + pause;
    }
}

/// Starts the task of one connection, from accept to close. When it ends, the socket is gone and leases that were still riding are released.
///
/// With and without TLS are two futures: ten thousand connections may be parked, and one future would be as large as both.
fn start_connection(connections: &mut JoinSet<()>, (stream, peer, place): (TcpStream, SocketAddr, Place), state: &ApiState) {
    state.metrics.connections_opened.add(1);
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%peer, %error, "cannot set TCP_NODELAY");
    }
    if state.parts.tls.is_some() {
        connections.spawn(secured(stream, peer, place, state.clone()));
    } else {
        connections.spawn(plain(stream, peer, place, state.clone()));
    }
}

async fn plain(stream: TcpStream, peer: SocketAddr, _place: Place, state: ApiState) {
    speak_http(stream, peer, &state).await;
}

async fn secured(stream: TcpStream, peer: SocketAddr, mut place: Place, state: ApiState) {
    let Some(tls) = &state.parts.tls else { return };
    // Its buffers are large, and not for every connection's task to carry.
    let shaken = Box::pin(shake_hands(stream, tls, &state)).await;
    place.handshake = None;
    if let Some(stream) = shaken {
        Box::pin(speak_http(stream, peer, &state)).await;
    }
}

/// HTTP on a connection that is ready for it.
async fn speak_http(stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr, state: &ApiState) {
    let address = peer.ip();
    let conn = Arc::new(Conn::new(state.identities.enter(address)));
    let _left = Leaving { state, address };
    let io = TokioIo::new(ClientIo::new(stream, Arc::clone(&conn)));
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let conn = &conn;
        conn.request_began();
        edge::handle(state, Some(conn), request.map(RequestBody::Wire)).map(|answer| {
            conn.answer_began();
            Ok::<_, std::convert::Infallible>(answer)
        })
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    // Without half-close hyper notices at once that a parked caller has gone, and drops the handler.
    http.half_close(false)
        .writev(false)
        .header_read_timeout(None)
        .max_headers(limits::HEADER_LINES_MAX)
        .max_buf_size(state.config.max_header_bytes.max(8 * 1024) + HEAD_SLACK_BYTES);
    let mut serving = std::pin::pin!(http.serve_connection(io, service));

    let mut limits = PhaseLimits { head: state.config.read_timeout, idle: state.config.idle_timeout, answer: state.config.write_timeout };
    let mut is_ending = false;
    let mut look_again = std::pin::pin!(sleep_until(Instant::now() + limits.step()));
    loop {
        tokio::select! {
            biased;
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    debug!(%peer, %error, "connection ended");
                }
                return;
            }
            () = look_again.as_mut() => match conn.watch(Instant::now(), &limits) {
                Watch::Until(at) => look_again.as_mut().reset(at),
                Watch::Expired => {
                    state.metrics.connections_expired.add(1);
                    return;
                }
            },
            () = state.stopping.cancelled(), if !is_ending => {
                // Every answer from here on says that it is the last one, and is. hyper would close what is idle at once, although a request may
                // be on its way, or in the socket: its client would not know what became of it.
                is_ending = true;
                limits.head = limits.head.min(LATE_HEAD);
                limits.idle = limits.idle.min(LATE_HEAD);
                look_again.as_mut().reset(Instant::now() + LATE_HEAD);
            }
        }
    }
}

struct Leaving<'a> {
    state: &'a ApiState,
    address: std::net::IpAddr,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.state.identities.leave(self.address);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_connection_without_tls_is_small() {
        fn bytes<F>(_: impl Fn(TcpStream, SocketAddr, Place, ApiState) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = bytes(plain);
        assert!(bytes <= 1536, "one connection takes {bytes} bytes beside its request, and ten thousand may be parked");
    }

    #[test]
    fn so_many_handshakes_are_under_way_at_once_and_a_connection_outlasts_its_own() {
        const CONNECTIONS: usize = limits::TLS_HANDSHAKES_MAX + 2;
        let places = Places::new(CONNECTIONS, true);
        let mut held: Vec<Place> = (0..limits::TLS_HANDSHAKES_MAX).map(|_| places.free_now().expect("room")).collect();
        assert!(places.free_now().is_none() && places.free().now_or_never().is_none(), "as many as there may be");
        held[0].handshake = None;
        held.push(places.free_now().expect("one has ended"));
        assert!(places.free_now().is_none());
        held.iter_mut().for_each(|place| place.handshake = None);
        held.push(places.free_now().expect("the last connection"));
        assert!(places.free_now().is_none(), "handshakes that have ended make no room for more connections");
        let plain = Places::new(CONNECTIONS, false);
        let all: Vec<Place> = std::iter::from_fn(|| plain.free_now()).collect();
        assert_eq!(all.len(), CONNECTIONS, "who makes no handshakes needs no room for them");
    }
}
