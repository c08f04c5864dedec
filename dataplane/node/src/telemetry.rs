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
    // The raft library speaks of every election; and, as of an error, of every call to a node that is down: the peer plane tells that once.
    // What ends a member is told by what is left of it.
    format!("{libraries},veena={own},openraft=error,openraft::replication=off,openraft::core::raft_core=off")
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
    use super::*;

    #[test]
    fn every_level_is_a_filter_that_parses() {
        for level in [LogLevel::Debug, LogLevel::Info, LogLevel::Warn, LogLevel::Error] {
            EnvFilter::try_new(directives(level)).expect("a valid filter");
        }
    }
}
