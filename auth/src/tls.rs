//! How nodes of a cluster prove to each other that they know its secret, in both directions.
//!
//! From the secret every node derives the same certificate authority. A node makes a key of its own when it starts and signs a certificate
//! for it; both sides of a connection demand one. So nothing has to be handed out, and nothing expires under a node that runs: validity says
//! nothing here, since whoever knows the secret can sign anew. On top of it comes a [`Proof`] that is bound to the connection: it names who
//! speaks, and fails on any connection but the one it was made for.
//!
//! While a secret is changed, a node knows two. The name that a client asks for says which one it means; the server answers under the same.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519};
use ring::hmac;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring::default_provider, ring::sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use veena_contract::NodeId;

use crate::cluster_secret::{ClusterSecret, ClusterSecrets, SecretId};
use crate::secret::Secret;

/// The name under which a node is asked for is the id of the secret that is meant, and this.
const NAME_SUFFIX: &str = ".cluster.veena";
/// An Ed25519 private key in PKCS #8 (RFC 8410) is this and 32 bytes.
const ED25519_PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// From when to when every certificate is valid: as far as X.509 goes, also for a machine that has lost its clock.
const VALID_YEARS: (i32, i32) = (1970, 9999);

/// Why a node has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate cannot be made.
    #[error("a certificate of the cluster cannot be made")]
    Certificate(#[source] rcgen::Error),
    /// TLS does not take what was made.
    #[error("TLS for the cluster cannot be set up")]
    Tls(#[source] rustls::Error),
    /// TLS does not take the cluster's authority for its clients.
    #[error("TLS for the cluster cannot be set up")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// Which side of a connection speaks. Part of a proof, so that nobody can send one back to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who opened the connection.
    Client,
    /// Who took it.
    Server,
}

/// That whoever made it knows a secret, for one connection.
pub type Proof = [u8; 32];

/// What a node is under one secret.
struct Key {
    id: SecretId,
    authority: CertificateDer<'static>,
    leaf: Arc<CertifiedKey>,
    proof: Secret<[u8; 32]>,
}

/// What a node shows to others, and what it accepts from them.
pub struct ClusterIdentity {
    /// The current secret's first.
    keys: Vec<Key>,
    reset: Secret<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl ClusterIdentity {
    /// Derives the authority of each secret, and signs a certificate for a new key.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn new(node: &NodeId, secrets: &ClusterSecrets) -> Result<Self, IdentityError> {
        let provider = Arc::new(default_provider());
        let known = std::iter::once(&secrets.current).chain(&secrets.previous);
        let keys = known.map(|secret| Key::new(node, secret)).collect::<Result<_, _>>()?;
        let reset = secrets.current.derive(format!("reset {node}").as_bytes());
        Ok(Self { keys, reset, provider })
    }

    /// The secrets this node knows, in the order in which it tries them.
    pub fn ids(&self) -> impl Iterator<Item = &SecretId> {
        self.keys.iter().map(|key| &key.id)
    }

    /// For connections that others open: TLS 1.3, any of our secrets, a certificate demanded, no resumption.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn server_config(&self, protocols: &[&str]) -> Result<ServerConfig, IdentityError> {
        let roots = Arc::new(roots(self.keys.iter())?);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&self.provider)).build().map_err(IdentityError::Verifier)?;
        let by_name = ByName(self.keys.iter().map(|key| (server_name(&key.id), Arc::clone(&key.leaf))).collect());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Tls)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(by_name));
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        // A resumed session would not show its certificate again.
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// For connections that this node opens under one of its secrets; `None` if it does not know that one.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn client_config(&self, id: &SecretId, protocol: &str) -> Result<Option<ClientConfig>, IdentityError> {
        let Some(key) = self.key(id) else { return Ok(None) };
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Tls)?
            .with_root_certificates(roots(std::iter::once(key))?)
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from((*key.leaf).clone())));
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(Some(config))
    }

    /// Of the secrets we know, the one that a client means who asks for this name.
    #[must_use]
    pub fn id_of(&self, asked: &str) -> Option<&SecretId> {
        self.ids().find(|id| server_name(id) == asked)
    }

    /// Proves that we know the secret. `exported` is keying material of the connection, which no other connection has; `said` is what the
    /// proof stands for. `None` if we do not know it.
    #[must_use]
    pub fn prove(&self, id: &SecretId, role: Role, exported: &[u8; 32], said: &[u8]) -> Option<Proof> {
        let key = self.key(id)?;
        let tag = hmac::sign(&key.proof_key(), &proven(role, exported, said));
        tag.as_ref().try_into().ok()
    }

    /// Does whoever made this proof know the secret, on this connection, in this role, and did they say this? In constant time.
    #[must_use]
    pub fn is_proven(&self, id: &SecretId, role: Role, exported: &[u8; 32], said: &[u8], proof: &[u8]) -> bool {
        self.key(id).is_some_and(|key| hmac::verify(&key.proof_key(), &proven(role, exported, said), proof).is_ok())
    }

    /// The key under which a node tells others that it does not know a connection any more (RFC 9000, 10.3): the same in every life of it.
    #[must_use]
    pub fn reset_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.reset.expose())
    }

    fn key(&self, id: &SecretId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == *id)
    }
}

/// The name that a client asks for who means this secret.
#[must_use]
pub fn server_name(id: &SecretId) -> String {
    format!("{id}{NAME_SUFFIX}")
}

fn proven(role: Role, exported: &[u8; 32], said: &[u8]) -> Vec<u8> {
    let role = match role {
        Role::Client => b'c',
        Role::Server => b's',
    };
    [&[role], exported.as_slice(), said].concat()
}

fn roots<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<RootCertStore, IdentityError> {
    let mut store = RootCertStore::empty();
    for key in keys {
        store.add(key.authority.clone()).map_err(IdentityError::Tls)?;
    }
    Ok(store)
}

impl Key {
    fn new(node: &NodeId, secret: &ClusterSecret) -> Result<Self, IdentityError> {
        let issuer = Issuer::new(authority(secret.id()), authority_key(secret)?);
        let authority = authority(secret.id()).self_signed(issuer.key()).map_err(IdentityError::Certificate)?;
        let own = KeyPair::generate_for(&PKCS_ED25519).map_err(IdentityError::Certificate)?;
        let leaf = leaf(node, secret.id())?.signed_by(&own, &issuer).map_err(IdentityError::Certificate)?;
        let own = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let signing = any_supported_type(&own).map_err(IdentityError::Tls)?;
        let leaf = Arc::new(CertifiedKey::new(vec![leaf.der().clone()], signing));
        Ok(Self { id: secret.id().clone(), authority: authority.der().clone(), leaf, proof: secret.derive(b"proof") })
    }

    fn proof_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.proof.expose())
    }
}

fn authority_key(secret: &ClusterSecret) -> Result<KeyPair, IdentityError> {
    let seed = secret.derive(b"ca");
    let der = Secret::new([ED25519_PKCS8_HEAD.as_slice(), seed.expose()].concat());
    KeyPair::try_from(der.expose().as_slice()).map_err(IdentityError::Certificate)
}

fn params(common_name: String) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = rcgen::date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(VALID_YEARS.1, 1, 1);
    params
}

fn authority(id: &SecretId) -> CertificateParams {
    let mut params = params(format!("veena cluster {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn leaf(node: &NodeId, id: &SecretId) -> Result<CertificateParams, IdentityError> {
    let mut params = params(format!("veena node {node}"));
    let name = server_name(id).try_into().map_err(IdentityError::Certificate)?;
    params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// The certificate under the secret that the client asks for.
struct ByName(Vec<(String, Arc<CertifiedKey>)>);

impl std::fmt::Debug for ByName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByName")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name()?;
        self.0.iter().find(|(name, _)| name == asked).map(|(_, key)| Arc::clone(key))
    }
}

#[cfg(test)]
mod tests;
