//! The commands.

mod account;
mod admin;
mod audit;
pub mod bench;
mod cluster;
mod explain;
mod issuer;
mod key;
mod lives;
mod local_cluster;
mod log;
pub mod node;
mod produce;
mod quota;
mod read;
mod tenant;
mod topic;
mod user;

use std::ffi::OsString;
use std::sync::Once;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use veena_client::Client;

use crate::flags;
use crate::output::{self, Failure, Outcome};
use crate::sign_in::SignIn;

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

/// The node that is talked to when none is named.
pub const SERVER: &str = "http://127.0.0.1:7942";
/// Commands for which flags of all others mean nothing, with those flags.
const WITHOUT: [(&str, &[&str]); 7] = [
    ("dev", &["server", "ca_file", "user", "password_file", "key_file", "token_file", "json"]),
    ("node", &["server", "ca_file", "user", "password_file", "key_file", "token_file", "json"]),
    ("log", OF_SERVERS),
    ("audit verify", OF_SERVERS),
    ("cluster restore", OF_SERVERS),
    ("cluster recover", OF_SERVERS),
    ("cluster rejoin", OF_SERVERS),
];
/// What says where a node is, and who speaks to it.
const OF_SERVERS: &[&str] = &["server", "ca_file", "user", "password_file", "key_file", "token_file"];

impl Cli {
    /// Reads a command line. A flag that would do nothing is refused.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut grammar = Self::grammar();
        let matches = grammar.try_get_matches_from_mut(words)?;
        let first = matches.subcommand_name().unwrap_or_default();
        let second = matches.subcommand().and_then(|(_, inner)| inner.subcommand_name()).unwrap_or_default();
        for name in [first.to_owned(), format!("{first} {second}")] {
            for flag in without(&name) {
                if matches.value_source(flag) == Some(ValueSource::CommandLine) {
                    return Err(
                        grammar.error(ErrorKind::UnknownArgument, format!("--{} means nothing to `veena {name}`", flag.replace('_', "-")))
                    );
                }
            }
        }
        let mut cli = Self::from_arg_matches(&matches)?;
        // What is said for one command comes before what is in the environment for all.
        if (cli.global.sign_in.key_file.is_some() || cli.global.sign_in.token_file.is_some())
            && matches.value_source("user") == Some(ValueSource::EnvVariable)
        {
            cli.global.sign_in.user = None;
        }
        Ok(cli)
    }

    /// The commands, each with the flags that mean something to it: the others are there, since they are of every command, and not shown.
    fn grammar() -> clap::Command {
        let grammar = Self::command();
        let global: Vec<Arg> = grammar.get_arguments().cloned().collect();
        WITHOUT.iter().fold(grammar, |grammar, (name, flags)| {
            let hidden = global.iter().filter(|flag| flags.contains(&flag.get_id().as_str())).map(|flag| flag.clone().hide(true));
            match name.split_once(' ') {
                Some((name, inner)) => grammar.mut_subcommand(name, |command| command.mut_subcommand(inner, |inner| inner.args(hidden))),
                None => grammar.mut_subcommand(name, |command| command.args(hidden)),
            }
        })
    }
}

fn without(name: &str) -> &'static [&'static str] {
    WITHOUT.iter().find(|(command, _)| *command == name).map_or(&[], |(_, flags)| flags)
}

/// Flags of every command that talks to a node.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// The node to talk to.
    #[arg(short, long, global = true, env = "VEENA_ADDR", default_value = SERVER, value_name = "URL")]
    pub server: String,
    /// A file with certificates (PEM) that are trusted beside the machine's own, for a node whose address begins with https.
    #[arg(long, global = true, env = "VEENA_CA_FILE", value_name = "PATH")]
    pub ca_file: Option<String>,
    /// Who speaks.
    #[command(flatten)]
    pub sign_in: SignIn,
    /// Print JSON, one value a line, instead of text.
    #[arg(long, global = true)]
    pub json: bool,
}

/// Once: a command may make several clients.
fn warn_of_exposed(address: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!("warning: {address} is plain HTTP: the password, and all that is sent, can be read on the way; use https:// if the node speaks TLS");
    });
}

impl Global {
    /// A client of the node.
    pub fn client(&self) -> Result<Client, Failure> {
        let address = if self.server.contains("://") { self.server.clone() } else { format!("http://{}", self.server) };
        let mut builder = Client::builder(&address);
        if let Some(path) = &self.ca_file {
            builder = builder.trust(flags::read_file_now(path)?);
        }
        let client = self.sign_in.apply(builder)?.build().map_err(|error| Failure::Usage(error.text))?;
        if client.exposes_credentials() {
            warn_of_exposed(&address);
        }
        Ok(client)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a node on this machine, for trying things out.
    ///
    /// It lets in this machine only and logs text. These flags alone steer it: it reads no file and no VEENA_* variable.
    Dev(node::DevArgs),
    /// Start a node.
    ///
    /// Later sources of a setting win: built-in values, the file, VEENA_* variables, these flags.
    #[command(visible_alias = "serve")]
    Node(node::NodeArgs),
    /// Create, list, change and delete topics.
    #[command(subcommand)]
    Topic(topic::TopicCommand),
    /// Create, list, change and delete users, and say what they may do.
    User(user::UserArgs),
    /// Create, list, suspend and delete tenants.
    #[command(subcommand)]
    Tenant(tenant::TenantCommand),
    /// Create, list, change and delete service accounts, and say what they may do.
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Create, list and delete the keys that service accounts sign in with.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Say whose bearer tokens are taken, show it, and take nobody's any more.
    #[command(subcommand)]
    Issuer(issuer::IssuerCommand),
    /// Say as whom the node knows you, and what you may do.
    Whoami,
    /// Show and set what tenants may use.
    #[command(subcommand)]
    Quota(quota::QuotaCommand),
    /// Tell what one's tenant has used.
    Usage(quota::UsageArgs),
    /// Send messages to a topic.
    Pub(produce::PubArgs),
    /// Receive messages from a topic: lease, print, ack.
    Sub(read::SubArgs),
    /// Read messages of a partition again, without leases.
    Replay(read::ReplayArgs),
    /// Measure produce (and consume) against a running node.
    Bench(bench::BenchArgs),
    /// Look at the cluster and change it: who takes part, what moves; copy its metadata, and go on from a copy or from one survivor.
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Look at who changed what: export the records, and verify what was exported.
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Tell why a user may do something, or may not.
    Explain(explain::ExplainArgs),
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
            Command::User(args) => user::run(&global, args).await,
            Command::Tenant(command) => tenant::run(&global, command).await,
            Command::Account(command) => account::run(&global, command).await,
            Command::Key(command) => key::run(&global, command).await,
            Command::Issuer(command) => issuer::run(&global, command).await,
            Command::Whoami => key::whoami(&global).await,
            Command::Quota(command) => quota::run(&global, command).await,
            Command::Usage(args) => quota::usage(&global, args).await,
            Command::Pub(args) => produce::run(&global, args).await,
            Command::Sub(args) => read::subscribe(&global, args).await,
            Command::Replay(args) => read::replay(&global, args).await,
            Command::Bench(args) => bench::run(&global, args).await,
            Command::Cluster(command) => cluster::run(&global, command).await,
            Command::Audit(command) => audit::run(&global, command).await,
            Command::Explain(args) => explain::run(&global, args).await,
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
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::grammar().debug_assert();
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

    fn read(line: &str) -> Result<Cli, clap::Error> {
        Cli::read(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_flag_that_would_do_nothing_is_neither_shown_nor_taken() {
        for (name, flags) in WITHOUT {
            let help = read(&format!("veena {name} --help")).expect_err("help is not a command").to_string();
            for flag in flags {
                let flag = flag.replace('_', "-");
                assert!(!help.contains(&format!("--{flag} ")), "veena {name} --help shows --{flag}");
            }
        }
        for line in [
            "dev -s x",
            "-s x dev",
            "node --json",
            "node -u joe",
            "dev --password-file x",
            "dev --key-file x",
            "dev --token-file x",
            "serve --json",
            "log verify -s x .",
            "log -s x verify .",
            "cluster rejoin -s x --data-dir d",
        ] {
            let text = read(&format!("veena {line}")).expect_err(line).to_string();
            assert!(text.contains("means nothing to"), "{line}: {text}");
        }
        let inner = read("veena log verify --help").expect_err("help").to_string();
        assert!(inner.contains("--json") && !inner.contains("--server"), "{inner}");
    }

    #[test]
    fn a_flag_of_every_command_is_taken_before_and_behind_its_name() {
        for line in ["-s http://a:1 --json topic ls", "topic ls -s http://a:1 --json", "topic -s http://a:1 ls --json"] {
            let cli = read(&format!("veena {line}")).expect(line);
            assert_eq!((cli.global.server.as_str(), cli.global.json), ("http://a:1", true), "{line}");
        }
        assert!(read("veena log verify . --json").expect("taken").global.json);
        assert_eq!(read("veena dev").expect("taken").global.server, SERVER);
    }
}
