//! `veena cluster backup|restore|recover|rejoin`: a copy of the metadata, and how it lives on where a majority is lost.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use veena_node::DataDirError;
use veena_node::lives::{self, Begun, Facts, Heritage, LifeError};
use veena_raftstore::RaftStore;
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::{Disk, OpenMode, write_all_at};

use super::Global;
use crate::output::{self, Failure, Outcome};

/// Where to put a backup.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The file, which must not exist; `-` is the standard output (default: veena-metadata-POSITION.backup, below the current directory).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What to restore, and where.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The data directory of a node that does not run; created if it is not there.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The backup.
    #[arg(long, value_name = "FILE")]
    from: String,
    /// The node's name; has to be said for a directory that is new.
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
}

/// Which survivor, and whether it is meant.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The data directory of the survivor, which does not run.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Do it. What only the others know of the metadata is lost.
    #[arg(long)]
    yes_lose_what_only_the_others_know: bool,
}

/// Which node.
#[derive(Debug, Args)]
pub struct RejoinArgs {
    /// The data directory of a node that does not run.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Do it. The node takes no part any more in the cluster that it is in.
    #[arg(long)]
    yes_leave_its_cluster: bool,
}

/// Copies the metadata of a running cluster into a file.
pub async fn backup(global: &Global, args: BackupArgs) -> Outcome {
    let bytes = global.client()?.cluster_backup().await?;
    let facts = lives::facts_of_backup(&bytes).map_err(failed)?;
    let path = match args.out {
        Some(path) if path.as_os_str() == "-" => return output::raw(&bytes),
        Some(path) => path,
        None => PathBuf::from(format!("veena-metadata-{}.backup", facts.applied)),
    };
    keep(&path, &bytes).map_err(|error| anyhow::Error::from(error).context(format!("cannot write {}", path.display())))?;
    let mut told = told(&facts);
    told["file"] = json!(path);
    tell(global, &told, &format!("{}: {}", path.display(), summary(&facts)))
}

/// Writes a new file, durably, or none.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = RealDisk.open(path, OpenMode::CreateNew)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = write_all_at(file.as_ref(), bytes, 0).and_then(|()| file.sync_data()).and_then(|()| RealDisk.sync_dir(parent));
    written.map_err(|error| match RealDisk.remove_file(path) {
        Ok(()) => error,
        Err(left) => io::Error::new(error.kind(), format!("{error}; what was written of it cannot be removed: {left}")),
    })
}

/// Begins another life of the metadata with what a backup holds.
pub async fn restore(global: &Global, args: RestoreArgs) -> Outcome {
    let bytes = crate::flags::read_file(&args.from).await?;
    let heritage = Heritage::of_backup(Arc::new(RealDisk), &args.data_dir, args.node_id.as_deref(), &bytes).map_err(failed)?;
    let facts = heritage.facts().clone();
    let begun = heritage.begin(RaftStore::open).await.map_err(failed)?;
    tell_begun(global, &args.data_dir, &facts, &begun)
}

/// Begins another life of the metadata with what one survivor knows.
pub async fn recover(global: &Global, args: RecoverArgs) -> Outcome {
    let heritage = Heritage::of_survivor(Arc::new(RealDisk), &args.data_dir, RaftStore::open).await.map_err(failed)?;
    let facts = heritage.facts().clone();
    if !args.yes_lose_what_only_the_others_know {
        let voters = facts.voters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!(
            "{} would go on alone with {}.\n  The voters were {voters}. It is known here that a majority had everything up to position {}. What the \
             others have agreed on behind position {} is lost: topics made since are not known any more, topics deleted since are there again. \
             Never do this while a majority of the voters can be started: they would be another cluster, with other messages under the same \
             names.\n  Nothing was done. If it is meant, say --yes-lose-what-only-the-others-know",
            facts.node,
            summary(&facts),
            facts.committed,
            facts.applied,
        )));
    }
    let begun = heritage.begin(RaftStore::open).await.map_err(failed)?;
    tell_begun(global, &args.data_dir, &facts, &begun)
}

/// Takes a data directory away from its metadata.
pub async fn rejoin(global: &Global, args: RejoinArgs) -> Outcome {
    if !args.yes_leave_its_cluster {
        return Err(Failure::Usage(format!(
            "the node of {0} would leave the cluster that it is in, for one that was restored or recovered from it since. Where there is none, \
             leave it as it is: it would start nowhere, and its cluster misses it.\n  Nothing was done. If it is meant, say \
             --yes-leave-its-cluster",
            args.data_dir.display()
        )));
    }
    let freed = lives::rejoin(Arc::new(RealDisk), &args.data_dir, RaftStore::open).await.map_err(failed)?;
    let told = json!({ "node": freed.node, "left": freed.left, "set_aside": freed.set_aside });
    let undo = |path: PathBuf| {
        format!(
            "\n  Its metadata was set aside. To undo this before the node is started again: mv {} {}",
            path.display(),
            args.data_dir.join("metastore").display()
        )
    };
    let aside = freed.set_aside.map(undo).unwrap_or_default();
    let text = format!(
        "{} belongs to no cluster now, and keeps its messages.{aside}\n  Start it with cluster.join, and without cluster.bootstrap: it joins a \
         cluster that was restored or recovered from the one it was in, and no other",
        freed.node
    );
    tell(global, &told, &text)
}

fn tell_begun(global: &Global, dir: &Path, facts: &Facts, begun: &Begun) -> Outcome {
    let mut told = told(facts);
    told["begun"] = json!(begun.lineage);
    told["set_aside"] = json!(begun.set_aside);
    let aside = begun.set_aside.as_ref().map(|path| format!("\n  what was there was set aside in {}", path.display())).unwrap_or_default();
    let elsewhere: String = facts
        .owned_elsewhere
        .iter()
        .map(|(node, count)| format!("\n  {count} partition(s) are on {node}, down until it is back"))
        .collect();
    let text = format!(
        "{} goes on with {}, as the metadata {}.{aside}{elsewhere}\n  Start the node on {}. Every other node of the former cluster joins anew: \
         veena cluster rejoin --data-dir DIR --yes-leave-its-cluster, then start it with cluster.join",
        begun.node,
        summary(facts),
        begun.lineage,
        dir.display(),
    );
    tell(global, &told, &text)
}

fn summary(facts: &Facts) -> String {
    format!("the metadata {} up to position {}: {} topic(s)", facts.lineage, facts.applied, facts.topics)
}

fn told(facts: &Facts) -> Value {
    json!({
        "node": facts.node, "lineage": facts.lineage, "applied": facts.applied, "committed": facts.committed, "topics": facts.topics,
        "owned_elsewhere": facts.owned_elsewhere,
    })
}

fn tell(global: &Global, told: &Value, text: &str) -> Outcome {
    if global.json { output::json(told) } else { output::line(text) }
}

/// A node that runs is told how to go on.
fn failed(error: LifeError) -> Failure {
    let is_running = matches!(error, LifeError::DataDir(DataDirError::InUse { .. }));
    let error = anyhow::Error::from(error);
    Failure::Failed(if is_running { error.context("stop the node first") } else { error })
}
