//! What a partition's new owner asks of the one that has it: its log in pieces, and then the partition itself.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{AttachEpoch, LogId, MoveToken, Offset, limits};
use veena_storage::partition::{CopyFile, CopyPiece, CopySegment};

use crate::consume::lease::MovedLease;
use crate::owners::wire::{self, Malformed, Tenure};

/// Why the owner gives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveRefusal {
    /// The owner knows of no such move, or no longer.
    #[error("the owner knows of no such move")]
    NoSuchMove,
    /// The owner cannot do it now.
    #[error("the owner cannot do it now")]
    NotNow,
    /// The segment is not there any more, or is another one.
    #[error("the segment is not there any more")]
    SegmentGone,
    /// The disk of the owner does not give the partition: its log, or the word that it has stopped.
    #[error("the owner cannot read or write its files")]
    Unreadable,
    /// What the owner has does not make a whole copy: it ends the move.
    #[error("the end of the owner's log is damaged")]
    Damaged,
}

/// Numbers are never used again; one that a node does not know is an answer that it cannot read, and it asks again.
const REFUSALS: [(u8, MoveRefusal); 5] = [
    (1, MoveRefusal::NoSuchMove),
    (2, MoveRefusal::NotNow),
    (3, MoveRefusal::SegmentGone),
    (4, MoveRefusal::Unreadable),
    (5, MoveRefusal::Damaged),
];

/// What is asked of a log that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyAsked {
    /// What there is.
    List,
    /// What there is once the segment that is written to has been sealed.
    Seal,
    /// A piece of what the process `source` has listed.
    Piece {
        /// That process.
        source: u128,
        /// The piece.
        piece: CopyPiece,
    },
}

/// What of a log can be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// Which process says so.
    pub source: u128,
    /// The log.
    pub log_id: LogId,
    /// Its segments.
    pub segments: Vec<CopySegment>,
}

/// A fan-out cursor as it was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedCursor {
    /// The attachment.
    pub epoch: AttachEpoch,
    /// Its place, in the form in which it is kept; `None` at its attach point.
    pub position: Option<Bytes>,
    /// The last parent offset that may have been sent; what of it is under way may still arrive.
    pub sent_through: Option<u64>,
}

/// Everything about a partition that its log does not say, as of its last moment at an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// The log as it ends.
    pub list: CopyList,
    /// The next offset.
    pub end: Offset,
    /// What is settled and how often what is not was delivered, in the form in which it is kept.
    pub settled: Bytes,
    /// The living leases.
    pub leases: Vec<MovedLease>,
    /// The cursors that read it.
    pub cursors: Vec<MovedCursor>,
}

fn request(tenure: &Tenure, token: MoveToken, more: usize) -> BytesMut {
    let mut out = wire::request(tenure, 16 + more);
    out.put_u128(token.0);
    out
}

fn take_request(body: &mut Bytes) -> Result<(Tenure, MoveToken), Malformed> {
    let tenure = wire::take_request(body)?;
    Ok((tenure, MoveToken(body.try_get_u128()?)))
}

/// Asks for part of a copy: adds `token u128`, and `0`, `2`, or
/// `1 | source u128 | base u64 | serial u64 | file u8 | position u64`.
#[must_use]
pub fn ask_copy(tenure: &Tenure, token: MoveToken, asked: &CopyAsked) -> Bytes {
    let mut out = request(tenure, token, 42);
    match asked {
        CopyAsked::List => out.put_u8(0),
        CopyAsked::Seal => out.put_u8(2),
        CopyAsked::Piece { source, piece } => {
            out.put_u8(1);
            out.put_u128(*source);
            out.put_u64(piece.base.get());
            out.put_u64(piece.serial);
            out.put_u8(piece.file.number());
            out.put_u64(piece.at);
        }
    }
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_ask_copy(mut body: Bytes) -> Result<(Tenure, MoveToken, CopyAsked), Malformed> {
    let (tenure, token) = take_request(&mut body)?;
    let asked = match body.try_get_u8()? {
        0 => CopyAsked::List,
        2 => CopyAsked::Seal,
        1 => {
            let source = body.try_get_u128()?;
            let (base, serial) = (Offset(body.try_get_u64()?), body.try_get_u64()?);
            let file = CopyFile::of_number(body.try_get_u8()?).ok_or(Malformed)?;
            CopyAsked::Piece { source, piece: CopyPiece { base, serial, file, at: body.try_get_u64()? } }
        }
        _ => return Err(Malformed),
    };
    wire::end(&body)?;
    Ok((tenure, token, asked))
}

/// Asks for a partition itself: adds `token u128`.
#[must_use]
pub fn ask_freeze(tenure: &Tenure, token: MoveToken) -> Bytes {
    request(tenure, token, 0).freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_ask_freeze(mut body: Bytes) -> Result<(Tenure, MoveToken), Malformed> {
    let asked = take_request(&mut body)?;
    wire::end(&body)?;
    Ok(asked)
}

/// Answers with a refusal: adds its number.
#[must_use]
pub fn refused(why: MoveRefusal) -> Bytes {
    let mut out = wire::answer(1);
    let number = REFUSALS.iter().find(|(_, refusal)| *refusal == why).map(|(number, _)| *number);
    out.put_u8(number.expect("invariant: every refusal is in the table"));
    out.freeze()
}

/// What the owner says: its refusal, or what `read` finds behind `0`.
fn take<T>(mut body: Bytes, read: impl FnOnce(&mut Bytes) -> Result<T, Malformed>) -> Result<Result<T, MoveRefusal>, Malformed> {
    let said = match body.try_get_u8()? {
        0 => Ok(read(&mut body)?),
        number => Err(REFUSALS.iter().find(|(known, _)| *known == number).map(|(_, refusal)| *refusal).ok_or(Malformed)?),
    };
    wire::end(&body)?;
    Ok(said)
}

/// Answers with a list: adds `0 | source u128 | log u128 | count u32`, and for each segment `base u64 | serial u64 | length u64 | sealed u8`.
#[must_use]
pub fn listed(list: &CopyList) -> Bytes {
    let mut out = wire::answer(37 + list.segments.len() * 25);
    out.put_u8(0);
    put_list(&mut out, list);
    out.freeze()
}

/// What [`listed`] or [`refused`] adds.
///
/// # Errors
/// [`Malformed`]; inside, what the owner says.
pub fn take_listed(body: Bytes) -> Result<Result<CopyList, MoveRefusal>, Malformed> {
    take(body, take_list)
}

/// Answers with a piece: adds `0 | length u32 | bytes | CRC32C u32`.
#[must_use]
pub fn piece(bytes: &[u8]) -> Bytes {
    let mut out = wire::answer(9 + bytes.len());
    out.put_u8(0);
    wire::put_bytes(&mut out, bytes);
    out.put_u32(crc32c::crc32c(bytes));
    out.freeze()
}

/// What [`piece`] or [`refused`] adds.
///
/// # Errors
/// [`Malformed`]; inside, what the owner says.
pub fn take_piece(body: Bytes) -> Result<Result<Bytes, MoveRefusal>, Malformed> {
    take(body, |body| {
        let bytes = wire::take_bytes(body)?;
        if body.try_get_u32()? == crc32c::crc32c(&bytes) { Ok(bytes) } else { Err(Malformed) }
    })
}

/// Answers with a partition: adds `0 | list | end u64 | settle state`, `count u32` and for each lease `offset u64 | nonce u64 | left u64`,
/// `count u32` and for each cursor `epoch u64 | position? | sent through?`.
#[must_use]
pub fn handed_over(hand_over: &HandOver) -> Bytes {
    let HandOver { list, end, settled, leases, cursors } = hand_over;
    let mut out = wire::answer(64 + list.segments.len() * 25 + settled.len() + leases.len() * 24);
    out.put_u8(0);
    put_list(&mut out, list);
    out.put_u64(end.get());
    wire::put_bytes(&mut out, settled);
    put_count(&mut out, leases.len());
    for lease in leases {
        out.put_u64(lease.offset.get());
        out.put_u64(lease.nonce);
        out.put_u64(lease.left_ms);
    }
    put_count(&mut out, cursors.len());
    for cursor in cursors {
        out.put_u64(cursor.epoch.0);
        out.put_u8(u8::from(cursor.position.is_some()));
        if let Some(position) = &cursor.position {
            wire::put_bytes(&mut out, position);
        }
        out.put_u8(u8::from(cursor.sent_through.is_some()));
        if let Some(sent) = cursor.sent_through {
            out.put_u64(sent);
        }
    }
    out.freeze()
}

/// What [`handed_over`] or [`refused`] adds.
///
/// # Errors
/// [`Malformed`]; inside, what the owner says.
pub fn take_handed_over(body: Bytes) -> Result<Result<HandOver, MoveRefusal>, Malformed> {
    take(body, |body| {
        let list = take_list(body)?;
        let end = Offset(body.try_get_u64()?);
        let settled = wire::take_bytes(body)?;
        let count = take_count(body, limits::MOVE_LEASES_MAX)?;
        let mut leases = Vec::with_capacity(count.min(body.len() / 24));
        for _ in 0..count {
            let (offset, nonce) = (Offset(body.try_get_u64()?), body.try_get_u64()?);
            leases.push(MovedLease { offset, nonce, left_ms: body.try_get_u64()? });
        }
        let count = take_count(body, limits::CHILDREN_MAX)?;
        let mut cursors = Vec::with_capacity(count);
        for _ in 0..count {
            let epoch = AttachEpoch(body.try_get_u64()?);
            let position = if wire::take_bool(body)? { Some(wire::take_bytes(body)?) } else { None };
            let sent_through = if wire::take_bool(body)? { Some(body.try_get_u64()?) } else { None };
            cursors.push(MovedCursor { epoch, position, sent_through });
        }
        Ok(HandOver { list, end, settled, leases, cursors })
    })
}

fn put_list(out: &mut BytesMut, list: &CopyList) {
    out.put_u128(list.source);
    out.put_u128(list.log_id.0);
    put_count(out, list.segments.len());
    for segment in &list.segments {
        out.put_u64(segment.base.get());
        out.put_u64(segment.serial);
        out.put_u64(segment.len);
        out.put_u8(u8::from(segment.is_sealed));
    }
}

fn take_list(body: &mut Bytes) -> Result<CopyList, Malformed> {
    let (source, log_id) = (body.try_get_u128()?, LogId(body.try_get_u128()?));
    let count = take_count(body, limits::PEER_DATA_BYTES_MAX / 25)?;
    let mut segments = Vec::with_capacity(count.min(body.len() / 25));
    for _ in 0..count {
        let (base, serial) = (Offset(body.try_get_u64()?), body.try_get_u64()?);
        segments.push(CopySegment { base, serial, len: body.try_get_u64()?, is_sealed: wire::take_bool(body)? });
    }
    Ok(CopyList { source, log_id, segments })
}

fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u32(u32::try_from(count).expect("invariant: lists in calls are bounded by contract::limits"));
}

fn take_count(body: &mut Bytes, max: usize) -> Result<usize, Malformed> {
    let count = usize::try_from(body.try_get_u32()?).map_err(|_| Malformed)?;
    if count > max { Err(Malformed) } else { Ok(count) }
}
