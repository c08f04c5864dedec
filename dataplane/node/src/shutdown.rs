//! When a node is told to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// Completes when the process is told to stop: SIGTERM, or SIGINT (Ctrl-C).
///
/// # Errors
/// When the signals cannot be listened to.
pub async fn told_to_stop() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    info!(signal = name, "stopping");
    Ok(())
}

/// Completes when the standard input ends: whoever held its other end is gone.
pub async fn stdin_ended() {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of its own, which nobody waits for: the read cannot be given up.
    std::thread::spawn(move || {
        // That it cannot be read any more is an end too.
        let _ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _told = tell.send(());
    });
    // The thread answers before it ends, whatever comes.
    let _ended = told.await;
    info!("the standard input has ended: stopping");
}
