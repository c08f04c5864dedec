//! Keys and values. Values are JSON with a version, so that a dump can be read.

use std::io;

use openraft::{Entry, LogId, Vote};
use serde::{Deserialize, Serialize};
use veena_consensus::raft::{MemberId, RaftTypes};

/// The version of every value.
pub(crate) const VERSION: u32 = 1;

/// Column family of entries: index, big-endian, to [`Stored`] entry.
pub(crate) const LOG: &str = "log";
/// Column family of single values.
pub(crate) const META: &str = "meta";
/// Column family of snapshot chunks: snapshot id and chunk number, both big-endian, to bytes.
pub(crate) const SNAP: &str = "snap";

/// Which format this is; written when the store is created.
pub(crate) const KEY_FORMAT: &[u8] = b"format";
/// The last vote.
pub(crate) const KEY_VOTE: &[u8] = b"vote";
/// The last known committed position.
pub(crate) const KEY_COMMITTED: &[u8] = b"committed";
/// The last purged position.
pub(crate) const KEY_PURGED: &[u8] = b"purged";
/// The current snapshot's description.
pub(crate) const KEY_SNAPSHOT: &[u8] = b"snapshot";

pub(crate) type StoredEntry = Entry<RaftTypes>;
pub(crate) type StoredLogId = LogId<MemberId>;
pub(crate) type StoredVote = Vote<MemberId>;

/// The current snapshot, as its key describes it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Current {
    pub(crate) id: u64,
    pub(crate) chunks: u32,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
    /// What the consensus crate keeps beside it; opaque.
    pub(crate) meta: String,
}

#[derive(Serialize, Deserialize)]
struct Stored<T> {
    v: u32,
    value: T,
}

/// The key of an entry.
pub(crate) fn entry_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// The index in an entry's key.
pub(crate) fn entry_index(key: &[u8]) -> io::Result<u64> {
    key.try_into().map(u64::from_be_bytes).map_err(|_| invalid("a log key is not 8 bytes long"))
}

/// The key of a chunk of a snapshot.
pub(crate) fn chunk_key(snapshot: u64, chunk: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&snapshot.to_be_bytes());
    key[8..].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// A value as it is stored.
pub(crate) fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    serde_json::to_vec(&Stored { v: VERSION, value }).map_err(io::Error::from)
}

/// A stored value.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(what: &str, bytes: &[u8]) -> io::Result<T> {
    let stored: Stored<T> = serde_json::from_slice(bytes).map_err(|e| invalid(&format!("{what} cannot be read: {e}")))?;
    if stored.v != VERSION {
        return Err(invalid(&format!("{what} has version {}, this program reads {VERSION}", stored.v)));
    }
    Ok(stored.value)
}

pub(crate) fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
