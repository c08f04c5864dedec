//! `veena log`: look at a data directory without a node: verify, inspect, repair.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::json;
use veena_contract::limits;
use veena_node::OsEntropy;
use veena_storage::disk::Disk;
use veena_storage::disk::real::RealDisk;
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::partition::{self, Codec, FrameCache, PartitionConfig, PartitionLog};
use veena_storage::wal::{self, Wal, WalConfig};

use super::Global;
use crate::output::{self, Failure, Outcome};

/// What to do with the files of a node.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Read every record and check it; name file and offset of what is damaged. Changes nothing.
    Verify(Target),
    /// List the files of every log with what they hold. Changes nothing.
    Inspect(Target),
    /// Open every log as a start would: cut torn tails, set damaged ranges aside. The node must not run.
    Repair(Target),
}

/// Which files.
#[derive(Debug, Args)]
pub struct Target {
    /// The data directory of the node.
    data_dir: PathBuf,
}

/// One damaged range.
struct Finding {
    path: PathBuf,
    at: u64,
    end: u64,
    reason: String,
}

/// What is known about one file.
struct FileFacts {
    path: PathBuf,
    kind: &'static str,
    records: u64,
    bytes: u64,
    detail: String,
}

#[derive(Default)]
struct Survey {
    files: Vec<FileFacts>,
    findings: Vec<Finding>,
}

/// Runs one of them.
pub fn run(global: &Global, command: LogCommand) -> Outcome {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    match command {
        LogCommand::Verify(target) => verify(global, &disk, &target.data_dir),
        LogCommand::Inspect(target) => inspect(global, &disk, &target.data_dir),
        LogCommand::Repair(target) => repair(global, &disk, &target.data_dir),
    }
}

fn verify(global: &Global, disk: &Arc<dyn Disk>, data: &Path) -> Outcome {
    let survey = survey(disk, data)?;
    let records: u64 = survey.files.iter().map(|file| file.records).sum();
    tell_findings(global, &survey.findings)?;
    if global.json {
        output::json(&json!({ "files": survey.files.len(), "records": records, "damaged": survey.findings.len() }))?;
    } else {
        output::line(format!("{} file(s), {records} intact record(s), {} damaged range(s)", survey.files.len(), survey.findings.len()))?;
    }
    verdict(&survey.findings)
}

fn inspect(global: &Global, disk: &Arc<dyn Disk>, data: &Path) -> Outcome {
    let survey = survey(disk, data)?;
    let mut rows = vec![["FILE", "KIND", "RECORDS", "BYTES", "HOLDS"].map(str::to_owned).to_vec()];
    for file in &survey.files {
        let shown = file.path.strip_prefix(data).unwrap_or(&file.path).display().to_string();
        if global.json {
            output::json(&json!({ "file": shown, "kind": file.kind, "records": file.records, "bytes": file.bytes, "holds": file.detail }))?;
        }
        rows.push(vec![shown, file.kind.to_owned(), file.records.to_string(), file.bytes.to_string(), file.detail.clone()]);
    }
    if !global.json {
        output::table(&rows)?;
    }
    tell_findings(global, &survey.findings)?;
    verdict(&survey.findings)
}

fn tell_findings(global: &Global, findings: &[Finding]) -> Outcome {
    for finding in findings {
        let path = finding.path.display();
        if global.json {
            output::json(&json!({ "damaged": path.to_string(), "at": finding.at, "end": finding.end, "reason": finding.reason }))?;
        } else {
            output::line(format!("damaged: {path} at {} to {}: {}", finding.at, finding.end, finding.reason))?;
        }
    }
    Ok(())
}

fn verdict(findings: &[Finding]) -> Outcome {
    if findings.is_empty() { Ok(()) } else { Err(Failure::Failed(anyhow::anyhow!("{} range(s) are damaged", findings.len()))) }
}

fn survey(disk: &Arc<dyn Disk>, data: &Path) -> Result<Survey, Failure> {
    let mut survey = Survey::default();
    let ingress = data.join("ingress");
    if !disk.exists(&ingress)? && !disk.exists(&data.join("topics"))? {
        return Err(Failure::Usage(format!("{} is not the data directory of a node", data.display())));
    }
    if disk.exists(&ingress)? {
        for report in wal::inspect(disk, &ingress).map_err(anyhow::Error::from)? {
            let findings = report.damage.iter().map(|(at, end)| Finding {
                path: report.path.clone(),
                at: *at,
                end: *end,
                reason: "no intact record where one must be".to_owned(),
            });
            survey.findings.extend(findings);
            let spans = report.streams.iter().map(|stream| format!("{}..{}", stream.first, stream.end)).collect::<Vec<_>>();
            let detail = if spans.is_empty() { "nothing".to_owned() } else { format!("sequences {}", spans.join(", ")) };
            let facts = FileFacts { path: report.path, kind: "wal", records: report.records, bytes: report.good_end, detail };
            survey.files.push(facts);
        }
    }
    for dir in partition_dirs(disk, data)? {
        let report = partition::inspect(disk.as_ref(), &dir)?;
        let findings = report.damage.into_iter().map(|damage| Finding {
            path: damage.path,
            at: damage.at,
            end: damage.end,
            reason: format!("{} (offsets {} to {})", damage.reason, damage.first, damage.next),
        });
        survey.findings.extend(findings);
        for segment in report.segments {
            let torn = segment.torn_at.map(|at| format!(", torn tail at {at}")).unwrap_or_default();
            let detail = format!("offsets {}..{}{torn}", segment.base, segment.end);
            let facts = FileFacts { path: segment.path, kind: "partition", records: segment.records, bytes: segment.bytes, detail };
            survey.files.push(facts);
        }
    }
    Ok(survey)
}

/// `topics/<tenant>/<topic id>/p<index>`, in name order.
fn partition_dirs(disk: &Arc<dyn Disk>, data: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut level = vec![data.join("topics")];
    level.retain(|dir| disk.exists(dir).unwrap_or(false));
    for _ in 0..3 {
        let mut next = Vec::new();
        for dir in level {
            next.extend(disk.list(&dir)?.into_iter().filter(|entry| entry.is_dir).map(|entry| dir.join(entry.name)));
        }
        level = next;
    }
    Ok(level)
}

fn repair(global: &Global, disk: &Arc<dyn Disk>, data: &Path) -> Outcome {
    if !disk.exists(&data.join("node.cell"))? {
        return Err(Failure::Usage(format!("{} is not the data directory of a node", data.display())));
    }
    let _lock = disk.lock_dir(data).map_err(|_| anyhow::anyhow!("{} is in use: stop the node first", data.display()))?;
    let mut findings = Vec::new();

    let opened = Wal::open(Arc::clone(disk), &data.join("ingress"), WalConfig::default(), &OsEntropy);
    let (wal, opened) = opened.map_err(anyhow::Error::from)?;
    wal.close();
    findings.extend(opened.damage.into_iter().map(|damage| Finding {
        path: damage.path,
        at: damage.offset,
        end: damage.offset + damage.bytes,
        reason: format!("{:?} (sequences {} to {})", damage.kind, damage.first, damage.end),
    }));

    let settle = Journal::open(Arc::clone(disk), &data.join("settle"), JournalConfig::default()).map_err(anyhow::Error::from)?;
    let report = settle.0.report().clone();
    let file = report.file.unwrap_or_else(|| data.join("settle"));
    findings.extend(report.damaged.into_iter().map(|range| Finding {
        path: file.clone(),
        at: range.start,
        end: range.end,
        reason: "settle state that was synced cannot be read: some messages may be handed out again".to_owned(),
    }));
    drop(settle);

    let config =
        PartitionConfig { segment_bytes_max: limits::SEGMENT_BYTES_MAX, segment_age_ms_max: limits::RETENTION_MS_MIN, codec: Codec::None };
    let cache = Arc::new(FrameCache::new(limits::READ_CACHE_BYTES_MAX));
    let dirs = partition_dirs(disk, data)?;
    let bar = output::progress(u64::try_from(dirs.len()).unwrap_or(u64::MAX), "partitions");
    for dir in &dirs {
        let opened = PartitionLog::open(Arc::clone(disk), dir, config, Arc::clone(&cache), &OsEntropy);
        let (log, opened) = opened.map_err(anyhow::Error::from)?;
        drop(log);
        findings.extend(opened.damage.into_iter().map(|damage| Finding {
            path: damage.path,
            at: damage.at,
            end: damage.end,
            reason: format!("{} (offsets {} to {})", damage.reason, damage.first, damage.next),
        }));
        bar.inc(1);
    }
    bar.finish_and_clear();
    tell_findings(global, &findings)?;
    let text = format!("opened the WAL, the settle journal and {} partition log(s); {} damaged range(s)", dirs.len(), findings.len());
    if global.json { output::json(&json!({ "partitions": dirs.len(), "damaged": findings.len() })) } else { output::line(text) }
}
