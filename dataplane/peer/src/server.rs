//! The serving end: a task for each connection, a task for each call.
//!
//! What was begun is ended: a caller who leaves stops its call only while that waits to be begun. Memory for calls that are being received
//! is bounded for all connections together; who is over it is not read from, and waits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Incoming, ReadExactError, RecvStream, SendStream, VarInt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};
use veena_auth::SecretId;
use veena_contract::{CallerGone, NodeId, PeerClass, PeerRefusal, PeerRequest, PeerService, limits};

use crate::endpoint::{Endpoint, PROTOCOLS, calls_max};
use crate::hello::{Admission, Greeting, HelloError, answer};
use crate::wire::{AnswerHead, CALL_HEAD_BYTES, CallHead, Status, body_bytes_max, skip};

/// Takes calls of other nodes.
pub struct Server {
    endpoint: Endpoint,
    admission: Arc<dyn Admission>,
    service: Arc<dyn PeerService>,
    receiving: Arc<Semaphore>,
}

/// One connection that has shown who it is.
struct Caller {
    node: NodeId,
    class: PeerClass,
    service: Arc<dyn PeerService>,
    receiving: Arc<Semaphore>,
}

impl Server {
    /// Serves `service` to whom `admission` admits.
    #[must_use]
    pub fn new(endpoint: Endpoint, admission: Arc<dyn Admission>, service: Arc<dyn PeerService>) -> Self {
        Self { endpoint, admission, service, receiving: Arc::new(Semaphore::new(limits::PEER_RECEIVING_BYTES_MAX)) }
    }

    /// Takes calls until `stop` is cancelled; then ends those that were begun. The endpoint stays open, for the answers.
    pub async fn run(self, stop: CancellationToken) {
        let server = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            while let Some(ended) = connections.try_join_next() {
                report(ended);
            }
            let incoming = tokio::select! {
                incoming = server.endpoint.quic.accept() => incoming,
                () = stop.cancelled() => None,
            };
            let Some(incoming) = incoming else { break };
            if connections.len() >= limits::PEER_CONNECTIONS_MAX {
                warn!(connections_max = limits::PEER_CONNECTIONS_MAX, "too many connections of other nodes: one is refused");
                incoming.refuse();
                continue;
            }
            connections.spawn(Arc::clone(&server).connection(incoming, stop.clone()));
        }
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    }

    async fn connection(self: Arc<Self>, incoming: Incoming, stop: CancellationToken) {
        let from = incoming.remote_address();
        let greeted = timeout(Duration::from_millis(limits::PEER_CONNECT_MS_MAX), self.greeted(incoming)).await;
        match greeted {
            Ok(Ok((connection, caller))) => {
                debug!(node = %caller.node, class = %caller.class, "connection taken");
                calls(&connection, Arc::new(caller), stop).await;
            }
            Ok(Err(error)) => info!(%from, %error, "a connection is not served"),
            Err(_) => info!(%from, "a connection is not served: its first exchange takes too long"),
        }
    }

    async fn greeted(&self, incoming: Incoming) -> Result<(Connection, Caller), HelloError> {
        let connection = incoming.await.map_err(|error| HelloError::Ended(error.to_string()))?;
        let (class, secret) = self.agreed(&connection).ok_or(HelloError::Malformed)?;
        let greeting = Greeting::new(&connection, &self.endpoint.identity, secret)?;
        let hello = answer(&connection, &greeting, &self.admission).await;
        let hello = hello.inspect_err(|_| connection.close(VarInt::from_u32(1), b"no hello"))?;
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(calls_max(class)));
        let (service, receiving) = (Arc::clone(&self.service), Arc::clone(&self.receiving));
        Ok((connection, Caller { node: NodeId(hello.node.into()), class, service, receiving }))
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

/// Serves the calls of one connection until it ends, or until there is to be none any more.
async fn calls(connection: &Connection, caller: Arc<Caller>, stop: CancellationToken) {
    let mut running = JoinSet::new();
    let reason = loop {
        while let Some(ended) = running.try_join_next() {
            report(ended);
        }
        let stream = tokio::select! {
            stream = connection.accept_bi() => stream,
            () = stop.cancelled() => break "stopping".to_owned(),
        };
        match stream {
            Ok((send, receive)) => drop(running.spawn(Arc::clone(&caller).call(send, receive))),
            Err(error) => break error.to_string(),
        }
    };
    debug!(node = %caller.node, class = %caller.class, %reason, running = running.len(), "no more calls of a connection");
    while let Some(ended) = running.join_next().await {
        report(ended);
    }
}

impl Caller {
    async fn call(self: Arc<Self>, mut send: SendStream, mut receive: RecvStream) {
        let (status, body) = match self.receive(&mut receive).await {
            Ok(Some((request, _room))) => self.serve(request, &mut send).await,
            Ok(None) => return,
            Err(refusal) => (Status::Refused(refusal), Bytes::new()),
        };
        // The rest of a call that was refused is of no use.
        let _ = receive.stop(VarInt::from_u32(0));
        let Ok(body_bytes) = u32::try_from(body.len()) else {
            error!(bytes = body.len(), "an answer is too large to be sent");
            return;
        };
        let head = AnswerHead { status, body_bytes }.encode();
        let sent = send.write_all_chunks(&mut [Bytes::copy_from_slice(&head), body]).await;
        match sent.map(|()| send.finish()) {
            Ok(Ok(())) => {}
            // The caller sees for itself that it has no answer.
            Ok(Err(error)) => debug!(node = %self.node, %error, "an answer is not wanted"),
            Err(error) => debug!(node = %self.node, %error, "an answer is not wanted"),
        }
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
            let room = Arc::clone(&self.receiving).acquire_many_owned(head.body_bytes).await;
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
    async fn serve(&self, request: PeerRequest, send: &mut SendStream) -> (Status, Bytes) {
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
