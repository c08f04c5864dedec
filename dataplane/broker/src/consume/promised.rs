//! How far a partition's log was published, as its owner remembers it outside the log: kept in the settle journal, per partition and not
//! per log, so that it can be looked up before the log is opened, and also when the log's directory is gone.
//!
//! It is written only after a publish, which is after the sync: a crash never leaves a log that ends below it. A log that does has lost
//! data.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{LogId, Offset};

use crate::partition::PartitionId;

const VERSION: u8 = 1;
const BYTES: usize = 25;

/// Which log a partition had, and up to where it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The log.
    pub log: LogId,
    /// Everything below was published.
    pub end: Offset,
}

/// The stored bytes are not a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a promised end")]
pub struct NotAPromise;

/// The key of a partition's promise: topic id u64 | partition u32, big-endian.
#[must_use]
pub fn key(partition: PartitionId) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(12);
    out.put_u64(partition.topic.0);
    out.put_u32(partition.index.get());
    out.to_vec()
}

/// version u8 | log id u128 | end u64, big-endian.
#[must_use]
pub fn encode(promise: &Promise) -> Bytes {
    let mut out = BytesMut::with_capacity(BYTES);
    out.put_u8(VERSION);
    out.put_u128(promise.log.0);
    out.put_u64(promise.end.get());
    out.freeze()
}

/// The reverse of [`encode`].
///
/// # Errors
/// [`NotAPromise`] for anything else; never panics.
pub fn decode(mut bytes: &[u8]) -> Result<Promise, NotAPromise> {
    if bytes.len() != BYTES || bytes.get_u8() != VERSION {
        return Err(NotAPromise);
    }
    Ok(Promise { log: LogId(bytes.get_u128()), end: Offset(bytes.get_u64()) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use veena_contract::{PartitionIndex, TopicId};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_format_is_fixed() {
        let promise = Promise { log: LogId(0xabcd), end: Offset(258) };
        assert_eq!(hex(&encode(&promise)), "010000000000000000000000000000abcd0000000000000102");
        assert_eq!(decode(&encode(&promise)), Ok(promise));
        assert_eq!(hex(&key(PartitionId { topic: TopicId(5), index: PartitionIndex(7) })), "000000000000000500000007");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
            if let Ok(promise) = decode(&bytes) {
                let again = encode(&promise);
                prop_assert_eq!(again.as_ref(), bytes.as_slice());
            }
        }
    }
}
