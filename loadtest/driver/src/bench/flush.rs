//! How long the disk takes to sync: alone, while one other file is being synced, and now and then under a load.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tempfile::TempDir;

use super::report::Row;
use crate::load::as_f64;

const FILE_BYTES: u64 = 32 * 1024 * 1024;
const WRITE: [u8; 4096] = [b'w'; 4096];
/// A probe rests this long between syncs, so that it measures the load and is none itself.
const PROBE_REST: Duration = Duration::from_millis(10);

fn prewritten(path: &Path) -> anyhow::Result<File> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    for _ in 0..FILE_BYTES / 1_048_576 {
        file.write_all(&vec![0; 1_048_576])?;
    }
    file.sync_all()?;
    Ok(file)
}

fn flush_until(file: &File, rest: Duration, is_over: impl Fn() -> bool) -> anyhow::Result<Histogram<u64>> {
    let mut took_us = Histogram::new_with_bounds(1, 60_000_000, 3)?;
    let mut position = 0;
    while !is_over() {
        file.write_all_at(&WRITE, position)?;
        let started = Instant::now();
        file.sync_data()?;
        took_us.saturating_record(u64::try_from(started.elapsed().as_micros())?);
        position = (position + 4096) % FILE_BYTES;
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
    Ok(took_us)
}

/// A quantile in milliseconds.
pub(super) fn quantile_ms(took_us: &Histogram<u64>, quantile: f64) -> f64 {
    as_f64(took_us.value_at_quantile(quantile)) / 1000.0
}

fn row(name: &str, about: &str, took_us: &Histogram<u64>) -> Row {
    let at = |quantile| quantile_ms(took_us, quantile);
    Row::new(name, about).with("p10_ms", at(0.1)).with("p50_ms", at(0.5)).with("p99_ms", at(0.99)).with("flushes", as_f64(took_us.len()))
}

/// Syncs a file on a thread of its own until it is stopped.
pub(super) struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Histogram<u64>>>,
    _dir: TempDir,
}

impl Probe {
    /// A probe that rests between syncs, with its file in `dir`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn start(dir: &Path) -> anyhow::Result<Self> {
        Self::start_resting(dir, PROBE_REST)
    }

    fn start_resting(dir: &Path, rest: Duration) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        let file = prewritten(&dir.path().join("probe"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let shared = is_over.clone();
        let thread = std::thread::spawn(move || flush_until(&file, rest, || shared.load(Ordering::Relaxed)));
        Ok(Self { is_over, thread, _dir: dir })
    }

    /// Ends it; how long the syncs took, in microseconds.
    ///
    /// # Errors
    /// A sync failed.
    pub(super) fn stop(self) -> anyhow::Result<Histogram<u64>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the flusher died"))?
    }
}

/// Both rows: alone, and beside another file.
///
/// # Errors
/// The files cannot be written.
pub(super) fn measure(dir: &Path, time: Duration) -> anyhow::Result<Vec<Row>> {
    let own = tempfile::tempdir_in(dir)?;
    let file = prewritten(&own.path().join("one"))?;
    let started = Instant::now();
    let alone = flush_until(&file, Duration::ZERO, || started.elapsed() >= time)?;
    let other = Probe::start_resting(dir, Duration::ZERO)?;
    let started = Instant::now();
    let two = flush_until(&file, Duration::ZERO, || started.elapsed() >= time);
    other.stop()?;
    Ok(vec![
        row("flush-idle", "fdatasync of 4 KiB in a pre-written file", &alone),
        row("flush-beside-another", "the same while one other file is being synced", &two?),
    ])
}
