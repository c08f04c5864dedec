//! One call: its bodies, its end, its caller.

use std::time::Duration;

use veena_contract::{Effect, PeerClass, PeerError, PeerOp, PeerRefusal};
use veena_peer::wire::body_bytes_max;

use crate::support::{BREAK, ECHO, HOLD, LARGE, WATCH, WHO, node, reached};

#[tokio::test]
async fn a_call_of_each_class_is_answered_and_says_who_calls() {
    let (one, two) = (node("n1"), node("n2"));
    for class in PeerClass::ALL {
        assert_eq!(one.call(&two.addr(), class, ECHO, "argument").await.expect("an answer"), "argument");
        assert_eq!(one.call(&two.addr(), class, ECHO, "").await.expect("an answer"), "");
        assert_eq!(one.call(&two.addr(), class, WHO, "").await.expect("an answer"), format!("n1 {class}"));
        assert_eq!(two.call(&one.addr(), class, WHO, "").await.expect("an answer"), format!("n2 {class}"));
    }
}

#[tokio::test]
async fn a_body_at_the_bound_is_taken_and_a_byte_over_it_is_not() {
    let (one, two) = (node("n1"), node("n2"));
    for class in PeerClass::ALL {
        let bytes_max = body_bytes_max(class);
        let body = vec![3; bytes_max];
        assert!(one.call(&two.addr(), class, ECHO, body.clone()).await.expect("an answer") == body);
        let begun = *two.bench.begun.borrow();
        let error = one.call(&two.addr(), class, ECHO, vec![3; bytes_max + 1]).await.expect_err("too large");
        assert_eq!(error, PeerError::TooLarge { bytes: bytes_max + 1, bytes_max });
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(*two.bench.begun.borrow(), begun);
    }
}

#[tokio::test]
async fn an_answer_over_the_bound_is_a_call_that_broke() {
    let (one, two) = (node("n1"), node("n2"));
    let bytes = |bytes: usize| u32::try_from(bytes).expect("small").to_be_bytes().to_vec();
    for class in PeerClass::ALL {
        let bytes_max = body_bytes_max(class);
        assert_eq!(one.call(&two.addr(), class, LARGE, bytes(bytes_max)).await.expect("an answer").len(), bytes_max);
        let error = one.call(&two.addr(), class, LARGE, bytes(bytes_max + 1)).await.expect_err("too large");
        assert_eq!((error.effect(), error), (Effect::Possible, PeerError::Failed { node: two.name.clone() }));
    }
}

#[tokio::test]
async fn a_call_that_the_node_does_not_know_is_refused_as_such() {
    let (one, two) = (node("n1"), node("n2"));
    let error = one.call(&two.addr(), PeerClass::Control, PeerOp(999), "argument").await.expect_err("refused");
    assert_eq!((error.effect(), error), (Effect::None, PeerError::Refused { node: two.name.clone(), refusal: PeerRefusal::UnknownOp }));
}

#[tokio::test]
async fn a_call_that_breaks_breaks_alone() {
    let (one, two) = (node("n1"), node("n2"));
    let held = one.begin(&two.addr(), PeerClass::Data, HOLD, "held");
    reached(&two.bench.begun, 1).await;
    let error = one.call(&two.addr(), PeerClass::Data, BREAK, "").await.expect_err("it breaks");
    assert_eq!((error.effect(), error), (Effect::Possible, PeerError::Failed { node: two.name.clone() }));
    assert_eq!(one.call(&two.addr(), PeerClass::Data, ECHO, "next").await.expect("an answer"), "next");
    two.bench.gate.add_permits(1);
    assert_eq!(held.await.expect("ends").expect("an answer"), "held");
}

#[tokio::test]
async fn a_call_without_an_answer_in_time_may_have_been_applied() {
    let (one, two) = (node("n1"), node("n2"));
    one.call(&two.addr(), PeerClass::Data, ECHO, "").await.expect("connected");
    let error = one.call_within(&two.addr(), PeerClass::Data, HOLD, "", Duration::from_millis(100)).await.expect_err("silent");
    assert_eq!((error.effect(), error), (Effect::Possible, PeerError::Silent { node: two.name.clone() }));
    two.bench.gate.add_permits(1);
    reached(&two.bench.ended, 2).await;
}

#[tokio::test]
async fn a_caller_who_leaves_is_noticed_while_its_call_runs_to_the_end() {
    let (one, two) = (node("n1"), node("n2"));
    let watched = one.begin(&two.addr(), PeerClass::Wait, WATCH, "");
    let held = one.begin(&two.addr(), PeerClass::Wait, HOLD, "");
    reached(&two.bench.begun, 2).await;
    watched.abort();
    held.abort();
    reached(&two.bench.ended, 1).await;
    two.bench.gate.add_permits(1);
    reached(&two.bench.ended, 2).await;
}

#[tokio::test]
async fn a_caller_whose_node_goes_is_noticed() {
    let (one, two) = (node("n1"), node("n2"));
    let watched = one.begin(&two.addr(), PeerClass::Wait, WATCH, "");
    reached(&two.bench.begun, 1).await;
    one.endpoint.close().await;
    reached(&two.bench.ended, 1).await;
    let error = watched.await.expect("ends").expect_err("no answer");
    assert!(matches!(error, PeerError::Lost { .. }), "{error}");
}
