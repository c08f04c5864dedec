//! Reading without a lease, and numbers.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{AttachEpoch, Offset, PartitionIndex, limits};

use super::{Tenures, answer, begin, put_count, put_delivery, take_count, take_delivery};
use crate::errors::ReplayError;
use crate::message::{Delivery, PartitionStats};
use crate::owners::wire::{self, Malformed, Tenure};

/// Asks for the message at an offset.
#[must_use]
pub fn ask_read(tenure: &Tenure, offset: Offset) -> Bytes {
    let mut out = wire::request(tenure, 8);
    out.put_u64(offset.get());
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_ask_read(mut body: Bytes) -> Result<(Tenure, Offset), Malformed> {
    let tenure = wire::take_request(&mut body)?;
    let offset = Offset(body.try_get_u64()?);
    wire::end(&body)?;
    Ok((tenure, offset))
}

/// Writes the message at an offset, or why there is none.
#[must_use]
pub fn read(result: &Result<Option<Delivery>, ReplayError>) -> Bytes {
    let mut out = wire::answer(64);
    match result {
        Ok(None) => out.put_u8(0),
        Ok(Some(message)) => {
            out.put_u8(1);
            put_delivery(&mut out, message);
        }
        Err(ReplayError::AgedOut { oldest, .. }) => {
            out.put_u8(2);
            out.put_u64(oldest.get());
        }
        Err(ReplayError::Unreadable { .. }) => out.put_u8(3),
        Err(ReplayError::ReadFailed) => out.put_u8(4),
        // The caller has seen topic and partition itself.
        Err(ReplayError::OwnerDown | ReplayError::TopicNotFound | ReplayError::NoSuchPartition { .. }) => out.put_u8(5),
    }
    out.freeze()
}

/// The reverse, of what was asked at `offset` and behind the common beginning.
///
/// # Errors
/// [`Malformed`].
pub fn take_read(body: &mut Bytes, offset: Offset) -> Result<Result<Option<Delivery>, ReplayError>, Malformed> {
    let result = match body.try_get_u8()? {
        0 => Ok(None),
        1 => Ok(Some(take_delivery(body)?)),
        2 => Err(ReplayError::AgedOut { offset, oldest: Offset(body.try_get_u64()?) }),
        3 => Err(ReplayError::Unreadable { offset }),
        4 => Err(ReplayError::ReadFailed),
        5 => Err(ReplayError::OwnerDown),
        _ => return Err(Malformed),
    };
    wire::end(body)?;
    Ok(result)
}

/// Asks for partitions and nothing else.
#[must_use]
pub fn ask(tenures: &Tenures) -> Bytes {
    tenures.request(0).freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_ask(mut body: Bytes) -> Result<Tenures, Malformed> {
    let tenures = Tenures::take(&mut body)?;
    wire::end(&body)?;
    Ok(tenures)
}

/// Writes the statistics of the partitions asked for, in their order.
#[must_use]
pub fn described(stats: &[Option<PartitionStats>]) -> Bytes {
    let mut out = begin(2 + stats.len() * 96);
    put_count(&mut out, stats.len());
    for stats in stats {
        let Some(stats) = stats else {
            out.put_u8(0);
            continue;
        };
        out.put_u8(1);
        out.put_u32(stats.partition.get());
        out.put_u64(stats.segments);
        for offset in [stats.oldest, stats.log_end, stats.high_watermark, stats.frontier] {
            out.put_u64(offset.get());
        }
        out.put_u64(stats.leased);
        out.put_u64(stats.acked_ahead);
        out.put_u64(stats.bytes);
        put_option(&mut out, stats.oldest_segment_ms);
        put_option(&mut out, stats.verified_up_to.map(Offset::get));
        put_option(&mut out, stats.verified_at_ms);
    }
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_described(body: Bytes) -> Result<Vec<Option<PartitionStats>>, Malformed> {
    answer(body, |body| {
        let count = take_count(body, limits::OWNER_CALL_PARTITIONS_MAX)?;
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            all.push(if wire::take_bool(body)? { Some(take_stats(body)?) } else { None });
        }
        Ok(all)
    })
}

fn take_stats(body: &mut Bytes) -> Result<PartitionStats, Malformed> {
    Ok(PartitionStats {
        partition: PartitionIndex(body.try_get_u32()?),
        segments: body.try_get_u64()?,
        oldest: Offset(body.try_get_u64()?),
        log_end: Offset(body.try_get_u64()?),
        high_watermark: Offset(body.try_get_u64()?),
        frontier: Offset(body.try_get_u64()?),
        leased: body.try_get_u64()?,
        acked_ahead: body.try_get_u64()?,
        bytes: body.try_get_u64()?,
        oldest_segment_ms: take_option(body)?,
        verified_up_to: take_option(body)?.map(Offset),
        verified_at_ms: take_option(body)?,
    })
}

fn put_option(out: &mut BytesMut, number: Option<u64>) {
    out.put_u8(u8::from(number.is_some()));
    if let Some(number) = number {
        out.put_u64(number);
    }
}

fn take_option(body: &mut Bytes) -> Result<Option<u64>, Malformed> {
    Ok(if wire::take_bool(body)? { Some(body.try_get_u64()?) } else { None })
}

/// How far children are behind their parent's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LagAsked {
    /// The parent's partitions.
    pub tenures: Tenures,
    /// The attachments.
    pub links: Vec<AttachEpoch>,
}

impl LagAsked {
    /// The request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = self.tenures.request(2 + self.links.len() * 8);
        put_count(&mut out, self.links.len());
        for link in &self.links {
            out.put_u64(link.0);
        }
        out.freeze()
    }

    /// The reverse.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(mut body: Bytes) -> Result<Self, Malformed> {
        let tenures = Tenures::take(&mut body)?;
        let count = take_count(&mut body, limits::CHILDREN_MAX)?;
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            links.push(AttachEpoch(body.try_get_u64()?));
        }
        wire::end(&body)?;
        Ok(Self { tenures, links })
    }
}

/// How far one child is behind, over the partitions that were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Records not yet committed in the child.
    pub messages: u64,
    /// Records lost before they were copied.
    pub dropped: u64,
    /// Has some partition not been counted?
    pub is_partial: bool,
}

impl Lag {
    /// Over these partitions too.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.dropped += other.dropped;
        self.is_partial |= other.is_partial;
    }
}

/// Writes how far each child is behind.
#[must_use]
pub fn lags(list: &[Lag]) -> Bytes {
    let mut out = begin(2 + list.len() * 17);
    put_count(&mut out, list.len());
    for lag in list {
        out.put_u64(lag.messages);
        out.put_u64(lag.dropped);
        out.put_u8(u8::from(lag.is_partial));
    }
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_lags(body: Bytes) -> Result<Vec<Lag>, Malformed> {
    answer(body, |body| {
        let count = take_count(body, limits::CHILDREN_MAX)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(Lag { messages: body.try_get_u64()?, dropped: body.try_get_u64()?, is_partial: wire::take_bool(body)? });
        }
        Ok(list)
    })
}
