//! What one class of calls does to the others, and what bounds it.

use std::time::Duration;

use veena_contract::{Effect, PeerClass, PeerError, limits};

use crate::support::{ECHO, HOLD, node, reached};

#[tokio::test]
async fn a_class_that_is_full_holds_up_itself_and_no_other() {
    let (one, two) = (node("n1"), node("n2"));
    let calls_max = limits::PEER_DATA_CALLS_MAX as usize;
    // More than fit, so that some wait. QUIC hands out room for new calls in eighths: that much may be unused.
    let calls = calls_max + 8;
    let held: Vec<_> = (0..calls).map(|_| one.begin(&two.addr(), PeerClass::Data, HOLD, "held")).collect();
    reached(&two.bench.begun, calls_max * 7 / 8).await;

    let mut echoes = 0;
    let over = loop {
        match one.call_within(&two.addr(), PeerClass::Data, ECHO, "", Duration::from_millis(100)).await {
            Ok(_) => echoes += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((over.effect(), over), (Effect::None, PeerError::Busy { node: two.name.clone() }));
    let begun = *two.bench.begun.borrow() - echoes;
    assert!((calls_max * 7 / 8..=calls_max).contains(&begun), "{begun} of {calls_max}");
    for class in [PeerClass::Control, PeerClass::Wait, PeerClass::Settle] {
        assert_eq!(one.call(&two.addr(), class, ECHO, "through").await.expect("an answer"), "through");
    }

    let waiting = one.begin(&two.addr(), PeerClass::Data, ECHO, "at last");
    two.bench.gate.add_permits(calls);
    assert_eq!(waiting.await.expect("ends").expect("an answer"), "at last");
    for held in held {
        assert_eq!(held.await.expect("ends").expect("an answer"), "held");
    }
}

#[tokio::test]
async fn the_bytes_of_one_class_that_are_in_hand_are_bounded_and_no_other_class_waits_for_them() {
    let (one, two, three) = (node("n1"), node("n2"), node("n3"));
    let (bytes, room) = (limits::PEER_DATA_BYTES_MAX, limits::PEER_RECEIVING_BYTES_MAX / limits::PEER_DATA_BYTES_MAX);
    let calls = room * 4;
    let held: Vec<_> = (0..calls)
        .map(|at| [&one, &two][at % 2].begin(&three.addr(), PeerClass::Data, HOLD, vec![at.try_into().expect("small"); bytes]))
        .collect();
    reached(&three.bench.begun, room).await;
    // The others wait to be read, on both connections; what is of another class does not.
    let body = vec![1; limits::PEER_CONTROL_BYTES_MAX];
    assert!(one.call(&three.addr(), PeerClass::Control, ECHO, body.clone()).await.expect("an answer") == body);
    for begun in room + 1..calls {
        assert_eq!(*three.bench.begun.borrow(), begun, "more than there is room for");
        three.bench.gate.add_permits(1);
        reached(&three.bench.begun, begun + 1).await;
    }
    three.bench.gate.add_permits(calls);
    for (at, held) in held.into_iter().enumerate() {
        let answer = held.await.expect("ends").expect("an answer");
        assert!(answer.len() == bytes && answer.iter().all(|byte| usize::from(*byte) == at));
    }
}

/// The window of a connection has room for all of its calls: those that wait must not keep one that was begun from being read to its end.
#[tokio::test]
async fn large_calls_on_all_streams_of_a_connection_end() {
    let (one, two) = (node("n1"), node("n2"));
    two.bench.gate.add_permits(usize::MAX >> 4);
    let bytes = limits::PEER_RECEIVING_BYTES_MAX / 40;
    let calls: Vec<_> = (0..limits::PEER_DATA_CALLS_MAX).map(|_| one.begin(&two.addr(), PeerClass::Data, HOLD, vec![0; bytes])).collect();
    for call in calls {
        assert_eq!(call.await.expect("ends").expect("an answer").len(), bytes);
    }
}
