//! `veena key`: with what service accounts sign in; and `veena whoami`.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use veena_client::bodies::{CreateKey, Grant, Key, Whoami};

use super::Global;
use super::user::{grant, may};
use crate::flags;
use crate::output::{self, Outcome};

/// What to do with the keys of a service account.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key, and print it: it is shown this once. Nothing else is on the standard output.
    #[command(visible_alias = "create")]
    Add(AddArgs),
    /// List the keys of a service account: what is known of them, not the keys.
    #[command(visible_alias = "list")]
    Ls {
        /// The account.
        account: String,
    },
    /// Delete a key. Whoever uses it is refused from then on.
    #[command(visible_alias = "delete")]
    Rm {
        /// The account.
        account: String,
        /// The key's id: what stands between the second and the third _ of the key.
        id: String,
    },
}

/// What a new key is like.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The account.
    account: String,
    /// What the key is for.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// How long it is good for, like 720h; for good unless said.
    #[arg(long, value_parser = flags::duration, value_name = "DURATION")]
    expires_in: Option<Duration>,
    /// What the key may do at most, of what its account may: ACTION:PATTERN,PATTERN, or admin. May be given several times; all of that unless
    /// said.
    #[arg(long, value_parser = grant, value_name = "GRANT")]
    scope: Vec<Grant>,
}

/// Runs one of them.
pub async fn run(global: &Global, command: KeyCommand) -> Outcome {
    let client = global.client()?;
    match command {
        KeyCommand::Add(AddArgs { account, description, expires_in, scope }) => {
            let expires_in_ms = expires_in.map(|life| i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
            let scopes = Some(scope).filter(|scope| !scope.is_empty());
            let created = client.create_key(&account, &CreateKey { description, expires_in_ms, scopes }).await?;
            if global.json {
                return output::json(&created);
            }
            eprintln!("created the key {} of {account}; it is shown this once:", created.record.id);
            output::line(created.key.expose())
        }
        KeyCommand::Ls { account } => {
            let keys = client.keys(&account).await?;
            let silent = keys.iter().map(|key| key.nodes_silent).max().unwrap_or_default();
            if silent > 0 {
                eprintln!("warning: {silent} of the nodes did not say when the keys were last used; it may have been later");
            }
            if global.json { keys.iter().try_for_each(output::json) } else { list(&keys) }
        }
        KeyCommand::Rm { account, id } => {
            client.delete_key(&account, &id).await?;
            if global.json { Ok(()) } else { output::line(format!("deleted the key {id} of {account}")) }
        }
    }
}

fn list(keys: &[Key]) -> Outcome {
    let mut rows = vec![["KEY", "CREATED", "EXPIRES", "LAST USED", "MAY AT MOST", "DESCRIPTION"].map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|key| {
        let expires = match key.expires_at_ms {
            None => "never".to_owned(),
            Some(_) if key.expired => "expired".to_owned(),
            Some(at_ms) => time(at_ms),
        };
        let used = key.last_used_ms.map_or_else(|| "-".to_owned(), time);
        let scopes = key.scopes.as_deref().map_or_else(|| "all of it".to_owned(), may);
        vec![key.id.clone(), time(key.created_at_ms), expires, used, scopes, key.description.clone().unwrap_or_default()]
    }));
    output::table(&rows)
}

/// A time as it is written in logs, to the second.
fn time(unix_ms: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Runs `veena whoami`.
pub async fn whoami(global: &Global) -> Outcome {
    let told = global.client()?.whoami().await?;
    if global.json { output::json(&told) } else { output::line(words(&told)) }
}

fn words(told: &Whoami) -> String {
    let Some(name) = &told.name else {
        return format!("nobody is asked who they are here; everybody may do everything (tenant {})", told.tenant);
    };
    let who = match (told.kind.as_deref(), &told.key_id) {
        (_, Some(id)) => format!("the service account {name}, with its key {id}"),
        (Some("service"), None) => format!("the service account {name}"),
        _ => format!("the user {name}"),
    };
    let until = told.token_expires_at_ms.map(|at_ms| format!(", with a token until {}", time(at_ms))).unwrap_or_default();
    let rights = if told.root { "do everything, for good".to_owned() } else { may(&told.grants) };
    let bound = told.scopes.as_deref().map(|scopes| format!(", with this key at most {}", may(scopes))).unwrap_or_default();
    let operator = if told.operator { "; an operator of the cluster" } else { "" };
    format!("{who}{until}, of the tenant {}, may {rights}{bound}{operator}", told.tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_one_is_is_told_in_words() {
        let grants = |texts: &[&str]| texts.iter().map(|text| grant(text).expect("a grant")).collect::<Vec<_>>();
        let of = |name: Option<&str>| Whoami { tenant: "default".into(), name: name.map(str::to_owned), ..Whoami::default() };
        assert!(words(&of(None)).starts_with("nobody is asked"));
        let root = Whoami { kind: Some("person".into()), root: true, operator: true, ..of(Some("admin")) };
        assert_eq!(words(&root), "the user admin, of the tenant default, may do everything, for good; an operator of the cluster");
        let ci = Whoami {
            kind: Some("service".into()),
            key_id: Some("abc".into()),
            grants: grants(&["produce:a*", "consume:b"]),
            scopes: Some(grants(&["produce:ab"])),
            ..of(Some("ci"))
        };
        let text =
            "the service account ci, with its key abc, of the tenant default, may produce a*; consume b, with this key at most produce ab";
        assert_eq!(words(&ci), text);
        let joe = Whoami { kind: Some("person".into()), token_expires_at_ms: Some(1_700_000_000_999), ..of(Some("joe")) };
        assert!(words(&joe).starts_with("the user joe, with a token until 2023-11-14T22:13:20Z, of the tenant default"), "{}", words(&joe));
    }

    #[test]
    fn a_time_is_written_to_the_second() {
        assert_eq!(time(1_700_000_000_999), "2023-11-14T22:13:20Z");
    }
}
