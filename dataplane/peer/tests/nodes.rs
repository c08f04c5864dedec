//! Who is reached, who is not, and what is said of it.

use std::net::UdpSocket;
use std::time::Duration;

use tokio::time::Instant;
use veena_contract::{Effect, PeerClass, PeerError, PeerRefusal, limits};

use crate::support::{ANY, ECHO, HOLD, Node, OTHER_SECRET, Process, SECRET, WHO, identity, node, peer, reached};

/// A port that takes everything and says nothing.
fn silent() -> UdpSocket {
    UdpSocket::bind(ANY).expect("a free port")
}

fn reason(error: &PeerError) -> &str {
    match error {
        PeerError::Unreachable { reason, .. } | PeerError::Lost { reason, .. } => reason,
        error => panic!("another error: {error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_is_unreachable_and_whoever_asks_next_is_told_at_once() {
    let (one, socket) = (node("n1"), silent());
    let to = peer("n2", socket.local_addr().expect("bound"));
    let call = || one.call(&to, PeerClass::Control, ECHO, "");
    let mut pause = Duration::from_millis(limits::PEER_UNREACHABLE_MS_MIN);
    for _ in 0..8 {
        let begun = Instant::now();
        let error = call().await.expect_err("nobody is there");
        assert_eq!((error.effect(), reason(&error)), (Effect::None, "it does not answer"));
        assert!(begun.elapsed() >= Duration::from_millis(limits::PEER_CONNECT_MS_MAX), "it was tried");
        // The clock stands unless somebody waits.
        let told = Instant::now();
        assert_eq!(call().await.expect_err("nobody is there"), error);
        assert_eq!(told.elapsed(), Duration::ZERO);
        tokio::time::advance(pause).await;
        pause = (pause * 2).min(Duration::from_millis(limits::PEER_UNREACHABLE_MS_MAX));
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_cannot_wait_do_not_keep_a_node_from_being_found_unreachable() {
    let (one, socket) = (node("n1"), silent());
    let to = peer("n2", socket.local_addr().expect("bound"));
    let call = || one.call_within(&to, PeerClass::Control, ECHO, "", Duration::from_millis(100));
    let tries = limits::PEER_CONNECT_MS_MAX / 100 + 1;
    for left in (0..tries).rev() {
        let error = call().await.expect_err("nobody is there");
        match reason(&error) {
            "connecting takes too long" if left > 0 => {}
            reason => {
                assert_eq!((error.effect(), reason), (Effect::None, "it does not answer"));
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_name_without_an_address_is_unreachable() {
    let one = node("n1");
    let mut to = one.addr();
    to.addr = "no port here".into();
    let error = one.call(&to, PeerClass::Control, ECHO, "").await.expect_err("no address");
    assert_eq!(error.effect(), Effect::None);
    assert!(reason(&error).contains("cannot be resolved"), "{error}");
}

#[tokio::test]
async fn a_node_of_another_secret_is_refused_in_both_directions() {
    let (one, two) = (node("n1"), Node::of("n2", identity("n2", OTHER_SECRET, None), None, ANY));
    for (from, to) in [(&one, &two), (&two, &one)] {
        let error = from.call(&to.addr(), PeerClass::Control, ECHO, "").await.expect_err("refused");
        assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
        assert_eq!((error.effect(), *to.bench.begun.borrow()), (Effect::None, 0));
        assert!(![SECRET, OTHER_SECRET].iter().any(|secret| error.to_string().contains(secret)));
    }
}

#[tokio::test]
async fn nodes_talk_while_their_secret_is_changed_one_by_one() {
    let ahead = Node::of("n1", identity("n1", OTHER_SECRET, Some(SECRET)), None, ANY);
    let (behind, done) = (node("n2"), Node::of("n3", identity("n3", OTHER_SECRET, None), None, ANY));
    for (from, to) in [(&ahead, &behind), (&behind, &ahead), (&ahead, &done), (&done, &ahead)] {
        assert_eq!(from.call(&to.addr(), PeerClass::Control, WHO, "").await.expect("an answer"), format!("{} control", from.name));
    }
}

#[tokio::test]
async fn a_node_of_another_lineage_is_not_served_and_is_told_so() {
    let of = |name: &str, lineage| Node::of(name, identity(name, SECRET, None), lineage, ANY);
    let (one, two, new) = (of("n1", Some("a")), of("n2", Some("b")), of("n3", None));
    for (from, to) in [(&one, &two), (&two, &one), (&new, &one)] {
        let error = from.call(&to.addr(), PeerClass::Control, ECHO, "").await.expect_err("refused");
        let refused = PeerError::Refused { node: to.name.clone(), refusal: PeerRefusal::NotAdmitted };
        assert_eq!((error.effect(), error), (Effect::None, refused));
    }
    // The other way round, who connects does not want whom it finds.
    let error = one.call(&new.addr(), PeerClass::Control, ECHO, "").await.expect_err("refused");
    assert_eq!((error.effect(), reason(&error)), (Effect::None, "this node does not talk to it"));
    assert_eq!(*new.bench.begun.borrow(), 0);
}

#[tokio::test]
async fn somebody_else_under_the_address_is_not_called() {
    let (one, two) = (node("n1"), node("n2"));
    let error = one.call(&peer("n3", two.socket()), PeerClass::Control, ECHO, "").await.expect_err("somebody else");
    assert_eq!((error.effect(), reason(&error)), (Effect::None, "the node there is n2"));
    assert_eq!(*two.bench.begun.borrow(), 0);
}

#[tokio::test]
async fn a_call_whose_node_dies_in_the_middle_may_have_been_applied() {
    let (one, two) = (node("n1"), Process::start("n2"));
    let to = two.node.addr();
    one.call(&to, PeerClass::Data, ECHO, "").await.expect("an answer");
    let call = async { one.call_within(&to, PeerClass::Data, HOLD, "", Duration::from_secs(1)).await };
    let killed = async {
        reached(&two.node.bench.begun, 2).await;
        two.kill();
    };
    let (outcome, ()) = tokio::join!(call, killed);
    let error = outcome.expect_err("it is dead");
    assert_eq!((error.effect(), error), (Effect::Possible, PeerError::Silent { node: to.node.clone() }));
}

#[tokio::test]
async fn a_node_that_is_killed_and_restarted_says_so_and_is_reached_again_where_it_was() {
    let (one, two) = (node("n1"), Process::start("n2"));
    let to = two.node.addr();
    let held = one.begin(&to, PeerClass::Data, HOLD, "");
    reached(&two.node.bench.begun, 1).await;
    let two = Process::restart("n2", two.kill()).await;
    // It is told by the reset of the connection, not by silence.
    let error = held.await.expect("ends").expect_err("the node died");
    assert_eq!((error.effect(), reason(&error)), (Effect::Possible, "reset by peer"));
    assert_eq!(one.call(&to, PeerClass::Data, WHO, "").await.expect("an answer"), "n1 data");
    two.end();
}

#[tokio::test]
async fn a_node_that_stopped_and_started_elsewhere_is_reached_there() {
    let (one, two) = (node("n1"), node("n2"));
    let held = one.begin(&two.addr(), PeerClass::Data, HOLD, "held");
    reached(&two.bench.begun, 1).await;
    // Its name leads elsewhere now; what was begun before is not cut off by that.
    let moved = node("n2");
    assert_eq!(one.call(&moved.addr(), PeerClass::Data, ECHO, "here").await.expect("an answer"), "here");
    assert_eq!(*moved.bench.begun.borrow(), 1);
    two.bench.gate.add_permits(1);
    assert_eq!(held.await.expect("ends").expect("an answer"), "held");
    two.endpoint.close().await;
    assert_eq!(one.call(&moved.addr(), PeerClass::Data, ECHO, "here").await.expect("an answer"), "here");
}
