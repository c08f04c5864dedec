use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_rustls::TlsConnector;

use super::*;
use crate::client_tls;

const NOW_MS: u64 = 1_800_000_000_000;

/// A certificate that is its own authority, valid in these years, and its key.
fn pem(years: (i32, i32), serial: u64) -> (String, String) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.serial_number = Some(serial.into());
    params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    let key = KeyPair::generate().expect("random");
    (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
}

/// What is no certificate and no key, in the form of one.
fn of_form(label: &str) -> String {
    format!("-----BEGIN {label}-----\neA==\n-----END {label}-----\n")
}

fn pair((certificate, key): &(String, String)) -> Result<Pair, PairError> {
    Pair::from_pem(certificate.as_bytes(), key.as_bytes())
}

#[test]
fn a_pair_is_taken_only_if_it_is_one() {
    let (first, second) = (pem((2020, 2100), 7), pem((2020, 2100), 8));
    assert_eq!(pair(&first).expect("a pair").serial(), "07");
    let refused = |certificate: &str, key: &str| Pair::from_pem(certificate.as_bytes(), key.as_bytes()).expect_err("refused");
    assert_eq!(refused(&first.0, &second.1), PairError::Mismatch);
    assert_eq!(refused(&second.0, &first.1), PairError::Mismatch);
    assert_eq!(refused(&first.1, &first.1), PairError::NoCertificate);
    assert_eq!(refused(&first.0, &first.0), PairError::NoKey);
    assert_eq!(refused("", &first.1), PairError::NoCertificate);
    assert_eq!(refused(&first.0, ""), PairError::NoKey);
    assert_eq!(refused(&first.0[..first.0.len() / 2], &first.1), PairError::NoCertificate, "one that is being written");
    assert_eq!(refused(&first.0, &first.1[..first.1.len() / 2]), PairError::NoKey, "one that is being written");
    assert_eq!(refused(&of_form("CERTIFICATE"), &first.1), PairError::Certificate);
    assert_eq!(refused(&first.0, &of_form("PRIVATE KEY")), PairError::UnusableKey);
}

#[test]
fn nothing_of_a_key_is_shown() {
    let (certificate, key) = pem((2020, 2100), 7);
    let shown = format!("{:?}", Pair::from_pem(certificate.as_bytes(), key.as_bytes()).expect("a pair"));
    assert_eq!(shown, "Pair { serial: \"07\", not_after_ms: 4102444800000, .. }");
    let broken = key.replace("-----END", "canary-of-key\n-----END");
    let error = Pair::from_pem(certificate.as_bytes(), broken.as_bytes()).expect_err("refused");
    assert!(!format!("{error:?} {error}").contains("canary"), "{error:?}");
}

#[test]
fn a_certificate_is_valid_between_its_days() {
    let at = |years| pair(&pem(years, 7)).expect("a pair").check_at(NOW_MS);
    assert_eq!(at((2020, 2100)), Ok(()));
    assert_eq!(at((2020, 2021)), Err(PairError::Expired));
    assert_eq!(at((2100, 2101)), Err(PairError::NotYetValid));
}

#[test]
fn other_files_have_another_fingerprint() {
    let (first, second) = (pem((2020, 2100), 7), pem((2020, 2100), 7));
    let print = |of| pair(of).expect("a pair").fingerprint();
    assert_eq!(print(&first), print(&first));
    assert_ne!(print(&first), print(&second));
}

/// Both sides of a handshake, and a word within.
async fn connect(tls: &ServerTls, config: rustls::ClientConfig) -> (Result<(), HandshakeError>, io::Result<String>) {
    let (ours, theirs) = duplex(64 * 1024);
    let server = async {
        let mut stream = tls.accept(ours).await?;
        stream.write_all(b"hello").await.map_err(HandshakeError::Ended)?;
        stream.shutdown().await.map_err(HandshakeError::Ended)
    };
    let client = async {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, theirs).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    };
    tokio::join!(server, client)
}

#[tokio::test]
async fn who_trusts_the_authority_is_served_and_who_does_not_ends_the_handshake() {
    let files = pem((2020, 2100), 7);
    let tls = ServerTls::new(pair(&files).expect("a pair"));
    let trusting = || client_tls::trusting(Some(files.0.as_bytes())).expect("an authority");
    let (served, heard) = connect(&tls, trusting()).await;
    served.expect("served");
    assert_eq!(heard.expect("heard"), "hello");

    let (served, heard) = connect(&tls, client_tls::trusting_nobody()).await;
    assert!(matches!(served, Err(HandshakeError::Refused(_))), "{served:?}");
    heard.expect_err("not trusted");

    let mut other = trusting();
    other.alpn_protocols = vec![b"h2".to_vec()];
    let (served, heard) = connect(&tls, other).await;
    assert!(matches!(served, Err(HandshakeError::Protocol(_))), "{served:?}");
    heard.expect_err("another protocol");
}

#[tokio::test]
async fn the_next_handshake_is_made_with_the_newest_pair_and_resumes_nothing() {
    let (first, second) = (pem((2020, 2100), 7), pem((2020, 2100), 8));
    let tls = ServerTls::new(pair(&first).expect("a pair"));
    // One client, which remembers its session and trusts the first alone.
    let client = client_tls::trusting(Some(first.0.as_bytes())).expect("an authority");
    connect(&tls, client.clone()).await.0.expect("served");
    tls.replace(pair(&second).expect("a pair"));
    assert_eq!((tls.served().serial(), tls.reloads()), ("08", (1, 0)));
    let (_, heard) = connect(&tls, client).await;
    heard.expect_err("it does not know the second");
    let client = client_tls::trusting(Some(second.0.as_bytes())).expect("an authority");
    connect(&tls, client).await.0.expect("served");
}

#[tokio::test]
async fn what_is_no_handshake_is_told_from_one_that_was_cut() {
    let tls = ServerTls::new(pair(&pem((2020, 2100), 7)).expect("a pair"));
    for (bytes, is_cut) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], false), (b"", true), (&[22, 3, 1, 2, 0, 1], true)] {
        let (ours, mut theirs) = duplex(64 * 1024);
        theirs.write_all(bytes).await.expect("taken");
        theirs.shutdown().await.expect("closed");
        let error = tls.accept(ours).await.expect_err("no handshake");
        assert_eq!(matches!(error, HandshakeError::Ended(_)), is_cut, "{bytes:?}: {error:?}");
    }
}

#[test]
fn what_is_no_authority_is_refused() {
    let (certificate, key) = pem((2020, 2100), 7);
    for text in ["", "x", &key, &certificate[..certificate.len() / 2], &of_form("CERTIFICATE")] {
        assert_eq!(client_tls::trusting(Some(text.as_bytes())).expect_err("refused"), client_tls::TrustError::NoAuthority, "{text}");
    }
}
