//! `veena log`: look at a data directory without a node: verify, inspect, repair.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::{DirLock, Disk};
use veena_storage::offline::{self, FileKind, Finding, Span, Survey};
use veena_storage::partition::SideKind;

use super::Global;
use crate::output::{self, Failure, Outcome};

/// What to do with the files of a node.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Read every record and check it; name file and offset of what is damaged. Changes nothing.
    Verify(Target),
    /// List the files of every log with what they hold. Changes nothing.
    Inspect(Target),
    /// Make derived files again and keep copies of damaged ranges. Says what it would do; with --apply does it. Never drops a record.
    Repair(RepairArgs),
}

/// Which files.
#[derive(Debug, Args)]
pub struct Target {
    /// The data directory of a node that does not run, or the directory of one partition in it.
    dir: PathBuf,
}

/// Which files, and whether to change them.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The data directory of a node that does not run, or the directory of one partition in it.
    dir: PathBuf,
    /// Do it.
    #[arg(long)]
    apply: bool,
}

/// A directory that no node uses while this lives.
struct Held {
    disk: Arc<dyn Disk>,
    /// What was asked for.
    dir: PathBuf,
    /// The node's data directory, or the partition's own when it lies in none.
    root: PathBuf,
    _lock: Box<dyn DirLock>,
}

/// Runs one of them.
pub fn run(global: &Global, command: LogCommand) -> Outcome {
    match command {
        LogCommand::Verify(target) => verify(global, &hold(&target.dir)?),
        LogCommand::Inspect(target) => inspect(global, &hold(&target.dir)?),
        LogCommand::Repair(args) => repair(global, &hold(&args.dir)?, args.apply),
    }
}

/// Takes the lock of the node's data directory.
fn hold(dir: &Path) -> Result<Held, Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let whole = std::path::absolute(dir)?;
    if !disk.exists(&whole)? {
        return Err(Failure::Usage(format!("{} does not exist", dir.display())));
    }
    let is_root = |at: &&Path| disk.exists(&at.join("node.cell")).unwrap_or(false);
    let root = whole.ancestors().find(is_root).unwrap_or(&whole).to_owned();
    let lock = disk.lock_dir(&root).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => anyhow::anyhow!("{} is in use: stop the node first", root.display()),
        _ => anyhow::Error::from(error).context(format!("cannot lock {}", root.display())),
    })?;
    Ok(Held { disk, dir: whole, root, _lock: lock })
}

impl Held {
    fn survey(&self) -> Result<Survey, Failure> {
        let found = offline::find(self.disk.as_ref(), &self.dir).map_err(|error| match error {
            offline::OfflineError::NotOurs { .. } => Failure::Usage(error.to_string()),
            error => Failure::Failed(error.into()),
        })?;
        let bar = output::progress(found.bytes, "reading");
        let survey = offline::survey(&self.disk, &found, &mut |bytes| bar.inc(bytes)).map_err(anyhow::Error::from)?;
        bar.finish_and_clear();
        Ok(survey)
    }

    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

fn verify(global: &Global, held: &Held) -> Outcome {
    let survey = held.survey()?;
    let records: u64 = survey.files.iter().map(|file| file.records).sum();
    tell_findings(global, &survey.findings)?;
    if global.json {
        output::json(&json!({ "files": survey.files.len(), "records": records, "damaged": survey.findings.len() }))?;
    } else {
        output::line(format!("{} file(s), {records} intact record(s), {} damaged range(s)", survey.files.len(), survey.findings.len()))?;
    }
    verdict(&survey.findings)
}

fn inspect(global: &Global, held: &Held) -> Outcome {
    let survey = held.survey()?;
    let mut rows = vec![["FILE", "KIND", "RECORDS", "BYTES", "HOLDS"].map(str::to_owned).to_vec()];
    for file in &survey.files {
        let (shown, kind) = (held.shown(&file.path), kind_text(file.kind));
        if global.json {
            let mut line = json!({ "file": shown, "kind": kind, "records": file.records, "bytes": file.bytes, "torn_at": file.torn_at });
            put_span(&mut line, file.span);
            output::json(&line)?;
        }
        let torn = file.torn_at.map(|at| format!(", torn tail at {at}")).unwrap_or_default();
        let holds = format!("{}{torn}", span_text(file.span));
        rows.push(vec![shown, kind.to_owned(), file.records.to_string(), file.bytes.to_string(), holds]);
    }
    if !global.json {
        output::table(&rows)?;
    }
    tell_findings(global, &survey.findings)?;
    verdict(&survey.findings)
}

fn kind_text(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Wal => "wal",
        FileKind::Settle => "settle",
        FileKind::Partition => "partition",
    }
}

fn span_text(span: Span) -> String {
    match span {
        Span::None => String::new(),
        Span::Offsets(first, end) => format!("offsets {first}..{end}"),
        Span::Sequences(first, end) => format!("sequences {first}..{end}"),
    }
}

fn put_span(line: &mut Value, span: Span) {
    let (unit, first, end) = match span {
        Span::None => return,
        Span::Offsets(first, end) => ("offsets", first.0, end.0),
        Span::Sequences(first, end) => ("sequences", first.0, end.0),
    };
    line[unit] = json!({ "first": first, "end": end });
}

fn tell_findings(global: &Global, findings: &[Finding]) -> Outcome {
    for finding in findings {
        let path = finding.path.display();
        if global.json {
            let mut line = json!({ "damaged": path.to_string(), "at": finding.at, "end": finding.end, "reason": finding.reason });
            put_span(&mut line, finding.span);
            output::json(&line)?;
        } else {
            let span = Some(span_text(finding.span)).filter(|text| !text.is_empty()).map(|text| format!(" ({text})")).unwrap_or_default();
            output::line(format!("damaged: {path} at {} to {}: {}{span}", finding.at, finding.end, finding.reason))?;
        }
    }
    Ok(())
}

fn verdict(findings: &[Finding]) -> Outcome {
    if findings.is_empty() { Ok(()) } else { Err(Failure::Failed(anyhow::anyhow!("{} range(s) are damaged", findings.len()))) }
}

fn repair(global: &Global, held: &Held, apply: bool) -> Outcome {
    let survey = held.survey()?;
    let quarantine = held.root.join("quarantine");
    let now_ms = now_ms();
    let mut steps = 0_usize;
    let mut tell = |action: &str, path: &Path, detail: String| {
        steps += 1;
        if global.json {
            return output::json(&json!({ "action": action, "file": path.display().to_string(), "detail": detail, "applied": apply }));
        }
        output::line(format!("{}{action} {}: {detail}", if apply { "" } else { "would " }, path.display()))
    };
    for finding in &survey.findings {
        let kept = if apply {
            let disk = held.disk.as_ref();
            match offline::keep_copy(disk, &quarantine, finding, now_ms).map_err(anyhow::Error::from)? {
                Some(path) => format!("in {}", path.display()),
                None => continue,
            }
        } else {
            format!("in {}", quarantine.display())
        };
        tell("keep a copy of", &finding.path, format!("bytes {} to {}, {kept}", finding.at, finding.end))?;
    }
    for derived in &survey.derived {
        let what = match derived.part.kind {
            SideKind::Header => "the segment header, from its name and its neighbours",
            SideKind::Index => "the index, from the segment",
            SideKind::Streams => "the stream table, from the segments before it",
        };
        if !derived.part.is_derivable {
            tell("leave", &derived.part.path, "there is nothing to make it from".to_owned())?;
            continue;
        }
        if apply {
            offline::rebuild(held.disk.as_ref(), derived).map_err(anyhow::Error::from)?;
        }
        tell("make again", &derived.part.path, what.to_owned())?;
    }
    finish_repair(global, held, apply, steps)
}

fn finish_repair(global: &Global, held: &Held, apply: bool, steps: usize) -> Outcome {
    if !apply {
        let text = if steps == 0 { "nothing to do".to_owned() } else { format!("{steps} step(s); --apply does them") };
        return if global.json { output::json(&json!({ "steps": steps, "applied": false })) } else { output::line(text) };
    }
    let left = held.survey()?.findings;
    if global.json {
        output::json(&json!({ "steps": steps, "applied": true, "damaged": left.len() }))?;
    } else {
        output::line(format!("{steps} step(s) done; {} range(s) stay damaged and are stepped over by the node", left.len()))?;
    }
    tell_findings(global, &left)
}

#[expect(clippy::disallowed_methods, reason = "a tool that nobody simulates")]
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
