//! TLS as a client of a node: whom it trusts.

use std::sync::{Arc, OnceLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};

/// Why nobody can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// What was given holds no certificate.
    #[error("the CA file holds no certificate in PEM that can be used")]
    NoAuthority,
    /// The machine has none, and none was given.
    #[error("this machine has no root certificates, and no CA file is named")]
    NoRoots,
}

/// The machine's root certificates, read once.
fn system_roots() -> RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        // One that cannot be read is one that is not trusted.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    ROOTS.get_or_init(read).clone()
}

fn config(roots: RootCertStore) -> ClientConfig {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .expect("invariant: the provider has suites for both")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// For a client that trusts the machine's root certificates, and beside them those of `authorities` (PEM).
///
/// # Errors
/// [`TrustError`].
pub fn trusting(authorities: Option<&[u8]>) -> Result<ClientConfig, TrustError> {
    let mut roots = system_roots();
    if let Some(pem) = authorities {
        let added = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|_| TrustError::NoAuthority)?;
        if added.is_empty() {
            return Err(TrustError::NoAuthority);
        }
        for authority in added {
            roots.add(authority).map_err(|_| TrustError::NoAuthority)?;
        }
    }
    if roots.is_empty() { Err(TrustError::NoRoots) } else { Ok(config(roots)) }
}

/// For a client that speaks no TLS: it trusts nobody.
#[must_use]
pub fn trusting_nobody() -> ClientConfig {
    config(RootCertStore::empty())
}
