//! The bytes of a call and of its answer. Integers are big-endian.
//!
//! A call is a head and a body, an answer likewise; a stream carries one of each. A head says how long it is: what a newer node adds behind
//! what is known here is skipped.
//!
//! | call | bytes | | answer | bytes | |
//! |---|---|---|---|---|---|
//! | version | 1 | [`VERSION`] | version | 1 | [`VERSION`] |
//! | head length | 1 | 12 or more | head length | 1 | 8 or more |
//! | op | 2 | | status | 1 | 0 served, 255 broke, else a refusal |
//! | remaining | 4 | ms | reserved | 1 | 0 |
//! | body length | 4 | | body length | 4 | |

use std::time::Duration;

use quinn::{ReadExactError, RecvStream};
use veena_contract::{PeerClass, PeerOp, PeerRefusal, limits};

/// The version of this form.
pub const VERSION: u8 = 1;
/// How long the known part of a call's head is.
pub const CALL_HEAD_BYTES: usize = CALL_HEAD_LENGTH as usize;
/// How long the known part of an answer's head is.
pub const ANSWER_HEAD_BYTES: usize = ANSWER_HEAD_LENGTH as usize;

const CALL_HEAD_LENGTH: u8 = 12;
const ANSWER_HEAD_LENGTH: u8 = 8;

const _: () = {
    assert!(limits::PEER_DATA_BYTES_MAX <= u32::MAX as usize, "the length of every body fits into a head");
    assert!(limits::PEER_CONTROL_BYTES_MAX <= limits::PEER_DATA_BYTES_MAX && limits::PEER_WAIT_BYTES_MAX <= limits::PEER_DATA_BYTES_MAX);
};

const SERVED: u8 = 0;
const BROKE: u8 = 255;

/// The longest time that a call can say it waits: 49 days.
pub const REMAINING_MAX: Duration = Duration::from_millis(u32::MAX as u64);

/// The largest body of a class.
#[must_use]
pub const fn body_bytes_max(class: PeerClass) -> usize {
    match class {
        PeerClass::Control => limits::PEER_CONTROL_BYTES_MAX,
        PeerClass::Data => limits::PEER_DATA_BYTES_MAX,
        PeerClass::Wait => limits::PEER_WAIT_BYTES_MAX,
        PeerClass::Settle => limits::PEER_SETTLE_BYTES_MAX,
    }
}

/// The head of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// Which call.
    pub op: PeerOp,
    /// How long the caller still waits, in milliseconds.
    pub remaining_ms: u32,
    /// How long the body is.
    pub body_bytes: u32,
}

impl CallHead {
    /// The head of a call that the caller waits for that long. Less than a millisecond counts as one.
    #[must_use]
    pub fn new(op: PeerOp, remaining: Duration, body_bytes: u32) -> Self {
        let remaining_ms = u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX).max(1);
        Self { op, remaining_ms, body_bytes }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CALL_HEAD_BYTES] {
        let mut out = [0; CALL_HEAD_BYTES];
        out[0] = VERSION;
        out[1] = CALL_HEAD_LENGTH;
        out[2..4].copy_from_slice(&self.op.0.to_be_bytes());
        out[4..8].copy_from_slice(&self.remaining_ms.to_be_bytes());
        out[8..12].copy_from_slice(&self.body_bytes.to_be_bytes());
        out
    }

    /// From bytes; and how many bytes of the head follow that are not known here. `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8; CALL_HEAD_BYTES]) -> Option<(Self, usize)> {
        let skip = skipped(bytes[0], bytes[1], CALL_HEAD_BYTES)?;
        let four = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some((Self { op: PeerOp(u16::from_be_bytes([bytes[2], bytes[3]])), remaining_ms: four(4), body_bytes: four(8) }, skip))
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The body is the answer.
    Served,
    /// Nothing was done.
    Refused(PeerRefusal),
    /// It was begun, and broke.
    Broke,
}

impl Status {
    fn number(self) -> u8 {
        match self {
            Self::Served => SERVED,
            Self::Broke => BROKE,
            Self::Refused(refusal) => refusal.number(),
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        match number {
            SERVED => Some(Self::Served),
            BROKE => Some(Self::Broke),
            number => PeerRefusal::of_number(number).map(Self::Refused),
        }
    }
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// What became of the call.
    pub status: Status,
    /// How long the body is.
    pub body_bytes: u32,
}

impl AnswerHead {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ANSWER_HEAD_BYTES] {
        let mut out = [0; ANSWER_HEAD_BYTES];
        out[0] = VERSION;
        out[1] = ANSWER_HEAD_LENGTH;
        out[2] = self.status.number();
        out[4..8].copy_from_slice(&self.body_bytes.to_be_bytes());
        out
    }

    /// From bytes; and how many bytes of the head follow that are not known here. `None` if it is none, or its status is not known here.
    #[must_use]
    pub fn decode(bytes: &[u8; ANSWER_HEAD_BYTES]) -> Option<(Self, usize)> {
        let skip = skipped(bytes[0], bytes[1], ANSWER_HEAD_BYTES)?;
        let body_bytes = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Some((Self { status: Status::of_number(bytes[2])?, body_bytes }, skip))
    }
}

fn skipped(version: u8, head_bytes: u8, known: usize) -> Option<usize> {
    usize::from(head_bytes).checked_sub(known).filter(|_| version == VERSION)
}

/// Reads and forgets what a newer node has in its head.
///
/// # Errors
/// As of reading the stream.
pub async fn skip(stream: &mut RecvStream, bytes: usize) -> Result<(), ReadExactError> {
    let mut rest = [0; u8::MAX as usize];
    stream.read_exact(&mut rest[..bytes.min(u8::MAX as usize)]).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heads_have_the_golden_bytes() {
        let call = CallHead { op: PeerOp(0x0102), remaining_ms: 1500, body_bytes: 70_000 };
        assert_eq!(call.encode(), [1, 12, 1, 2, 0, 0, 5, 220, 0, 1, 17, 112]);
        assert_eq!(CallHead::decode(&call.encode()), Some((call, 0)));
        let answer = AnswerHead { status: Status::Refused(PeerRefusal::TooLate), body_bytes: 3 };
        assert_eq!(answer.encode(), [1, 8, 2, 0, 0, 0, 0, 3]);
        assert_eq!(AnswerHead::decode(&answer.encode()), Some((answer, 0)));
    }

    #[test]
    fn every_status_comes_back_and_an_unknown_one_is_none() {
        let known: Vec<Status> = PeerRefusal::ALL.map(Status::Refused).into_iter().chain([Status::Served, Status::Broke]).collect();
        for status in &known {
            let head = AnswerHead { status: *status, body_bytes: 0 };
            assert_eq!(AnswerHead::decode(&head.encode()), Some((head, 0)));
        }
        let decoded = (0..=255).filter_map(|number| AnswerHead::decode(&[1, 8, number, 0, 0, 0, 0, 0]));
        assert_eq!(decoded.count(), known.len());
    }

    #[test]
    fn a_longer_head_is_skipped_a_shorter_one_and_another_version_are_none() {
        let mut bytes = CallHead { op: PeerOp(1), remaining_ms: 1, body_bytes: 0 }.encode();
        bytes[1] = 20;
        assert_eq!(CallHead::decode(&bytes).map(|(_, skip)| skip), Some(8));
        bytes[1] = 11;
        assert_eq!(CallHead::decode(&bytes), None);
        (bytes[0], bytes[1]) = (2, 12);
        assert_eq!(CallHead::decode(&bytes), None);
    }

    #[test]
    fn a_caller_who_hardly_waits_still_waits_for_a_millisecond() {
        assert_eq!(CallHead::new(PeerOp(1), Duration::from_micros(3), 0).remaining_ms, 1);
        assert_eq!(CallHead::new(PeerOp(1), Duration::MAX, 0).remaining_ms, u32::MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_none_and_a_head_comes_back(call in any::<[u8; 12]>(), answer in any::<[u8; 8]>()) {
            for (version, length) in [(call[0], call[1]), (VERSION, call[1]), (VERSION, CALL_HEAD_LENGTH)] {
                let mut bytes = call;
                (bytes[0], bytes[1]) = (version, length);
                if let Some((head, more)) = CallHead::decode(&bytes) {
                    prop_assert_eq!(CallHead::decode(&head.encode()), Some((head, 0)));
                    prop_assert_eq!(more, usize::from(length) - CALL_HEAD_BYTES);
                }
            }
            for (version, length) in [(answer[0], answer[1]), (VERSION, answer[1]), (VERSION, ANSWER_HEAD_LENGTH)] {
                let mut bytes = answer;
                (bytes[0], bytes[1]) = (version, length);
                if let Some((head, more)) = AnswerHead::decode(&bytes) {
                    prop_assert_eq!(AnswerHead::decode(&head.encode()), Some((head, 0)));
                    prop_assert_eq!(more, usize::from(length) - ANSWER_HEAD_BYTES);
                }
            }
        }
    }
}
