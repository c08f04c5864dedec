use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConnection, Connection, ServerConnection};

use super::*;

const OLD: &str = "an old secret of a cluster, thirty two or more";
const NEW: &str = "the next secret of this cluster, as long as that";
const OTHER: &str = "the secret of another cluster, nothing to do here";
const PROTOCOL: &str = "test/1";

fn identity(node: &str, current: &str, previous: Option<&str>) -> ClusterIdentity {
    let parse = |text| ClusterSecret::parse(text).expect("long enough");
    let secrets = ClusterSecrets { current: parse(current), previous: previous.map(parse) };
    ClusterIdentity::new(&NodeId(node.into()), &secrets).expect("an identity")
}

fn id(text: &str) -> SecretId {
    ClusterSecret::parse(text).expect("long enough").id().clone()
}

/// What each side says at the end of a handshake, and the connections.
type Shaken = Result<(ClientConnection, ServerConnection), rustls::Error>;

fn shake(client: ClientConfig, name: &str, server: ServerConfig) -> Shaken {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = Connection::Client(ClientConnection::new(Arc::new(client), name).expect("a client"));
    let mut server = Connection::Server(ServerConnection::new(Arc::new(server)).expect("a server"));
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
        for _ in 0..2 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).expect("memory");
            }
            let mut unread = bytes.as_slice();
            while !unread.is_empty() {
                server.read_tls(&mut unread).expect("memory");
                server.process_new_packets()?;
            }
            std::mem::swap(&mut client, &mut server);
        }
    }
    match (client, server) {
        (Connection::Client(client), Connection::Server(server)) => Ok((client, server)),
        _ => unreachable!("swapped twice each time"),
    }
}

/// A handshake under one secret of the client.
fn shake_under(client: &ClusterIdentity, secret: &str, server: &ClusterIdentity) -> Shaken {
    let config = client.client_config(&id(secret), PROTOCOL).expect("a configuration").expect("a secret it knows");
    shake(config, &server_name(&id(secret)), server.server_config(&[PROTOCOL]).expect("a configuration"))
}

fn exported(connection: &ClientConnection) -> [u8; 32] {
    connection.export_keying_material([0; 32], b"EXPORTER-test", None).expect("a handshake that is done")
}

#[test]
fn two_nodes_of_one_secret_shake_hands_in_both_directions() {
    let (one, two) = (identity("n1", OLD, None), identity("n2", OLD, None));
    for (client, server) in [(&one, &two), (&two, &one)] {
        let (client, server) = shake_under(client, OLD, server).expect("a handshake");
        assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(client.alpn_protocol(), Some(PROTOCOL.as_bytes()));
        assert_eq!(exported(&client), server.export_keying_material([0; 32], b"EXPORTER-test", None).expect("done"));
        assert!(client.peer_certificates().is_some() && server.peer_certificates().is_some());
    }
}

#[test]
fn two_nodes_of_two_secrets_do_not_shake_hands_in_either_direction() {
    let (one, two) = (identity("n1", OLD, None), identity("n2", OTHER, None));
    for (client, secret, server) in [(&one, OLD, &two), (&two, OTHER, &one)] {
        let error = shake_under(client, secret, server).expect_err("refused");
        assert!(!error.to_string().contains(secret));
    }
}

#[test]
fn a_client_that_asks_for_our_name_with_a_certificate_of_another_authority_is_refused() {
    let (ours, other) = (identity("n1", OLD, None), identity("n2", OTHER, None));
    // It would take anything of ours, and shows its own.
    let leaf = Arc::clone(&other.keys[0].leaf);
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots(ours.keys.iter()).expect("roots"))
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from((*leaf).clone())));
    let server = ours.server_config(&[]).expect("a configuration");
    let error = shake(client, &server_name(&id(OLD)), server).expect_err("refused");
    assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let ours = identity("n1", OLD, None);
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots(ours.keys.iter()).expect("roots"))
        .with_no_client_auth();
    let server = ours.server_config(&[]).expect("a configuration");
    let error = shake(client, &server_name(&id(OLD)), server).expect_err("refused");
    assert_eq!(error, rustls::Error::NoCertificatesPresented);
}

#[test]
fn a_server_with_a_certificate_of_another_authority_is_refused() {
    let (ours, other) = (identity("n1", OLD, None), identity("n2", OTHER, None));
    let client = ours.client_config(&id(OLD), PROTOCOL).expect("a configuration").expect("known");
    // It answers to our name, and shows its own.
    let mut server = other.server_config(&[PROTOCOL]).expect("a configuration");
    server.cert_resolver = Arc::new(ByName(vec![(server_name(&id(OLD)), Arc::clone(&other.keys[0].leaf))]));
    let error = shake(client, &server_name(&id(OLD)), server).expect_err("refused");
    assert!(matches!(error, rustls::Error::InvalidCertificate(_)), "{error}");
}

#[test]
fn while_a_secret_is_changed_those_who_know_both_talk_with_those_who_know_one() {
    let (ahead, behind, done) = (identity("n1", NEW, Some(OLD)), identity("n2", OLD, None), identity("n3", NEW, None));
    // The new secret comes first; who does not know it yet says so, and is asked under the old one.
    assert_eq!(ahead.ids().collect::<Vec<_>>(), [&id(NEW), &id(OLD)]);
    shake_under(&ahead, NEW, &behind).expect_err("not known there yet");
    for (client, secret, server) in [(&ahead, OLD, &behind), (&behind, OLD, &ahead), (&ahead, NEW, &done), (&done, NEW, &ahead)] {
        let (connection, _) = shake_under(client, secret, server).expect("a handshake");
        let exported = exported(&connection);
        for (role, speaks, hears) in [(Role::Client, client, server), (Role::Server, server, client)] {
            let proof = speaks.prove(&id(secret), role, &exported, b"said").expect("known");
            assert!(hears.is_proven(&id(secret), role, &exported, b"said", &proof));
        }
    }
    shake_under(&behind, OLD, &done).expect_err("the old secret is over there");
    assert!(behind.client_config(&id(NEW), PROTOCOL).expect("a configuration").is_none());
    assert_eq!(ahead.id_of(&server_name(&id(OLD))), Some(&id(OLD)));
    assert_eq!(ahead.id_of(&server_name(&id(OTHER))), None);
}

#[test]
fn a_proof_holds_for_its_connection_role_text_and_secret_alone() {
    let (one, two) = (identity("n1", NEW, Some(OLD)), identity("n2", NEW, Some(OLD)));
    let connections = [(); 2].map(|()| exported(&shake_under(&one, NEW, &two).expect("a handshake").0));
    assert_ne!(connections[0], connections[1]);
    let proof = one.prove(&id(NEW), Role::Client, &connections[0], b"said").expect("known");
    assert!(two.is_proven(&id(NEW), Role::Client, &connections[0], b"said", &proof));
    assert!(!two.is_proven(&id(NEW), Role::Client, &connections[1], b"said", &proof), "another connection");
    assert!(!two.is_proven(&id(NEW), Role::Server, &connections[0], b"said", &proof), "another role");
    assert!(!two.is_proven(&id(NEW), Role::Client, &connections[0], b"else", &proof), "another text");
    assert!(!two.is_proven(&id(OLD), Role::Client, &connections[0], b"said", &proof), "another secret");
    assert!(!two.is_proven(&id(OTHER), Role::Client, &connections[0], b"said", &proof), "a secret nobody here knows");
    assert!(!two.is_proven(&id(NEW), Role::Client, &connections[0], b"said", &proof[..31]), "a piece of it");
    assert!(!two.is_proven(&id(NEW), Role::Client, &connections[0], b"said", &[]), "nothing");
    assert!(one.prove(&id(OTHER), Role::Client, &connections[0], b"said").is_none());
}

#[test]
fn a_certificate_is_valid_as_far_as_dates_go() {
    let node = identity("n1", OLD, None);
    let roots = Arc::new(roots(node.keys.iter()).expect("roots"));
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(default_provider())).build().expect("a verifier");
    let name = ServerName::try_from(server_name(&id(OLD))).expect("a name");
    let leaf = node.keys[0].leaf.cert[0].clone();
    let year = Duration::from_secs(31_557_600);
    for years in [0, 30, 79, 81, 1000, 8028] {
        let now = UnixTime::since_unix_epoch(year * years);
        verifier.verify_server_cert(&leaf, &[], &name, &[], now).unwrap_or_else(|error| panic!("after {years} years: {error}"));
    }
}

/// The name and the key of an authority are part of the wire: nodes of two versions must come to the same.
#[test]
fn the_authority_of_a_secret_never_changes() {
    let secret = ClusterSecret::parse("0123456789abcdef0123456789abcdef").expect("long enough");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let key = authority_key(&secret).expect("a key");
    // worked out with OpenSSL from the golden value of "ca"
    assert_eq!(hex(rcgen::PublicKeyData::der_bytes(&key)), "25e5441df81bd6f4601f6ba9725810a1756b6b234228ccf7cb2e13b8a7e9f6d3");
    let (one, two) = [NodeId("n1".into()), NodeId("n2".into())].map(|node| Key::new(&node, &secret).expect("a key")).into();
    assert_eq!(one.authority, two.authority);
    let anchor = &roots(std::iter::once(&one)).expect("roots").roots[0];
    // one common name, as UTF8String
    assert_eq!(&anchor.subject[..13], [0x31, 0x27, 0x30, 0x25, 6, 3, 0x55, 4, 3, 0x0c, 0x1e, b'v', b'e']);
    assert_eq!(&anchor.subject[11..], b"veena cluster 9eaad0617b89f511");
}

#[test]
fn every_life_of_a_node_has_its_own_certificate_and_the_same_reset_key() {
    let (one, again, two) = (identity("n1", OLD, None), identity("n1", OLD, None), identity("n2", OLD, None));
    assert_ne!(one.keys[0].leaf.cert[0], again.keys[0].leaf.cert[0]);
    let token = |node: &ClusterIdentity| hmac::sign(&node.reset_key(), b"connection").as_ref().to_vec();
    assert_eq!(token(&one), token(&again));
    assert_ne!(token(&one), token(&two), "nobody ends the connections of another node");
}
