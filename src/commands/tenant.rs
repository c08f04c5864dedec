//! `veena tenant`: who shares the cluster. For operators.

use clap::Subcommand;
use veena_client::Client;
use veena_client::bodies::{PutTenant, Tenant, TenantLeft};

use super::Global;
use crate::output::{self, Failure, Outcome};

/// What to do with tenants.
#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// Create a tenant. Give it a first admin with `veena user add --tenant`.
    #[command(visible_alias = "create")]
    Add {
        /// The name: a-z 0-9 -
        name: String,
    },
    /// List the tenants.
    #[command(visible_alias = "list")]
    Ls,
    /// Show a tenant, and what is left of it while it is being deleted.
    Info {
        /// The tenant.
        name: String,
    },
    /// Let nobody of a tenant do anything, until it is resumed. What it has stays.
    Suspend {
        /// The tenant.
        name: String,
    },
    /// Let the users of a tenant do again what they were granted.
    Resume {
        /// The tenant.
        name: String,
    },
    /// Delete a tenant with its users, its topics and their messages.
    #[command(visible_alias = "delete")]
    Rm {
        /// The tenant.
        name: String,
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
    },
}

/// Runs one of them.
pub async fn run(global: &Global, command: TenantCommand) -> Outcome {
    let client = global.client()?;
    match command {
        TenantCommand::Add { name } => {
            let tenant = put(&client, &name, "active").await?;
            done(global, &tenant, &format!("{} is there and {}", tenant.tenant, tenant.state))
        }
        TenantCommand::Ls => {
            let tenants = client.tenants().await?;
            if global.json { tenants.iter().try_for_each(output::json) } else { list(&tenants) }
        }
        TenantCommand::Info { name } => {
            let tenant = client.tenant(&name).await?;
            if global.json {
                return output::json(&tenant);
            }
            list(std::slice::from_ref(&tenant))?;
            tenant.left.as_ref().map_or(Ok(()), |left| output::line(format!("left: {}", left_in_words(left))))
        }
        TenantCommand::Suspend { name } => change(global, &client, &name, "suspended").await,
        TenantCommand::Resume { name } => change(global, &client, &name, "active").await,
        TenantCommand::Rm { name, force } => {
            if !force {
                match output::confirm(&format!("Delete the tenant {name} with everything it has?"))? {
                    Some(true) => {}
                    Some(false) => return Err(Failure::Failed(anyhow::anyhow!("not deleted"))),
                    None => return Err(Failure::Usage("nobody can be asked here: say -f to delete the tenant".to_owned())),
                }
            }
            client.delete_tenant(&name).await?;
            let text = format!("{name} is being deleted; veena tenant info {name} shows what is left of it");
            if global.json { Ok(()) } else { output::line(text) }
        }
    }
}

async fn put(client: &Client, name: &str, state: &str) -> Result<Tenant, Failure> {
    Ok(client.put_tenant(name, &PutTenant { state: state.to_owned(), revision: None }).await?)
}

/// Changes a tenant that is there: to say so of one that is not would create it.
async fn change(global: &Global, client: &Client, name: &str, state: &str) -> Outcome {
    client.tenant(name).await?;
    let tenant = put(client, name, state).await?;
    done(global, &tenant, &format!("{} is {}", tenant.tenant, tenant.state))
}

fn done(global: &Global, tenant: &Tenant, text: &str) -> Outcome {
    if global.json { output::json(tenant) } else { output::line(text) }
}

fn list(tenants: &[Tenant]) -> Outcome {
    let mut rows = vec![["TENANT", "STATE", "TOPICS", "USERS"].map(str::to_owned).to_vec()];
    rows.extend(
        tenants.iter().map(|tenant| vec![tenant.tenant.clone(), tenant.state.clone(), tenant.topics.to_string(), tenant.users.to_string()]),
    );
    output::table(&rows)
}

/// What is left of a tenant, in words.
fn left_in_words(left: &TenantLeft) -> String {
    let nodes = &left.on_nodes;
    let counted = [
        (left.topics, "topics"),
        (left.users, "users"),
        (nodes.open_topics, "topics that are being closed"),
        (nodes.directories, "directories"),
        (nodes.quarantined, "directories in quarantine"),
        (nodes.orphans, "messages without a topic"),
        (nodes.positions, "positions of consumers"),
    ];
    let mut words: Vec<String> = counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if !left.unknown.is_empty() {
        words.push(format!("what {} have is not known", left.unknown.join(", ")));
    }
    if words.is_empty() { "nothing".to_owned() } else { words.join("; ") }
}

#[cfg(test)]
mod tests {
    use veena_client::bodies::TenantTraces;

    use super::*;

    #[test]
    fn what_is_left_is_told_in_words() {
        assert_eq!(left_in_words(&TenantLeft::default()), "nothing");
        let on_nodes = TenantTraces { quarantined: 3, ..TenantTraces::default() };
        let left = TenantLeft { topics: 2, on_nodes, unknown: vec!["a".into(), "b".into()], ..TenantLeft::default() };
        assert_eq!(left_in_words(&left), "2 topics; 3 directories in quarantine; what a, b have is not known");
    }
}
