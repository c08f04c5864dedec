//! Claims, tokens, and what became of them.

use bytes::{Buf, BufMut, Bytes};
use veena_contract::limits;

use super::{Tenures, answer, begin, put_count, put_delivery, take_count, take_delivery};
use crate::message::Delivery;
use crate::owners::wire::{self, Malformed, VERSION};

/// Leases, please.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of which partitions.
    pub tenures: Tenures,
    /// Names the claim, so that its end can be told.
    pub number: u64,
    /// The token that was woken, if it is made for one.
    pub token: Option<u64>,
    /// At most so many messages.
    pub messages_max: usize,
    /// At most so many bytes of keys and payloads; the first message is always taken.
    pub bytes_max: usize,
}

impl Claim {
    /// The request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = self.tenures.request(22);
        out.put_u64(self.number);
        out.put_u64(self.token.unwrap_or(0));
        put_count(&mut out, self.messages_max);
        out.put_u32(u32::try_from(self.bytes_max).unwrap_or(u32::MAX));
        out.freeze()
    }

    /// The reverse.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(mut body: Bytes) -> Result<Self, Malformed> {
        let tenures = Tenures::take(&mut body)?;
        let number = body.try_get_u64()?;
        let token = Some(body.try_get_u64()?).filter(|token| *token != 0);
        let messages_max = take_count(&mut body, limits::CONSUME_BATCH_MESSAGES_MAX)?;
        let bytes_max = body.try_get_u32()? as usize;
        wire::end(&body)?;
        if bytes_max > limits::CONSUME_SCAN_BYTES_MAX {
            return Err(Malformed);
        }
        Ok(Self { tenures, number, token, messages_max, bytes_max })
    }
}

/// Why a claim got nothing, when there may be something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefusal {
    /// None of the partitions is owned by the node asked, at these epochs.
    NotOwner,
    /// The log of the only partition asked for cannot be opened now.
    NotOpen,
    /// Reading failed.
    ReadFailed,
    /// A claim of this number was made, or has ended, before this one was begun.
    Ended,
}

const CLAIM_REFUSALS: [(u8, ClaimRefusal); 4] =
    [(1, ClaimRefusal::NotOwner), (2, ClaimRefusal::NotOpen), (3, ClaimRefusal::ReadFailed), (4, ClaimRefusal::Ended)];

/// Writes what a claim has got.
#[must_use]
pub fn claimed(messages: &[Delivery]) -> Bytes {
    let room = |message: &Delivery| 64 + message.payload.len() + message.key.as_ref().map_or(0, Bytes::len);
    let mut out = begin(3 + messages.iter().map(room).sum::<usize>());
    out.put_u8(0);
    put_count(&mut out, messages.len());
    for message in messages {
        put_delivery(&mut out, message);
    }
    out.freeze()
}

/// Writes why a claim has got nothing.
#[must_use]
pub fn claim_refused(why: ClaimRefusal) -> Bytes {
    let mut out = begin(1);
    let number = CLAIM_REFUSALS.iter().find(|(_, refusal)| *refusal == why).map(|(number, _)| *number);
    out.put_u8(number.expect("invariant: every refusal is in the table"));
    out.freeze()
}

/// Reads the answer to a claim.
///
/// # Errors
/// [`Malformed`].
pub fn take_claimed(body: Bytes) -> Result<Result<Vec<Delivery>, ClaimRefusal>, Malformed> {
    answer(body, |body| match body.try_get_u8()? {
        0 => {
            let count = take_count(body, limits::CONSUME_BATCH_MESSAGES_MAX)?;
            let mut messages = Vec::with_capacity(count);
            for _ in 0..count {
                let message = take_delivery(body)?;
                if message.lease.is_none() {
                    return Err(Malformed);
                }
                messages.push(message);
            }
            Ok(Ok(messages))
        }
        number => CLAIM_REFUSALS.iter().find(|(known, _)| *known == number).map(|(_, refusal)| Err(*refusal)).ok_or(Malformed),
    })
}

/// The end of something that the caller had begun at an owner. Told until it is known to be heard, or has become pointless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Of a claim: its first `written` messages have reached their client, the others are given back.
    Claim {
        /// Which.
        number: u64,
        /// How many.
        written: u16,
    },
    /// Of a token: nobody waits any more.
    Token {
        /// Which.
        number: u64,
    },
}

/// Writes what has ended.
#[must_use]
pub fn endings(list: &[Ending]) -> Bytes {
    let mut out = begin(2 + list.len() * 11);
    put_count(&mut out, list.len());
    for ending in list {
        match *ending {
            Ending::Claim { number, written } => {
                out.put_u8(1);
                out.put_u64(number);
                out.put_u16(written);
            }
            Ending::Token { number } => {
                out.put_u8(2);
                out.put_u64(number);
            }
        }
    }
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_endings(body: Bytes) -> Result<Vec<Ending>, Malformed> {
    answer(body, |body| {
        let count = take_count(body, limits::OWNER_ENDINGS_MAX)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(match body.try_get_u8()? {
                1 => Ending::Claim { number: body.try_get_u64()?, written: body.try_get_u16()? },
                2 => Ending::Token { number: body.try_get_u64()? },
                _ => return Err(Malformed),
            });
        }
        Ok(list)
    })
}

/// The answer to what only needs to be heard.
#[must_use]
pub fn heard() -> Bytes {
    Bytes::from_static(&[VERSION])
}

/// Was it heard?
///
/// # Errors
/// [`Malformed`].
pub fn take_heard(body: Bytes) -> Result<(), Malformed> {
    answer(body, |_| Ok(()))
}

/// A consumer waits at another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For messages of these partitions.
    pub tenures: Tenures,
    /// For those of one partition alone, or for those of any.
    pub is_any: bool,
    /// Names its place in line.
    pub token: u64,
    /// For how long.
    pub wait_ms: u32,
}

impl Wait {
    /// The request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = self.tenures.request(13);
        out.put_u8(u8::from(self.is_any));
        out.put_u64(self.token);
        out.put_u32(self.wait_ms);
        out.freeze()
    }

    /// The reverse.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(mut body: Bytes) -> Result<Self, Malformed> {
        let tenures = Tenures::take(&mut body)?;
        let is_any = wire::take_bool(&mut body)?;
        let token = body.try_get_u64()?;
        let wait_ms = body.try_get_u32()?;
        wire::end(&body)?;
        if token == 0 || (!is_any && tenures.partitions.len() != 1) {
            return Err(Malformed);
        }
        Ok(Self { tenures, is_any, token, wait_ms })
    }
}

/// How a wait at an owner ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There is something: claim it.
    Woken,
    /// The time is over, or the place in line was given up.
    Over,
    /// The node asked owns none of the partitions at these epochs.
    NotOwner,
    /// Too many wait there.
    TooMany,
}

const WAITED: [(u8, Waited); 4] = [(0, Waited::Woken), (1, Waited::Over), (2, Waited::NotOwner), (3, Waited::TooMany)];

impl Waited {
    /// The answer.
    #[must_use]
    pub fn encode(self) -> Bytes {
        let mut out = begin(1);
        let number = WAITED.iter().find(|(_, known)| *known == self).map(|(number, _)| *number);
        out.put_u8(number.expect("invariant: every end is in the table"));
        out.freeze()
    }

    /// The reverse.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: Bytes) -> Result<Self, Malformed> {
        answer(body, |body| {
            let number = body.try_get_u8()?;
            WAITED.iter().find(|(known, _)| *known == number).map(|(_, waited)| *waited).ok_or(Malformed)
        })
    }
}
