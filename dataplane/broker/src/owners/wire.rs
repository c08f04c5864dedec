//! The bytes of calls to owners and of their answers. Integers are big-endian; every body begins with a version.
//!
//! A request is `version u8 | topic u64 | partition u32 | epoch u64`, and what its op adds. An answer is `version u8 | status u8`, and what
//! its op adds when the status is 0; with status 1, the node asked is not the partition's owner at the epoch of the request.

use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use veena_contract::{LogId, MessageId, Offset, OwnershipEpoch, PartitionIndex, StreamId, TopicId, limits};
use veena_storage::partition::NewRecord;

use crate::owners::NotOwner;
use crate::partition::PartitionId;
use crate::produce::request::{CommitAnswer, CommitError, Placed, StreamCommit};
use crate::streams::{Cause, Origin, Prev, Refusal, Standing, StreamKey};

pub mod keyed;

/// The version of all bodies.
pub const VERSION: u8 = 1;

/// How long the beginning of a request is.
const REQUEST_BYTES: usize = 21;
const SERVED: u8 = 0;
const NOT_OWNER: u8 = 1;

/// The bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed body")]
pub struct Malformed;

impl From<TryGetError> for Malformed {
    fn from(_: TryGetError) -> Self {
        Self
    }
}

/// One ownership of one partition: what a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The partition.
    pub partition: PartitionId,
    /// Since which change of ownership, as the caller knows it.
    pub epoch: OwnershipEpoch,
}

/// The beginning of a request, with room for `more` bytes.
#[must_use]
pub fn request(tenure: &Tenure, more: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(REQUEST_BYTES + more);
    out.put_u8(VERSION);
    out.put_u64(tenure.partition.topic.0);
    out.put_u32(tenure.partition.index.get());
    out.put_u64(tenure.epoch.get());
    out
}

/// Takes the beginning off a request.
///
/// # Errors
/// [`Malformed`].
pub fn take_request(body: &mut Bytes) -> Result<Tenure, Malformed> {
    if body.try_get_u8()? != VERSION {
        return Err(Malformed);
    }
    let topic = TopicId(body.try_get_u64()?);
    let index = PartitionIndex(body.try_get_u32()?);
    let epoch = OwnershipEpoch(body.try_get_u64()?);
    Ok(Tenure { partition: PartitionId { topic, index }, epoch })
}

/// The beginning of an answer, with room for `more` bytes.
#[must_use]
pub fn answer(more: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(2 + more);
    out.put_u8(VERSION);
    out.put_u8(SERVED);
    out
}

/// The answer of a node that does not own the partition.
#[must_use]
pub fn not_owner() -> Bytes {
    Bytes::from_static(&[VERSION, NOT_OWNER])
}

/// Takes the beginning off an answer.
///
/// # Errors
/// [`Malformed`]; inside, [`NotOwner`].
pub fn take_answer(body: &mut Bytes) -> Result<Result<(), NotOwner>, Malformed> {
    if body.try_get_u8()? != VERSION {
        return Err(Malformed);
    }
    match body.try_get_u8()? {
        SERVED => Ok(Ok(())),
        NOT_OWNER if body.is_empty() => Ok(Err(NotOwner)),
        _ => Err(Malformed),
    }
}

/// Takes a yes or no.
///
/// # Errors
/// [`Malformed`].
pub fn take_bool(body: &mut Bytes) -> Result<bool, Malformed> {
    match body.try_get_u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

/// Writes bytes with their length before them.
///
/// # Panics
/// When there are more than 4 GiB; every body is bounded far below.
pub fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).expect("invariant: bodies are bounded far below 4 GiB"));
    out.put_slice(bytes);
}

/// Takes bytes with their length before them, without copying.
///
/// # Errors
/// [`Malformed`].
pub fn take_bytes(body: &mut Bytes) -> Result<Bytes, Malformed> {
    let len = usize::try_from(body.try_get_u32()?).map_err(|_| Malformed)?;
    if len > body.len() {
        return Err(Malformed);
    }
    Ok(body.split_to(len))
}

/// Nothing may be left.
///
/// # Errors
/// [`Malformed`].
pub fn end(body: &Bytes) -> Result<(), Malformed> {
    if body.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// How many bytes stand around a record of a commit.
const RECORD_HEAD_BYTES: usize = 8 + 25 + 4;
/// How many bytes stand before the records of a commit.
const COMMIT_HEAD_BYTES: usize = 20 + 16 + 16 + 9 + 8 + 1 + 4;

const _: () = {
    // The last record of a commit may begin below its bound and end above.
    let records = limits::COMMIT_BYTES_MAX + limits::WAL_RECORD_BYTES_MAX + limits::COMMIT_RECORDS_MAX * RECORD_HEAD_BYTES;
    assert!(REQUEST_BYTES + COMMIT_HEAD_BYTES + records <= limits::PEER_DATA_BYTES_MAX, "every commit can be sent");
};

/// Asks where a stream stands: adds `stream u128 | source u32`.
#[must_use]
pub fn open(tenure: &Tenure, key: StreamKey) -> Bytes {
    let mut out = request(tenure, 20);
    put_key(&mut out, key);
    out.freeze()
}

/// What [`open`] adds.
///
/// # Errors
/// [`Malformed`].
pub fn take_open(mut body: Bytes) -> Result<StreamKey, Malformed> {
    let key = take_key(&mut body)?;
    end(&body)?;
    Ok(key)
}

/// Answers an [`open`]: adds `0 | log u128 | appended? | committed? | hash u32`, or `1 | error u8`.
#[must_use]
pub fn standing(standing: &Result<Standing, CommitError>) -> Bytes {
    let mut out = answer(40);
    match standing {
        Ok(standing) => {
            out.put_u8(0);
            put_standing(&mut out, standing);
        }
        Err(error) => {
            out.put_u8(1);
            out.put_u8(error.number());
        }
    }
    out.freeze()
}

/// What [`standing`] adds.
///
/// # Errors
/// [`Malformed`]; inside, what the owner says.
pub fn take_standing(mut body: Bytes) -> Result<Result<Standing, CommitError>, Malformed> {
    let standing = match body.try_get_u8()? {
        0 => Ok(take_standing_of(&mut body)?),
        1 => Err(take_error(&mut body)?),
        _ => return Err(Malformed),
    };
    end(&body)?;
    Ok(standing)
}

/// Asks for a commit: adds `stream u128 | source u32 | origin u64 u32 u32 | log u128 | prev? | last u64 | is_gap u8 | count u32`, and for each
/// record `sequence u64 | id? | length u32 | body`. What may be absent is `0`, or `1` and the value.
#[must_use]
pub fn commit(tenure: &Tenure, commit: &StreamCommit) -> Bytes {
    let bodies: usize = commit.records.iter().map(|record| record.body.len() + RECORD_HEAD_BYTES).sum();
    let mut out = request(tenure, COMMIT_HEAD_BYTES + bodies);
    put_key(&mut out, commit.key);
    out.put_u64(commit.origin.id);
    out.put_u32(commit.origin.ordinal);
    out.put_u32(commit.origin.floor);
    out.put_u128(commit.log_id.0);
    put_optional(&mut out, commit.prev.mark());
    out.put_u64(commit.last);
    out.put_u8(u8::from(commit.is_gap));
    out.put_u32(u32::try_from(commit.records.len()).expect("invariant: records of a commit are bounded"));
    for record in &commit.records {
        out.put_u64(record.sequence);
        match record.id {
            None => out.put_u8(0),
            Some(id) => {
                out.put_u8(1);
                out.put_u128(id.stream.0);
                out.put_u64(id.sequence);
            }
        }
        put_bytes(&mut out, &record.body);
    }
    out.freeze()
}

/// What [`commit`] adds. Bodies are shared with the request, not copied.
///
/// # Errors
/// [`Malformed`].
pub fn take_commit(mut body: Bytes) -> Result<StreamCommit, Malformed> {
    let key = take_key(&mut body)?;
    let origin = Origin { id: body.try_get_u64()?, ordinal: body.try_get_u32()?, floor: body.try_get_u32()? };
    let log_id = LogId(body.try_get_u128()?);
    let prev = Prev::from(take_optional(&mut body)?);
    let last = body.try_get_u64()?;
    let is_gap = take_bool(&mut body)?;
    let count = take_count(&mut body, limits::COMMIT_RECORDS_MAX)?;
    let mut records = Vec::with_capacity(count.min(body.len() / RECORD_HEAD_BYTES));
    for _ in 0..count {
        let sequence = body.try_get_u64()?;
        let id = match take_bool(&mut body)? {
            false => None,
            true => Some(MessageId { stream: StreamId(body.try_get_u128()?), sequence: body.try_get_u64()? }),
        };
        records.push(NewRecord { sequence, id, key: None, body: take_record_body(&mut body)? });
    }
    end(&body)?;
    Ok(StreamCommit { key, origin, log_id, prev, last, is_gap, records })
}

/// Asks to commit bodies that no stream stands behind: adds `count u32`, and for each `length u32 | body`.
#[must_use]
pub fn produce(tenure: &Tenure, bodies: &[Bytes]) -> Bytes {
    let bytes: usize = bodies.iter().map(|body| body.len() + 4).sum();
    let mut out = request(tenure, 4 + bytes);
    out.put_u32(u32::try_from(bodies.len()).expect("invariant: messages of a request are bounded"));
    bodies.iter().for_each(|body| put_bytes(&mut out, body));
    out.freeze()
}

/// What [`produce`] adds: at least one body. They are shared with the request, not copied.
///
/// # Errors
/// [`Malformed`].
pub fn take_produce(mut body: Bytes) -> Result<Vec<Bytes>, Malformed> {
    let count = take_count(&mut body, limits::PRODUCE_BATCH_MESSAGES_MAX)?;
    let mut bodies = Vec::with_capacity(count.min(body.len() / 4));
    for _ in 0..count {
        bodies.push(take_record_body(&mut body)?);
    }
    end(&body)?;
    if bodies.is_empty() { Err(Malformed) } else { Ok(bodies) }
}

/// Answers a commit: adds `0` when all of it was known, `1 | first u64 | commit time u64 | stream u128 | sequence u64` when it was placed,
/// `2 | cause u8 | standing` when it was refused, `3 | error u8` when it failed.
#[must_use]
pub fn commit_answer(committed: &CommitAnswer) -> Bytes {
    let mut out = answer(48);
    match committed {
        CommitAnswer::Committed(None) => out.put_u8(0),
        CommitAnswer::Committed(Some(placed)) => {
            out.put_u8(1);
            out.put_u64(placed.first.0);
            out.put_u64(placed.commit_ms);
            out.put_u128(placed.stream.0);
            out.put_u64(placed.sequence);
        }
        CommitAnswer::Refused(refusal) => {
            out.put_u8(2);
            out.put_u8(refusal.cause.number());
            put_standing(&mut out, &refusal.standing);
        }
        CommitAnswer::Failed(error) => {
            out.put_u8(3);
            out.put_u8(error.number());
        }
    }
    out.freeze()
}

/// What [`commit_answer`] adds.
///
/// # Errors
/// [`Malformed`].
pub fn take_commit_answer(mut body: Bytes) -> Result<CommitAnswer, Malformed> {
    let committed = match body.try_get_u8()? {
        0 => CommitAnswer::Committed(None),
        1 => CommitAnswer::Committed(Some(Placed {
            first: Offset(body.try_get_u64()?),
            commit_ms: body.try_get_u64()?,
            stream: StreamId(body.try_get_u128()?),
            sequence: body.try_get_u64()?,
        })),
        2 => {
            let cause = Cause::of_number(body.try_get_u8()?).ok_or(Malformed)?;
            CommitAnswer::Refused(Refusal { cause, standing: take_standing_of(&mut body)? })
        }
        3 => CommitAnswer::Failed(take_error(&mut body)?),
        _ => return Err(Malformed),
    };
    end(&body)?;
    Ok(committed)
}

fn put_key(out: &mut BytesMut, key: StreamKey) {
    out.put_u128(key.stream.0);
    out.put_u32(key.source);
}

fn take_key(body: &mut Bytes) -> Result<StreamKey, Malformed> {
    Ok(StreamKey { stream: StreamId(body.try_get_u128()?), source: body.try_get_u32()? })
}

fn put_standing(out: &mut BytesMut, standing: &Standing) {
    out.put_u128(standing.log_id.0);
    put_optional(out, standing.appended);
    put_optional(out, standing.committed);
    out.put_u32(standing.hash);
}

fn take_standing_of(body: &mut Bytes) -> Result<Standing, Malformed> {
    let log_id = LogId(body.try_get_u128()?);
    let (appended, committed) = (take_optional(body)?, take_optional(body)?);
    Ok(Standing { log_id, appended, committed, hash: body.try_get_u32()? })
}

fn put_optional(out: &mut BytesMut, number: Option<u64>) {
    out.put_u8(u8::from(number.is_some()));
    if let Some(number) = number {
        out.put_u64(number);
    }
}

fn take_optional(body: &mut Bytes) -> Result<Option<u64>, Malformed> {
    Ok(if take_bool(body)? { Some(body.try_get_u64()?) } else { None })
}

fn take_error(body: &mut Bytes) -> Result<CommitError, Malformed> {
    CommitError::of_number(body.try_get_u8()?).ok_or(Malformed)
}

fn take_count(body: &mut Bytes, count_max: usize) -> Result<usize, Malformed> {
    let count = usize::try_from(body.try_get_u32()?).map_err(|_| Malformed)?;
    if count > count_max { Err(Malformed) } else { Ok(count) }
}

/// A body that the log takes: never empty, which would stand for something lost.
fn take_record_body(body: &mut Bytes) -> Result<Bytes, Malformed> {
    let record = take_bytes(body)?;
    if record.is_empty() || record.len() > limits::WAL_RECORD_BYTES_MAX { Err(Malformed) } else { Ok(record) }
}

#[cfg(test)]
mod tests;
