//! `veena-contract`: compares a running server with the contract's table.

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use veena_loadtest_contract::{Filter, Profile, run};

/// Compares a running server (one node; `--profile` says how it was started) with the HTTP contract, row by row.
#[derive(Parser)]
#[command(name = "veena-contract", version)]
struct Options {
    /// The server, as host:port.
    #[arg(long, default_value = "127.0.0.1:7942")]
    server: String,
    /// Run only rows whose sentence or section contains this.
    #[arg(long)]
    only: Option<String>,
    /// How the server was started; `--env` prints what a profile needs.
    #[arg(long, default_value = "default", value_parser = profile)]
    profile: Profile,
    /// Print the environment the server needs for the profile, and stop.
    #[arg(long)]
    env: bool,
}

fn profile(text: &str) -> Result<Profile, String> {
    let known = Profile::ALL.iter().copied().find(|profile| profile.as_str() == text);
    known.ok_or_else(|| format!("want one of {}", Profile::ALL.iter().map(|p| p.as_str()).collect::<Vec<_>>().join(", ")))
}

fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let mut found = text.to_socket_addrs().with_context(|| format!("{text:?} is not host:port"))?;
    found.next().with_context(|| format!("{text:?} has no address"))
}

#[allow(clippy::print_stdout, reason = "a command prints its answer")]
fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    if options.env {
        for (name, value) in options.profile.env() {
            println!("{name}={value}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report = run(address(&options.server)?, &Filter { contains: options.only, profile: options.profile });
    println!("{report}");
    Ok(if report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
