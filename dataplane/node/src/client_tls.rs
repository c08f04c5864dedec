//! What clients are shown: a certificate and its key, read at the start and looked at again while the node runs.
//!
//! A pair that does not do never takes the place of one that is served, not even of one that has expired: connections that are open, and
//! clients that do not look, go on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use veena_auth::server_tls::fingerprint;
use veena_auth::{Pair, PairError, Secret, ServerTls};
use veena_contract::{WallClock, limits};
use veena_storage::disk::{Disk, OpenMode, read_full_at};

use crate::config::TlsConfig;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Whoever may read a key for all to read can pass for this node.
const READ_BY_ALL: u32 = 0o004;

/// Why clients cannot be shown what they are to be shown.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file.
    #[error("{key} {} cannot be read", path.display())]
    Unreadable {
        /// Which setting.
        key: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What the files hold.
    #[error("http.tls.cert_file {} and http.tls.key_file {} cannot be used", cert.display(), key.display())]
    Unusable {
        /// The certificate's.
        cert: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why.
        #[source]
        source: PairError,
    },
    /// The signal for another look.
    #[error("SIGHUP cannot be listened to")]
    Signal(#[source] io::Error),
}

/// Where the pair is.
#[derive(Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    disk: Arc<dyn Disk>,
}

/// What the files hold.
struct Found {
    /// The same files have the same one; `None` if they cannot be read.
    fingerprint: Option<[u8; 32]>,
    pair: Result<Pair, ClientTlsError>,
}

impl Files {
    fn read(&self) -> Found {
        let of = |setting, path: &Path| {
            read(self.disk.as_ref(), path).map_err(|source| ClientTlsError::Unreadable { key: setting, path: path.to_owned(), source })
        };
        let (cert, key) = match (of("http.tls.cert_file", &self.cert), of("http.tls.key_file", &self.key)) {
            (Ok(cert), Ok(key)) => (cert, key),
            (Err(error), _) | (_, Err(error)) => return Found { fingerprint: None, pair: Err(error) },
        };
        let pair = Pair::from_pem(cert.expose(), key.expose()).map_err(|source| self.unusable(source));
        Found { fingerprint: Some(fingerprint(cert.expose(), key.expose())), pair }
    }

    fn unusable(&self, source: PairError) -> ClientTlsError {
        ClientTlsError::Unusable { cert: self.cert.clone(), key: self.key.clone(), source }
    }

    /// A key that everybody on the machine may read is nobody's secret.
    fn warn_if_open(&self) {
        if rustix::fs::stat(&self.key).is_ok_and(|found| found.st_mode & READ_BY_ALL != 0) {
            warn!(path = %self.key.display(), "everybody on this machine may read the private key of the client port: chmod o-r");
        }
    }
}

fn read(disk: &dyn Disk, path: &Path) -> io::Result<Secret<Vec<u8>>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
    if len > limits::TLS_FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {} bytes", limits::TLS_FILE_BYTES_MAX)));
    }
    let mut bytes = Secret::new(vec![0; len]);
    let read = read_full_at(file.as_ref(), bytes.expose_mut(), 0)?;
    bytes.expose_mut().truncate(read);
    Ok(bytes)
}

/// The pair that is served, and the watch over its files.
pub(crate) struct ClientTls {
    files: Files,
    clock: Arc<dyn WallClock>,
    served: Arc<ServerTls>,
    hangups: Signal,
    /// What was found last and not taken, and why: said once.
    refused: Option<(Option<[u8; 32]>, String)>,
    /// Was it said that what is served is not valid now?
    is_invalid: bool,
}

impl ClientTls {
    /// Reads the pair; `None` where no TLS is wanted. One that is not valid now is served, and said to be: a node that runs is of more use than
    /// one that does not start, and its pair can be replaced.
    pub(crate) async fn open(config: &TlsConfig, disk: &Arc<dyn Disk>, clock: Arc<dyn WallClock>) -> Result<Option<Self>, ClientTlsError> {
        let (Some(cert), Some(key)) = (&config.cert_file, &config.key_file) else { return Ok(None) };
        // From here on SIGHUP does not end the node.
        let hangups = signal(SignalKind::hangup()).map_err(ClientTlsError::Signal)?;
        let files = Files { cert: cert.clone(), key: key.clone(), disk: Arc::clone(disk) };
        let pair = files.read().pair?;
        info!(serial = pair.serial(), "clients speak TLS");
        files.warn_if_open();
        let served = Arc::new(ServerTls::new(pair));
        let mut tls = Self { files, clock, served, hangups, refused: None, is_invalid: false };
        tls.say_if_invalid();
        Ok(Some(tls))
    }

    /// What new connections are served with.
    pub(crate) fn served(&self) -> Arc<ServerTls> {
        Arc::clone(&self.served)
    }

    /// Looks at the files until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = self.hangups.recv() => {}
                () = sleep(LOOK_EVERY) => {}
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let files = self.files.clone();
        // A disk may take its time.
        let Ok(found) = tokio::task::spawn_blocking(move || files.read()).await else { return };
        if found.fingerprint == Some(self.served.served().fingerprint()) {
            self.refused = None;
        } else {
            let valid = |pair: Pair| match pair.check_at(self.clock.now_ms()) {
                Ok(()) => Ok(pair),
                Err(error) => Err(self.files.unusable(error)),
            };
            match found.pair.and_then(valid) {
                Ok(pair) => {
                    info!(serial = pair.serial(), "clients are shown another certificate from here on");
                    self.served.replace(pair);
                    self.files.warn_if_open();
                    self.refused = None;
                }
                Err(error) => self.refuse(found.fingerprint, &error),
            }
        }
        self.say_if_invalid();
    }

    /// Once for what was found.
    fn refuse(&mut self, fingerprint: Option<[u8; 32]>, error: &ClientTlsError) {
        // The log shows no causes.
        let reason = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        let refused = Some((fingerprint, format!("{error}: {reason}")));
        if refused != self.refused {
            self.served.count_refused();
            let served = self.served.served();
            error!(%error, %reason, served = served.serial(), "the certificate that was found is not taken; clients are shown the one of before");
            self.refused = refused;
        }
    }

    /// Once for what is served.
    fn say_if_invalid(&mut self) {
        let served = self.served.served();
        let invalid = served.check_at(self.clock.now_ms()).err();
        if let Some(reason) = invalid
            && !self.is_invalid
        {
            error!(%reason, serial = served.serial(), "clients are shown a certificate that they will not take");
        }
        self.is_invalid = invalid.is_some();
    }
}

#[cfg(test)]
mod tests;
