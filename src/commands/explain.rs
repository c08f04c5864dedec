//! `veena explain`: why somebody may do something, or may not.

use clap::Args;
use veena_client::bodies::Explained;

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
}

/// Asks, and tells. That somebody may not is an answer too.
pub async fn run(global: &Global, args: ExplainArgs) -> Outcome {
    let explained = global.client()?.explain(&args.who, &args.action, args.topic.as_deref()).await?;
    if global.json { output::json(&explained) } else { output::line(told(&args, &explained)) }
}

fn told(ExplainArgs { who, action, topic }: &ExplainArgs, explained: &Explained) -> String {
    let what = topic.as_deref().map_or_else(|| action.clone(), |topic| format!("{action} {topic}"));
    let may = if explained.allowed { "may" } else { "may not" };
    let missing = if explained.exists == Some(false) { "; there is no such topic" } else { "" };
    format!("{who} {may} {what}: {}{missing}", explained.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_in_a_sentence() {
        let args = |topic: Option<&str>| ExplainArgs { who: "joe".into(), action: "admin".into(), topic: topic.map(str::to_owned) };
        let explained = Explained { allowed: false, reason: "admin privileges required".into(), ..Explained::default() };
        assert_eq!(told(&args(None), &explained), "joe may not admin: admin privileges required");
        let explained = Explained { allowed: true, reason: "why".into(), exists: Some(false), ..Explained::default() };
        assert_eq!(told(&args(Some("t")), &explained), "joe may admin t: why; there is no such topic");
    }
}
