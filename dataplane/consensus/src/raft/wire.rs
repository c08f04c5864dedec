//! What members say to each other: JSON with a version in front. A piece of a snapshot has its bytes behind the JSON.

use bytes::Bytes;
use openraft::Vote;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use veena_contract::{FeatureLevel, LineageId, LogIndex};

use super::adapter::Meta;
use super::types::{MemberId, is_first};

/// The version of every body. A body of another version is refused as malformed, which has no effect.
const VERSION: u32 = 1;

/// Stands between the JSON and the bytes behind it; JSON as we write it has none.
const END_OF_JSON: u8 = b'\n';

#[derive(Serialize)]
struct Sent<'a, T> {
    v: u32,
    body: &'a T,
}

#[derive(Deserialize)]
struct Received<T> {
    v: u32,
    body: T,
}

/// A body as it is sent.
pub(super) fn encode<T: Serialize>(body: &T) -> serde_json::Result<Bytes> {
    serde_json::to_vec(&Sent { v: VERSION, body }).map(Bytes::from)
}

/// A body as it came; `None` if it is not one of ours.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let received: Received<T> = serde_json::from_slice(bytes).ok()?;
    (received.v == VERSION).then_some(received.body)
}

/// A piece of a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct PieceHead {
    /// The leader's.
    pub vote: Vote<MemberId>,
    /// Which snapshot.
    pub meta: Meta,
    /// Where this piece begins.
    pub offset: u64,
    /// Is it the last one?
    pub is_last: bool,
}

/// A piece as it is sent.
pub(super) fn encode_piece(head: &PieceHead, piece: &[u8]) -> serde_json::Result<Bytes> {
    let mut bytes = serde_json::to_vec(&Sent { v: VERSION, body: head })?;
    bytes.push(END_OF_JSON);
    bytes.extend_from_slice(piece);
    Ok(bytes.into())
}

/// A piece as it came.
pub(super) fn decode_piece(bytes: &[u8]) -> Option<(PieceHead, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == END_OF_JSON)?;
    Some((decode(&bytes[..end])?, &bytes[end + 1..]))
}

/// What a member says to a piece.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PieceAnswer {
    /// It goes on from there.
    Next(u64),
    /// It follows this vote; after the last piece, the snapshot is installed unless the vote is a higher one.
    Done(Vote<MemberId>),
}

/// What a member says to a call of the raft library: an answer, or why it takes part no more.
pub(super) type RaftAnswer<T> = Result<T, String>;

/// A change that was committed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    /// Where it stands in the log.
    pub at: LogIndex,
    /// What the state machine said to it.
    pub answer: String,
}

/// A change of the members.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// A node with an empty log becomes a learner.
    Join {
        /// Who.
        name: String,
        /// Where it listens.
        addr: String,
        /// What its data directory is called; empty if it does not say.
        #[serde(default)]
        directory: String,
        /// The life that the directory has left, if it was used before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        left: Option<LineageId>,
        /// What it knows of commands.
        #[serde(default, skip_serializing_if = "is_first")]
        level: FeatureLevel,
    },
    /// A learner becomes a voter.
    Promote {
        /// Who.
        name: String,
    },
    /// A member leaves.
    Remove {
        /// Who.
        name: String,
    },
    /// A member listens elsewhere, or knows more or less than it did.
    Address {
        /// Who.
        name: String,
        /// Where it listens now.
        addr: String,
        /// What it knows of commands now.
        #[serde(default, skip_serializing_if = "is_first")]
        level: FeatureLevel,
    },
}

/// Why the leader, or whoever was taken for it, did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Failure {
    /// Nothing was done, since there is no leader there.
    NoLeader(String),
    /// Nothing was done; this node leads.
    Elsewhere {
        /// Who.
        name: String,
        /// Where it listens.
        addr: String,
    },
    /// Nothing was done, since who asks is no member.
    NotAMember,
    /// Nothing was done, since it is not allowed.
    Refused(String),
    /// Nothing was done, since this very member takes part no more.
    Stopped(String),
    /// It was begun, and its outcome is not known.
    Lost(String),
    /// It was begun, and no outcome came in time.
    Timeout,
}
