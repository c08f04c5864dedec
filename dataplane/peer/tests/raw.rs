//! What somebody sees who speaks the wire by hand: with the right secret, but not as a node of this version would.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ConnectionError, TransportConfig, VarInt};
use tokio::time::timeout;
use veena_auth::{ClusterIdentity, Role, SecretId, tls};
use veena_contract::{Effect, PeerClass, PeerError, PeerOp, PeerRefusal, limits};
use veena_peer::wire::{ANSWER_HEAD_BYTES, AnswerHead, CallHead, Status, body_bytes_max};

use crate::support::{ANY, ECHO, HOLD, LARGE, LONG, Node, SECRET, identity, node, peer, reached};

const LABEL: &[u8] = b"EXPORTER-veena-peer-proof";

struct Raw {
    identity: Arc<ClusterIdentity>,
    secret: SecretId,
    quic: quinn::Endpoint,
    keep_alive: Option<Duration>,
}

impl Raw {
    fn new() -> Self {
        let identity = identity("raw", SECRET, None);
        let secret = identity.ids().next().expect("one").clone();
        let quic = quinn::Endpoint::client(ANY.parse().expect("an address")).expect("a free port");
        Self { identity, secret, quic, keep_alive: None }
    }

    async fn connect(&self, to: &Node) -> Connection {
        let tls = self.identity.client_config(&self.secret, "veena-data/1").expect("a configuration").expect("known");
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a cipher")));
        let mut transport = TransportConfig::default();
        // Little comes without being read.
        transport.keep_alive_interval(self.keep_alive).stream_receive_window(VarInt::from_u32(64 * 1024));
        config.transport_config(Arc::new(transport));
        let connecting = self.quic.connect_with(config, to.socket(), &tls::server_name(&self.secret)).expect("an address");
        connecting.await.expect("a connection")
    }

    /// A hello as it is on the wire.
    fn hello(&self, connection: &Connection, role: Role) -> Vec<u8> {
        let mut exported = [0; 32];
        connection.export_keying_material(&mut exported, LABEL, &[]).expect("a handshake that is done");
        let said = br#"{"node":"raw","newer":"than the other knows"}"#;
        let proof = self.identity.prove(&self.secret, role, &exported, said).expect("known");
        [proof.as_slice(), said].concat()
    }

    /// A connection that has said hello.
    async fn greeted(&self, to: &Node) -> Connection {
        let connection = self.connect(to).await;
        let answer = exchange(&connection, &self.hello(&connection, Role::Client)).await.expect("an answer");
        assert_eq!(answer[0], 0);
        assert_eq!(&answer[33..], br#"{"node":"n1"}"#);
        connection
    }
}

/// Sends bytes on a stream of their own and reads what comes back.
async fn exchange(connection: &Connection, bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut send, mut receive) = connection.open_bi().await.ok()?;
    send.write_all(bytes).await.ok()?;
    let _ = send.finish();
    receive.read_to_end(1024).await.ok()
}

async fn closed(connection: &Connection) -> ConnectionError {
    timeout(LONG, connection.closed()).await.expect("it is closed")
}

fn refused(refusal: PeerRefusal) -> Vec<u8> {
    AnswerHead { status: Status::Refused(refusal), body_bytes: 0 }.encode().to_vec()
}

#[tokio::test]
async fn a_hello_whose_proof_is_of_another_connection_role_or_text_is_not_served() {
    let (node, raw) = (node("n1"), Raw::new());
    let other = raw.connect(&node).await;
    let right = |connection: &Connection| raw.hello(connection, Role::Client);
    for case in ["another connection", "another role", "another text", "no proof", "too short", "nothing"] {
        let connection = raw.connect(&node).await;
        let hello = match case {
            "another connection" => right(&other),
            "another role" => raw.hello(&connection, Role::Server),
            "another text" => [right(&connection), b" ".to_vec()].concat(),
            "no proof" => [[0; 32].as_slice(), &right(&connection)[32..]].concat(),
            "too short" => right(&connection)[..31].to_vec(),
            _ => Vec::new(),
        };
        assert_eq!(exchange(&connection, &hello).await, None, "{case}");
        assert!(matches!(closed(&connection).await, ConnectionError::ApplicationClosed(_)), "{case}");
    }
}

/// Where the lines of a test's thread go.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn who_is_refused_again_and_again_fills_no_log() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let (node, raw) = (node("n1"), Raw::new());
    for _ in 0..3 * limits::FAILURE_LINES_MAX {
        let connection = raw.connect(&node).await;
        assert_eq!(exchange(&connection, b"no hello").await, None);
        closed(&connection).await;
    }
    let lines = String::from_utf8(lines.0.lock().clone()).expect("text");
    let told = lines.lines().filter(|line| line.contains("a connection is not served")).count();
    assert_eq!(told, usize::try_from(limits::FAILURE_LINES_MAX).expect("small"), "{lines}");
}

#[tokio::test]
async fn a_connection_that_never_says_hello_is_closed_and_serves_nothing_before() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.connect(&node).await;
    // One stream is free for the hello: a call on it is none, and another is not to be had.
    let (_open, _unread) = connection.open_bi().await.expect("a stream");
    assert!(timeout(Duration::from_millis(50), connection.open_bi()).await.is_err());
    closed(&connection).await;
    assert_eq!(*node.bench.begun.borrow(), 0);
}

#[tokio::test]
async fn a_node_that_does_not_prove_the_secret_is_not_called() {
    let (node, raw) = (node("n1"), Raw::new());
    let tls = raw.identity.server_config(&["veena-data/1"]).expect("a configuration");
    let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("a cipher")));
    let server = quinn::Endpoint::server(config, ANY.parse().expect("an address")).expect("a free port");
    let to = peer("raw", server.local_addr().expect("bound"));
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.expect("one").await.expect("a connection");
        let (mut send, mut receive) = connection.accept_bi().await.expect("a stream");
        receive.read_to_end(4096).await.expect("a hello");
        // right but for the role: what the client would say
        let hello = raw.hello(&connection, Role::Client);
        send.write_all(&[&[0], hello.as_slice()].concat()).await.expect("sent");
        send.finish().expect("sent");
        closed(&connection).await;
        assert!(connection.accept_bi().await.is_err(), "nothing more was said");
    });
    let error = node.call(&to, PeerClass::Data, ECHO, "").await.expect_err("not proven");
    assert_eq!(error.effect(), Effect::None);
    assert!(error.to_string().contains("did not prove"), "{error}");
    serving.await.expect("in order");
}

#[tokio::test]
async fn a_call_is_read_as_it_is_written_down() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.greeted(&node).await;
    let call = [&[1, 12, 0, 1, 0, 0, 39, 16, 0, 0, 0, 2], b"hi".as_slice()].concat();
    assert_eq!(exchange(&connection, &call).await.expect("an answer"), [&[1, 8, 0, 0, 0, 0, 0, 2], b"hi".as_slice()].concat());
    // a newer node's head is longer
    let longer = [&[1, 15, 0, 1, 0, 0, 39, 16, 0, 0, 0, 2, 9, 9, 9], b"hi".as_slice()].concat();
    assert_eq!(exchange(&connection, &longer).await.expect("an answer"), [&[1, 8, 0, 0, 0, 0, 0, 2], b"hi".as_slice()].concat());
}

#[tokio::test]
async fn what_is_no_call_is_refused_and_not_begun() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.greeted(&node).await;
    let call = CallHead { op: ECHO, remaining_ms: 10_000, body_bytes: 2 }.encode().to_vec();
    let mut version = call.clone();
    version[0] = 2;
    let too_large =
        CallHead { op: ECHO, remaining_ms: 10_000, body_bytes: u32::try_from(body_bytes_max(PeerClass::Data)).expect("small") + 1 };
    for (bytes, refusal) in [
        (vec![], PeerRefusal::Malformed),
        (call[..11].to_vec(), PeerRefusal::Malformed),
        (call.clone(), PeerRefusal::Malformed),
        ([call.as_slice(), b"h"].concat(), PeerRefusal::Malformed),
        (version, PeerRefusal::Malformed),
        (too_large.encode().to_vec(), PeerRefusal::TooLarge),
    ] {
        assert_eq!(exchange(&connection, &bytes).await.expect("an answer"), refused(refusal), "{bytes:?}");
    }
    let unknown = CallHead { op: PeerOp(999), remaining_ms: 10_000, body_bytes: 0 }.encode();
    let begun = *node.bench.begun.borrow();
    assert_eq!(begun, 0);
    assert_eq!(exchange(&connection, &unknown).await.expect("an answer"), refused(PeerRefusal::UnknownOp));
}

#[tokio::test]
async fn a_call_whose_time_is_over_before_it_is_complete_is_not_begun() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.greeted(&node).await;
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    let head = CallHead { op: ECHO, remaining_ms: 20, body_bytes: 2 }.encode();
    send.write_all(&head).await.expect("sent");
    let mut answer = [0; ANSWER_HEAD_BYTES];
    timeout(LONG, receive.read_exact(&mut answer)).await.expect("an answer").expect("all of it");
    assert_eq!(answer.to_vec(), refused(PeerRefusal::TooLate));
    // what comes now is not read
    assert_eq!(timeout(LONG, send.stopped()).await.expect("told so").expect("connected"), Some(VarInt::from_u32(0)));
    assert_eq!(*node.bench.begun.borrow(), 0);
}

#[tokio::test]
async fn a_call_whose_caller_leaves_before_it_is_complete_is_not_begun() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.greeted(&node).await;
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    let head = CallHead { op: HOLD, remaining_ms: 60_000, body_bytes: 2 }.encode();
    send.write_all(&head).await.expect("sent");
    receive.stop(VarInt::from_u32(0)).expect("open");
    assert_eq!(timeout(LONG, send.stopped()).await.expect("it is dropped").expect("connected"), Some(VarInt::from_u32(0)));
    assert_eq!(*node.bench.begun.borrow(), 0);
}

#[tokio::test]
async fn a_call_that_is_not_complete_when_the_node_stops_is_refused() {
    let (node, raw) = (node("n1"), Raw::new());
    let connection = raw.greeted(&node).await;
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    let head = CallHead { op: ECHO, remaining_ms: 60_000, body_bytes: 2 }.encode();
    send.write_all(&head).await.expect("sent");
    // once this one is answered, the server has the first as well
    assert!(exchange(&connection, &CallHead { op: ECHO, remaining_ms: 60_000, body_bytes: 0 }.encode()).await.is_some());
    node.stop.cancel();
    let answer = timeout(LONG, receive.read_to_end(64)).await.expect("an answer").expect("all of it");
    assert_eq!((answer, *node.bench.begun.borrow()), (refused(PeerRefusal::NotServing), 1));
    timeout(LONG, node.running).await.expect("it ends").expect("in order");
}

#[tokio::test]
async fn an_answer_that_is_none_may_be_one_to_a_call_that_was_applied() {
    let (node, raw) = (node("n1"), Raw::new());
    let tls = raw.identity.server_config(&["veena-data/1"]).expect("a configuration");
    let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls).expect("a cipher")));
    let server = quinn::Endpoint::server(config, ANY.parse().expect("an address")).expect("a free port");
    let to = peer("raw", server.local_addr().expect("bound"));
    let answers: [&[u8]; 6] =
        [&[], &[1, 8, 0], &[2, 8, 0, 0, 0, 0, 0, 0], &[1, 8, 77, 0, 0, 0, 0, 0], &[1, 8, 0, 0, 0, 0, 0, 9, 1], &[1, 8, 0, 0, 255, 0, 0, 0]];
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.expect("one").await.expect("a connection");
        let (mut send, mut receive) = connection.accept_bi().await.expect("a stream");
        receive.read_to_end(4096).await.expect("a hello");
        send.write_all(&[&[0], raw.hello(&connection, Role::Server).as_slice()].concat()).await.expect("sent");
        send.finish().expect("sent");
        for answer in answers {
            let (mut send, mut receive) = connection.accept_bi().await.expect("a stream");
            receive.read_to_end(4096).await.expect("a call");
            send.write_all(answer).await.expect("sent");
            send.finish().expect("sent");
        }
        closed(&connection).await;
    });
    for answer in answers {
        let error = node.call(&to, PeerClass::Data, ECHO, "").await.expect_err("no answer");
        assert!(matches!(error, PeerError::BadAnswer { .. }), "{answer:?}: {error}");
        assert_eq!(error.effect(), Effect::Possible);
    }
    node.endpoint.close().await;
    serving.await.expect("in order");
}

#[tokio::test]
async fn answers_that_nobody_takes_hold_up_no_other_node_and_end_with_their_callers() {
    let raw = Raw { keep_alive: Some(Duration::from_millis(limits::PEER_KEEP_ALIVE_MS)), ..Raw::new() };
    let (node, other) = (node("n1"), node("n2"));
    let connection = raw.greeted(&node).await;
    // More than this side lets come without reading, on every stream there may be.
    let bytes = 256 * 1024_u32;
    let head = CallHead { op: LARGE, remaining_ms: 60_000, body_bytes: 4 }.encode();
    let mut untaken = Vec::new();
    for _ in 1..limits::PEER_DATA_CALLS_MAX {
        let (mut send, receive) = timeout(LONG, connection.open_bi()).await.expect("there may be one more").expect("a stream");
        send.write_all(&[head.as_slice(), &bytes.to_be_bytes()].concat()).await.expect("sent");
        send.finish().expect("open");
        untaken.push(receive);
    }
    reached(&node.bench.ended, untaken.len()).await;
    for class in PeerClass::ALL {
        assert_eq!(
            timeout(LONG, other.call(&node.addr(), class, ECHO, "meanwhile")).await.expect("not held up").expect("an answer"),
            "meanwhile"
        );
    }
    // Whoever waits no more says so, as a node does with each call: then there is room again.
    untaken.iter_mut().for_each(|receive| receive.stop(VarInt::from_u32(0)).expect("open"));
    let head = CallHead { op: ECHO, remaining_ms: 60_000, body_bytes: 4 }.encode();
    let call = [head.as_slice(), b"next"].concat();
    for _ in 0..untaken.len() {
        let answer = timeout(LONG, exchange(&connection, &call)).await.expect("not held up").expect("an answer");
        assert_eq!(&answer[ANSWER_HEAD_BYTES..], b"next");
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_caller_who_does_not_take_its_answer() {
    let raw = Raw { keep_alive: Some(Duration::from_millis(limits::PEER_KEEP_ALIVE_MS)), ..Raw::new() };
    let node = node("n1");
    let connection = raw.greeted(&node).await;
    // More than this side lets come without reading.
    let bytes = u32::try_from(body_bytes_max(PeerClass::Data)).expect("fits");
    let head = CallHead { op: LARGE, remaining_ms: 60_000, body_bytes: 4 }.encode();
    let (mut send, _receive) = connection.open_bi().await.expect("a stream");
    send.write_all(&[head.as_slice(), &bytes.to_be_bytes()].concat()).await.expect("sent");
    send.finish().expect("open");
    reached(&node.bench.ended, 1).await;
    node.stop.cancel();
    timeout(LONG, node.running).await.expect("it ends").expect("in order");
}
