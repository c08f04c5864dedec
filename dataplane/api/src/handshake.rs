//! From a connection to one that speaks TLS, within a deadline. It runs in the connection's own task: who accepts waits for nobody.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;
use veena_auth::{HandshakeError, ServerStream, ServerTls};
use veena_contract::limits;

use crate::metrics::HandshakeEnd;
use crate::serve::LATE_HEAD;
use crate::state::ApiState;

/// The first byte of every TLS connection: a record of the handshake (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// How long a client that speaks no TLS may go on sending, so that it reads the answer.
const LINGER: Duration = Duration::from_millis(limits::LINGER_MS_MAX);
/// How much of it is read.
const LINGER_BYTES: u64 = limits::EARLY_HEAD_BYTES_MAX as u64;

/// What who speaks no TLS is told. Most likely it is HTTP.
const PLAIN: &str =
    "{\"error\":\"this port speaks TLS only: use https://\",\"code\":\"malformed_request\",\"effect\":\"none\",\"retryable\":false}\n";

/// Makes the handshake. A failure is counted, and `None`: nobody is to be told but the client, whom TLS tells.
pub(crate) async fn shake_hands(mut stream: TcpStream, tls: &ServerTls, state: &ApiState) -> Option<ServerStream<TcpStream>> {
    let longest = state.config.read_timeout.min(Duration::from_millis(limits::TLS_HANDSHAKE_MS_MAX));
    let deadline = Instant::now() + longest;
    // As for the head of a request: a node that stops does not wait long for who has sent nothing yet.
    let late = async {
        state.stopping.cancelled().await;
        sleep(LATE_HEAD).await;
    };
    let shaking = async {
        let mut first = [0];
        match stream.peek(&mut first).await {
            Ok(1..) if first[0] == HANDSHAKE_RECORD => {}
            Ok(1..) => {
                refuse_plain(&mut stream).await;
                return Err(HandshakeEnd::NotTls);
            }
            Ok(0) | Err(_) => return Err(HandshakeEnd::Ended),
        }
        tls.accept(stream).await.map_err(|error| {
            debug!(%error, "a TLS handshake failed");
            match error {
                HandshakeError::Refused(_) => HandshakeEnd::Refused,
                HandshakeError::Protocol(_) => HandshakeEnd::Protocol,
                HandshakeError::Ended(_) => HandshakeEnd::Ended,
            }
        })
    };
    let shaken = tokio::select! {
        shaken = timeout_at(deadline, shaking) => shaken.unwrap_or(Err(HandshakeEnd::Timeout)),
        () = late => Err(HandshakeEnd::Timeout),
    };
    match shaken {
        Ok(stream) => Some(stream),
        Err(end) => {
            debug!(?end, "a connection ended before it spoke TLS");
            state.metrics.handshake_failed(end);
            None
        }
    }
}

/// Says that this is no place for plain HTTP. What the client has sent is read, so that the answer is not lost with a reset.
async fn refuse_plain(stream: &mut TcpStream) {
    let told = async {
        let head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nConnection: close";
        stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{PLAIN}", PLAIN.len()).as_bytes()).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // Who does not listen is not told.
    let _told = timeout(LINGER, told).await;
}
