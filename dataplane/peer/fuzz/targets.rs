// What each fuzz target does with its input; shared with the plain test that replays the checked-in inputs.

use veena_contract::limits;
use veena_peer::Hello;
use veena_peer::wire::{ANSWER_HEAD_BYTES, AnswerHead, CALL_HEAD_BYTES, CallHead, Status};

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this crate.
pub const TARGETS: [Target; 3] = [("call_head", call_head), ("answer_head", answer_head), ("hello", hello)];

/// The head of a call: what is read is written back with the same meaning, and what is skipped behind it fits the length it names.
pub fn call_head(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<CALL_HEAD_BYTES>() else { return };
    if let Some((head, skip)) = CallHead::decode(bytes) {
        assert_eq!(CallHead::decode(&head.encode()), Some((head, 0)));
        assert_eq!(CALL_HEAD_BYTES + skip, usize::from(bytes[1]));
    }
}

/// The head of an answer, likewise; and a refusal has a number that its text can be found by.
pub fn answer_head(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<ANSWER_HEAD_BYTES>() else { return };
    if let Some((head, skip)) = AnswerHead::decode(bytes) {
        assert_eq!(AnswerHead::decode(&head.encode()), Some((head, 0)));
        assert_eq!(ANSWER_HEAD_BYTES + skip, usize::from(bytes[1]));
        if let Status::Refused(refusal) = head.status {
            assert_eq!(refusal.number(), bytes[2]);
        }
    }
}

/// What a node says of itself, by one who knows the secret: what is read is written back with the same meaning.
pub fn hello(bytes: &[u8]) {
    if bytes.len() > limits::PEER_HELLO_BYTES_MAX {
        return;
    }
    if let Some(hello) = Hello::decode(bytes) {
        let said = hello.encode();
        assert_eq!(Hello::decode(&said), Some(hello));
    }
}
