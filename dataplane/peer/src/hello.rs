//! The first exchange on a connection: each side says who it is, and proves that it knows the secret, for this very connection.
//!
//! The TLS below has already shown that both can sign as the cluster. The proof holds on the one connection whose keying material went into
//! it, so nobody who stands in between can pass it on.
//!
//! A hello is 32 bytes of proof and then JSON, to which newer nodes may add. The server's answer has one byte in front: 0, or the number of
//! a refusal, after which nothing follows.

use std::error::Error;
use std::sync::Arc;

use quinn::{Connection, RecvStream, SendStream};
use serde::{Deserialize, Serialize};
use veena_auth::{ClusterIdentity, Role, SecretId};
use veena_contract::{NodeId, PeerRefusal, limits};

const EXPORT_LABEL: &[u8] = b"EXPORTER-veena-peer-proof";
const PROOF_BYTES: usize = 32;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name.
    pub node: NodeId,
    /// Which metastore's life it belongs to; nothing before it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
}

impl Hello {
    /// As bytes.
    ///
    /// # Panics
    /// Never: two texts can be written as JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("invariant: two texts can be written as JSON")
    }

    /// From bytes; `None` if they are no hello. What a newer node says beside it is skipped.
    #[must_use]
    pub fn decode(said: &[u8]) -> Option<Self> {
        serde_json::from_slice(said).ok()
    }
}

/// Whom this node talks to, and what it says of itself.
pub trait Admission: Send + Sync + 'static {
    /// What this node says of itself now.
    fn hello(&self) -> Hello;

    /// Does this node talk to that one? Asked on both sides: of who connects, and of who is found at the other end.
    ///
    /// # Errors
    /// What that one is told if it connected.
    fn admit(&self, hello: &Hello) -> Result<(), PeerRefusal>;
}

/// Why the exchange failed. Nothing else was said on the connection.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The connection ended.
    #[error("the connection ended in the first exchange: {0}")]
    Ended(String),
    /// What came is no hello.
    #[error("the first message is none of this protocol")]
    Malformed,
    /// The other side does not know the secret, or somebody stands in between.
    #[error("the other side did not prove that it knows the cluster's secret")]
    NotProven,
    /// Whoever took the connection does not serve who opened it.
    #[error("{0}")]
    Refused(PeerRefusal),
}

impl HelloError {
    fn ended(error: &(dyn Error + 'static)) -> Self {
        Self::Ended(cause(error))
    }
}

/// What ended a stream. The errors of a stream say "connection lost", and why only in what lies below.
pub(crate) fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(below) = last.source() {
        last = below;
    }
    last.to_string()
}

/// One side of one connection.
pub(crate) struct Greeting<'a> {
    pub identity: &'a ClusterIdentity,
    pub secret: &'a SecretId,
    pub exported: [u8; 32],
}

impl<'a> Greeting<'a> {
    pub fn new(connection: &Connection, identity: &'a ClusterIdentity, secret: &'a SecretId) -> Result<Self, HelloError> {
        let mut exported = [0; 32];
        connection.export_keying_material(&mut exported, EXPORT_LABEL, &[]).map_err(|_| HelloError::NotProven)?;
        Ok(Self { identity, secret, exported })
    }

    fn encode(&self, role: Role, hello: &Hello) -> Result<Vec<u8>, HelloError> {
        let said = hello.encode();
        let proof = self.identity.prove(self.secret, role, &self.exported, &said).ok_or(HelloError::NotProven)?;
        Ok([proof.as_slice(), &said].concat())
    }

    fn decode(&self, role: Role, bytes: &[u8]) -> Result<Hello, HelloError> {
        let (proof, said) = bytes.split_at_checked(PROOF_BYTES).ok_or(HelloError::Malformed)?;
        if !self.identity.is_proven(self.secret, role, &self.exported, said, proof) {
            return Err(HelloError::NotProven);
        }
        Hello::decode(said).ok_or(HelloError::Malformed)
    }
}

/// The side that opened the connection. Answers who is there.
pub(crate) async fn greet(connection: &Connection, greeting: &Greeting<'_>, own: &Hello) -> Result<Hello, HelloError> {
    let (mut send, mut receive) = connection.open_bi().await.map_err(|error| HelloError::ended(&error))?;
    send_all(&mut send, &greeting.encode(Role::Client, own)?).await?;
    let bytes = receive_all(&mut receive).await?;
    match bytes.split_first() {
        Some((0, rest)) => greeting.decode(Role::Server, rest),
        Some((number, _)) => Err(PeerRefusal::of_number(*number).map_or(HelloError::Malformed, HelloError::Refused)),
        None => Err(HelloError::Malformed),
    }
}

/// The side that took the connection. Answers who is there, when it is somebody we serve.
pub(crate) async fn answer(connection: &Connection, greeting: &Greeting<'_>, admission: &Arc<dyn Admission>) -> Result<Hello, HelloError> {
    let (mut send, mut receive) = connection.accept_bi().await.map_err(|error| HelloError::ended(&error))?;
    let hello = greeting.decode(Role::Client, &receive_all(&mut receive).await?)?;
    if let Err(refusal) = admission.admit(&hello) {
        send_all(&mut send, &[refusal.number()]).await?;
        // until the other side has it, or has gone: closing at once could overtake it
        let _ = send.stopped().await;
        return Err(HelloError::Refused(refusal));
    }
    let own = greeting.encode(Role::Server, &admission.hello())?;
    send_all(&mut send, &[&[0], own.as_slice()].concat()).await?;
    Ok(hello)
}

async fn send_all(stream: &mut SendStream, bytes: &[u8]) -> Result<(), HelloError> {
    stream.write_all(bytes).await.map_err(|error| HelloError::ended(&error))?;
    stream.finish().map_err(|error| HelloError::ended(&error))
}

async fn receive_all(stream: &mut RecvStream) -> Result<Vec<u8>, HelloError> {
    stream.read_to_end(limits::PEER_HELLO_BYTES_MAX).await.map_err(|error| match error {
        quinn::ReadToEndError::TooLong => HelloError::Malformed,
        quinn::ReadToEndError::Read(error) => HelloError::ended(&error),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use veena_auth::{ClusterSecret, ClusterSecrets};

    use super::*;

    fn identity() -> ClusterIdentity {
        let current = ClusterSecret::parse("a secret that only these tests use").expect("long enough");
        ClusterIdentity::new(&NodeId("n1".into()), &ClusterSecrets { current, previous: None }).expect("an identity")
    }

    #[test]
    fn a_hello_comes_back_and_one_changed_bit_of_it_does_not() {
        let identity = identity();
        let greeting = Greeting { identity: &identity, secret: identity.ids().next().expect("one"), exported: [7; 32] };
        let hello = Hello { node: NodeId("n1".into()), lineage: Some("a".into()) };
        let bytes = greeting.encode(Role::Client, &hello).expect("known");
        assert_eq!(greeting.decode(Role::Client, &bytes).expect("proven"), hello);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(greeting.decode(Role::Client, &changed), Err(HelloError::NotProven)), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_hello_by_chance(said in proptest::collection::vec(any::<u8>(), 0..200), proof in any::<[u8; 32]>()) {
            let identity = identity();
            let secret = identity.ids().next().expect("one");
            let greeting = Greeting { identity: &identity, secret, exported: [7; 32] };
            prop_assert!(greeting.decode(Role::Client, &said).is_err());
            prop_assert!(greeting.decode(Role::Client, &[proof.as_slice(), &said].concat()).is_err());
            // Who knows the secret may still say anything.
            let proof = identity.prove(secret, Role::Client, &[7; 32], &said).expect("known");
            let proven = greeting.decode(Role::Client, &[proof.as_slice(), &said].concat());
            prop_assert!(matches!(proven, Ok(_) | Err(HelloError::Malformed)));
        }
    }
}
