//! `veena explain`: why somebody may do something, or may not.

use clap::Args;
use veena_client::bodies::{Explained, MissingGrant};

use super::Global;
use crate::output::{self, Outcome};

/// What is asked.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    // Not `user`: that is who signs in.
    /// The user: one's own name or, for admins, anybody's.
    #[arg(value_name = "USER")]
    who: String,
    /// What they would do: produce, consume, create, see, manage or admin.
    action: String,
    /// With which topic, which need not be there; with none for admin.
    topic: Option<String>,
    /// The tenant whose user it is, for operators (default: the tenant of the one who signs in).
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

/// Asks, and tells. That somebody may not is an answer too.
pub async fn run(global: &Global, args: ExplainArgs) -> Outcome {
    let explained = global.client()?.explain(args.tenant.as_deref(), &args.who, &args.action, args.topic.as_deref()).await?;
    if global.json { output::json(&explained) } else { output::line(told(&args, &explained)) }
}

fn told(ExplainArgs { who, action, topic, tenant: _ }: &ExplainArgs, explained: &Explained) -> String {
    let what = topic.as_deref().map_or_else(|| action.clone(), |topic| format!("{action} {topic}"));
    let may = if explained.allowed { "may" } else { "may not" };
    let absent = if explained.exists == Some(false) { "; there is no such topic" } else { "" };
    let missing = explained.missing.as_ref().map(lacking).unwrap_or_default();
    format!("{who} {may} {what}: {}{absent}{missing}", explained.reason)
}

/// What is missing, as it would be said to `--grant` or `--scope`.
fn lacking(MissingGrant { action, pattern, of_key, given_by }: &MissingGrant) -> String {
    let grant = pattern.as_deref().map_or_else(|| action.clone(), |pattern| format!("{action}:{pattern}"));
    if *of_key {
        return format!("\n  missing: the scope {grant}, which the key lacks and its account has: {given_by} can make another key");
    }
    format!("\n  missing: the grant {grant}, which {given_by} can give")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_in_a_sentence() {
        let args =
            |topic: Option<&str>| ExplainArgs { who: "joe".into(), action: "admin".into(), topic: topic.map(str::to_owned), tenant: None };
        let explained = Explained { allowed: false, reason: "admin privileges required".into(), ..Explained::default() };
        assert_eq!(told(&args(None), &explained), "joe may not admin: admin privileges required");
        let explained = Explained { allowed: true, reason: "why".into(), exists: Some(false), ..Explained::default() };
        assert_eq!(told(&args(Some("t")), &explained), "joe may admin t: why; there is no such topic");
        let missing = |of_key| MissingGrant { action: "consume".into(), pattern: Some("t".into()), of_key, given_by: "an admin".into() };
        let told = |of_key| told(&args(None), &Explained { reason: "no".into(), missing: Some(missing(of_key)), ..Explained::default() });
        assert_eq!(told(false), "joe may not admin: no\n  missing: the grant consume:t, which an admin can give");
        assert!(told(true).contains("the scope consume:t, which the key lacks"), "{}", told(true));
    }
}
