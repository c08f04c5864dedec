//! I3 on the logs themselves: no message id twice, every stream in order, and each child holds its parent's records from the attach point
//! on, once each and in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use veena_broker::Broker;
use veena_broker::errors::ReplayError;
use veena_contract::{ChildLink, MessageId, Offset, PartitionIndex, StreamId, TopicId, TopicRecord};

use crate::door::Door;
use crate::world::{World, key_of, tenant};

/// Where a message lies.
type Place = (u32, u64);

/// One topic's logs: what is retained, by partition and offset.
#[derive(Default)]
struct Logs {
    entries: Vec<(Place, MessageId)>,
    by_id: BTreeMap<(StreamId, u64), Place>,
}

/// Reads every log by replay and checks it.
pub async fn check(world: &World, door: &Door) {
    let Some(view) = door.catalog() else { return };
    let mut all: BTreeMap<TopicId, Logs> = BTreeMap::new();
    for record in view.topics.values() {
        let logs = read(world, door, record).await;
        if record.parent.is_none() {
            check_streams(world, record, &logs);
        }
        all.insert(record.id, logs);
    }
    for parent in view.topics.values() {
        for link in &parent.children {
            if let (Some(above), Some(below)) = (all.get(&parent.id), all.get(&link.child_id)) {
                check_child(world, parent, link, above, below);
            }
        }
    }
}

async fn read(world: &World, door: &Door, record: &Arc<TopicRecord>) -> Logs {
    let mut logs = Logs::default();
    for partition in 0..record.partitions {
        let asked = Arc::clone(record);
        let answer = door.to_owner(record, PartitionIndex(partition)).ask(move |broker| read_partition(broker, asked, partition)).await;
        let Ok((ids, problem)) = answer else {
            world.complain(format!("{}/{partition} cannot be read: its owner gives no answer", record.name));
            continue;
        };
        for (offset, id) in ids {
            let place = (partition, offset);
            logs.entries.push((place, id));
            if let Some(earlier) = logs.by_id.insert((id.stream, id.sequence), place) {
                world.complain(format!("{}: message {id} lies at {earlier:?} and at {place:?}", record.name));
            }
        }
        problem.into_iter().for_each(|problem| world.complain(problem));
    }
    logs
}

/// The ids of what is retained, by offset; and why there is no more, if it ends with something that cannot be read.
async fn read_partition(broker: Broker, record: Arc<TopicRecord>, partition: u32) -> (Vec<(u64, MessageId)>, Option<String>) {
    let (mut ids, mut offset) = (Vec::new(), 0);
    loop {
        match broker.replay(&tenant(), &record.name, PartitionIndex(partition), Offset(offset)).await {
            Ok(Some(found)) => ids.push((offset, found.id)),
            Ok(None) => return (ids, None),
            Err(ReplayError::AgedOut { oldest, .. }) if record.retention_ms > 0 && oldest.0 > offset => {
                offset = oldest.0;
                continue;
            }
            Err(error) => return (ids, Some(format!("{}/{partition}@{offset} cannot be read: {error}", record.name))),
        }
        offset += 1;
    }
}

/// Sequences of one stream rise along a log, unless records of others go there too: those keep their ids.
fn check_streams(world: &World, record: &TopicRecord, logs: &Logs) {
    if world.unordered.lock().contains(&key_of(record)) {
        return;
    }
    let mut last: BTreeMap<(u32, StreamId), u64> = BTreeMap::new();
    for ((partition, offset), id) in &logs.entries {
        let before = last.insert((*partition, id.stream), id.sequence);
        if before.is_some_and(|before| before >= id.sequence) {
            world.complain(format!("{}/{partition}@{offset}: message {id} lies behind {before:?} of its own stream", record.name));
        }
    }
}

fn check_child(world: &World, parent: &TopicRecord, link: &ChildLink, above: &Logs, below: &Logs) {
    let attached_at =
        |partition: u32| usize::try_from(partition).ok().and_then(|at| link.attach_offsets.get(at)).map_or(0, |offset| offset.0);
    for ((partition, offset), id) in &above.entries {
        let copy = below.by_id.get(&(id.stream, id.sequence));
        let is_owed = *offset >= attached_at(*partition);
        if is_owed != copy.is_some() {
            let (is, must) = if is_owed { ("is missing in", "from") } else { ("is in", "before") };
            let name = &parent.name;
            world.complain(format!(
                "{name}/{partition}@{offset} ({id}), {must} the attach point on, {is} its child {} at {copy:?}",
                link.child
            ));
        }
    }
    let mut last: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for ((partition, offset), id) in &below.entries {
        let Some((source, from)) = above.by_id.get(&(id.stream, id.sequence)) else { continue };
        let before = last.insert((*partition, *source), *from);
        if before.is_some_and(|before| before >= *from) {
            let name = &link.child;
            world.complain(format!("{name}/{partition}@{offset}: record {source}@{from} of the parent lies behind {before:?}"));
        }
    }
}
