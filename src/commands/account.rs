//! `veena account`: services that sign in with keys, and what they may do.

use clap::Subcommand;
use veena_client::bodies::{Account, CreateAccount, SetGrants};

use super::Global;
use super::user::{GrantArgs, may};
use crate::output::{self, Failure, Outcome};

/// What to do with service accounts.
#[derive(Debug, Subcommand)]
pub enum AccountCommand {
    /// Create a service account. It has no password: `veena key add` makes it a key.
    #[command(visible_alias = "create")]
    Add {
        /// The name: A-Z a-z 0-9 . _ -
        name: String,
        #[command(flatten)]
        grants: GrantArgs,
    },
    /// List the service accounts.
    #[command(visible_alias = "list")]
    Ls,
    /// Show a service account.
    Info {
        /// The account.
        name: String,
    },
    /// Replace what a service account may do: what is not said here is taken away.
    Grant {
        /// The account.
        name: String,
        #[command(flatten)]
        grants: GrantArgs,
        /// Take everything away.
        #[arg(long, conflicts_with = "grant", required_unless_present = "grant")]
        nothing: bool,
    },
    /// Delete a service account, and its keys. Topics that it owns stay.
    #[command(visible_alias = "delete")]
    Rm {
        /// The account.
        name: String,
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
    },
}

/// Runs one of them.
pub async fn run(global: &Global, command: AccountCommand) -> Outcome {
    let client = global.client()?;
    match command {
        AccountCommand::Add { name, grants } => {
            let account = client.create_account(&CreateAccount { name, grants: Some(grants.grant) }).await?;
            done(global, &account, &format!("created {}, which may {}", account.name, may(&account.grants)))
        }
        AccountCommand::Ls => {
            let accounts = client.accounts().await?;
            if global.json { accounts.iter().try_for_each(output::json) } else { list(&accounts) }
        }
        AccountCommand::Info { name } => {
            let account = client.account(&name).await?;
            if global.json { output::json(&account) } else { list(std::slice::from_ref(&account)) }
        }
        AccountCommand::Grant { name, grants, nothing: _ } => {
            let account = client.set_account_grants(&name, &SetGrants { grants: grants.grant }).await?;
            done(global, &account, &format!("{} may {}", account.name, may(&account.grants)))
        }
        AccountCommand::Rm { name, force } => {
            if !force {
                match output::confirm(&format!("Delete the service account {name} and its keys?"))? {
                    Some(true) => {}
                    Some(false) => return Err(Failure::Failed(anyhow::anyhow!("not deleted"))),
                    None => return Err(Failure::Usage("nobody can be asked here: say -f to delete the account".to_owned())),
                }
            }
            client.delete_account(&name).await?;
            if global.json { Ok(()) } else { output::line(format!("deleted {name}")) }
        }
    }
}

fn done(global: &Global, account: &Account, text: &str) -> Outcome {
    if global.json { output::json(account) } else { output::line(text) }
}

fn list(accounts: &[Account]) -> Outcome {
    let mut rows = vec![vec!["ACCOUNT".into(), "MAY".into()]];
    rows.extend(accounts.iter().map(|account| vec![account.name.clone(), may(&account.grants)]));
    output::table(&rows)
}
