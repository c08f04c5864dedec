//! TLS towards clients: the certificate that a node shows them, which can be exchanged while it serves.
//!
//! Each pair of certificate and key has a configuration of its own, so that a session of the one before is not resumed under the next. A
//! connection keeps what it began with.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use ring::digest::{Context, SHA256};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// What is spoken within: a client that knows only something else is told so in the handshake.
const PROTOCOL: &[u8] = b"http/1.1";

/// Why a certificate and a key do not do. Holds nothing of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The first file.
    #[error("the certificate file holds no certificate in PEM")]
    NoCertificate,
    /// What it holds.
    #[error("the certificate cannot be read")]
    Certificate,
    /// The second file.
    #[error("the key file holds no private key in PEM, or one that is locked with a password")]
    NoKey,
    /// What it holds.
    #[error("the private key is of a kind that TLS cannot use here")]
    UnusableKey,
    /// They do not belong together.
    #[error("the private key is not that of the certificate")]
    Mismatch,
    /// Clients would refuse it.
    #[error("the certificate has expired")]
    Expired,
    /// Clients would refuse it.
    #[error("the certificate is not valid yet")]
    NotYetValid,
}

/// A certificate with its chain, and its private key. Cannot be printed.
pub struct Pair {
    config: Arc<ServerConfig>,
    fingerprint: [u8; 32],
    serial: String,
    not_before_ms: u64,
    not_after_ms: u64,
}

impl Pair {
    /// Reads a chain of certificates, the node's own first, and the key of that one. Whether it is valid now is not asked.
    ///
    /// # Errors
    /// [`PairError`].
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let fingerprint = fingerprint(certificates, key);
        let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>().map_err(|_| PairError::NoCertificate)?;
        let own = chain.first().ok_or(PairError::NoCertificate)?;
        let (_, parsed) = parse_x509_certificate(own).map_err(|_| PairError::Certificate)?;
        let (serial, validity) = (parsed.raw_serial_as_string(), parsed.validity());
        // What was before 1970 was always.
        let ms = |time: ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000);
        let (not_before_ms, not_after_ms) = (ms(validity.not_before), ms(validity.not_after));
        // What a parser says of a key could quote it.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| PairError::NoKey)?;
        let provider = Arc::new(default_provider());
        let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => PairError::Mismatch,
            rustls::Error::InvalidCertificate(_) => PairError::Certificate,
            _ => PairError::UnusableKey,
        })?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("invariant: the provider has suites for both")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { config: Arc::new(config), fingerprint, serial, not_before_ms, not_after_ms })
    }

    /// Would clients take it at this time (Unix, in milliseconds)?
    ///
    /// # Errors
    /// [`PairError::Expired`], [`PairError::NotYetValid`].
    pub fn check_at(&self, now_ms: u64) -> Result<(), PairError> {
        if now_ms > self.not_after_ms {
            Err(PairError::Expired)
        } else if now_ms < self.not_before_ms {
            Err(PairError::NotYetValid)
        } else {
            Ok(())
        }
    }

    /// The serial number of the certificate, in hexadecimal.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Until when it is valid (Unix, in milliseconds).
    #[must_use]
    pub fn not_after_ms(&self) -> u64 {
        self.not_after_ms
    }

    /// The same two files have the same one.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("serial", &self.serial).field("not_after_ms", &self.not_after_ms).finish_non_exhaustive()
    }
}

/// Says whether two files are the ones that were seen before, without keeping them.
#[must_use]
pub fn fingerprint(certificates: &[u8], key: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(&(certificates.len() as u64).to_be_bytes());
    context.update(certificates);
    context.update(key);
    context.finish().as_ref().try_into().expect("invariant: SHA-256 has 32 bytes")
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The client refused us, most often our certificate.
    #[error("the client refused the handshake: {0}")]
    Refused(io::Error),
    /// It speaks no TLS, or none that we speak.
    #[error("there is no TLS that both sides speak: {0}")]
    Protocol(io::Error),
    /// The connection ended.
    #[error("the connection ended within the handshake: {0}")]
    Ended(io::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::AlertReceived(_)) => Self::Refused(error),
            Some(_) => Self::Protocol(error),
            None => Self::Ended(error),
        }
    }
}

/// A connection after its handshake.
pub type ServerStream<S> = tokio_rustls::server::TlsStream<S>;

/// The server's side of TLS: new handshakes are made with the newest pair.
#[derive(Debug)]
pub struct ServerTls {
    served: RwLock<Arc<Pair>>,
    replaced: AtomicU64,
    refused: AtomicU64,
}

impl ServerTls {
    /// Serves this pair.
    #[must_use]
    pub fn new(pair: Pair) -> Self {
        Self { served: RwLock::new(Arc::new(pair)), replaced: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// The pair that new handshakes are made with.
    #[must_use]
    pub fn served(&self) -> Arc<Pair> {
        Arc::clone(&self.served.read())
    }

    /// Serves another pair from here on. Connections that are open, or in their handshake, keep the one they began with.
    pub fn replace(&self, pair: Pair) {
        *self.served.write() = Arc::new(pair);
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a pair that was found and not taken.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many pairs were taken after the first, and how many were found and not taken.
    #[must_use]
    pub fn reloads(&self) -> (u64, u64) {
        (self.replaced.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Has what is served expired at this time (Unix, in milliseconds)?
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.served.read().check_at(now_ms) == Err(PairError::Expired)
    }

    /// Makes the handshake. Takes as long as the client does: whoever calls this has a deadline.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<ServerStream<S>, HandshakeError> {
        let config = Arc::clone(&self.served.read().config);
        Ok(TlsAcceptor::from(config).accept(stream).await?)
    }
}

#[cfg(test)]
mod tests;
