//! `veena quota` and `veena usage`: what tenants may use, and what they have used.

use clap::{Args, Subcommand};
use veena_client::bodies::{Quota, QuotaView, SetQuota, Usage};

use super::Global;
use crate::output::{self, Outcome};

/// What to do with limits.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Show the limits of one's own tenant, or, for operators, of another.
    Show {
        /// The tenant (default: one's own).
        tenant: Option<String>,
    },
    /// Replace the limits of a tenant or of one of its topics: what is not said here is not limited any more. For operators.
    Set {
        /// The tenant.
        tenant: String,
        /// One of its topics, instead of the tenant.
        #[arg(long)]
        topic: Option<String>,
        /// Which revision this is; one that is not newer than what was applied is refused.
        #[arg(long)]
        revision: Option<u64>,
        /// The limits: NAME=NUMBER, as in messages_in_per_s=1000. Of a tenant or a topic: messages_in_per_s, bytes_in_per_s, messages_out_per_s,
        /// bytes_out_per_s, stored_bytes. Of a tenant alone: requests_per_s, topics, partitions, keys, parked_polls.
        #[arg(value_parser = limit, value_name = "LIMIT", required_unless_present = "nothing")]
        limits: Vec<(String, u64)>,
        /// Limit nothing.
        #[arg(long, conflicts_with = "limits")]
        nothing: bool,
    },
}

/// Whose usage.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Of every tenant. For operators.
    #[arg(short, long)]
    all: bool,
}

/// Reads `name=number`.
fn limit(text: &str) -> Result<(String, u64), String> {
    let (name, number) = text.split_once('=').ok_or("want NAME=NUMBER")?;
    let number = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    quota(&[(name.to_owned(), number)]).map(|_| (name.to_owned(), number))
}

/// The limits of these names.
fn quota(limits: &[(String, u64)]) -> Result<Quota, String> {
    let fields = limits.iter().map(|(name, number)| (name.clone(), serde_json::Value::from(*number))).collect();
    serde_json::from_value(serde_json::Value::Object(fields)).map_err(|error| error.to_string())
}

/// The limits by name.
fn limits(quota: &Quota) -> Vec<(String, u64)> {
    let value = serde_json::to_value(quota).unwrap_or_default();
    let fields = value.as_object().cloned().unwrap_or_default();
    fields.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

/// Runs one of them.
pub async fn run(global: &Global, command: QuotaCommand) -> Outcome {
    let client = global.client()?;
    let view = match command {
        QuotaCommand::Show { tenant: None } => client.quota().await?,
        QuotaCommand::Show { tenant: Some(tenant) } => client.tenant_quota(&tenant).await?,
        QuotaCommand::Set { tenant, topic, revision, limits, nothing: _ } => {
            let quota = quota(&limits).map_err(crate::output::Failure::Usage)?;
            client.set_quota(&tenant, &SetQuota { topic, revision, quota }).await?
        }
    };
    if global.json { output::json(&view) } else { show(&view) }
}

fn show(view: &QuotaView) -> Outcome {
    let mut rows = vec![vec!["OF".into(), "LIMIT".into(), "VALUE".into()]];
    let of_tenant = limits(&view.quota).into_iter().map(|limit| (format!("tenant {}", view.tenant), limit));
    let of_topics = view.topics.iter().flat_map(|of| limits(&of.quota).into_iter().map(|limit| (format!("topic {}", of.topic), limit)));
    rows.extend(of_tenant.chain(of_topics).map(|(of, (name, number))| vec![of, name, number.to_string()]));
    if rows.len() == 1 {
        return output::line(format!("nothing of {} is limited", view.tenant));
    }
    output::table(&rows)
}

/// Tells what was used.
pub async fn usage(global: &Global, args: UsageArgs) -> Outcome {
    let client = global.client()?;
    let told = if args.all { client.all_usage().await? } else { vec![client.usage().await?] };
    if global.json {
        return told.iter().try_for_each(output::json);
    }
    let heads = ["TENANT", "IN", "BYTES IN", "COPIED", "OUT", "BYTES OUT", "STORED", "PEAK"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(told.iter().map(row));
    output::table(&rows)?;
    match told.iter().map(|usage| usage.nodes_silent).max() {
        Some(silent) if silent > 0 => {
            output::line(format!("{silent} of {} nodes did not answer: what they have counted is missing", told[0].nodes))
        }
        _ => Ok(()),
    }
}

fn row(usage: &Usage) -> Vec<String> {
    let numbers = [
        usage.messages_in,
        usage.bytes_in,
        usage.messages_copied,
        usage.messages_out,
        usage.bytes_out,
        usage.stored_bytes,
        usage.stored_bytes_peak,
    ];
    std::iter::once(usage.tenant.clone()).chain(numbers.iter().map(ToString::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_name_that_there_is_and_a_number() {
        assert_eq!(limit("topics=3"), Ok(("topics".to_owned(), 3)));
        for bad in ["topics", "topics=", "topics=-1", "topic=3", "=3"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
        let both = quota(&[("topics".to_owned(), 3), ("stored_bytes".to_owned(), 9)]).expect("limits");
        assert_eq!(limits(&both).len(), 2);
    }

    #[test]
    fn the_help_names_every_limit() {
        let mut grammar = <crate::commands::Cli as clap::CommandFactory>::command();
        let quota = grammar.find_subcommand_mut("quota").and_then(|quota| quota.find_subcommand_mut("set")).expect("a command");
        let help: String = quota.render_long_help().to_string();
        let words: Vec<&str> = help.split(|c: char| !(c.is_ascii_lowercase() || c == '_')).collect();
        for limit in veena_contract::Limit::ALL {
            assert!(words.contains(&limit.as_str()), "{limit} is not in\n{help}");
        }
    }
}
