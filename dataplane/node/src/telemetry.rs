//! Logs: one line an event, to the standard error stream, as text or JSON.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Another subscriber is installed already.
#[derive(Debug, thiserror::Error)]
#[error("logging is set up twice in one process")]
pub struct AlreadySetUp;

/// What is logged: our own crates at `level`, libraries only what a person must see.
fn directives(level: LogLevel) -> String {
    let (own, libraries) = match level {
        LogLevel::Debug => ("debug", "info"),
        LogLevel::Info => ("info", "warn"),
        LogLevel::Warn => ("warn", "warn"),
        LogLevel::Error => ("error", "error"),
    };
    // The raft library speaks of every election; and, as of an error, of every call to a node that is down, which the peer plane tells once, and
    // of every call that a member gets whose log has failed, which the log tells once. What ends a member is told by what is left of it.
    format!("{libraries},veena={own},openraft=error,openraft::replication=off,openraft::core::raft_core=off,openraft::raft::raft_inner=off")
}

/// Sends every log event of this process to the standard error stream.
///
/// # Errors
/// [`AlreadySetUp`] on the second call.
pub fn init(config: &LogConfig) -> Result<(), AlreadySetUp> {
    let filter = EnvFilter::new(directives(config.level));
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let installed = match config.format {
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        LogFormat::Text => registry.with(layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))).try_init(),
    };
    installed.map_err(|_| AlreadySetUp)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn every_level_is_a_filter_that_parses() {
        for level in [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error] {
            EnvFilter::try_new(directives(level)).expect("a valid filter");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_the_raft_library_says_with_every_call_is_not_logged() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(EnvFilter::new(directives(LogLevel::Info))).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(target: "openraft::raft::raft_inner", "a call to a core that has stopped");
            tracing::error!(target: "openraft::replication", "a call to a node that is down");
            tracing::error!(target: "openraft::storage::callback", "a failed write");
        });
        let told = String::from_utf8(lines.0.lock().clone()).expect("text");
        assert!(told.lines().count() == 1 && told.contains("a failed write"), "{told}");
    }
}
