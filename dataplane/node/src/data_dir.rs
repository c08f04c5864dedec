//! The data directory: one process at a time, one node for life.
//!
//! `LOCK` is the kernel's lock on the directory; `node.cell` names the node and the directory; `ingress`, `settle`, `topics` and
//! `quarantine` belong to the engine, and so does `usage.cell`; `metastore` to the metadata log; `ballast` is room held back. `reached.cell` is
//! how far the metadata has been followed: a metadata log that ends below is an older one, to which the topics made since would look deleted.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use veena_contract::{Entropy, LineageId, LogIndex, NodeId, limits};
use veena_metastore::FormerLife;
use veena_storage::cell::{self, CellError, CellKind, CellRead};
use veena_storage::disk::{DirLock, Disk};

/// Whose directory it is. Kinds from 256 belong to this crate.
const NODE_CELL: CellKind = CellKind(256);

/// How far the metadata has been followed: a position, big-endian.
const REACHED_CELL: CellKind = CellKind(257);
const REACHED_NAME: &str = "reached.cell";

/// The data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A call of the file system failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process uses it.
    #[error("data directory {} is in use by another process", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// It is another node's.
    #[error("data directory {} belongs to node {found:?}, not {asked:?}: start with --node-id {found}, or use another directory", path.display())]
    OtherNode {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Who we were told to be.
        asked: String,
    },
    /// Its messages belong to other metadata than what was found.
    #[error(
        "data directory {} holds messages of the metadata {kept}, and the metadata log is of {found}: its folder was replaced or lost. Put the \
         right one back, or use another directory; nothing was touched",
        path.display()
    )]
    OtherLineage {
        /// Which.
        path: PathBuf,
        /// The life of the metadata that it was used with.
        kept: LineageId,
        /// The one that was found.
        found: LineageId,
    },
    /// The metadata log is an older copy, or was cut.
    #[error(
        "data directory {} has followed its metadata up to position {reached}, and the metadata log ends at {end}: it is an older copy, or was \
         cut. Topics made since would look deleted, and their messages be removed. Put the newest copy of {} back. If there is none: copy the \
         data directory, remove {} and start again; nothing was touched",
        path.display(), path.join("metastore").display(), path.join(REACHED_NAME).display()
    )]
    OlderMetadata {
        /// Which.
        path: PathBuf,
        /// The position that was seen.
        reached: LogIndex,
        /// Where the log ends: one past its last entry.
        end: LogIndex,
    },
    /// The file that says whose it is cannot be read.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file that says whose it is cannot be written.
    #[error(transparent)]
    Cell(#[from] CellError),
}

/// What `node.cell` holds. Only grows.
#[derive(Debug, Serialize, Deserialize)]
struct NodeCell {
    version: u32,
    node: String,
    directory: String,
    /// Whose topics the messages are of; known once the metadata was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lineage: Option<LineageId>,
    /// Whose topics they were of until an operator took the directory away from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<Left>,
    /// All it was bound to before, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    former: Vec<LineageId>,
}

/// A life of the metadata that a directory was taken away from, by a command. It may be bound to one that goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Which.
    pub lineage: LineageId,
    /// How far it was followed; the largest number if that is not known.
    pub reached: LogIndex,
}

/// What holds messages, or what is stored of passwords: nobody's but the node's, however the directory came to be.
const PRIVATE: [&str; 5] = ["ingress", "metastore", "quarantine", "settle", "topics"];

/// A data directory that is ours until dropped.
pub struct DataDir {
    /// Where it is.
    pub path: PathBuf,
    /// Whose it is.
    pub node: NodeId,
    /// Was it created just now?
    pub is_new: bool,
    cell: NodeCell,
    _lock: Box<dyn DirLock>,
}

impl DataDir {
    /// Creates the directory if need be, takes its lock, and makes sure it is this node's. Blocks.
    ///
    /// # Errors
    /// [`DataDirError`].
    pub fn open(disk: &dyn Disk, path: &Path, asked: Option<&str>, entropy: &dyn Entropy) -> Result<Self, DataDirError> {
        let failed = |step: &'static str| move |source| DataDirError::Io { step, path: path.to_owned(), source };
        create_durably(disk, path).map_err(failed("create"))?;
        let lock = disk.lock_dir(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => DataDirError::InUse { path: path.to_owned() },
            _ => failed("lock")(error),
        })?;
        let cell_path = path.join("node.cell");
        let is_new = match cell::read(disk, &cell_path, NODE_CELL).map_err(failed("read"))? {
            CellRead::Value(bytes) => {
                let damaged = |error: serde_json::Error| DataDirError::Damaged { path: cell_path.clone(), reason: error.to_string() };
                let found: NodeCell = serde_json::from_slice(&bytes).map_err(damaged)?;
                if let Some(asked) = asked.filter(|asked| *asked != found.node) {
                    return Err(DataDirError::OtherNode { path: path.to_owned(), found: found.node, asked: asked.to_owned() });
                }
                let node = NodeId(found.node.as_str().into());
                return Ok(Self { path: path.to_owned(), node, is_new: false, cell: found, _lock: lock });
            }
            CellRead::Damaged { reason } => return Err(DataDirError::Damaged { path: cell_path, reason }),
            CellRead::NotThere => true,
        };
        let node = asked.map_or_else(machine_name, str::to_owned);
        let cell = NodeCell {
            version: 1,
            node: node.clone(),
            directory: format!("{:032x}", entropy.next_u128()),
            lineage: None,
            left: None,
            former: Vec::new(),
        };
        let dir = Self { path: path.to_owned(), node: NodeId(node.into()), is_new, cell, _lock: lock };
        dir.write(disk)?;
        Ok(dir)
    }

    fn write(&self, disk: &dyn Disk) -> Result<(), CellError> {
        let bytes = serde_json::to_vec(&self.cell).expect("invariant: plain text and numbers are JSON");
        cell::write(disk, &self.path.join("node.cell"), NODE_CELL, &bytes)
    }

    /// What it is called: drawn when it was created.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.cell.directory
    }

    /// The life of the metadata that it is bound to, if it is.
    #[must_use]
    pub const fn lineage(&self) -> Option<LineageId> {
        self.cell.lineage
    }

    /// The life of the metadata that it was taken away from, if it is bound to none since.
    #[must_use]
    pub const fn left(&self) -> Option<Left> {
        self.cell.left
    }

    /// All lives of the metadata that it was bound to before, oldest first.
    #[must_use]
    pub fn former(&self) -> &[LineageId] {
        &self.cell.former
    }

    /// Takes the directory away from the life of the metadata that it is bound to, so that it may come into one that goes on from there.
    /// Idempotent. Blocks.
    ///
    /// # Errors
    /// [`DataDirError`] when that cannot be written.
    pub fn leave(&mut self, disk: &dyn Disk) -> Result<(), DataDirError> {
        // 1 what it leaves, and how far it had come   2 the position goes    — a crash in between leaves a position of the life it has left,
        // whose metadata is still there
        if let Some(lineage) = self.cell.lineage.take() {
            let reached = match self.reached(disk) {
                Ok(Some(reached)) => reached,
                Ok(None) | Err(DataDirError::Damaged { .. }) => LogIndex(u64::MAX),
                Err(error) => return Err(error),
            };
            self.cell.left = Some(Left { lineage, reached });
            self.write(disk)?;
        }
        let path = self.path.join(REACHED_NAME);
        match disk.remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(DataDirError::Io { step: "remove", path, source }),
            _ => {}
        }
        disk.sync_dir(&self.path).map_err(|source| DataDirError::Io { step: "sync", path: self.path.clone(), source })
    }

    /// Binds the directory to this life of the metadata. To another one every topic here is unknown, and what is unknown is removed in the
    /// end: so it may not come near, unless it goes on from one that the directory has [left](Self::leave). If the directory has seen more of
    /// that one than is known in this, what it has more is set aside first. Blocks.
    ///
    /// # Errors
    /// [`DataDirError`] when the directory is bound to another, or the bond cannot be written.
    pub fn bind(
        &mut self,
        disk: &dyn Disk,
        found: LineageId,
        goes_on_from: &[FormerLife],
        set_aside: impl FnOnce(LineageId) -> io::Result<()>,
    ) -> Result<(), DataDirError> {
        let other = |kept| Err(DataDirError::OtherLineage { path: self.path.clone(), kept, found });
        match (self.cell.lineage, self.cell.left) {
            (Some(kept), _) if kept != found => return other(kept),
            (Some(_), None) => return Ok(()),
            (None, Some(left)) if left.lineage != found => {
                let Some(life) = goes_on_from.iter().rev().find(|life| life.lineage == left.lineage) else { return other(left.lineage) };
                if left.reached > life.at {
                    let path = self.path.clone();
                    set_aside(left.lineage).map_err(|source| DataDirError::Io { step: "set aside what is unknown in", path, source })?;
                }
                self.cell.former.retain(|former| *former != left.lineage);
                self.cell.former.push(left.lineage);
                let surplus = self.cell.former.len().saturating_sub(limits::FORMER_LIVES_MAX);
                self.cell.former.drain(..surplus);
            }
            _ => {}
        }
        self.cell.lineage = Some(found);
        self.cell.left = None;
        Ok(self.write(disk)?)
    }

    /// How far the metadata was followed, if that was ever kept.
    fn reached(&self, disk: &dyn Disk) -> Result<Option<LogIndex>, DataDirError> {
        let path = self.path.join(REACHED_NAME);
        let damaged = |reason: &str| DataDirError::Damaged { path: path.clone(), reason: reason.to_owned() };
        let failed = |source| DataDirError::Io { step: "read", path: path.clone(), source };
        match cell::read(disk, &path, REACHED_CELL).map_err(failed)? {
            CellRead::NotThere => Ok(None),
            CellRead::Damaged { reason } => Err(damaged(&reason)),
            CellRead::Value(bytes) => {
                let reached = bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged("it holds no position"))?;
                Ok(Some(LogIndex(reached)))
            }
        }
    }

    /// Refuses a metadata log that ends (one past its last entry) below what was followed before. Blocks.
    ///
    /// # Errors
    /// [`DataDirError`].
    pub fn check_reached(&self, disk: &dyn Disk, end: LogIndex) -> Result<(), DataDirError> {
        match self.reached(disk)? {
            Some(reached) if reached >= end => Err(DataDirError::OlderMetadata { path: self.path.clone(), reached, end }),
            _ => Ok(()),
        }
    }

    /// Takes what is in it away from everybody else, before the metadata log makes files that others may read. Blocks.
    ///
    /// # Errors
    /// [`DataDirError`] when that cannot be done: then nothing secret is written.
    pub fn make_private(&self, disk: &dyn Disk) -> Result<(), DataDirError> {
        let failed = |step: &'static str| move |source| DataDirError::Io { step, path: self.path.clone(), source };
        disk.create_dir_all(&self.metastore()).map_err(failed("create the folder of the metadata in"))?;
        let kept = disk.list(&self.path).map_err(failed("list"))?;
        for entry in kept.iter().filter(|entry| entry.is_dir && PRIVATE.contains(&entry.name.as_str())) {
            disk.make_private(&self.path.join(&entry.name)).map_err(failed("take others' permissions from the folders of"))?;
        }
        Ok(())
    }

    /// Where the metadata log lives.
    #[must_use]
    pub fn metastore(&self) -> PathBuf {
        self.path.join("metastore")
    }
}

/// Whose directory it is, if it can be told; who opens it says what is wrong. Blocks.
pub fn name_in(disk: &dyn Disk, data_dir: &Path) -> Option<String> {
    let CellRead::Value(bytes) = cell::read(disk, &data_dir.join("node.cell"), NODE_CELL).ok()? else { return None };
    serde_json::from_slice::<NodeCell>(&bytes).ok().map(|cell| cell.node)
}

/// Keeps that the metadata has been followed up to this position. Blocks.
///
/// # Errors
/// [`CellError`]; the position before stands, or this one.
pub fn keep_reached(disk: &dyn Disk, data_dir: &Path, reached: LogIndex) -> Result<(), CellError> {
    cell::write(disk, &data_dir.join(REACHED_NAME), REACHED_CELL, &reached.0.to_be_bytes())
}

/// Creates a directory and makes its name, and those of the parents that were missing, durable.
fn create_durably(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = path;
    while !at.as_os_str().is_empty() && !disk.exists(at)? {
        missing.push(at);
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    disk.create_dir_all(path)?;
    for created in missing.iter().rev() {
        let parent = created.parent().filter(|parent| !parent.as_os_str().is_empty());
        disk.sync_dir(parent.unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// The machine's name, as the kernel knows it.
fn machine_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    NodeId::parse(&name).map_or_else(|| "node-1".to_owned(), |node| node.to_string())
}

#[cfg(test)]
mod tests {
    use veena_storage::disk::real::RealDisk;

    use super::*;
    use crate::system::OsEntropy;

    fn open(path: &Path, node: Option<&str>) -> Result<DataDir, DataDirError> {
        DataDir::open(&RealDisk, path, node, &OsEntropy)
    }

    #[test]
    fn a_directory_keeps_the_name_it_was_created_under() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let path = temp.path().join("a/b/data");
        assert!(open(&path, Some("one")).expect("created").is_new);
        let again = open(&path, None).expect("opened");
        assert_eq!((again.node.to_string().as_str(), again.is_new), ("one", false));
        drop(again);
        assert!(matches!(open(&path, Some("two")), Err(DataDirError::OtherNode { .. })));
    }

    #[test]
    fn what_a_directory_holds_is_taken_away_from_others_and_what_is_not_the_nodes_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mode = |name: &str| std::fs::metadata(temp.path().join(name)).expect("there").permissions().mode() & 0o777;
        for name in ["metastore", "topics", "ingress", "lost+found"] {
            std::fs::create_dir(temp.path().join(name)).expect("made");
            std::fs::set_permissions(temp.path().join(name), std::fs::Permissions::from_mode(0o755)).expect("opened to others");
        }
        let dir = open(temp.path(), Some("one")).expect("opened");
        dir.make_private(&RealDisk).expect("closed to others");
        assert_eq!(["metastore", "topics", "ingress", "lost+found"].map(mode), [0o700, 0o700, 0o700, 0o755]);
        std::fs::remove_dir(dir.metastore()).expect("removed");
        dir.make_private(&RealDisk).expect("made anew");
        assert_eq!(mode("metastore"), 0o700);
    }

    #[test]
    fn two_processes_do_not_share_a_directory() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let first = open(temp.path(), Some("one")).expect("opened");
        assert!(matches!(open(temp.path(), Some("one")), Err(DataDirError::InUse { .. })));
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(temp.path(), &link).expect("linked");
        assert!(matches!(open(&link, Some("one")), Err(DataDirError::InUse { .. })), "under another name it is the same directory");
        drop(first);
        assert!(open(temp.path(), Some("one")).is_ok());
    }

    #[test]
    fn a_directory_stays_with_the_metadata_it_was_first_used_with() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut dir = open(temp.path(), Some("one")).expect("created");
        bind(&mut dir, 7, &[]).expect("bound");
        drop(dir);
        let mut dir = open(temp.path(), None).expect("opened");
        bind(&mut dir, 7, &[]).expect("the same");
        let heir = [life(7, 5)];
        let error = bind(&mut dir, 8, &heir).expect_err("another, and nobody has taken it away from the first");
        assert!(matches!(error, DataDirError::OtherLineage { .. }) && error.to_string().contains(&LineageId(7).to_string()), "{error}");
    }

    fn life(lineage: u128, at: u64) -> FormerLife {
        FormerLife { lineage: LineageId(lineage), at: LogIndex(at), members: Vec::new() }
    }

    /// Answers what was set aside, if anything was.
    fn bind(dir: &mut DataDir, found: u128, goes_on_from: &[FormerLife]) -> Result<Option<LineageId>, DataDirError> {
        let mut aside = None;
        dir.bind(&RealDisk, LineageId(found), goes_on_from, |left| {
            aside = Some(left);
            Ok(())
        })?;
        Ok(aside)
    }

    #[test]
    fn a_directory_that_was_taken_away_from_its_metadata_is_bound_to_an_heir_of_it_alone() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut dir = open(temp.path(), Some("one")).expect("created");
        bind(&mut dir, 7, &[]).expect("bound");
        keep_reached(&RealDisk, temp.path(), LogIndex(5)).expect("kept");
        for _ in 0..2 {
            dir.leave(&RealDisk).expect("left");
            dir.check_reached(&RealDisk, LogIndex(0)).expect("positions of another life say nothing");
        }
        assert_eq!(dir.left(), Some(Left { lineage: LineageId(7), reached: LogIndex(5) }));
        drop(dir);
        let mut dir = open(temp.path(), None).expect("opened");
        for stranger in [&[][..], &[life(6, 9)]] {
            let error = bind(&mut dir, 8, stranger).expect_err("no heir");
            assert!(matches!(error, DataDirError::OtherLineage { kept: LineageId(7), .. }), "{error}");
        }
        assert_eq!(bind(&mut dir, 8, &[life(6, 9), life(7, 5)]).expect("bound"), None, "it knows no more than its heir");
        assert_eq!((dir.lineage(), dir.left(), dir.former()), (Some(LineageId(8)), None, &[LineageId(7)][..]));
    }

    #[test]
    fn what_a_directory_knows_beyond_the_heir_of_its_metadata_is_set_aside() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let mut dir = open(temp.path(), Some("one")).expect("created");
        bind(&mut dir, 7, &[]).expect("bound");
        keep_reached(&RealDisk, temp.path(), LogIndex(6)).expect("kept");
        dir.leave(&RealDisk).expect("left");
        let heir = [life(7, 5)];
        let failing = dir.bind(&RealDisk, LineageId(8), &heir, |_| Err(io::ErrorKind::StorageFull.into()));
        assert!(matches!(failing, Err(DataDirError::Io { .. })));
        assert_eq!((dir.lineage(), bind(&mut dir, 8, &heir).expect("bound")), (None, Some(LineageId(7))), "nothing is bound before");

        // Without a word on how far it had come, it may have come further.
        bind(&mut dir, 8, &[]).expect("it is bound to it");
        dir.leave(&RealDisk).expect("left");
        assert_eq!(bind(&mut dir, 9, &[life(7, 5), life(8, 1_000)]).expect("bound"), Some(LineageId(8)));
        // Back to where it was: nothing was changed meanwhile.
        dir.leave(&RealDisk).expect("left");
        assert_eq!(bind(&mut dir, 9, &[]).expect("bound"), None);
    }

    #[test]
    fn metadata_that_ends_below_what_was_followed_is_refused() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let dir = open(temp.path(), Some("one")).expect("created");
        dir.check_reached(&RealDisk, LogIndex(0)).expect("nothing was followed yet");
        keep_reached(&RealDisk, temp.path(), LogIndex(7)).expect("kept");
        dir.check_reached(&RealDisk, LogIndex(8)).expect("its last entry is the one that was followed last");
        let error = dir.check_reached(&RealDisk, LogIndex(7)).expect_err("that entry is missing");
        assert!(matches!(error, DataDirError::OlderMetadata { .. }) && error.to_string().contains("reached.cell"), "{error}");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test damages a real file")]
    fn a_damaged_identity_is_not_replaced() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        drop(open(temp.path(), Some("one")).expect("created"));
        std::fs::write(temp.path().join("node.cell"), b"VCEL?").expect("damaged");
        assert!(matches!(open(temp.path(), Some("one")), Err(DataDirError::Damaged { .. })));
    }
}
