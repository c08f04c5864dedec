//! The port while the node starts: `/healthz` answers at once, everything else is told to come back.
//!
//! Replaying a long log may take seconds, and whoever watches the process must not take that for death. This serves two fixed answers and
//! must never do more: the real plane takes the same listener over.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use veena_auth::ServerTls;
use veena_contract::limits;

/// How long one caller may take.
const CALLER_TIMEOUT: Duration = Duration::from_millis(limits::EARLY_CALLER_MS_MAX);
/// How long callers under way may take once the real plane is there.
const HANDOVER_TIMEOUT: Duration = Duration::from_millis(limits::EARLY_HANDOVER_MS_MAX);

const ALIVE: &str = "{\"status\":\"ok\"}\n";
const STARTING: &str = "{\"error\":\"metastore: node is not ready: the node is starting\",\"code\":\"not_ready\",\"effect\":\"none\",\
                        \"retryable\":true,\"retry_after_ms\":1000}\n";

/// Answers callers until `ready` is cancelled.
pub async fn answer_until(listener: &TcpListener, tls: Option<Arc<ServerTls>>, ready: CancellationToken) {
    let mut callers = JoinSet::new();
    loop {
        tokio::select! {
            () = ready.cancelled() => break,
            Some(_ended) = callers.join_next(), if !callers.is_empty() => {}
            accepted = listener.accept(), if callers.len() < limits::EARLY_CALLERS_MAX => match accepted {
                Ok((stream, _)) => {
                    callers.spawn(timeout(CALLER_TIMEOUT, answer_one(stream, tls.clone())));
                }
                // Out of descriptors, or a caller that left in the queue: look again a little later.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    let drained = async { while callers.join_next().await.is_some() {} };
    let _in_time = timeout(HANDOVER_TIMEOUT, drained).await;
}

async fn answer_one(stream: TcpStream, tls: Option<Arc<ServerTls>>) {
    match tls {
        None => answer(stream).await,
        Some(tls) => {
            // Who cannot make the handshake is told so by TLS.
            if let Ok(stream) = tls.accept(stream).await {
                Box::pin(answer(stream)).await;
            }
        }
    }
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > limits::EARLY_HEAD_BYTES_MAX || !matches!(stream.read_buf(&mut head).await, Ok(1..)) {
            return;
        }
    }
    let path = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, body) = if path == b"/healthz" { ("200 OK", ALIVE) } else { ("503 Service Unavailable\r\nRetry-After: 1", STARTING) };
    let body = if head.starts_with(b"HEAD ") { (body.len(), "") } else { (body.len(), body) };
    let text =
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", body.0, body.1);
    if stream.write_all(text.as_bytes()).await.is_ok() {
        // The caller may have left; there is nothing more to tell it. What it has sent is read to its end: closed with bytes that nobody has
        // read, the connection would be reset, and the answer lost.
        let _closed = stream.shutdown().await;
        while matches!(stream.read(&mut [0; 4096]).await, Ok(1..)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(addr: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.expect("somebody listens");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    #[tokio::test]
    async fn a_starting_node_is_alive_and_not_ready() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let ready = CancellationToken::new();
        let asking = async {
            let alive = ask(addr, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await;
            assert!(alive.starts_with("HTTP/1.1 200 OK\r\n") && alive.ends_with(ALIVE), "{alive}");
            let large = format!("POST /v1/topics/t/produce HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{}", "x".repeat(900_000));
            let answer = ask(addr, &large).await;
            assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with(STARTING), "{answer}");
            for path in ["/readyz", "/v1/topics"] {
                let starting = ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
                assert!(starting.starts_with("HTTP/1.1 503 ") && starting.contains("Retry-After: 1"), "{starting}");
                assert!(starting.ends_with(STARTING), "{starting}");
            }
            ready.cancel();
        };
        tokio::join!(answer_until(&listener, None, ready.clone()), asking);
    }

    #[test]
    fn the_fixed_answers_are_json() {
        for text in [ALIVE, STARTING] {
            serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        }
    }
}
