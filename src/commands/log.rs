//! `veena log`: look at a data directory without a node: verify, inspect, repair.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use veena_contract::Offset;
use veena_node::{OsEntropy, PromisedEnds};
use veena_storage::disk::real::RealDisk;
use veena_storage::disk::{DirLock, Disk};
use veena_storage::offline::carry::{self, Left, ParkedOfGone};
use veena_storage::offline::{self, FileKind, Finding, Found, LostEnd, Span, Survey};
use veena_storage::partition::SideKind;
use veena_storage::wal::parked::ParkedFile;

use super::Global;
use crate::output::{self, Failure, Outcome};

/// What to do with the files of a node.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Read every record and check it; name file and offset of what is damaged. Changes nothing.
    Verify(Target),
    /// List the files of every log with what they hold. Changes nothing.
    Inspect(Target),
    /// Make derived files again, keep copies of damaged ranges, set a WAL aside whose newest segments are missing and begin a new one with what it
    /// had parked. Says what it would do; with --apply does it. Never drops a record.
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
    /// What the node's settle journal says of the ends of its logs; `None` when there is none.
    promised: Option<PromisedEnds>,
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
    let promised = PromisedEnds::read(disk.as_ref(), &root)
        .map_err(|error| anyhow::Error::from(error).context(format!("cannot read the settle journal in {}", root.display())))?;
    Ok(Held { disk, dir: whole, root, promised, _lock: lock })
}

impl Held {
    fn find(&self) -> Result<Found, Failure> {
        offline::find(self.disk.as_ref(), &self.dir).map_err(|error| match error {
            offline::OfflineError::NotOurs { .. } => Failure::Usage(error.to_string()),
            error => Failure::Failed(error.into()),
        })
    }

    fn survey(&self) -> Result<Survey, Failure> {
        let found = self.find()?;
        let promised = |dir: &Path| self.promised.as_ref().map_or(Offset(0), |ends| ends.of(dir));
        let bar = output::progress(found.bytes, "reading");
        let survey = offline::survey(&self.disk, &found, &promised, &mut |bytes| bar.inc(bytes)).map_err(anyhow::Error::from)?;
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
        let (files, damaged) = (survey.files.len(), survey.findings.len());
        output::json(&json!({ "files": files, "records": records, "damaged": damaged, "ends_known": held.promised.is_some() }))?;
    } else {
        if held.promised.is_none() {
            output::line(
                "note: no settle journal was found, so it is not known how far the logs were published: a damaged or missing end of a log \
                 counts as a torn tail",
            )?;
        }
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
            if file.moved > 0 {
                line["rerouted"] = file.moved.into();
            }
            put_span(&mut line, file.span);
            output::json(&line)?;
        }
        let rerouted = if file.moved > 0 { format!(", {} rerouted", file.moved) } else { String::new() };
        let torn = file.torn_at.map(|at| format!(", torn tail at {at}")).unwrap_or_default();
        let holds = format!("{}{rerouted}{torn}", span_text(file.span));
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
        FileKind::Parked => "parked",
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
    let found = held.find()?;
    let gone = carry::parked_of_gone_wal(held.disk.as_ref(), &found, &survey).map_err(anyhow::Error::from)?;
    let is_needed = is_old_wal_needed(&survey, &gone);
    let new_wal = found.parked.as_ref().filter(|_| !gone.files.is_empty()).map(|dir| dir.with_file_name("ingress"));
    if let Some(wal) = new_wal.as_ref().filter(|_| apply) {
        // While the old one is in its place: whatever fails here changes nothing.
        carry::make_wal_of(&held.disk, wal, &gone.files, &OsEntropy).map_err(anyhow::Error::from)?;
    }
    let lost = survey.lost_end.zip(found.wal);
    if let Some((end, wal)) = &lost {
        let to = if apply {
            offline::set_wal_aside(held.disk.as_ref(), wal, &quarantine, now_ms, is_needed).map_err(anyhow::Error::from)?
        } else {
            quarantine.clone()
        };
        tell("set aside", wal, format!("{}, to {}. {}", loss_text(end, &survey), to.display(), aside_text(is_needed)))?;
    }
    if let Some(wal) = new_wal.as_ref().filter(|_| apply) {
        carry::put_in_place(held.disk.as_ref(), wal, &gone.files, &quarantine, now_ms).map_err(anyhow::Error::from)?;
    }
    for file in &gone.files {
        tell("carry over", &file.path, carried_text(file.records))?;
    }
    for (path, why) in &gone.left {
        tell("leave", path, left_text(*why).to_owned())?;
    }
    for finding in &survey.findings {
        if lost.as_ref().is_some_and(|(_, wal)| finding.path.starts_with(wal)) {
            continue;
        }
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

/// What is gone with the newest segments of a WAL, and what is not.
fn loss_text(lost: &LostEnd, survey: &Survey) -> String {
    let records: u64 = survey.files.iter().filter(|file| file.kind == FileKind::Wal).map(|file| file.records).sum();
    let LostEnd { checkpoint, durable_end, .. } = lost;
    let known = match durable_end.0.saturating_sub(checkpoint.0) {
        0 => "None is known of.".to_owned(),
        count => format!("{count} are known of, the sequences {checkpoint}..{durable_end}."),
    };
    format!(
        "lost are the records that were accepted and not dispatched, from sequence {checkpoint} on. {known} The {records} record(s) that are \
         left in it are dispatched, or set aside in a file for a partition that takes nothing. The next start begins a new log; put the missing \
         segments back instead, if you have them"
    )
}

/// May the WAL that is set aside hold what its parked files have lost?
fn is_old_wal_needed(survey: &Survey, ParkedOfGone { files, left }: &ParkedOfGone) -> bool {
    // Without the WAL's identity the files were not read.
    let is_sound = |file: &ParkedFile| survey.wal_id.is_some() && survey.findings.iter().all(|finding| finding.path != file.path);
    !left.is_empty() || !files.iter().all(is_sound)
}

/// How long there is something to put them back into.
fn aside_text(is_kept: bool) -> &'static str {
    if is_kept {
        "It stays there until you remove it: it may still hold records that are damaged below parked"
    } else {
        "A running node removes it once it is an hour old, or earlier when the quarantine is too large"
    }
}

fn carried_text(records: u64) -> String {
    format!(
        "{records} record(s) that were accepted and set aside for a partition that took nothing; the new log begins with them, and the next start \
         sends them. What had been committed of them comes again"
    )
}

fn left_text(why: Left) -> &'static str {
    match why {
        Left::HeadDamaged => {
            "its head is damaged, and its records, accepted and set aside for a partition that took nothing, are not sent without their log. Put \
             that back instead, if you have it; else keep the file, and send them again"
        }
        Left::OtherWal => {
            "it is of another log than the one that is gone. An earlier repair that ended early may have left it, and what it carried over is sent: \
             its records are not sent again"
        }
        Left::NewerFormat => "a newer version wrote it; repair with that version",
    }
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
