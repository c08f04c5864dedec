//! The end of a node.

use tokio::time::timeout;
use veena_contract::{Effect, PeerClass, PeerError, PeerRefusal};
use veena_peer::wire::body_bytes_max;

use crate::support::{ECHO, HOLD, LONG, node, reached};

#[tokio::test]
async fn a_stop_ends_what_was_begun_and_refuses_what_comes_meanwhile() {
    let (one, two, three) = (node("n1"), node("n2"), node("n3"));
    // an answer so large that it is under way for a while
    let body = vec![9; body_bytes_max(PeerClass::Data)];
    let held = one.begin(&two.addr(), PeerClass::Data, HOLD, body.clone());
    reached(&two.bench.begun, 1).await;
    two.stop.cancel();
    let error = one.call(&two.addr(), PeerClass::Data, ECHO, "").await.expect_err("refused");
    assert_eq!((error.effect(), error), (Effect::None, PeerError::Refused { node: two.name.clone(), refusal: PeerRefusal::NotServing }));
    let error = three.call(&two.addr(), PeerClass::Control, ECHO, "").await.expect_err("no new connection");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    assert!(!two.running.is_finished(), "a call is under way");

    two.bench.gate.add_permits(1);
    timeout(LONG, two.running).await.expect("it ends").expect("in order");
    two.endpoint.close().await;
    assert!(held.await.expect("ends").expect("an answer") == body);
    assert_eq!((*two.bench.begun.borrow(), *two.bench.ended.borrow()), (1, 1));
}

#[tokio::test]
async fn a_stop_does_not_wait_for_connections_without_calls() {
    let (one, two) = (node("n1"), node("n2"));
    for class in PeerClass::ALL {
        one.call(&two.addr(), class, ECHO, "").await.expect("an answer");
    }
    two.stop.cancel();
    timeout(LONG, two.running).await.expect("it ends").expect("in order");
}

#[tokio::test]
async fn a_node_whose_endpoint_is_gone_does_not_go_on_as_if_others_could_call_it() {
    let (one, two) = (node("n1"), node("n2"));
    let addr = two.addr();
    one.call(&addr, PeerClass::Data, ECHO, "").await.expect("an answer");
    assert!(!two.running.is_finished());
    // As when its socket fails: nobody has told it to stop.
    two.endpoint.close().await;
    timeout(LONG, two.running).await.expect("its serving ends, and with that the node").expect("in order");
    let error = one.call(&addr, PeerClass::Data, ECHO, "").await.expect_err("nobody is there");
    assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
}
