//! The bodies of calls about idempotency keys.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{Offset, StreamId, limits};
use veena_storage::partition::RecordKey;

use super::{Malformed, REQUEST_BYTES, Tenure, answer, end, put_bytes, request, take_bool, take_count, take_error, take_record_body};
use crate::produce::keyed::{KeyOutcome, KeyedAnswer, KeyedBody, KeyedRequest, KeyedResult};
use crate::produce::request::Placed;

const KEY_BYTES: usize = 32;
/// The longest outcome: one byte for which it is, and a place.
const OUTCOME_BYTES_MAX: usize = 1 + 8 + 8 + 16 + 8;
/// How many bytes stand around a body.
const BODY_HEAD_BYTES: usize = 1 + KEY_BYTES + 4;

const _: () = {
    let heads = REQUEST_BYTES + 9 + limits::PRODUCE_BATCH_MESSAGES_MAX * BODY_HEAD_BYTES;
    assert!(limits::PRODUCE_BATCH_BYTES_MAX + heads <= limits::PEER_DATA_BYTES_MAX, "what a batch holds can be sent");
};

/// Asks an owner about keys. To commit bodies: adds `counted? | count u32`, and for each `key? | length u32 | body`. To look keys up: adds
/// `counted u32 | count u32 | key*`. A key is `hash u128 | digest u128`; what may be absent is `0`, or `1` and the value.
///
/// # Panics
/// When a request has more than 2^32 messages; they are bounded far below.
#[must_use]
pub fn keyed(tenure: &Tenure, asked: &KeyedRequest) -> Bytes {
    let count = |len: usize| u32::try_from(len).expect("invariant: messages of a request are bounded");
    let mut out;
    match asked {
        KeyedRequest::Produce { counted, bodies } => {
            let bytes: usize = bodies.iter().map(|keyed| keyed.body.len() + BODY_HEAD_BYTES).sum();
            out = request(tenure, 9 + bytes);
            out.put_u8(u8::from(counted.is_some()));
            if let Some(counted) = counted {
                out.put_u32(*counted);
            }
            out.put_u32(count(bodies.len()));
            for KeyedBody { key, body } in bodies {
                out.put_u8(u8::from(key.is_some()));
                if let Some(key) = key {
                    put_key(&mut out, key);
                }
                put_bytes(&mut out, body);
            }
        }
        KeyedRequest::LookUp { counted, keys } => {
            out = request(tenure, 8 + keys.len() * KEY_BYTES);
            out.put_u32(*counted);
            out.put_u32(count(keys.len()));
            keys.iter().for_each(|key| put_key(&mut out, key));
        }
    }
    out.freeze()
}

/// What [`keyed`] adds to commit bodies. They are shared with the request, not copied.
///
/// # Errors
/// [`Malformed`].
pub fn take_produce(mut body: Bytes) -> Result<KeyedRequest, Malformed> {
    let counted = if take_bool(&mut body)? { Some(body.try_get_u32()?) } else { None };
    let count = take_count(&mut body, limits::PRODUCE_BATCH_MESSAGES_MAX)?;
    let mut bodies = Vec::with_capacity(count.min(body.len() / 5));
    for _ in 0..count {
        let key = if take_bool(&mut body)? { Some(take_key(&mut body)?) } else { None };
        bodies.push(KeyedBody { key, body: take_record_body(&mut body)? });
    }
    end(&body)?;
    if bodies.is_empty() { Err(Malformed) } else { Ok(KeyedRequest::Produce { counted, bodies }) }
}

/// What [`keyed`] adds to look keys up.
///
/// # Errors
/// [`Malformed`].
pub fn take_look_up(mut body: Bytes) -> Result<KeyedRequest, Malformed> {
    let counted = body.try_get_u32()?;
    let count = take_count(&mut body, limits::PRODUCE_BATCH_MESSAGES_MAX)?;
    let mut keys = Vec::with_capacity(count.min(body.len() / KEY_BYTES));
    for _ in 0..count {
        keys.push(take_key(&mut body)?);
    }
    end(&body)?;
    if keys.is_empty() { Err(Malformed) } else { Ok(KeyedRequest::LookUp { counted, keys }) }
}

/// Answers [`keyed`]: adds `0 | has_ended u8 | count u32 | outcome*`, or `1 | error u8`. An outcome is `0 | place` when it was stored,
/// `1 | place` when it had been, `2` when the key was reused, `3 | wait u64` when there is no room, `4` when the key is not known; a place is
/// `offset u64 | commit time u64 | stream u128 | sequence u64`.
///
/// # Panics
/// When an answer has more than 2^32 outcomes; they are bounded far below.
#[must_use]
pub fn keyed_answer(result: &KeyedResult) -> Bytes {
    let KeyedAnswer { outcomes, has_ended } = match result {
        Ok(answer) => answer,
        Err(error) => {
            let mut out = answer(2);
            out.put_u8(1);
            out.put_u8(error.number());
            return out.freeze();
        }
    };
    let mut out = answer(6 + outcomes.len() * OUTCOME_BYTES_MAX);
    out.put_u8(0);
    out.put_u8(u8::from(*has_ended));
    out.put_u32(u32::try_from(outcomes.len()).expect("invariant: messages of a request are bounded"));
    for outcome in outcomes {
        match outcome {
            KeyOutcome::Stored(placed) => put_placed(&mut out, 0, placed),
            KeyOutcome::Repeated(placed) => put_placed(&mut out, 1, placed),
            KeyOutcome::Reused => out.put_u8(2),
            KeyOutcome::Full { wait_ms } => {
                out.put_u8(3);
                out.put_u64(*wait_ms);
            }
            KeyOutcome::Unknown => out.put_u8(4),
        }
    }
    out.freeze()
}

/// What [`keyed_answer`] adds.
///
/// # Errors
/// [`Malformed`].
pub fn take_keyed_answer(mut body: Bytes) -> Result<KeyedResult, Malformed> {
    if take_bool(&mut body)? {
        let error = take_error(&mut body)?;
        end(&body)?;
        return Ok(Err(error));
    }
    let has_ended = take_bool(&mut body)?;
    let count = take_count(&mut body, limits::PRODUCE_BATCH_MESSAGES_MAX)?;
    let mut outcomes = Vec::with_capacity(count.min(body.len()));
    for _ in 0..count {
        outcomes.push(match body.try_get_u8()? {
            0 => KeyOutcome::Stored(take_placed(&mut body)?),
            1 => KeyOutcome::Repeated(take_placed(&mut body)?),
            2 => KeyOutcome::Reused,
            3 => KeyOutcome::Full { wait_ms: body.try_get_u64()? },
            4 => KeyOutcome::Unknown,
            _ => return Err(Malformed),
        });
    }
    end(&body)?;
    Ok(Ok(KeyedAnswer { outcomes, has_ended }))
}

fn put_key(out: &mut BytesMut, key: &RecordKey) {
    out.put_u128(key.hash);
    out.put_u128(key.digest);
}

fn take_key(body: &mut Bytes) -> Result<RecordKey, Malformed> {
    Ok(RecordKey { hash: body.try_get_u128()?, digest: body.try_get_u128()? })
}

fn put_placed(out: &mut BytesMut, which: u8, placed: &Placed) {
    out.put_u8(which);
    out.put_u64(placed.first.0);
    out.put_u64(placed.commit_ms);
    out.put_u128(placed.stream.0);
    out.put_u64(placed.sequence);
}

fn take_placed(body: &mut Bytes) -> Result<Placed, Malformed> {
    Ok(Placed {
        first: Offset(body.try_get_u64()?),
        commit_ms: body.try_get_u64()?,
        stream: StreamId(body.try_get_u128()?),
        sequence: body.try_get_u64()?,
    })
}

#[cfg(test)]
mod tests {
    use veena_contract::{OwnershipEpoch, PartitionIndex, TopicId};

    use super::super::take_request;
    use super::*;
    use crate::partition::PartitionId;
    use crate::produce::request::CommitError;

    const HEAD: &str = "0100000000000000ab000000020000000000000003";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn tenure() -> Tenure {
        Tenure { partition: PartitionId { topic: TopicId(0xab), index: PartitionIndex(2) }, epoch: OwnershipEpoch(3) }
    }

    fn produce() -> KeyedRequest {
        let key = Some(RecordKey { hash: 1, digest: 2 });
        let bodies = vec![KeyedBody { key, body: Bytes::from_static(b"x") }, KeyedBody { key: None, body: Bytes::from_static(b"yz") }];
        KeyedRequest::Produce { counted: Some(4), bodies }
    }

    fn look_up() -> KeyedRequest {
        KeyedRequest::LookUp { counted: 4, keys: vec![RecordKey { hash: 1, digest: 2 }] }
    }

    fn answered() -> KeyedResult {
        let placed = Placed { first: Offset(1), commit_ms: 2, stream: StreamId(7), sequence: 3 };
        let outcomes = vec![
            KeyOutcome::Stored(placed),
            KeyOutcome::Repeated(placed),
            KeyOutcome::Reused,
            KeyOutcome::Full { wait_ms: 9 },
            KeyOutcome::Unknown,
        ];
        Ok(KeyedAnswer { outcomes, has_ended: true })
    }

    #[test]
    fn the_requests_and_answers_are_fixed() {
        let key = "0000000000000000000000000000000100000000000000000000000000000002";
        assert_eq!(hex(&keyed(&tenure(), &produce())), format!("{HEAD}01000000040000000201{key}00000001780000000002797a"));
        assert_eq!(hex(&keyed(&tenure(), &look_up())), format!("{HEAD}0000000400000001{key}"));
        let place = "00000000000000010000000000000002000000000000000000000000000000070000000000000003";
        assert_eq!(
            hex(&keyed_answer(&answered())),
            format!(
                "0100000100000005\
            00{place}01{place}0203000000000000000904"
            )
        );
        assert_eq!(hex(&keyed_answer(&Err(CommitError::Grown))), "0100010b");
    }

    #[test]
    fn what_is_sent_is_what_is_read_and_nothing_that_is_cut_or_goes_on() {
        let body = |bytes: Bytes, head: usize| bytes.slice(head..);
        let (produced, looked, told) = (
            body(keyed(&tenure(), &produce()), REQUEST_BYTES),
            body(keyed(&tenure(), &look_up()), REQUEST_BYTES),
            body(keyed_answer(&answered()), 2),
        );
        assert_eq!(take_produce(produced.clone()), Ok(produce()));
        assert_eq!(take_look_up(looked.clone()), Ok(look_up()));
        assert_eq!(take_keyed_answer(told.clone()), Ok(answered()));
        assert_eq!(take_keyed_answer(body(keyed_answer(&Err(CommitError::Busy)), 2)), Ok(Err(CommitError::Busy)));
        let longer = |bytes: &Bytes| Bytes::from([bytes, &b"0"[..]].concat());
        for cut in 0..produced.len() {
            assert!(take_produce(produced.slice(..cut)).is_err(), "{cut}");
        }
        for cut in 0..looked.len() {
            assert!(take_look_up(looked.slice(..cut)).is_err(), "{cut}");
        }
        for cut in 0..told.len() {
            assert!(take_keyed_answer(told.slice(..cut)).is_err(), "{cut}");
        }
        assert!(
            take_produce(longer(&produced)).is_err() && take_look_up(longer(&looked)).is_err() && take_keyed_answer(longer(&told)).is_err()
        );
        let mut whole = keyed(&tenure(), &look_up());
        assert_eq!(take_request(&mut whole), Ok(tenure()));
    }
}
