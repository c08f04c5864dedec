//! How long the disk takes to sync: alone, and while one other file is being synced.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::report::Row;
use crate::load::as_f64;

const FILE_BYTES: u64 = 32 * 1024 * 1024;
const WRITE: [u8; 4096] = [b'w'; 4096];

fn prewritten(path: &Path) -> anyhow::Result<File> {
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    for _ in 0..FILE_BYTES / 1_048_576 {
        file.write_all(&vec![0; 1_048_576])?;
    }
    file.sync_all()?;
    Ok(file)
}

fn flush_until(file: &File, is_over: impl Fn() -> bool) -> anyhow::Result<Histogram<u64>> {
    let mut took_us = Histogram::new_with_bounds(1, 60_000_000, 3)?;
    let mut position = 0;
    while !is_over() {
        file.write_all_at(&WRITE, position)?;
        let started = Instant::now();
        file.sync_data()?;
        took_us.saturating_record(u64::try_from(started.elapsed().as_micros())?);
        position = (position + 4096) % FILE_BYTES;
    }
    Ok(took_us)
}

fn row(name: &str, about: &str, took_us: &Histogram<u64>) -> Row {
    let at = |quantile| as_f64(took_us.value_at_quantile(quantile)) / 1000.0;
    Row::new(name, about).with("p10_ms", at(0.1)).with("p50_ms", at(0.5)).with("p99_ms", at(0.99)).with("flushes", as_f64(took_us.len()))
}

/// Both rows.
///
/// # Errors
/// The files cannot be written.
pub(super) fn measure(dir: &Path, time: Duration) -> anyhow::Result<Vec<Row>> {
    let dir = tempfile::tempdir_in(dir)?;
    let file = prewritten(&dir.path().join("one"))?;
    let started = Instant::now();
    let alone = flush_until(&file, || started.elapsed() >= time)?;
    let other = prewritten(&dir.path().join("other"))?;
    let is_over = Arc::new(AtomicBool::new(false));
    let shared = is_over.clone();
    let beside = std::thread::spawn(move || flush_until(&other, || shared.load(Ordering::Relaxed)));
    let started = Instant::now();
    let two = flush_until(&file, || started.elapsed() >= time);
    is_over.store(true, Ordering::Relaxed);
    beside.join().map_err(|_| anyhow::anyhow!("the other flusher died"))??;
    Ok(vec![
        row("flush-idle", "fdatasync of 4 KiB in a pre-written file", &alone),
        row("flush-beside-another", "the same while one other file is being synced", &two?),
    ])
}
