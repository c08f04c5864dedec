//! Messages as they cross the engine's edge, on the way in and on the way out.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use veena_contract::{HeaderName, IdempotencyKey, Key, MessageId, Offset, PartitionIndex, TenantId, TopicName};

/// Headers of one message, in order of arrival, names unique.
pub type Headers = Vec<(HeaderName, String)>;

/// One message as given by a client, already within the bounds of `contract::limits`.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Chooses the partition when `partition` does not; stored.
    pub key: Option<Key>,
    /// Chooses the partition.
    pub partition: Option<PartitionIndex>,
    /// Stored and served with the message.
    pub headers: Headers,
    /// Whatever is sent again under it is stored once. Chooses the partition when neither `partition` nor `key` does.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The body.
    pub payload: Bytes,
}

impl NewMessage {
    /// The bytes of its payload, its key and its headers: what limits count.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        (self.payload.len() + self.key.as_ref().map_or(0, |key| key.as_bytes().len()) + headers) as u64
    }
}

/// When a produce is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitFor {
    /// Once the record is synced in this node's WAL.
    #[default]
    Wal,
    /// Once the partition's owner has committed it; no WAL is involved.
    Commit,
}

/// Where an owner-synchronous produce was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The message's id.
    pub id: MessageId,
    /// The partition.
    pub partition: PartitionIndex,
    /// The offset.
    pub offset: Offset,
    /// Commit time.
    pub commit_ms: u64,
    /// Had it been stored before, under its idempotency key? Then this is where.
    pub is_replayed: bool,
}

/// Which messages a consumer asks for.
#[derive(Clone, Debug)]
pub struct ConsumeRequest {
    /// Whose topic.
    pub tenant: TenantId,
    /// The topic.
    pub topic: TopicName,
    /// Only this partition.
    pub partition: Option<PartitionIndex>,
    /// At most this many messages; at least 1.
    pub messages_max: usize,
    /// At most this many bytes of keys and payloads (the first message is always taken).
    pub bytes_max: usize,
    /// How long to wait for a first message.
    pub wait: Duration,
}

/// One message as handed to a client.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Its partition.
    pub partition: PartitionIndex,
    /// Its offset.
    pub offset: Offset,
    /// Its id for life.
    pub id: MessageId,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers; names and values as stored.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub payload: Bytes,
    /// Commit time at the owner, in ms.
    pub commit_ms: u64,
    /// The lease; absent for a replay.
    pub lease: Option<Leased>,
}

impl Delivery {
    /// The bytes of its payload, its key and its headers: what limits count.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        (self.payload.len() + self.key.as_ref().map_or(0, Bytes::len) + headers) as u64
    }
}

/// The lease part of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// What settles it.
    pub handle: ReceiptHandle,
    /// How often this message was handed out and written, this time included.
    pub delivery_count: u32,
}

/// A receipt handle: `partition:offset:nonce` in ASCII decimal. Carries no topic (http-contract 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiptHandle {
    /// The partition.
    pub partition: PartitionIndex,
    /// The offset.
    pub offset: Offset,
    /// The lease's random guard, 1 to 2^63 - 1.
    pub nonce: u64,
}

impl fmt::Display for ReceiptHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.partition, self.offset, self.nonce)
    }
}

/// The text is not a receipt handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("receipt handle is malformed")]
pub struct MalformedHandle;

impl FromStr for ReceiptHandle {
    type Err = MalformedHandle;

    fn from_str(text: &str) -> Result<Self, MalformedHandle> {
        const INT_MAX: u64 = i64::MAX as u64;
        let number = |part: Option<&str>| -> Result<u64, MalformedHandle> {
            let part = part.ok_or(MalformedHandle)?;
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            let value = if digits { part.parse::<u64>().map_err(|_| MalformedHandle)? } else { return Err(MalformedHandle) };
            if value > INT_MAX { Err(MalformedHandle) } else { Ok(value) }
        };
        let mut parts = text.split(':');
        let partition = number(parts.next())?;
        let offset = number(parts.next())?;
        let nonce = number(parts.next())?;
        if parts.next().is_some() || nonce == 0 || partition > i32::MAX as u64 {
            return Err(MalformedHandle);
        }
        let partition = u32::try_from(partition).map_err(|_| MalformedHandle)?;
        Ok(Self { partition: PartitionIndex(partition), offset: Offset(offset), nonce })
    }
}

/// What to do with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// The message is done for ever.
    Ack,
    /// The lease runs anew from now, with the same handle.
    Extend,
    /// The message is redeliverable at once.
    Nack,
}

/// One partition, as described to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionStats {
    /// Which.
    pub partition: PartitionIndex,
    /// Its segments.
    pub segments: u64,
    /// The oldest retained offset.
    pub oldest: Offset,
    /// The next offset to be written.
    pub log_end: Offset,
    /// The first offset that is not visible yet.
    pub high_watermark: Offset,
    /// The first offset that is not settled.
    pub frontier: Offset,
    /// How many messages are leased now.
    pub leased: u64,
    /// How many messages are settled ahead of the frontier.
    pub acked_ahead: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Commit time of the oldest segment's first record, in ms.
    pub oldest_segment_ms: Option<u64>,
    /// Everything below was read again and checked by this process; absent until a pass has gone through.
    pub verified_up_to: Option<Offset>,
    /// When that was, in ms.
    pub verified_at_ms: Option<u64>,
}

/// How far one child is behind its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildLag {
    /// The child.
    pub child: TopicName,
    /// How long records are held back.
    pub delay_ms: u64,
    /// Records of the parent not yet committed in the child.
    pub lag_messages: u64,
    /// Did every partition report?
    pub is_complete: bool,
    /// Records lost to retention or damage before they were copied.
    pub dropped_messages: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_survives_its_text_form() {
        let handle = ReceiptHandle { partition: PartitionIndex(7), offset: Offset(123), nonce: 9 };
        assert_eq!(handle.to_string(), "7:123:9");
        assert_eq!("7:123:9".parse(), Ok(handle));
    }

    #[test]
    fn anything_but_three_decimals_is_malformed() {
        for text in
            ["", "1", "1:2", "1:2:3:4", "1:2:0", "-1:2:3", "1:+2:3", "a:b:c", "1::3", " 1:2:3", "1:2:9223372036854775808", "2147483648:1:1"]
        {
            assert_eq!(text.parse::<ReceiptHandle>(), Err(MalformedHandle), "{text:?}");
        }
    }
}
