//! When a node is told to stop.

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// Completes when the process is told to stop: SIGTERM, or SIGINT (Ctrl-C).
///
/// # Errors
/// When the signals cannot be listened to.
pub async fn told_to_stop() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    info!(signal = name, "stopping");
    Ok(())
}
