//! Leases that are to be settled at their owner.

use bytes::{Buf, BufMut, Bytes};
use veena_contract::{Offset, OwnershipEpoch, PartitionIndex, TopicId, limits};

use super::{answer, begin, put_count, take_count};
use crate::errors::SettleError;
use crate::message::{ReceiptHandle, Settle};
use crate::owners::wire::Malformed;

/// Leases of one topic to be settled in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settling {
    /// The topic.
    pub topic: TopicId,
    /// How.
    pub how: Settle,
    /// Which, each with the epoch of its partition's ownership.
    pub handles: Vec<(ReceiptHandle, OwnershipEpoch)>,
}

const HOWS: [(u8, Settle); 3] = [(0, Settle::Ack), (1, Settle::Extend), (2, Settle::Nack)];

impl Settling {
    /// The request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = begin(11 + self.handles.len() * 28);
        out.put_u64(self.topic.0);
        let number = HOWS.iter().find(|(_, how)| *how == self.how).map(|(number, _)| *number);
        out.put_u8(number.expect("invariant: every way is in the table"));
        put_count(&mut out, self.handles.len());
        for (handle, epoch) in &self.handles {
            out.put_u32(handle.partition.get());
            out.put_u64(epoch.get());
            out.put_u64(handle.offset.get());
            out.put_u64(handle.nonce);
        }
        out.freeze()
    }

    /// The reverse.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: Bytes) -> Result<Self, Malformed> {
        answer(body, |body| {
            let topic = TopicId(body.try_get_u64()?);
            let number = body.try_get_u8()?;
            let how = HOWS.iter().find(|(known, _)| *known == number).map(|(_, how)| *how).ok_or(Malformed)?;
            let count = take_count(body, limits::ACK_BATCH_HANDLES_MAX)?;
            let mut handles = Vec::with_capacity(count);
            for _ in 0..count {
                let partition = PartitionIndex(body.try_get_u32()?);
                let epoch = OwnershipEpoch(body.try_get_u64()?);
                let (offset, nonce) = (Offset(body.try_get_u64()?), body.try_get_u64()?);
                handles.push((ReceiptHandle { partition, offset, nonce }, epoch));
            }
            Ok(Self { topic, how, handles })
        })
    }
}

/// Writes what became of each lease.
#[must_use]
pub fn settled(results: &[Result<(), SettleError>]) -> Bytes {
    let mut out = begin(2 + results.len());
    put_count(&mut out, results.len());
    for result in results {
        out.put_u8(match result {
            Ok(()) => 0,
            Err(SettleError::LeaseLost) => 1,
            Err(SettleError::TopicNotFound) => 2,
            // Whoever answers knows that nothing was done.
            Err(SettleError::OwnerDown | SettleError::NotReached | SettleError::OutcomeUnknown) => 3,
        });
    }
    out.freeze()
}

/// The reverse.
///
/// # Errors
/// [`Malformed`].
pub fn take_settled(body: Bytes) -> Result<Vec<Result<(), SettleError>>, Malformed> {
    answer(body, |body| {
        let count = take_count(body, limits::ACK_BATCH_HANDLES_MAX)?;
        let mut results = Vec::with_capacity(count);
        for _ in 0..count {
            results.push(match body.try_get_u8()? {
                0 => Ok(()),
                1 => Err(SettleError::LeaseLost),
                2 => Err(SettleError::TopicNotFound),
                3 => Err(SettleError::NotReached),
                _ => return Err(Malformed),
            });
        }
        Ok(results)
    })
}
