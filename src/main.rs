//! The one binary: a node, and the commands that talk to one. Thin: parse, call, print.
#![allow(clippy::print_stdout, reason = "a command line prints")]

mod commands;
mod flags;
mod output;
mod sign_in;

use std::io::{ErrorKind, Write};

use crate::commands::{Cli, Command};
use crate::output::Failure;

/// Refused or failed.
const EXIT_FAILED: i32 = 1;
/// Asked for something that makes no sense.
const EXIT_USAGE: i32 = 2;
/// A node that is no member of its cluster any more: to start it again is no use.
const EXIT_REMOVED: i32 = 3;

fn main() -> ! {
    let cli = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Dev(args) => commands::node::dev(args),
        Command::Node(args) => commands::node::run(args),
        command => commands::run_client(cli.global, command),
    };
    let code = match outcome {
        // Whoever reads our output has seen enough when the pipe is closed.
        Ok(()) | Err(Failure::PipeClosed) => 0,
        Err(Failure::Usage(text)) => {
            eprintln!("error: {text}");
            EXIT_USAGE
        }
        Err(Failure::Failed(error)) => {
            eprintln!("error: {error:#}");
            EXIT_FAILED
        }
        Err(Failure::Removed(error)) => {
            eprintln!("error: {error:#}");
            EXIT_REMOVED
        }
    };
    let code = match std::io::stdout().flush() {
        // Whoever closed the pipe knows; anybody else counts on output that is not there.
        Err(error) if code == 0 && error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("error: the output cannot be written: {error}");
            EXIT_FAILED
        }
        _ => code,
    };
    // A node that gives up its stop leaves threads behind that stand in a call of the disk. At an ordinary end of the process the metadata
    // store's static objects would be destroyed under them, which ends it with SIGABRT.
    signal_hook::low_level::exit(code)
}
