//! What an operator does to the metadata of a node that does not run: found another life of it from a backup, or from what one survivor
//! has; and take a data directory away from its metadata, so that it may join an heir of it.
//!
//! Nothing is deleted: the metadata that was there is set aside, in what no node removes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use veena_consensus::LogStore;
use veena_contract::{LineageId, LogIndex, NodeId, WallClock};
use veena_metastore::{Backup, BackupError, MetastoreConfig, StartError, Survivor};
use veena_storage::disk::{Disk, create_dir_durably};

use crate::data_dir::{DataDir, DataDirError};
use crate::system::{OsEntropy, SystemClock};

/// Why the metadata of a node stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// It is not the directory of a node.
    #[error("{} is not the data directory of a node", path.display())]
    NoNode {
        /// Which.
        path: PathBuf,
    },
    /// Nobody has said whose the new directory is.
    #[error(
        "{} is not the data directory of a node yet: look at the path, or say with --node-id what the node is called, which must own nothing in \
         the backup; nothing was touched",
        path.display()
    )]
    NoName {
        /// Which.
        path: PathBuf,
    },
    /// The backup.
    #[error(transparent)]
    Backup(#[from] BackupError),
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
    /// The metadata log cannot be opened.
    #[error("the metadata log {} cannot be opened", path.display())]
    MetadataLog {
        /// Where it is.
        path: PathBuf,
        /// What its store says.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The metadata log cannot be read or written.
    #[error("the metadata log {} cannot be used", path.display())]
    Log {
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: StartError,
    },
    /// There is no metadata to go on from.
    #[error("{} holds no metadata: this node was never in a cluster, or has lost it; `veena cluster restore` founds one from a backup", path.display())]
    Blank {
        /// Where it should be.
        path: PathBuf,
    },
    /// The directory and the backup have nothing to do with each other.
    #[error(
        "data directory {} holds messages of the metadata {kept}, and the backup is of {backup}: use another directory, an empty one for \
         instance; nothing was touched",
        path.display()
    )]
    Unrelated {
        /// Which.
        path: PathBuf,
        /// Whose messages it holds.
        kept: LineageId,
        /// What the backup is of.
        backup: LineageId,
    },
    /// The node would own what it does not have.
    #[error(
        "partitions belong to {node} in the backup ({partitions} of them), and this is not its data directory: they would look empty. Restore in \
         that directory, or under another name (--node-id); the partitions stay those of {node}, which is down until its directory is back; \
         nothing was touched"
    )]
    NotItsDirectory {
        /// The name.
        node: NodeId,
        /// How many.
        partitions: usize,
    },
    /// It is no member.
    #[error("{node} takes no part in the cluster that its metadata is of: it was removed, and knows less than others; nothing was touched")]
    NotAMember {
        /// Which node.
        node: NodeId,
    },
    /// It needs nobody else.
    #[error("{node} is the only voter of its cluster: there is nobody it would wait for; nothing was touched")]
    OnlyVoter {
        /// Which node.
        node: NodeId,
    },
}

/// A new life of the metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Which node has it.
    pub node: NodeId,
    /// What it is called.
    pub lineage: LineageId,
    /// Where the metadata is that was there before, if there was some.
    pub set_aside: Option<PathBuf>,
}

/// What one knows before a new life is begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The node.
    pub node: NodeId,
    /// The life that is gone on from.
    pub lineage: LineageId,
    /// The last position that is known of it.
    pub applied: LogIndex,
    /// Up to where it is known that a majority had it; of a backup, all of it.
    pub committed: LogIndex,
    /// Who voted.
    pub voters: Vec<NodeId>,
    /// How many topics are known.
    pub topics: usize,
    /// How many partitions belong to each other node.
    pub owned_elsewhere: BTreeMap<NodeId, usize>,
}

/// The metadata from which another life may begin, and the directory where it will.
pub struct Heritage {
    disk: Arc<dyn Disk>,
    data: DataDir,
    backup: Backup,
    facts: Facts,
    /// The life that the directory was of, if it is not said that the backup knows of it.
    also: Option<LineageId>,
}

impl Heritage {
    /// Reads a backup for the node of this directory, which is created if it is not there and `node` says whose it is.
    ///
    /// # Errors
    /// [`LifeError`]: it is none, is of another cluster than the directory, or the node would own what it does not have.
    pub fn of_backup(disk: Arc<dyn Disk>, dir: &Path, node: Option<&str>, bytes: &[u8]) -> Result<Self, LifeError> {
        let backup = Backup::decode(bytes)?;
        let lineage = backup.lineage()?;
        if node.is_none() && !exists(disk.as_ref(), &dir.join("node.cell"))? {
            return Err(LifeError::NoName { path: dir.to_owned() });
        }
        let data = DataDir::open(disk.as_ref(), dir, node, &OsEntropy)?;
        let former: Vec<LineageId> = backup.state.former().iter().map(|life| life.lineage).collect();
        let kept = data.lineage().or(data.left().map(|left| left.lineage));
        let is_known = |kept: &LineageId| *kept == lineage || former.contains(kept);
        if let Some(kept) = kept
            && !is_known(&kept)
            && !data.former().iter().any(is_known)
        {
            return Err(LifeError::Unrelated { path: data.path.clone(), kept, backup: lineage });
        }
        let partitions = backup.state.view().partitions_of(&data.node);
        let is_its_own = backup.members.iter().any(|member| member.node == data.node && member.directory == data.name());
        if partitions > 0 && kept.is_none() && !is_its_own {
            return Err(LifeError::NotItsDirectory { node: data.node.clone(), partitions });
        }
        let facts = facts(&data.node, &backup, backup.applied(), Vec::new())?;
        Ok(Self { disk, data, backup, facts, also: kept })
    }

    /// Reads what a node knows that does not run.
    ///
    /// # Errors
    /// [`LifeError`]: it knows nothing, or needs no help.
    pub async fn of_survivor<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
        disk: Arc<dyn Disk>,
        dir: &Path,
        open_log: impl FnOnce(&Path) -> Result<L, E>,
    ) -> Result<Self, LifeError> {
        let data = existing(disk.as_ref(), dir)?;
        let path = data.metastore();
        if !exists(disk.as_ref(), &path)? {
            return Err(LifeError::Blank { path });
        }
        let log = open_log(&path).map_err(|error| LifeError::MetadataLog { path: path.clone(), source: Box::new(error) })?;
        let read = Backup::read(log).await.map_err(|source| LifeError::Log { path: path.clone(), source })?;
        let Some(survivor) = read.filter(|survivor| survivor.backup.state.lineage().is_some()) else {
            return Err(LifeError::Blank { path });
        };
        let (backup, node) = (survivor.backup, data.node.clone());
        if backup.members.iter().all(|member| member.node != node) {
            return Err(LifeError::NotAMember { node });
        }
        if survivor.voters == [node.clone()] {
            return Err(LifeError::OnlyVoter { node });
        }
        let facts = facts(&node, &backup, survivor.committed, survivor.voters)?;
        Ok(Self { disk, data, backup, facts, also: None })
    }

    /// What is known.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Begins the new life: the node is its only member, and founds with what is known a cluster that the others join anew.
    ///
    /// # Errors
    /// [`LifeError`]; then it is to be done again before the node starts.
    pub async fn begin<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
        mut self,
        open_log: impl FnOnce(&Path) -> Result<L, E>,
    ) -> Result<Begun, LifeError> {
        let disk = self.disk.as_ref();
        let (path, new) = (self.data.metastore(), self.data.path.join("metastore.new"));
        if exists(disk, &new)? {
            disk.remove_dir_all(&new).map_err(failed("remove", &new))?;
        }
        let log = open_log(&new).map_err(|error| LifeError::MetadataLog { path: new.clone(), source: Box::new(error) })?;
        let mut config = MetastoreConfig::new(self.data.node.clone()).consensus;
        config.directory = self.data.name().into();
        let founded = self.backup.found(log, &config, &OsEntropy, self.also).await;
        let lineage = founded.map_err(|source| LifeError::Log { path: new.clone(), source })?;
        disk.sync_dir(&self.data.path).map_err(failed("sync", &self.data.path))?;
        // 1 whole, under another name   2 the directory is of no life   3 the former metadata is set aside   4 the new is in its place    — a
        // crash after 1 or 2 leaves the former; after 3 none, with which no node starts on this directory
        self.data.leave(disk)?;
        let set_aside = set_aside(disk, &self.data)?;
        disk.rename(&new, &path).map_err(failed("put in place", &new))?;
        disk.sync_dir(&self.data.path).map_err(failed("sync", &self.data.path))?;
        Ok(Begun { node: self.data.node.clone(), lineage, set_aside })
    }
}

/// What a backup holds.
///
/// # Errors
/// [`LifeError`]: it is none.
pub fn facts_of_backup(bytes: &[u8]) -> Result<Facts, LifeError> {
    let backup = Backup::decode(bytes)?;
    // Nobody's own: every partition is elsewhere.
    facts(&NodeId(Arc::from("")), &backup, backup.applied(), Vec::new())
}

/// A data directory that was taken away from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Whose it is.
    pub node: NodeId,
    /// What its messages are of, if it is known.
    pub left: Option<LineageId>,
    /// Where its metadata is, if it had some.
    pub set_aside: Option<PathBuf>,
}

/// Takes a data directory away from its metadata: the node joins, with its messages, a cluster that goes on from there.
///
/// # Errors
/// [`LifeError`]: it is no node's, or the only one that has this metadata.
pub async fn rejoin<L: LogStore, E: std::error::Error + Send + Sync + 'static>(
    disk: Arc<dyn Disk>,
    dir: &Path,
    open_log: impl FnOnce(&Path) -> Result<L, E>,
) -> Result<Freed, LifeError> {
    let mut data = existing(disk.as_ref(), dir)?;
    let path = data.metastore();
    if exists(disk.as_ref(), &path)? {
        let log = open_log(&path).map_err(|error| LifeError::MetadataLog { path: path.clone(), source: Box::new(error) })?;
        let read = Backup::read(log).await.map_err(|source| LifeError::Log { path, source })?;
        // One that was founded beside what the directory has left is nobody's.
        let of = data.lineage().or(data.left().map(|left| left.lineage));
        let is_alone = |survivor: &Survivor| survivor.voters == [data.node.clone()] && survivor.backup.state.lineage() == of;
        if read.as_ref().is_some_and(is_alone) {
            return Err(LifeError::OnlyVoter { node: data.node.clone() });
        }
    }
    data.leave(disk.as_ref())?;
    let set_aside = set_aside(disk.as_ref(), &data)?;
    Ok(Freed { node: data.node.clone(), left: data.left().map(|left| left.lineage), set_aside })
}

fn facts(node: &NodeId, backup: &Backup, committed: LogIndex, voters: Vec<NodeId>) -> Result<Facts, LifeError> {
    let view = backup.state.view();
    let mut owned_elsewhere = BTreeMap::new();
    for owner in view.by_id.values().flat_map(|topic| &topic.owners).filter(|owner| owner.node != *node) {
        *owned_elsewhere.entry(owner.node.clone()).or_default() += 1;
    }
    let (lineage, applied, topics) = (backup.lineage()?, backup.applied(), view.topics.len());
    Ok(Facts { node: node.clone(), lineage, applied, committed, voters, topics, owned_elsewhere })
}

/// A directory that is a node's already.
fn existing(disk: &dyn Disk, dir: &Path) -> Result<DataDir, LifeError> {
    if !exists(disk, &dir.join("node.cell"))? {
        return Err(LifeError::NoNode { path: dir.to_owned() });
    }
    Ok(DataDir::open(disk, dir, None, &OsEntropy)?)
}

/// Moves the metadata of a directory to where no node removes it.
fn set_aside(disk: &dyn Disk, data: &DataDir) -> Result<Option<PathBuf>, LifeError> {
    let (path, quarantine) = (data.metastore(), data.path.join("quarantine"));
    if !exists(disk, &path)? {
        return Ok(None);
    }
    create_dir_durably(disk, &quarantine).map_err(failed("create", &quarantine))?;
    let aside = quarantine.join(format!("kept-{:013}-metastore", SystemClock.now_ms()));
    disk.rename(&path, &aside).map_err(failed("set aside", &path))?;
    disk.sync_dir(&quarantine).map_err(failed("sync", &quarantine))?;
    disk.sync_dir(&data.path).map_err(failed("sync", &data.path))?;
    Ok(Some(aside))
}

fn exists(disk: &dyn Disk, path: &Path) -> Result<bool, LifeError> {
    disk.exists(path).map_err(failed("look at", path))
}

fn failed(step: &'static str, path: &Path) -> impl Fn(io::Error) -> LifeError {
    let path = path.to_owned();
    move |source| LifeError::Io { step, path: path.clone(), source }
}
