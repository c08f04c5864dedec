//! The bodies of calls about the queue of a topic, and of their answers; what of them is not in [`wire`].
//!
//! A request that names many partitions is `version u8 | topic u64 | count u16 | (partition u32, epoch u64)*`, and what its op adds. Sizes are
//! bounded by what is asked for: every list has its bound in `contract::limits`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{MessageId, Offset, OwnershipEpoch, PartitionIndex, StreamId, TopicId, limits};
use veena_storage::envelope::Envelope;

use crate::message::{Delivery, Leased, ReceiptHandle};
use crate::owners::wire::{self, Malformed, Tenure, VERSION};
use crate::partition::PartitionId;

pub mod lease;
pub mod look;
pub mod moves;
pub mod settle;

/// Partitions of one topic, as their owner is asked for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenures {
    /// The topic.
    pub topic: TopicId,
    /// Each with the epoch of the ownership that the caller believes in.
    pub partitions: Vec<(PartitionIndex, OwnershipEpoch)>,
}

impl Tenures {
    /// One by one.
    pub fn each(&self) -> impl Iterator<Item = Tenure> {
        let of = |&(index, epoch)| Tenure { partition: PartitionId { topic: self.topic, index }, epoch };
        self.partitions.iter().map(of)
    }

    fn request(&self, more: usize) -> BytesMut {
        let mut out = BytesMut::with_capacity(11 + self.partitions.len() * 12 + more);
        out.put_u8(VERSION);
        out.put_u64(self.topic.0);
        put_count(&mut out, self.partitions.len());
        for (index, epoch) in &self.partitions {
            out.put_u32(index.get());
            out.put_u64(epoch.get());
        }
        out
    }

    fn take(body: &mut Bytes) -> Result<Self, Malformed> {
        take_version(body)?;
        let topic = TopicId(body.try_get_u64()?);
        let count = take_count(body, limits::OWNER_CALL_PARTITIONS_MAX)?;
        let mut partitions = Vec::with_capacity(count);
        for _ in 0..count {
            partitions.push((PartitionIndex(body.try_get_u32()?), OwnershipEpoch(body.try_get_u64()?)));
        }
        Ok(Self { topic, partitions })
    }
}

fn take_version(body: &mut Bytes) -> Result<(), Malformed> {
    if body.try_get_u8()? == VERSION { Ok(()) } else { Err(Malformed) }
}

fn put_count(out: &mut BytesMut, count: usize) {
    out.put_u16(u16::try_from(count).expect("invariant: lists in calls are bounded by contract::limits"));
}

fn take_count(body: &mut Bytes, max: usize) -> Result<usize, Malformed> {
    let count = usize::from(body.try_get_u16()?);
    if count > max { Err(Malformed) } else { Ok(count) }
}

/// A whole answer that begins in the common way, read by `read`.
fn answer<T>(mut body: Bytes, read: impl FnOnce(&mut Bytes) -> Result<T, Malformed>) -> Result<T, Malformed> {
    take_version(&mut body)?;
    let read = read(&mut body)?;
    wire::end(&body)?;
    Ok(read)
}

fn begin(more: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(1 + more);
    out.put_u8(VERSION);
    out
}

fn put_delivery(out: &mut BytesMut, message: &Delivery) {
    out.put_u32(message.partition.get());
    out.put_u64(message.offset.get());
    out.put_u128(message.id.stream.0);
    out.put_u64(message.id.sequence);
    out.put_u64(message.commit_ms);
    // No lease has the nonce 0.
    out.put_u64(message.lease.map_or(0, |lease| lease.handle.nonce));
    out.put_u32(message.lease.map_or(0, |lease| lease.delivery_count));
    let envelope = Envelope { key: message.key.clone(), headers: message.headers.clone(), payload: message.payload.clone() };
    out.put_u32(u32::try_from(envelope.encoded_len()).expect("invariant: a message is bounded by contract::limits"));
    envelope.encode_into(out);
}

fn take_delivery(body: &mut Bytes) -> Result<Delivery, Malformed> {
    let partition = PartitionIndex(body.try_get_u32()?);
    let offset = Offset(body.try_get_u64()?);
    let id = MessageId { stream: StreamId(body.try_get_u128()?), sequence: body.try_get_u64()? };
    let commit_ms = body.try_get_u64()?;
    let nonce = body.try_get_u64()?;
    let delivery_count = body.try_get_u32()?;
    let envelope = Envelope::decode(&wire::take_bytes(body)?).map_err(|_| Malformed)?;
    let handle = ReceiptHandle { partition, offset, nonce };
    let lease = match (nonce, delivery_count) {
        (0, 0) => None,
        (0, _) => return Err(Malformed),
        _ => Some(Leased { handle, delivery_count }),
    };
    let Envelope { key, headers, payload } = envelope;
    Ok(Delivery { partition, offset, id, key, headers, payload, commit_ms, lease })
}

#[cfg(test)]
mod tests;
