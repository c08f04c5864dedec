//! Runs rows against a server and says which do not hold.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::expect::Expect;
use crate::json;
use crate::row::{Profile, Row, Step};
use crate::table;
use crate::vars::{Vars, expand};
use crate::wire::{Request, Response, WireError, exchange, hold, release};

/// How often a repeated step asks before it is wrong, and the pause between two questions.
const ASK_TIMES_MAX: usize = 400;
const ASK_PAUSE: Duration = Duration::from_millis(25);
/// How many rows run at once.
const ROWS_AT_ONCE: usize = 8;

/// Which rows run.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only rows whose name or section contains this.
    pub contains: Option<String>,
    /// Only rows for a server started so.
    pub profile: Profile,
}

/// A row that does not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The row's sentence.
    pub name: &'static str,
    /// Where the contract says it.
    pub section: &'static str,
    /// What was asked and what came instead.
    pub why: String,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many rows hold.
    pub passed: usize,
    /// The rows that do not, in the table's order.
    pub failed: Vec<Failure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failed {
            writeln!(f, "FAILED {} ({}): {}", failure.name, failure.section, failure.why)?;
        }
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())
    }
}

/// Runs every row of the table that the filter lets through against one server.
#[must_use]
pub fn run(addr: SocketAddr, filter: &Filter) -> Report {
    run_rows(addr, &table::rows(), filter)
}

/// Runs these rows. Rows for a server with small caps run one after another, others at once.
pub(crate) fn run_rows(addr: SocketAddr, rows: &[Row], filter: &Filter) -> Report {
    let chosen: Vec<&Row> = rows
        .iter()
        .filter(|row| row.profile == filter.profile)
        .filter(|row| filter.contains.as_ref().is_none_or(|part| row.name.contains(part) || row.section.contains(part)))
        .collect();
    let at_once = if filter.profile == Profile::SmallCaps { 1 } else { ROWS_AT_ONCE };
    let prefix = prefix();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(row) = chosen.get(index) else { return found };
            found.push((index, run_row(addr, row, &format!("ct-{prefix}-{index}"))));
        }
    };
    let mut found: Vec<(usize, Result<(), String>)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("invariant: a row does not panic")).collect()
    });
    found.sort_by_key(|(index, _)| *index);
    let mut report = Report::default();
    for (index, outcome) in found {
        match outcome {
            Ok(()) => report.passed += 1,
            Err(why) => report.failed.push(Failure { name: chosen[index].name, section: chosen[index].section, why }),
        }
    }
    report
}

/// Keeps the topics of two runs against one server apart.
fn prefix() -> String {
    let mut random = [0; 4];
    // Without randomness the process id still tells two runs apart on one machine.
    let seed = if getrandom::fill(&mut random).is_ok() { u32::from_le_bytes(random) } else { std::process::id() };
    format!("{seed:08x}")
}

/// Requests under way beside the row's own steps.
#[derive(Default)]
struct Aside {
    parked: BTreeMap<&'static str, JoinHandle<Result<Response, WireError>>>,
    held: BTreeMap<&'static str, TcpStream>,
}

fn run_row(addr: SocketAddr, row: &Row, topic: &str) -> Result<(), String> {
    let mut vars = Vars::from([("t".to_owned(), topic.to_owned()), ("upper".to_owned(), topic.to_ascii_uppercase())]);
    let mut aside = Aside::default();
    for (at, step) in row.steps.iter().enumerate() {
        run_step(addr, step, &mut vars, &mut aside).map_err(|why| format!("step {}: {why}", at + 1))?;
    }
    Ok(())
}

fn run_step(addr: SocketAddr, step: &Step, vars: &mut Vars, aside: &mut Aside) -> Result<(), String> {
    match step {
        Step::Call { request, expect, take, is_repeated } => call(addr, request, expect, take, *is_repeated, vars),
        Step::Park { slot, request } => {
            let (bytes, is_head) = (request.to_bytes(addr, vars), request.is_head());
            aside.parked.insert(slot, thread::spawn(move || one(addr, &bytes, is_head)));
            Ok(())
        }
        Step::Join { slot, expect, take } => {
            let handle = aside.parked.remove(slot).ok_or_else(|| format!("nothing is parked as {slot}"))?;
            let outcome = handle.join().map_err(|_| format!("the request parked as {slot} panicked"))?;
            let answer = outcome.map_err(|error| format!("parked {slot}: {error}"))?;
            compare(&answer, expect, false, vars).map_err(|why| format!("parked {slot}: {why}"))?;
            take_values(&answer, take, vars)
        }
        Step::Hold { slot, bytes } => {
            let stream = hold(addr, expand(bytes, vars).as_bytes()).map_err(|error| error.to_string())?;
            aside.held.insert(slot, stream);
            Ok(())
        }
        Step::Release { slot, bytes, expect } => {
            let stream = aside.held.remove(slot).ok_or_else(|| format!("nothing is held as {slot}"))?;
            let answer = release(stream, expand(bytes, vars).as_bytes()).map_err(|error| format!("held {slot}: {error}"))?;
            compare(&answer, expect, false, vars).map_err(|why| format!("held {slot}: {why}"))
        }
        Step::Times { count, request, expect } => {
            for turn in 1..=*count {
                vars.insert("i".to_owned(), format!("{turn:04}"));
                call(addr, request, expect, &[], false, vars).map_err(|why| format!("turn {turn}: {why}"))?;
            }
            Ok(())
        }
        Step::Wire { bytes, expects } => {
            let bytes = expand(bytes, vars).into_bytes();
            let answers = exchange(addr, &bytes, &vec![false; expects.len()]).map_err(|error| error.to_string())?;
            for (at, (answer, expect)) in answers.iter().zip(expects).enumerate() {
                compare(answer, expect, false, vars).map_err(|why| format!("answer {}: {why}", at + 1))?;
            }
            Ok(())
        }
    }
}

fn call(
    addr: SocketAddr,
    request: &Request,
    expect: &Expect,
    take: &[(&'static str, &'static str)],
    is_repeated: bool,
    vars: &mut Vars,
) -> Result<(), String> {
    let bytes = request.to_bytes(addr, vars);
    let mut asked = 0;
    loop {
        asked += 1;
        let outcome = one(addr, &bytes, request.is_head())
            .map_err(|error| error.to_string())
            .and_then(|answer| compare(&answer, expect, request.is_head(), vars).map(|()| answer));
        match outcome {
            Ok(answer) => return take_values(&answer, take, vars),
            Err(_) if is_repeated && asked < ASK_TIMES_MAX => thread::sleep(ASK_PAUSE),
            Err(why) => return Err(format!("{}: {why}", request.title())),
        }
    }
}

fn one(addr: SocketAddr, bytes: &[u8], is_head: bool) -> Result<Response, WireError> {
    let mut answers = exchange(addr, bytes, &[is_head])?;
    answers.pop().ok_or_else(|| WireError::Broken("no answer".into()))
}

fn compare(answer: &Response, expect: &Expect, is_head: bool, vars: &Vars) -> Result<(), String> {
    let wrong = expect.check(answer, is_head, vars);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

fn take_values(answer: &Response, take: &[(&'static str, &'static str)], vars: &mut Vars) -> Result<(), String> {
    let text = answer.text();
    for (name, path) in take {
        let raw = json::at(&text, path).ok_or_else(|| format!("nothing at {path:?} to take: {text:.200}"))?;
        vars.insert((*name).to_owned(), json::string(raw).unwrap_or_else(|| raw.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
