//! Snapshots that come from the leader in pieces.

use parking_lot::Mutex;
use veena_contract::limits;

use super::adapter::Meta;
use super::wire::PieceHead;

/// The one snapshot that is being received. Another one takes its place, so that no sender that has gone keeps memory.
#[derive(Default)]
pub(super) struct Receiver(Mutex<Option<Partial>>);

struct Partial {
    vote: openraft::Vote<u64>,
    meta: Meta,
    data: Vec<u8>,
}

/// What a piece has come to.
pub(super) enum Received {
    /// The next piece begins there.
    Next(u64),
    /// The snapshot is whole.
    Whole(Vec<u8>),
    /// It would be larger than snapshots are.
    TooLarge,
}

impl Receiver {
    /// Takes one piece. One that does not begin where the last one ended is not taken: the sender begins anew.
    pub(super) fn take(&self, head: &PieceHead, piece: &[u8]) -> Received {
        let mut slot = self.0.lock();
        let mut partial = match slot.take() {
            Some(partial) if partial.vote == head.vote && partial.meta == head.meta && head.offset == partial.data.len() as u64 => partial,
            _ if head.offset == 0 => Partial { vote: head.vote, meta: head.meta.clone(), data: Vec::new() },
            other => {
                *slot = other;
                return Received::Next(0);
            }
        };
        if partial.data.len() + piece.len() > limits::METADATA_SNAPSHOT_BYTES_MAX {
            return Received::TooLarge;
        }
        partial.data.extend_from_slice(piece);
        if head.is_last {
            return Received::Whole(partial.data);
        }
        let next = partial.data.len() as u64;
        *slot = Some(partial);
        Received::Next(next)
    }
}

#[cfg(test)]
mod tests {
    use openraft::{StoredMembership, Vote};

    use super::*;

    fn head(snapshot: &str, term: u64, offset: u64, is_last: bool) -> PieceHead {
        let meta = Meta { last_log_id: None, last_membership: StoredMembership::default(), snapshot_id: snapshot.to_owned() };
        PieceHead { vote: Vote::new_committed(term, 1), meta, offset, is_last }
    }

    fn next(received: Received) -> Option<u64> {
        match received {
            Received::Next(offset) => Some(offset),
            Received::Whole(_) | Received::TooLarge => None,
        }
    }

    #[test]
    fn a_snapshot_is_whole_when_every_piece_followed_the_one_before() {
        let receiver = Receiver::default();
        assert_eq!(next(receiver.take(&head("a", 1, 0, false), b"abc")), Some(3));
        assert_eq!(next(receiver.take(&head("a", 1, 3, false), b"de")), Some(5));
        assert!(matches!(receiver.take(&head("a", 1, 5, true), b"f"), Received::Whole(data) if data == b"abcdef"));
        assert_eq!(next(receiver.take(&head("a", 1, 5, true), b"f")), Some(0), "nothing is kept of what is whole");
    }

    #[test]
    fn a_piece_that_does_not_follow_is_not_taken() {
        let receiver = Receiver::default();
        receiver.take(&head("a", 1, 0, false), b"abc");
        for strange in [head("a", 1, 2, true), head("a", 1, 4, true), head("b", 1, 3, true), head("a", 2, 3, true)] {
            assert_eq!(next(receiver.take(&strange, b"xyz")), Some(0));
        }
        assert!(matches!(receiver.take(&head("a", 1, 3, true), b"d"), Received::Whole(data) if data == b"abcd"));
        // A first piece begins anew, whatever was there.
        receiver.take(&head("a", 1, 0, false), b"abc");
        receiver.take(&head("b", 2, 0, false), b"x");
        assert!(matches!(receiver.take(&head("b", 2, 1, true), b"y"), Received::Whole(data) if data == b"xy"));
    }
}
