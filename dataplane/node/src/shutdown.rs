//! When a node is told to stop.

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

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

/// Completes when the process is told a second time: whoever asks twice does not want to wait.
///
/// # Errors
/// When the signals cannot be listened to.
pub async fn told_again() -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    interrupt.recv().await;
    warn!("asked to stop again: not waiting any longer");
    Ok(())
}
