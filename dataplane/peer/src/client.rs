//! The calling end: one stream a call.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use quinn::{ReadExactError, RecvStream, SendStream};
use tokio::time::{Instant, timeout_at};
use veena_contract::{BoxFuture, NodeId, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError};

use crate::endpoint::Endpoint;
use crate::hello::{Admission, cause};
use crate::pool::{Pool, unreachable};
use crate::wire::{ANSWER_HEAD_BYTES, AnswerHead, CallHead, REMAINING_MAX, Status, body_bytes_max, skip};

/// Calls to other nodes over QUIC.
pub struct QuicPeers {
    pool: Pool,
}

impl QuicPeers {
    /// Calls through `endpoint`; `admission` says who this node is, and who is called.
    #[must_use]
    pub fn new(endpoint: Endpoint, admission: Arc<dyn Admission>) -> Self {
        Self { pool: Pool::new(endpoint, admission) }
    }

    async fn call(&self, to: &PeerAddr, call: PeerCall) -> Result<Bytes, PeerError> {
        let bytes_max = body_bytes_max(call.class);
        let body_bytes = match u32::try_from(call.body.len()) {
            Ok(bytes) if call.body.len() <= bytes_max => bytes,
            _ => return Err(PeerError::TooLarge { bytes: call.body.len(), bytes_max }),
        };
        let deadline = Instant::now() + call.timeout.min(REMAINING_MAX);
        let (mut send, receive) = self.open(to, call.class, deadline).await?;
        // From here on the other node may know of the call.
        let silent = |_| PeerError::Silent { node: to.node.clone() };
        let head = CallHead::new(call.op, deadline.saturating_duration_since(Instant::now()), body_bytes).encode();
        let sending = async {
            send.write_all_chunks(&mut [Bytes::copy_from_slice(&head), call.body]).await.map_err(|error| lost(&to.node, &error))?;
            // finishing fails only when the other side wants no more of it: it has answered already
            let _ = send.finish();
            Ok(())
        };
        let outcome = timeout_at(deadline, async {
            let sent: Result<(), PeerError> = sending.await;
            // A refusal may have come before everything was sent.
            let answer = answer(receive, &to.node, bytes_max).await;
            answer.map_err(|error| sent.err().unwrap_or(error))
        });
        outcome.await.map_err(silent)?
    }

    /// A stream for one call. Nothing of it was sent when this fails.
    async fn open(&self, to: &PeerAddr, class: PeerClass, deadline: Instant) -> Result<(SendStream, RecvStream), PeerError> {
        let mut ended = String::new();
        // A connection may end while its next free stream is waited for: then it is made anew, once.
        for _ in 0..2 {
            let connecting = timeout_at(deadline, self.pool.connection(to, class)).await;
            let connection = connecting.map_err(|_| unreachable(&to.node, "connecting takes too long"))??;
            match timeout_at(deadline, connection.open_bi()).await {
                Ok(Ok(streams)) => return Ok(streams),
                Ok(Err(error)) => ended = error.to_string(),
                Err(_) => return Err(PeerError::Busy { node: to.node.clone() }),
            }
        }
        Err(unreachable(&to.node, &ended))
    }
}

fn lost(node: &NodeId, error: &(dyn Error + 'static)) -> PeerError {
    PeerError::Lost { node: node.clone(), reason: cause(error) }
}

async fn answer(mut receive: RecvStream, node: &NodeId, bytes_max: usize) -> Result<Bytes, PeerError> {
    let bad = |reason| PeerError::BadAnswer { node: node.clone(), reason };
    let read = |error: ReadExactError| match error {
        ReadExactError::FinishedEarly(_) => bad("it ends early"),
        ReadExactError::ReadError(error) => lost(node, &error),
    };
    let mut head = [0; ANSWER_HEAD_BYTES];
    receive.read_exact(&mut head).await.map_err(read)?;
    let (head, more) = AnswerHead::decode(&head).ok_or_else(|| bad("its head is not of this protocol"))?;
    skip(&mut receive, more).await.map_err(read)?;
    match head.status {
        Status::Served => {}
        Status::Refused(refusal) => return Err(PeerError::Refused { node: node.clone(), refusal }),
        Status::Broke => return Err(PeerError::Failed { node: node.clone() }),
    }
    let bytes = usize::try_from(head.body_bytes).ok().filter(|bytes| *bytes <= bytes_max).ok_or_else(|| bad("it is too large"))?;
    let mut body = vec![0; bytes];
    receive.read_exact(&mut body).await.map_err(read)?;
    Ok(body.into())
}

impl PeerClient for QuicPeers {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        Box::pin(self.call(to, call))
    }
}
