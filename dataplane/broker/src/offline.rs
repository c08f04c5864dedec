//! The files of a node whose engine does not run: what they say; and what is set aside of them when the metadata has become another.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use veena_contract::{LineageId, Offset, PartitionIndex, TopicId};
use veena_storage::disk::{DirEntry, Disk, OpenMode, create_dir_durably, read_full_at, write_all_at};
use veena_storage::journal;

use crate::consume::promised;
use crate::layout;
use crate::settle::KIND_PROMISE;

/// Up to where each partition's log was published, as the settle journal says.
pub struct PromisedEnds(BTreeMap<Vec<u8>, Offset>);

impl PromisedEnds {
    /// Reads the journal of a data directory; `None` when there is none. What of it is damaged counts as not said.
    ///
    /// # Errors
    /// Of the file system; `InvalidData` for a journal of a newer version.
    pub fn read(disk: &dyn Disk, data: &Path) -> io::Result<Option<Self>> {
        let dir = layout::settle_dir(data);
        if !disk.exists(&dir)? {
            return Ok(None);
        }
        let Some(facts) = journal::inspect(disk, &dir)? else { return Ok(None) };
        let promises = facts.entries.into_iter().filter(|((kind, _), _)| *kind == KIND_PROMISE);
        let ends = promises.filter_map(|((_, key), bytes)| Some((key, promised::decode(&bytes).ok()?.end)));
        Ok(Some(Self(ends.collect())))
    }

    /// Up to where the log in this directory was published; `Offset(0)` when the journal does not say.
    #[must_use]
    pub fn of(&self, partition_dir: &Path) -> Offset {
        let key = layout::partition_of(partition_dir).map(promised::key);
        key.and_then(|key| self.0.get(&key)).copied().unwrap_or_default()
    }
}

/// The largest piece of a file that is copied at once.
const COPY_BYTES: usize = 1024 * 1024;

/// What was set aside, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAside {
    /// The directory.
    pub path: PathBuf,
    /// The topics and partitions, as they were called below `topics`.
    pub unknown: Vec<PathBuf>,
}

/// Sets aside what a node has of a life of the metadata that it has `left` and of which the one that it comes into may know less: the directories
/// of topics that are not known, those of partitions that are not this node's there (`own_partitions` of a topic that is known): another node may
/// have become their owner in the life that was left or in the one that is come into, and which copy is the newer one nobody knows; and copies of
/// the WAL, of what is parked and of the settle journal, whose records of such topics will be discarded. A node never removes it. May be called
/// again after a crash.
///
/// # Errors
/// Of the file system; then it is to be called again before the engine is opened.
pub fn keep_unknown(
    disk: &dyn Disk,
    data: &Path,
    left: LineageId,
    own_partitions: &dyn Fn(TopicId) -> Option<BTreeSet<PartitionIndex>>,
) -> io::Result<KeptAside> {
    // A node looks at what begins with a time alone.
    let aside = layout::quarantine_dir(data).join(format!("kept-life-{left}"));
    create_dir_durably(disk, &aside)?;
    // 1 copies   2 renames    — nothing is renamed before what would be discarded for that is copied
    for dir in [layout::ingress_dir(data), layout::parked_dir(data), layout::settle_dir(data)] {
        copy_once(disk, &dir, &aside)?;
    }
    let mut unknown = Vec::new();
    let topics = layout::topics_dir(data);
    for tenant in dirs(disk, &topics)? {
        for topic in dirs(disk, &topics.join(&tenant))? {
            let Ok(id) = topic.parse::<TopicId>() else { continue };
            let dir = topics.join(&tenant).join(&topic);
            let mut moved = Vec::new();
            if let Some(own) = own_partitions(id) {
                let is_anothers = |name: &String| layout::copy_of(name).is_some_and(|(index, _)| !own.contains(&index));
                moved.extend(dirs(disk, &dir)?.into_iter().filter(is_anothers).map(|name| dir.join(name)));
            } else {
                moved.push(dir);
            }
            for from in moved {
                let name = from.strip_prefix(&topics).map_err(io::Error::other)?.to_owned();
                rename_durably(disk, &from, &aside.join("topics").join(&name))?;
                unknown.push(name);
            }
        }
    }
    Ok(KeptAside { path: aside, unknown })
}

fn rename_durably(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    let (Some(source), Some(target)) = (from.parent(), to.parent()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    create_dir_durably(disk, target)?;
    disk.rename(from, to)?;
    disk.sync_dir(target)?;
    disk.sync_dir(source)
}

/// Copies a directory below `aside`, unless it is there: whole, or under another name.
fn copy_once(disk: &dyn Disk, from: &Path, aside: &Path) -> io::Result<()> {
    let Some(name) = from.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let (to, part) = (aside.join(name), aside.join("part"));
    if disk.exists(&part)? {
        disk.remove_dir_all(&part)?;
    }
    if !disk.exists(from)? || disk.exists(&to)? {
        return Ok(());
    }
    copy_all(disk, from, &part)?;
    disk.rename(&part, &to)?;
    disk.sync_dir(aside)
}

fn copy_all(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    disk.create_dir_all(to)?;
    for DirEntry { name, is_dir, .. } in disk.list(from)? {
        let (from, to) = (from.join(&name), to.join(&name));
        if is_dir {
            copy_all(disk, &from, &to)?;
            continue;
        }
        let (source, target) = (disk.open(&from, OpenMode::Read)?, disk.open(&to, OpenMode::CreateNew)?);
        let (mut buf, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let read = read_full_at(source.as_ref(), &mut buf, at)?;
            write_all_at(target.as_ref(), &buf[..read], at)?;
            at += read as u64;
            if read < buf.len() {
                break;
            }
        }
        target.sync_data()?;
    }
    disk.sync_dir(to)
}

/// The directories in a directory; of one that is not there, none.
fn dirs(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    match disk.list(dir) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => Ok(listed?.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect()),
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{MoveToken, TenantId};
    use veena_storage::disk::mem::MemDisk;

    use super::*;

    fn put(disk: &MemDisk, path: &Path, text: &str) {
        create_dir_durably(disk, path.parent().expect("a parent")).expect("created");
        let file = disk.open(path, OpenMode::CreateNew).expect("created");
        write_all_at(file.as_ref(), text.as_bytes(), 0).expect("written");
        file.sync_data().expect("synced");
        disk.sync_dir(path.parent().expect("a parent")).expect("synced");
    }

    fn text(disk: &MemDisk, path: &Path) -> Option<String> {
        let file = disk.open(path, OpenMode::Read).ok()?;
        let mut buf = vec![0; 100];
        let read = read_full_at(file.as_ref(), &mut buf, 0).expect("read");
        Some(String::from_utf8_lossy(&buf[..read]).into_owned())
    }

    #[test]
    fn what_the_metadata_does_not_know_or_gives_to_another_node_is_set_aside_and_the_rest_stays() {
        let (disk, data, tenant) = (MemDisk::new(), Path::new("/data"), TenantId::default_tenant());
        let log = |topic, index| layout::partition_dir(data, &tenant, TopicId(topic), PartitionIndex(index)).join("log");
        for (topic, index) in [(1, 0), (1, 1), (1, 2), (2, 0)] {
            put(&disk, &log(topic, index), &format!("{topic}-{index}"));
        }
        let incoming = |index| layout::incoming_dir(log(1, index).parent().expect("a directory"), MoveToken(7)).join("log");
        put(&disk, &incoming(1), "to another");
        put(&disk, &incoming(2), "to this node");
        put(&disk, &layout::ingress_dir(data).join("1.wal"), "accepted");
        put(&disk, &layout::settle_dir(data).join("deep").join("1"), "settled");
        let known = |topic: TopicId| (topic == TopicId(1)).then(|| [0, 2].map(PartitionIndex).into());
        let kept = keep_unknown(&disk, data, LineageId(7), &known).expect("kept");
        let names: Vec<_> = kept.unknown.iter().map(|path| path.display().to_string()).collect();
        let another = format!("default/0000000000000001/p00001.{}", MoveToken(7));
        assert_eq!(names, ["default/0000000000000001/p00001", &another, "default/0000000000000002"]);
        assert_eq!(text(&disk, &incoming(2)).as_deref(), Some("to this node"));
        for (topic, index, is_known) in [(1, 0, true), (1, 1, false), (1, 2, true), (2, 0, false)] {
            let was = log(topic, index);
            let aside = kept.path.join("topics").join(was.strip_prefix(layout::topics_dir(data)).expect("below"));
            let there = if is_known { &was } else { &aside };
            assert_eq!(text(&disk, there), Some(format!("{topic}-{index}")));
            assert_eq!([&was, &aside].iter().filter(|path| text(&disk, path).is_some()).count(), 1);
        }
        for (was, aside, said) in [
            (layout::ingress_dir(data).join("1.wal"), "ingress/1.wal", "accepted"),
            (layout::settle_dir(data).join("deep/1"), "settle/deep/1", "settled"),
        ] {
            assert_eq!([text(&disk, &was), text(&disk, &kept.path.join(aside))], [Some(said.to_owned()), Some(said.to_owned())]);
        }
        let again = keep_unknown(&disk, data, LineageId(7), &known).expect("once more, as after a crash");
        assert_eq!((again.path, again.unknown.len()), (kept.path, 0));
    }
}
