//! The durable place of a cursor. Kept in the settle journal, so it may lag by a second behind what was copied: the stream rule cuts what
//! is sent again.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use veena_contract::{AttachEpoch, Offset, PartitionIndex, limits};

const VERSION: u8 = 1;

/// Where a cursor stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The next parent offset to copy.
    pub next: Offset,
    /// The child's partition count that records up to the next change are routed with.
    pub routed_with: u32,
    /// Records that were lost to retention or damage before they could be copied.
    pub dropped: u64,
    /// Per child partition the last parent offset confirmed there.
    pub confirmed: BTreeMap<PartitionIndex, u64>,
}

/// The stored bytes are not a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor position")]
pub struct NotAPosition;

/// Where in the journal a cursor's position is.
#[must_use]
pub fn key(epoch: AttachEpoch, partition: PartitionIndex) -> Vec<u8> {
    let mut key = epoch.0.to_be_bytes().to_vec();
    key.extend_from_slice(&partition.get().to_be_bytes());
    key
}

/// The cursor that a key is for.
#[must_use]
pub fn of_key(key: &[u8]) -> Option<(AttachEpoch, PartitionIndex)> {
    let (epoch, index) = key.split_first_chunk()?;
    let index = u32::from_be_bytes(index.try_into().ok()?);
    Some((AttachEpoch(u64::from_be_bytes(*epoch)), PartitionIndex(index)))
}

/// version u8 | next u64 | routed_with u32 | dropped u64 | count u32 | (partition u32, confirmed u64)*, big-endian.
#[must_use]
pub fn encode(position: &Position) -> Bytes {
    let mut out = BytesMut::with_capacity(25 + position.confirmed.len() * 12);
    out.put_u8(VERSION);
    out.put_u64(position.next.0);
    out.put_u32(position.routed_with);
    out.put_u64(position.dropped);
    out.put_u32(u32::try_from(position.confirmed.len()).unwrap_or(u32::MAX));
    for (partition, confirmed) in &position.confirmed {
        out.put_u32(partition.get());
        out.put_u64(*confirmed);
    }
    out.freeze()
}

/// The reverse of [`encode`].
///
/// # Errors
/// [`NotAPosition`] for anything else; never panics.
pub fn decode(mut bytes: &[u8]) -> Result<Position, NotAPosition> {
    let wrong = |_| NotAPosition;
    if bytes.try_get_u8().map_err(wrong)? != VERSION {
        return Err(NotAPosition);
    }
    let next = Offset(bytes.try_get_u64().map_err(wrong)?);
    let routed_with = bytes.try_get_u32().map_err(wrong)?;
    let dropped = bytes.try_get_u64().map_err(wrong)?;
    let count = bytes.try_get_u32().map_err(wrong)?;
    let mut confirmed = BTreeMap::new();
    for _ in 0..count {
        let partition = PartitionIndex(bytes.try_get_u32().map_err(wrong)?);
        confirmed.insert(partition, bytes.try_get_u64().map_err(wrong)?);
    }
    if routed_with == 0 || !bytes.is_empty() { Err(NotAPosition) } else { Ok(Position { next, routed_with, dropped, confirmed }) }
}

/// The last parent offset that a former life of a cursor may have sent, when the child has `committed`, the durable position is `next` and
/// the parent ended at `end` when this life began.
///
/// Everything before the slab that a life had in flight was committed, or passed durably: so that slab began at the latest here.
#[must_use]
pub fn sent_by_former(committed: Option<u64>, next: Offset, end: Offset) -> Option<u64> {
    let began = committed.map_or(next.0, |committed| next.0.max(committed.saturating_add(1)));
    let slab = u64::try_from(limits::COMMIT_RECORDS_MAX).unwrap_or(u64::MAX);
    began.saturating_add(slab).min(end.0).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_fixed() {
        let position = Position { next: Offset(9), routed_with: 3, dropped: 1, confirmed: BTreeMap::from([(PartitionIndex(2), 8)]) };
        let golden = "0100000000000000090000000300000000000000010000000100000002\
                      0000000000000008";
        let hex: String = encode(&position).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(decode(&encode(&position)), Ok(position));
        assert_eq!(decode(b""), Err(NotAPosition));
        assert_eq!(decode(&[1; 30]), Err(NotAPosition));
    }

    #[test]
    fn a_former_life_may_have_sent_one_slab_more_than_is_known_and_nothing_that_came_later() {
        let sent = |committed, next, end| sent_by_former(committed, Offset(next), Offset(end));
        assert_eq!(sent(None, 0, 0), None);
        assert_eq!(sent(None, 0, 1), Some(0));
        assert_eq!(sent(None, 0, 100_000), Some(16_383));
        assert_eq!(sent(Some(9), 4, 100_000), Some(16_393));
        assert_eq!(sent(Some(9), 20_000, 100_000), Some(36_383), "lost records were passed");
        assert_eq!(sent(Some(9), 4, 12), Some(11));
        assert_eq!(sent(Some(u64::MAX), 4, 12), Some(11));
    }
}
