//! `veena cluster`: who takes part, and what becomes of the metadata.

use clap::Subcommand;
use veena_client::bodies::ClusterMember;

use super::{Global, lives};
use crate::output::{self, Outcome};

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// List the members: who answers, votes and leads, and how many partitions each owns.
    Members,
    /// Copy the metadata into a file: topics, schemas, links, owners; no message.
    Backup(lives::BackupArgs),
    /// Found the cluster anew from a backup, on a node that does not run.
    ///
    /// Topics that the backup knows go on with the messages that are in the data directories; what is in them that it does not know is set aside
    /// at the next start, and never removed. Every other node joins anew (see rejoin).
    Restore(lives::RestoreArgs),
    /// Let one survivor go on alone, when a majority of the voters is lost for good; on a node that does not run.
    Recover(lives::RecoverArgs),
    /// Take a node that does not run out of its cluster, so that it joins, with its messages, the one that was restored or recovered from it.
    Rejoin(lives::RejoinArgs),
}

/// Runs a command.
pub async fn run(global: &Global, command: ClusterCommand) -> Outcome {
    match command {
        ClusterCommand::Members => {
            let members = global.client()?.cluster_members().await?;
            if global.json { members.iter().try_for_each(output::json) } else { list(&members) }
        }
        ClusterCommand::Backup(args) => lives::backup(global, args).await,
        ClusterCommand::Restore(args) => lives::restore(global, args).await,
        ClusterCommand::Recover(args) => lives::recover(global, args).await,
        ClusterCommand::Rejoin(args) => lives::rejoin(global, args).await,
    }
}

fn list(members: &[ClusterMember]) -> Outcome {
    let head = ["NODE", "ADDR", "STATUS", "ROLE", "PARTITIONS"].map(str::to_owned).to_vec();
    let rows = members.iter().map(|member| {
        let role = match (member.leader, member.voter) {
            (Some(true), _) => "leader",
            (_, Some(true)) => "voter",
            (_, Some(false)) => "learner",
            (_, None) => "",
        };
        vec![member.id.clone(), member.addr.clone(), member.status.clone(), role.to_owned(), member.owned_partitions.to_string()]
    });
    output::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}
