//! The one binary: a node, and the commands that talk to one. Thin: parse, call, print.
#![allow(clippy::print_stdout, reason = "a command line prints")]

mod commands;
mod flags;
mod output;

use std::process::ExitCode;

use crate::commands::{Cli, Command};
use crate::output::Failure;

/// Refused or failed.
const EXIT_FAILED: u8 = 1;
/// Asked for something that makes no sense.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Dev(args) => commands::node::dev(args),
        Command::Node(args) => commands::node::run(args),
        command => commands::run_client(cli.global, command),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough.
        Err(Failure::PipeClosed) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            eprintln!("error: {text}");
            ExitCode::from(EXIT_USAGE)
        }
        Err(Failure::Failed(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
