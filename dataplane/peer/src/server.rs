//! The serving end: a task for each connection, a task for each call.
//!
//! What was begun is ended: a caller who leaves stops its call only while that waits to be begun. Memory for calls that are being received
//! is bounded for all connections together; who is over it is not read from, and waits.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Incoming, ReadExactError, RecvStream, SendStream, VarInt, WriteError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use veena_auth::SecretId;
use veena_contract::{CallerGone, NodeId, PeerClass, PeerRefusal, PeerRequest, PeerService, Quiet, limits};

use crate::endpoint::{Endpoint, PROTOCOLS, calls_max};
use crate::hello::{Admission, Greeting, HelloError, answer};
use crate::wire::{AnswerHead, CALL_HEAD_BYTES, CallHead, Status, body_bytes_max, skip};

/// Takes calls of other nodes.
pub struct Server {
    endpoint: Endpoint,
    admission: Arc<dyn Admission>,
    service: Arc<dyn PeerService>,
    /// By class: what one class has in hand never keeps another from being read.
    rooms: [Arc<Semaphore>; PeerClass::ALL.len()],
    /// Bounds what is logged of connections that are not served: whoever is refused tries again and again.
    refused_lines: Mutex<Quiet>,
}

/// One connection that has shown who it is.
struct Caller {
    node: NodeId,
    class: PeerClass,
    service: Arc<dyn PeerService>,
    room: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Server {
    /// Serves `service` to whom `admission` admits.
    #[must_use]
    pub fn new(endpoint: Endpoint, admission: Arc<dyn Admission>, service: Arc<dyn PeerService>) -> Self {
        let rooms = PeerClass::ALL.map(|_| Arc::new(Semaphore::new(limits::PEER_RECEIVING_BYTES_MAX)));
        Self { endpoint, admission, service, rooms, refused_lines: Mutex::default() }
    }

    /// Takes calls until `stop` is cancelled; then ends those that were begun, and meanwhile refuses others. The endpoint stays open.
    pub async fn run(self, stop: CancellationToken) {
        let server = Arc::new(self);
        let mut connections = JoinSet::new();
        let mut stopping = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => stopping = true,
                Some(ended) = connections.join_next() => report(ended),
                incoming = server.endpoint.quic.accept() => match incoming {
                    Some(incoming) if stopping => incoming.refuse(),
                    Some(incoming) if connections.len() >= limits::PEER_CONNECTIONS_MAX => {
                        if let Some(left_out) = server.may_tell() {
                            let connections_max = limits::PEER_CONNECTIONS_MAX;
                            warn!(connections_max, left_out, "too many connections of other nodes: one is refused");
                        }
                        incoming.refuse();
                    }
                    Some(incoming) => drop(connections.spawn(Arc::clone(&server).connection(incoming, stop.clone()))),
                    None => break,
                },
                () = ready(()), if stopping && connections.is_empty() => break,
            }
        }
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    }

    async fn connection(self: Arc<Self>, incoming: Incoming, stop: CancellationToken) {
        let from = incoming.remote_address();
        let greeted = timeout(Duration::from_millis(limits::PEER_CONNECT_MS_MAX), self.greeted(incoming, &stop));
        let Some(greeted) = stop.run_until_cancelled(greeted).await else {
            debug!(%from, "a connection is not served: stopping");
            return;
        };
        let error = match greeted {
            Ok(Ok((connection, caller))) => {
                debug!(node = %caller.node, class = %caller.class, "connection taken");
                return calls(&connection, Arc::new(caller)).await;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "its first exchange takes too long".to_owned(),
        };
        if let Some(left_out) = self.may_tell() {
            info!(%from, %error, left_out, "a connection is not served");
        }
    }

    /// May one more line be written about what is not served? If so: how many were left out.
    fn may_tell(&self) -> Option<u64> {
        self.refused_lines.lock().admit(Instant::now().into_std())
    }

    async fn greeted(&self, incoming: Incoming, stop: &CancellationToken) -> Result<(Connection, Caller), HelloError> {
        let connection = incoming.await.map_err(|error| HelloError::Ended(error.to_string()))?;
        let (class, secret) = self.agreed(&connection).ok_or(HelloError::Malformed)?;
        let greeting = Greeting::new(&connection, &self.endpoint.identity, secret)?;
        let hello = answer(&connection, &greeting, &self.admission).await;
        let hello = hello.inspect_err(|_| connection.close(VarInt::from_u32(1), b"no hello"))?;
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(calls_max(class)));
        let (service, room) = (Arc::clone(&self.service), Arc::clone(&self.rooms[class as usize]));
        Ok((connection, Caller { node: hello.node, class, service, room, stop: stop.clone() }))
    }

    /// The class and the secret that the other side asked for.
    fn agreed(&self, connection: &Connection) -> Option<(PeerClass, &SecretId)> {
        let data = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
        let protocol = data.protocol?;
        let (class, _) = PROTOCOLS.into_iter().find(|(_, known)| known.as_bytes() == protocol)?;
        Some((class, self.endpoint.identity.id_of(&data.server_name?)?))
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(failed) = ended.map_err(|failed| failed.is_panic()) {
        error!(panicked = failed, "the task of a connection broke");
    }
}

/// Serves the calls of one connection until it ends; or, once there are to be no more, until those that were begun have their answers.
async fn calls(connection: &Connection, caller: Arc<Caller>) {
    let mut running = JoinSet::new();
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            () = caller.stop.cancelled(), if !stopping => stopping = true,
            Some(ended) = running.join_next() => report(ended),
            stream = connection.accept_bi() => match stream {
                Ok((send, receive)) => drop(running.spawn(Arc::clone(&caller).call(send, receive))),
                Err(error) => {
                    debug!(node = %caller.node, class = %caller.class, %error, running = running.len(), "a connection ended");
                    break;
                }
            },
            () = ready(()), if stopping && running.is_empty() => break,
        }
    }
    while let Some(ended) = running.join_next().await {
        report(ended);
    }
    connection.close(VarInt::from_u32(0), b"stopping");
}

impl Caller {
    async fn call(self: Arc<Self>, mut send: SendStream, mut receive: RecvStream) {
        let received = tokio::select! {
            biased;
            // Whoever leaves before the call is begun has not made it.
            _ = send.stopped() => return,
            () = self.stop.cancelled() => Err(PeerRefusal::NotServing),
            received = self.receive(&mut receive) => received,
        };
        let (status, body) = match received {
            Ok(Some((request, _room))) => self.serve(request, &send).await,
            Ok(None) => return,
            Err(refusal) => (Status::Refused(refusal), Bytes::new()),
        };
        // The rest of a call that was refused is of no use.
        let _ = receive.stop(VarInt::from_u32(0));
        tokio::select! {
            answered = answer_with(&mut send, status, body) => {
                if let Err(error) = answered {
                    // The caller sees for itself that it has no answer.
                    debug!(node = %self.node, %error, "an answer is not wanted");
                }
            }
            () = self.stops_without_waiting() => debug!(node = %self.node, "stopping: an answer is not waited for any more"),
        }
    }

    /// Completes when this node has begun to stop, and a little later.
    async fn stops_without_waiting(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(Duration::from_millis(limits::PEER_ANSWER_AT_STOP_MS_MAX)).await;
    }

    /// Reads a call. `None` when the caller left in the middle of it.
    async fn receive(&self, receive: &mut RecvStream) -> Result<Option<(PeerRequest, OwnedSemaphorePermit)>, PeerRefusal> {
        let silence = Duration::from_millis(limits::PEER_SILENCE_MS_MAX);
        let mut head = [0; CALL_HEAD_BYTES];
        match timeout(silence, receive.read_exact(&mut head)).await {
            Ok(Ok(())) => {}
            Ok(Err(ReadExactError::FinishedEarly(_))) => return Err(PeerRefusal::Malformed),
            Ok(Err(ReadExactError::ReadError(_))) => return Ok(None),
            Err(_) => return Err(PeerRefusal::TooLate),
        }
        let began = Instant::now();
        let (head, more) = CallHead::decode(&head).ok_or(PeerRefusal::Malformed)?;
        if usize::try_from(head.body_bytes).is_ok_and(|bytes| bytes > body_bytes_max(self.class)) {
            return Err(PeerRefusal::TooLarge);
        }
        let deadline = began + Duration::from_millis(head.remaining_ms.into());
        let reading = async {
            skip(receive, more).await?;
            let room = Arc::clone(&self.room).acquire_many_owned(head.body_bytes).await;
            let room = room.expect("invariant: the semaphore is never closed");
            let mut body = vec![0; head.body_bytes as usize];
            receive.read_exact(&mut body).await?;
            Ok((body, room))
        };
        let (body, room) = match timeout_at(deadline, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(ReadExactError::FinishedEarly(_))) => return Err(PeerRefusal::Malformed),
            Ok(Err(ReadExactError::ReadError(_))) => return Ok(None),
            Err(_) => return Err(PeerRefusal::TooLate),
        };
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(PeerRefusal::TooLate);
        }
        let (from, class, caller) = (self.node.clone(), self.class, CallerGone::default());
        Ok(Some((PeerRequest { from, class, op: head.op, remaining, caller, body: body.into() }, room)))
    }

    /// Serves a call to its end, also when its caller leaves: only what was not begun is dropped, by whoever would begin it.
    async fn serve(&self, request: PeerRequest, send: &SendStream) -> (Status, Bytes) {
        let (service, gone, op) = (Arc::clone(&self.service), request.caller.clone(), request.op);
        // In a task of its own, so that what breaks breaks alone.
        let mut serving = JoinSet::new();
        serving.spawn(async move { service.serve(request).await });
        let ended = tokio::select! {
            ended = serving.join_next() => ended,
            _ = send.stopped() => {
                gone.set();
                serving.join_next().await
            }
        };
        match ended {
            Some(Ok(Ok(body))) if body.len() <= body_bytes_max(self.class) => (Status::Served, body),
            Some(Ok(Ok(body))) => {
                error!(%op, bytes = body.len(), "an answer is over the bound of its class");
                (Status::Broke, Bytes::new())
            }
            Some(Ok(Err(refusal))) => (Status::Refused(refusal), Bytes::new()),
            Some(Err(_)) | None => {
                error!(%op, node = %self.node, "a call broke");
                (Status::Broke, Bytes::new())
            }
        }
    }
}

/// Sends an answer and waits until it has arrived: a connection that is closed earlier takes it along.
async fn answer_with(send: &mut SendStream, status: Status, body: Bytes) -> Result<(), WriteError> {
    let body_bytes = u32::try_from(body.len()).expect("invariant: no body is over the bound of its class");
    let head = AnswerHead { status, body_bytes }.encode();
    send.write_all_chunks(&mut [Bytes::copy_from_slice(&head), body]).await?;
    send.finish().map_err(|_| WriteError::ClosedStream)?;
    let _ = send.stopped().await;
    Ok(())
}
