//! The commands.

pub mod bench;
mod log;
pub mod node;
mod produce;
mod read;
mod topic;

use clap::{Args, Parser, Subcommand};
use veena_client::Client;

use crate::output::{self, Failure, Outcome};

/// Veena: a message broker over plain HTTP.
///
/// `veena dev` starts a node on this machine; every other command talks to a node.
#[derive(Debug, Parser)]
#[command(name = "veena", version, max_term_width = 100, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command that talks to a node.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The node to talk to.
    #[arg(short, long, global = true, env = "VEENA_ADDR", default_value = "http://127.0.0.1:7942", value_name = "URL")]
    pub server: String,
    /// Print JSON, one value a line, instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

impl Global {
    /// A client of the node.
    pub fn client(&self) -> Result<Client, Failure> {
        let address = if self.server.contains("://") { self.server.clone() } else { format!("http://{}", self.server) };
        Client::new(&address).map_err(|error| Failure::Usage(error.text))
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a node on this machine, for trying things out.
    Dev(node::DevArgs),
    /// Start a node.
    #[command(visible_alias = "serve")]
    Node(node::NodeArgs),
    /// Create, list, change and delete topics.
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Send messages to a topic.
    Pub(produce::PubArgs),
    /// Receive messages from a topic: lease, print, ack.
    Sub(read::SubArgs),
    /// Read messages of a partition again, without leases.
    Replay(read::ReplayArgs),
    /// Measure produce (and consume) against a running node.
    Bench(bench::BenchArgs),
    /// Look at the files of a node that does not run: verify, inspect, repair.
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Print the HTTP interface as an OpenAPI document.
    #[command(hide = true)]
    Openapi,
    /// Print the version.
    Version,
}

/// Runs a command that talks to a node.
pub fn run_client(global: Global, command: Command) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Topic(command) => topic::run(&global, command).await,
            Command::Pub(args) => produce::run(&global, args).await,
            Command::Sub(args) => read::subscribe(&global, args).await,
            Command::Replay(args) => read::replay(&global, args).await,
            Command::Bench(args) => bench::run(&global, args).await,
            Command::Log(command) => tokio::task::block_in_place(|| log::run(&global, command)),
            Command::Openapi => output::line(veena_node::openapi_json()),
            Command::Version if global.json => output::json(&serde_json::json!({ "version": env!("CARGO_PKG_VERSION") })),
            Command::Version => output::line(concat!("veena ", env!("CARGO_PKG_VERSION"))),
            Command::Dev(_) | Command::Node(_) => unreachable!("the commands that start a node are run elsewhere"),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_has_help() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
                assert!(argument.get_help().is_some(), "{path}: {} has no help", argument.get_id());
            }
            for sub in command.get_subcommands() {
                check(sub, &path);
            }
        }
        check(&Cli::command(), "");
    }
}
