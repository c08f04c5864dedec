//! `veena cluster`: who takes part.

use clap::Subcommand;
use veena_client::bodies::ClusterMember;

use super::Global;
use crate::output::{self, Outcome};

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// List the members: who answers, votes and leads, and how many partitions each owns.
    Members,
}

/// Runs a command.
pub async fn run(global: &Global, command: ClusterCommand) -> Outcome {
    let client = global.client()?;
    match command {
        ClusterCommand::Members => {
            let members = client.cluster_members().await?;
            if global.json { members.iter().try_for_each(output::json) } else { list(&members) }
        }
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
