//! Syncs that fail: the node is started under strace, which answers some of its `fdatasync` calls with EIO without carrying them out.
//!
//! strace counts per thread, and is a grandchild: the node stays our child, so signals reach it as ever.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// How many files behind the newest one are hurt too: logs roll while the node runs.
const ROLLS: u64 = 4;
/// More file numbers than the metadata store takes in one life.
const STORE_NUMBERS_PER_START: u64 = 60;

/// Which files' syncs fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncTarget {
    /// The ingress WAL's segments.
    Wal,
    /// Every partition's segments.
    Partitions,
    /// The settle journal.
    Settle,
    /// The write-ahead log of the metadata store.
    Metastore,
}

/// Syncs that fail once in every thread that comes so far.
#[derive(Clone, Debug)]
pub struct SyncErrors {
    files: Vec<PathBuf>,
    nth: u32,
    log: PathBuf,
}

impl SyncErrors {
    /// Of the files of `target` that exist in `data_dir` and of those that follow, the `nth` sync of each thread fails.
    ///
    /// # Errors
    /// strace is not installed, the directory cannot be read, or holds no such file yet.
    pub fn plan(data_dir: &Path, target: SyncTarget, nth: u32, log: PathBuf) -> anyhow::Result<Self> {
        let strace = Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        ensure!(strace.is_ok_and(|status| status.success()), "strace is not installed: `.ci/tools test` installs it");
        let data_dir = data_dir.canonicalize().with_context(|| format!("no data in {}", data_dir.display()))?;
        let (folder, suffix) = match target {
            SyncTarget::Wal => ("ingress", ".wal"),
            SyncTarget::Partitions => ("topics", ".log"),
            SyncTarget::Settle => ("settle", ".journal"),
            SyncTarget::Metastore => ("metastore", ".log"),
        };
        let mut files = Vec::new();
        find(&data_dir.join(folder), suffix, &mut files)?;
        ensure!(!files.is_empty(), "no file *{suffix} below {}", data_dir.join(folder).display());
        let later: Vec<PathBuf> = match target {
            SyncTarget::Partitions => Vec::new(),
            SyncTarget::Wal | SyncTarget::Settle => files.iter().flat_map(|file| later_names(file)).collect(),
            SyncTarget::Metastore => later_store_logs(&data_dir.join(folder))?,
        };
        files.extend(later);
        files.sort();
        files.dedup();
        // What an earlier run was answered is not this run's.
        let _ = std::fs::remove_file(&log);
        Ok(Self { files, nth, log })
    }

    /// The words to put before the node's own.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> =
            ["strace", "-D", "-f", "--seccomp-bpf", "-y", "-qq", "-e", "signal=none", "-e", "trace=fdatasync", "-e"]
                .map(str::to_owned)
                .to_vec();
        words.push(format!("inject=fdatasync:error=EIO:when={}", self.nth));
        words.extend(["-o".to_owned(), self.log.display().to_string()]);
        for file in &self.files {
            words.extend(["-P".to_owned(), file.display().to_string()]);
        }
        words
    }

    /// How many syncs have failed so far.
    #[must_use]
    pub fn failed(&self) -> usize {
        std::fs::read_to_string(&self.log).unwrap_or_default().lines().filter(|line| line.contains("(INJECTED)")).count()
    }
}

fn find(dir: &Path, suffix: &str, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find(&entry.path(), suffix, files)?;
        } else if entry.file_name().to_string_lossy().ends_with(suffix) {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The names that follow a numbered file's.
fn later_names(file: &Path) -> Vec<PathBuf> {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let Some(start) = name.find(|c: char| c.is_ascii_digit()) else { return Vec::new() };
    let digits: String = name[start..].chars().take_while(char::is_ascii_hexdigit).collect();
    let Ok(number) = u64::from_str_radix(&digits, 16) else { return Vec::new() };
    let (before, after, width) = (&name[..start], &name[start + digits.len()..], digits.len());
    (1..=ROLLS).map(|more| file.with_file_name(format!("{before}{:0width$x}{after}", number + more))).collect()
}

/// The logs that the metadata store will write: it numbers all its files in one row, in decimal, and takes new numbers at every start.
fn later_store_logs(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut last = 0;
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        last = last.max(store_number(&entry?.file_name().to_string_lossy()).unwrap_or(0));
    }
    Ok((1..=STORE_NUMBERS_PER_START).map(|more| dir.join(format!("{:06}.log", last + more))).collect())
}

/// The number of a file of the metadata store. Its own old logs (`LOG.old.<time>`) have none.
fn store_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("MANIFEST-").or_else(|| name.strip_prefix("OPTIONS-")).unwrap_or(name);
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_metadata_store_are_numbered_and_its_old_logs_are_not() {
        for (name, number) in [("000030.log", 30), ("000008.sst", 8), ("MANIFEST-000031", 31), ("OPTIONS-000029", 29)] {
            assert_eq!(store_number(name), Some(number), "{name}");
        }
        for name in ["LOG", "LOG.old.1796025760681842", "CURRENT", "IDENTITY"] {
            assert_eq!(store_number(name), None, "{name}");
        }
    }

    #[test]
    fn the_names_that_follow_are_guessed_from_the_number() {
        let names = later_names(Path::new("/d/settle-000000000000000f.journal"));
        assert_eq!(names[0], Path::new("/d/settle-0000000000000010.journal"));
        assert_eq!(later_names(Path::new("/d/0000000000000001.wal"))[1], Path::new("/d/0000000000000003.wal"));
        assert!(later_names(Path::new("/d/checkpoint")).is_empty());
    }
}
