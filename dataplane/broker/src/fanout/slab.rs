//! Routing a slab of parent records to the child's partitions. Pure.

use std::collections::BTreeMap;

use veena_contract::PartitionIndex;
use veena_storage::envelope::Envelope;
use veena_storage::partition::{NewRecord, StoredRecord};

use crate::produce::partitioner::partition_of_key;

/// Where a record goes: by its key, or for keyless ones by parent offset, so that a resend always takes the same way.
#[must_use]
pub fn route(record: &StoredRecord, partitions: u32) -> Option<PartitionIndex> {
    let envelope = Envelope::decode(&record.body).ok()?;
    Some(match envelope.key {
        Some(key) => partition_of_key(&key, partitions),
        None => {
            let index = record.offset.0 % u64::from(partitions);
            PartitionIndex(u32::try_from(index).expect("invariant: below a u32 count"))
        }
    })
}

/// A slab by child partition; within one, in parent order. The second value counts records that cannot be read.
#[must_use]
pub fn split(slab: &[StoredRecord], partitions: u32) -> (BTreeMap<PartitionIndex, Vec<NewRecord>>, u64) {
    let mut parts: BTreeMap<PartitionIndex, Vec<NewRecord>> = BTreeMap::new();
    let mut unreadable = 0;
    for record in slab {
        match route(record, partitions) {
            Some(index) => {
                let copy = NewRecord { sequence: record.offset.0, id: Some(record.id), key: None, body: record.body.clone() };
                parts.entry(index).or_default().push(copy);
            }
            None => unreadable += 1,
        }
    }
    (parts, unreadable)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use veena_contract::{MessageId, Offset, StreamId};

    use super::*;

    fn record(offset: u64, key: Option<&'static [u8]>) -> StoredRecord {
        let body = Envelope { key: key.map(Bytes::from_static), headers: Vec::new(), payload: Bytes::from_static(b"x") }.encode();
        let id = MessageId { stream: StreamId(9), sequence: 1000 + offset };
        StoredRecord { offset: Offset(offset), sequence: offset, id, commit_ms: 0, body }
    }

    #[test]
    fn a_copy_keeps_its_id_and_its_parent_offset_is_its_sequence() {
        let (parts, unreadable) = split(&[record(4, None), record(5, Some(b"k")), record(7, None)], 3);
        assert_eq!(unreadable, 0);
        let by_offset = &parts[&PartitionIndex(1)];
        assert!(by_offset.iter().any(|copy| copy.sequence == 4 && copy.id.is_some_and(|id| id.sequence == 1004)));
        assert!(parts[&partition_of_key(b"k", 3)].iter().any(|copy| copy.sequence == 5));
        assert!(parts.values().all(|part| part.is_sorted_by_key(|copy| copy.sequence)));
    }
}
