//! `veena cluster`: who takes part, what moves, who comes and goes, and what becomes of the metadata.

use clap::Subcommand;
use veena_client::bodies::{AbortedMove, ClusterMember, ClusterMoves, Decommission};

use super::{Global, lives};
use crate::output::{self, Failure, Outcome};

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// List the members: who answers, votes and leads, and how many partitions each owns.
    Members,
    /// List the partitions that are being moved to other nodes.
    Moves,
    /// Take a member out: its partitions are moved away, and then it is a member no more.
    Decommission {
        /// The member.
        node: String,
        /// Begin nothing, and tell what would stand in the way.
        #[arg(long)]
        dry_run: bool,
    },
    /// Keep a member that is being taken out. What was moved away stays where it is.
    Cancel {
        /// The member.
        node: String,
    },
    /// End the move of a partition: it stays with its owner.
    Abort {
        /// The topic.
        topic: String,
        /// The partition, from 0.
        partition: u64,
        /// Whose topic (default: the tenant of the one who signs in).
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
    },
    /// Give up a member that is dead for good. What only it had is lost.
    Forget {
        /// The member.
        node: String,
        /// Do it. It cannot be undone.
        #[arg(long)]
        yes_lose_what_only_it_has: bool,
    },
    /// Copy the metadata into a file: topics, schemas, links, owners, users with the hashes of their passwords; no message.
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
        ClusterCommand::Moves => {
            let moves = global.client()?.cluster_moves().await?;
            if global.json { moves.moves.iter().try_for_each(output::json) } else { list_moves(&moves) }
        }
        ClusterCommand::Decommission { node, dry_run: true } => {
            let answer = global.client()?.would_decommission(&node).await?;
            if global.json { output::json(&answer) } else { tell(&answer) }
        }
        ClusterCommand::Decommission { node, dry_run: false } => {
            global.client()?.decommission(&node).await?;
            done(global, &format!("{node} is being taken out; `veena cluster members` shows how far it is"))
        }
        ClusterCommand::Cancel { node } => {
            global.client()?.cancel_decommission(&node).await?;
            done(global, &format!("{node} stays"))
        }
        ClusterCommand::Abort { topic, partition, tenant } => {
            let answer = global.client()?.abort_move_of(tenant.as_deref(), &topic, partition).await?;
            if global.json { output::json(&answer) } else { output::line(answer.note) }
        }
        ClusterCommand::Forget { node, yes_lose_what_only_it_has: false } => Err(unsaid(&global.client()?.cluster_members().await?, &node)),
        ClusterCommand::Forget { node, yes_lose_what_only_it_has: true } => {
            let answer = global.client()?.forget(&node).await?;
            if global.json { output::json(&answer) } else { output::line(format!("{node} is a member no more")) }
        }
        ClusterCommand::Backup(args) => lives::backup(global, args).await,
        ClusterCommand::Restore(args) => lives::restore(global, args).await,
        ClusterCommand::Recover(args) => lives::recover(global, args).await,
        ClusterCommand::Rejoin(args) => lives::rejoin(global, args).await,
    }
}

/// What is told of a change that answers nothing.
fn done(global: &Global, text: &str) -> Outcome {
    if global.json { Ok(()) } else { output::line(text) }
}

/// What is told instead of giving a member up without a word.
fn unsaid(members: &[ClusterMember], node: &str) -> Failure {
    let Some(member) = members.iter().find(|member| member.id == node) else {
        return Failure::Failed(anyhow::anyhow!("{node} is no member of the cluster"));
    };
    Failure::Usage(format!(
        "{node} ({}) would be given up, with {} partition(s) and what else only it has; that cannot be undone: it is not let in again, and its \
         partitions stay away until their topics are deleted. A node that can be started takes part again by itself, and one that runs is taken \
         out with `veena cluster decommission`.\n  Nothing was done. If it is meant, say --yes-lose-what-only-it-has",
        member.status, member.owned_partitions
    ))
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
        let status = if member.draining { format!("{}, leaving", member.status) } else { member.status.clone() };
        vec![member.id.clone(), member.addr.clone(), status, role.to_owned(), member.owned_partitions.to_string()]
    });
    output::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())?;
    let waits = members.iter().flat_map(|member| member.decommission_blocked.iter().map(move |reason| (&member.id, reason)));
    waits.into_iter().try_for_each(|(node, reason)| output::line(format!("{node} leaves later: {}", reason.message)))
}

fn list_moves(told: &ClusterMoves) -> Outcome {
    let moves = &told.moves;
    let head = ["TOPIC", "PARTITION", "FROM", "TO", "STATE", "PROGRESS"].map(str::to_owned).to_vec();
    let rows = moves.iter().map(|moving| {
        let state = moving.blocked.as_deref().unwrap_or(if moving.frozen { "frozen" } else { "copying" });
        let with = |node: &str, status: Option<&String>| match status.map(String::as_str) {
            None | Some("alive") => node.to_owned(),
            Some(status) => format!("{node} ({})", status.replace('_', " ")),
        };
        let (from, to) = (with(&moving.from, moving.from_status.as_ref()), with(&moving.to, moving.to_status.as_ref()));
        let progress = moving.worker.clone().unwrap_or_else(|| "-".to_owned());
        vec![of_tenant(&moving.topic, moving.tenant.as_deref()), moving.partition.to_string(), from, to, state.replace('_', " "), progress]
    });
    output::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>())?;
    for moving in moves {
        if let Some(error) = &moving.worker_error {
            output::line(format!(
                "{}/{} went wrong last at {}: {error}",
                of_tenant(&moving.topic, moving.tenant.as_deref()),
                moving.partition,
                moving.to
            ))?;
        }
    }
    told.aborted.iter().try_for_each(|aborted| {
        let AbortedMove { tenant, topic, partition, from, to, reason, .. } = aborted;
        let topic = of_tenant(topic, tenant.as_deref());
        output::line(format!("{topic}/{partition} stays at {from}, its move to {to} was aborted: {reason}"))
    })
}

/// A topic, with its tenant unless that is `default`.
fn of_tenant(topic: &str, tenant: Option<&str>) -> String {
    tenant.map_or_else(|| topic.to_owned(), |tenant| format!("{topic}@{tenant}"))
}

fn tell(answer: &Decommission) -> Outcome {
    let verdict = if answer.would_decommission { "could be taken out" } else { "cannot be taken out" };
    output::line(format!("{} {verdict}; {} partition(s) would be moved away", answer.member, answer.owned_partitions))?;
    answer.reasons.iter().try_for_each(|reason| output::line(format!("{}: {}", reason.code, reason.message)))
}
