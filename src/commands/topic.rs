//! `veena topic`: create, list, change, delete, attach.

use std::time::Duration;

use clap::{Args, Subcommand};
use veena_client::bodies::{AttachChild, CreateTopic, PartitionStats, PatchTopic, Topic, TopicDetail};
use veena_client::format_duration;
use veena_contract::Reroute;

use super::Global;
use crate::flags;
use crate::output::{self, Failure, Outcome};

/// What to do with topics.
#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create a topic.
    #[command(visible_alias = "create")]
    Add(AddArgs),
    /// List the topics.
    #[command(visible_alias = "list")]
    Ls,
    /// Show a topic with its partitions.
    Info {
        /// The topic.
        topic: String,
        /// Only this partition.
        #[arg(long, value_name = "N")]
        partition: Option<u32>,
    },
    /// Change a topic.
    Edit(EditArgs),
    /// Delete a topic with its messages.
    #[command(visible_alias = "delete")]
    Rm {
        /// The topic.
        topic: String,
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
    },
    /// Feed a topic from another: what is committed to PARENT from now on is copied to CHILD.
    Attach {
        /// The topic that feeds.
        parent: String,
        /// The topic that is fed.
        child: String,
        /// Hold each message back for this long.
        #[arg(long, value_parser = flags::duration, value_name = "DURATION")]
        delay: Option<Duration>,
    },
    /// Stop feeding a topic from another; it keeps its messages.
    Detach {
        /// The topic that feeds.
        parent: String,
        /// The topic that is fed.
        child: String,
    },
    /// Show what a topic feeds, and how far each child is behind.
    Children {
        /// The topic that feeds.
        parent: String,
    },
    /// Show the history of a topic's schema.
    Schema {
        /// The topic.
        topic: String,
        /// Only the newest document.
        #[arg(long)]
        current: bool,
    },
}

/// A new topic. What is not said is the server's default.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The topic's name: A-Z a-z 0-9 . _ -
    topic: String,
    /// How many partitions; only grows (default: as many as the parent, else the server's number, which is 3 unless it was changed).
    #[arg(long, value_parser = flags::partitions, value_name = "N")]
    partitions: Option<u32>,
    /// How long messages are kept: a duration of at least 1h, or "forever".
    #[arg(long, value_parser = flags::retention, value_name = "DURATION")]
    retention: Option<Duration>,
    /// How many bytes each partition keeps; 0 is no bound.
    #[arg(long, value_name = "BYTES")]
    retention_bytes: Option<u64>,
    /// How long a lease lasts; cannot be changed later.
    #[arg(long, value_parser = flags::lease, value_name = "DURATION")]
    visibility: Option<Duration>,
    /// How many messages of one partition may be leased at once.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// How many messages of one partition may be acked ahead of the first unacked one.
    #[arg(long, value_name = "N")]
    max_acked_ahead: Option<u32>,
    /// For how long idempotency keys are remembered: at most 1h; 0s remembers none.
    #[arg(long, value_parser = flags::duration, value_name = "DURATION")]
    dedup_window: Option<Duration>,
    /// What becomes of messages for an owner that is down: "auto" sends them to another partition, "never" has them wait.
    #[arg(long, value_parser = flags::reroute, value_name = "auto|never")]
    reroute: Option<Reroute>,
    /// Feed it from this topic.
    #[arg(long, value_name = "TOPIC")]
    parent: Option<String>,
    /// Hold each message of the parent back for this long.
    #[arg(long, value_parser = flags::duration, requires = "parent", value_name = "DURATION")]
    delay: Option<Duration>,
    /// A JSON Schema that messages must match: inline, @file, or - for the standard input.
    #[arg(long, value_name = "SCHEMA")]
    schema: Option<String>,
}

/// Changes of a topic.
#[derive(Debug, Args)]
pub struct EditArgs {
    /// The topic.
    topic: String,
    /// How long messages are kept: a duration of at least 1h, or "forever".
    #[arg(long, value_parser = flags::retention, value_name = "DURATION")]
    retention: Option<Duration>,
    /// How many bytes each partition keeps; 0 is no bound.
    #[arg(long, value_name = "BYTES")]
    retention_bytes: Option<u64>,
    /// More partitions than now. Keys of new messages are spread anew.
    #[arg(long, value_parser = flags::partitions, value_name = "N")]
    partitions: Option<u32>,
    /// How many messages of one partition may be leased at once.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// How many messages of one partition may be acked ahead of the first unacked one.
    #[arg(long, value_name = "N")]
    max_acked_ahead: Option<u32>,
    /// For how long idempotency keys are remembered: at most 1h; 0s remembers none.
    #[arg(long, value_parser = flags::duration, value_name = "DURATION")]
    dedup_window: Option<Duration>,
    /// What becomes of messages for an owner that is down: "auto" sends them to another partition, "never" has them wait.
    #[arg(long, value_parser = flags::reroute, value_name = "auto|never")]
    reroute: Option<Reroute>,
    /// A new version of the schema: inline, @file, or - for the standard input.
    #[arg(long, value_name = "SCHEMA")]
    schema: Option<String>,
    /// Refuse unless this is the newest version.
    #[arg(long, requires = "schema", value_name = "VERSION")]
    schema_base_version: Option<u32>,
    /// Refused: it is fixed when the topic is created.
    #[arg(long, hide = true)]
    visibility: Option<String>,
}

/// Runs one of them.
pub async fn run(global: &Global, command: TopicCommand) -> Outcome {
    let client = global.client()?;
    match command {
        TopicCommand::Add(args) => add(global, args).await,
        TopicCommand::Ls => {
            let topics = client.topics().await?;
            if global.json { topics.iter().try_for_each(output::json) } else { list(&topics) }
        }
        TopicCommand::Info { topic, partition } => {
            let detail = client.topic(&topic, partition).await?;
            if global.json { output::json(&detail) } else { show(&detail) }
        }
        TopicCommand::Edit(args) => edit(global, args).await,
        TopicCommand::Rm { topic, force } => remove(global, &topic, force).await,
        TopicCommand::Attach { parent, child, delay } => {
            let body = AttachChild { child: child.clone(), delay_ms: delay.map(flags::millis) };
            let topic = client.attach(&parent, &body).await?;
            done(global, &topic, &format!("{child} is fed from {parent}"))
        }
        TopicCommand::Detach { parent, child } => {
            client.detach(&parent, &child).await?;
            if global.json { Ok(()) } else { output::line(format!("{child} is no longer fed from {parent}; it keeps its messages")) }
        }
        TopicCommand::Children { parent } => children(global, &parent).await,
        TopicCommand::Schema { topic, current } => schema(global, &topic, current).await,
    }
}

fn done(global: &Global, topic: &Topic, text: &str) -> Outcome {
    if global.json { output::json(topic) } else { output::line(text) }
}

async fn add(global: &Global, args: AddArgs) -> Outcome {
    let schema = match &args.schema {
        Some(given) => Some(flags::document(given).await?),
        None => None,
    };
    let body = CreateTopic {
        name: args.topic,
        partitions: args.partitions.map(i64::from),
        retention_ms: args.retention.map(flags::millis),
        retention_bytes: args.retention_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
        visibility_timeout_ms: args.visibility.map(flags::millis),
        max_in_flight_per_partition: args.max_in_flight.map(i64::from),
        max_acked_ahead_per_partition: args.max_acked_ahead.map(i64::from),
        dedup_window_ms: args.dedup_window.map(flags::millis),
        reroute: args.reroute,
        schema,
        parent: args.parent,
        fanout_delay_ms: args.delay.map(flags::millis),
        ..CreateTopic::default()
    };
    let topic = global.client()?.create_topic(&body).await?;
    done(global, &topic, &format!("created {} with {} partition(s)", topic.name, topic.partitions))
}

async fn edit(global: &Global, args: EditArgs) -> Outcome {
    if args.visibility.is_some() {
        return Err(Failure::Usage("the visibility timeout is fixed when a topic is created".to_owned()));
    }
    let schema = match &args.schema {
        Some(given) => Some(flags::document(given).await?),
        None => None,
    };
    let patch = PatchTopic {
        retention_ms: args.retention.map(flags::millis),
        retention_bytes: args.retention_bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
        max_in_flight_per_partition: args.max_in_flight.map(i64::from),
        max_acked_ahead_per_partition: args.max_acked_ahead.map(i64::from),
        dedup_window_ms: args.dedup_window.map(flags::millis),
        reroute: args.reroute,
        partitions: args.partitions.map(i64::from),
        schema,
        schema_base_version: args.schema_base_version.map(i64::from),
    };
    let topic = global.client()?.patch_topic(&args.topic, &patch).await?;
    done(global, &topic, &format!("changed {}", topic.name))
}

async fn remove(global: &Global, topic: &str, force: bool) -> Outcome {
    let client = global.client()?;
    if !force {
        let detail = client.topic(topic, None).await?;
        match output::confirm(&question(&detail.topic))? {
            Some(true) => {}
            Some(false) => return Err(Failure::Failed(anyhow::anyhow!("not deleted"))),
            None => return Err(Failure::Usage("nobody can be asked here: say -f to delete the topic with its messages".to_owned())),
        }
    }
    client.delete_topic(topic).await?;
    if global.json { Ok(()) } else { output::line(format!("deleted {topic}")) }
}

/// What is asked before a topic is deleted: who loses what.
fn question(topic: &Topic) -> String {
    let name = &topic.name;
    match &topic.children[..] {
        [] => format!("Delete {name} with all its messages?"),
        [child] => format!("{name} feeds {child}, which becomes standalone and keeps its messages. Delete {name} with all its own?"),
        children => {
            format!(
                "{name} feeds {}, which become standalone and keep their messages. Delete {name} with all its own?",
                children.join(", ")
            )
        }
    }
}

async fn children(global: &Global, parent: &str) -> Outcome {
    let listing = global.client()?.children(parent).await?;
    if global.json {
        return output::json(&listing);
    }
    let mut rows = vec![vec!["CHILD".into(), "DELAY".into(), "BEHIND".into()]];
    for child in &listing.children {
        let behind = if child.lag_complete { child.lag_messages.to_string() } else { format!("at least {}", child.lag_messages) };
        rows.push(vec![child.name.clone(), millis_text(child.delay_ms), behind]);
    }
    output::table(&rows)
}

async fn schema(global: &Global, topic: &str, current: bool) -> Outcome {
    let history = global.client()?.schema(topic).await?;
    if current {
        return match history.versions.last() {
            Some(newest) => output::line(newest.schema.get()),
            None => Err(Failure::Failed(anyhow::anyhow!("{topic} has no schema"))),
        };
    }
    if global.json {
        return output::json(&history);
    }
    for entry in &history.versions {
        output::line(format!("version {}", entry.version))?;
        output::line(entry.schema.get())?;
    }
    if history.versions.is_empty() { output::line(format!("{topic} has no schema")) } else { Ok(()) }
}

fn list(topics: &[Topic]) -> Outcome {
    let mut rows = vec![vec!["TOPIC".into(), "PARTITIONS".into(), "RETENTION".into(), "LEASE".into(), "ROLE".into()]];
    for topic in topics {
        rows.push(vec![
            topic.name.clone(),
            topic.partitions.to_string(),
            retention_text(topic.retention_ms),
            millis_text(topic.visibility_timeout_ms),
            role_text(topic),
        ]);
    }
    output::table(&rows)
}

fn show(detail: &TopicDetail) -> Outcome {
    let topic = &detail.topic;
    let mut rows = vec![
        vec!["name".into(), topic.name.clone()],
        vec!["id".into(), topic.id.clone()],
        vec!["role".into(), role_text(topic)],
        vec!["retention".into(), retention_text(topic.retention_ms)],
        vec!["lease".into(), millis_text(topic.visibility_timeout_ms)],
        vec!["in flight at most".into(), format!("{} per partition", topic.max_in_flight_per_partition)],
        vec!["acked ahead at most".into(), format!("{} per partition", topic.max_acked_ahead_per_partition)],
        vec!["keys remembered for".into(), millis_text(topic.dedup_window_ms)],
        vec![
            "owner down".into(),
            if topic.reroute == "never" { "its messages wait".into() } else { "another partition takes new messages".into() },
        ],
        vec!["schema version".into(), if detail.schema_version == 0 { "none".into() } else { detail.schema_version.to_string() }],
    ];
    if topic.retention_bytes > 0 {
        rows.push(vec!["retention by size".into(), format!("{} bytes per partition", topic.retention_bytes)]);
    }
    if !topic.children.is_empty() {
        rows.push(vec!["children".into(), topic.children.join(", ")]);
    }
    output::table(&rows)?;
    output::line("")?;
    output::table(&partitions(&detail.partition_stats))?;
    if detail.partial { output::line("some owners did not answer; their numbers are missing") } else { Ok(()) }
}

/// The partitions. The numbers of one whose owner is away are not known.
fn partitions(all: &[PartitionStats]) -> Vec<Vec<String>> {
    let head = ["PARTITION", "NODE", "OLDEST", "VISIBLE TO", "SETTLED TO", "LEASED", "BYTES", "SEGMENTS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for stats in all {
        let is_away = stats.status.as_deref() == Some("owner_unavailable");
        let owner = stats.owner_node.as_deref().unwrap_or("-");
        let owner = match stats.owner_liveness.as_deref().filter(|_| is_away) {
            Some("unknown") => format!("{owner} (no member)"),
            Some(liveness) => format!("{owner} ({liveness})"),
            None => owner.to_owned(),
        };
        let (oldest, visible) = (Some(stats.oldest_offset), Some(stats.high_watermark));
        let numbers = [oldest, visible, stats.frontier, stats.leased, Some(stats.size_bytes), Some(stats.segments)];
        let known = |number: Option<u64>| number.filter(|_| !is_away).map_or_else(|| "-".to_owned(), |number| number.to_string());
        rows.push([stats.index.to_string(), owner].into_iter().chain(numbers.map(known)).collect());
    }
    rows
}

fn role_text(topic: &Topic) -> String {
    match (&topic.parent, topic.children.len()) {
        (Some(parent), _) if topic.fanout_delay_ms > 0 => format!("child of {parent}, {} late", millis_text(topic.fanout_delay_ms)),
        (Some(parent), _) => format!("child of {parent}"),
        (None, 0) => "standalone".to_owned(),
        (None, children) => format!("parent of {children}"),
    }
}

fn retention_text(retention_ms: u64) -> String {
    if retention_ms == 0 { "forever".to_owned() } else { millis_text(retention_ms) }
}

fn millis_text(millis: u64) -> String {
    format_duration(Duration::from_millis(millis)).replace("h0m0s", "h").replace("m0s", "m")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn who_deletes_a_parent_is_told_what_becomes_of_its_children() {
        let topic = |children: &[&str]| {
            let children = children.iter().map(|&child| child.to_owned()).collect();
            Topic { name: "orders".to_owned(), children, ..Topic::default() }
        };
        assert_eq!(question(&topic(&[])), "Delete orders with all its messages?");
        assert!(question(&topic(&["audit"])).starts_with("orders feeds audit, which becomes standalone"));
        assert!(question(&topic(&["audit", "reminder"])).starts_with("orders feeds audit, reminder, which become standalone"));
    }

    #[test]
    fn partitions_are_shown_with_their_owners_and_what_is_not_known_of_one_that_is_away_as_such() {
        let owner = |node: &str| Some(node.to_owned());
        let there = PartitionStats {
            owner_node: owner("a"),
            high_watermark: 7,
            frontier: Some(5),
            leased: Some(1),
            segments: 1,
            ..PartitionStats::default()
        };
        let away = PartitionStats {
            index: 1,
            owner_node: owner("b"),
            status: Some("owner_unavailable".to_owned()),
            owner_liveness: Some("dead".to_owned()),
            ..PartitionStats::default()
        };
        let rows = partitions(&[there, away]);
        assert_eq!(rows[1], ["0", "a", "0", "7", "5", "1", "0", "1"]);
        assert_eq!(rows[2], ["1", "b (dead)", "-", "-", "-", "-", "-", "-"]);
    }

    #[test]
    fn the_help_names_the_number_of_partitions_that_a_server_takes_by_itself() {
        let mut command = Cli::command();
        let add = command.find_subcommand_mut("topic").and_then(|topic| topic.find_subcommand_mut("add")).expect("a command");
        let help = add.render_long_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let usual = veena_node::Config::default().topic.default_partitions;
        assert!(help.contains(&format!("which is {usual} unless it was changed")), "{help}");
    }
}
