//! The two servers: axum as anybody would use it, with two workers and without delay on small writes.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use super::log::GroupLog;

/// How long a poll is parked: longer than anybody measures.
const PARK: Duration = Duration::from_secs(900);

/// Answers 202 to every produce.
///
/// # Errors
/// The address is taken.
pub fn serve_bare(addr: SocketAddr) -> anyhow::Result<()> {
    let produce = |body: Bytes| async move { if body.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::ACCEPTED } };
    let router = Router::new()
        .route("/v1/topics/{topic}/produce", post(produce))
        .route("/v1/topics/{topic}/produce/batch", post(produce))
        // Parks: what a long poll costs without any broker behind it.
        .route("/v1/topics/{topic}/consume", get(|| async { tokio::time::sleep(PARK).await }))
        .route("/readyz", get(|| async { "ready" }))
        .route("/metrics", get(|| async { "yardstick_fsync_total 0\n" }));
    serve(addr, router)
}

/// Answers 202 to every produce once its bytes are synced to the file at `path`.
///
/// # Errors
/// The address is taken, or the file cannot be written.
pub fn serve_logged(addr: SocketAddr, path: &Path, slow: Duration) -> anyhow::Result<()> {
    async fn produce(State(log): State<Arc<GroupLog>>, body: Bytes) -> StatusCode {
        if body.is_empty() {
            return StatusCode::BAD_REQUEST;
        }
        log.append(&body).await;
        StatusCode::ACCEPTED
    }
    let log = GroupLog::open(path, slow)?;
    let router = Router::new()
        .route("/v1/topics/{topic}/produce", post(produce))
        .route("/v1/topics/{topic}/produce/batch", post(produce))
        .route("/readyz", get(|| async { "ready" }))
        .route("/metrics", get(|State(log): State<Arc<GroupLog>>| async move { format!("yardstick_fsync_total {}\n", log.syncs()) }))
        .with_state(log);
    serve(addr, router)
}

fn serve(addr: SocketAddr, router: Router) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(addr).await?.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        axum::serve(listener, router.layer(axum::extract::DefaultBodyLimit::max(16 * 1024 * 1024))).await?;
        anyhow::Ok(())
    })
}
