//! The stream rule (design 4): how records get from a source into a partition log exactly once and in order.
//!
//! Pure: no I/O, no time, no randomness. [`StreamTable`] is the owner's side, [`SenderWindow`] the sender's. Both are explored
//! exhaustively, together with a network that loses, repeats and delays, by `tests/model`.
//!
//! What this module must never do: drop a record because it lies below the highest one seen. A record is left out only when the chain of
//! `prev` proves that the log holds it.

mod table;
mod window;

pub use table::{Cause, Offer, Refusal, STREAMS_PER_LOG_MAX, Standing, StreamTable, Verdict};
pub use veena_storage::partition::{Mark, Marks, Origin, StreamKey};
pub use window::{SenderWindow, Source, Start, Stop, Ticket};

/// What a commit follows, in its own stream and log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Prev {
    /// Nothing: the stream begins with this commit.
    Begin,
    /// The last sequence of the stream that the sender knows committed in this log. Never "last sent", never "last - 1".
    Seq(u64),
}

impl Prev {
    /// As an optional mark: `None` for the beginning.
    #[must_use]
    pub const fn mark(self) -> Option<u64> {
        match self {
            Self::Begin => None,
            Self::Seq(sequence) => Some(sequence),
        }
    }
}

impl From<Option<u64>> for Prev {
    fn from(mark: Option<u64>) -> Self {
        mark.map_or(Self::Begin, Self::Seq)
    }
}
