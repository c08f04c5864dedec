//! The process as the kernel sees it. Where there is no `/proc`, there are no such series.

use std::fmt::Write;

use rustix::fs::{CWD, Dir, Mode, OFlags, openat};
use rustix::process::{Resource, getrlimit};

use super::{kind, single};

/// Writes what the kernel says of this process.
pub(super) fn render(out: &mut String) {
    if let Some(usage) = read("/proc/self/stat").as_deref().and_then(Usage::parse) {
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        kind(out, "process_cpu_seconds_total", "counter");
        let hundredths = usage.cpu_ticks.saturating_mul(100) / ticks_per_second;
        let _ = writeln!(out, "veena_process_cpu_seconds_total {}.{:02}", hundredths / 100, hundredths % 100);
        single(out, "process_resident_memory_bytes", "gauge", usage.resident_pages * rustix::param::page_size() as u64);
        single(out, "process_threads", "gauge", usage.threads);
    }
    if let Some(open) = open_files() {
        single(out, "process_open_fds", "gauge", open);
    }
    if let Some(max) = getrlimit(Resource::Nofile).current {
        single(out, "process_max_fds", "gauge", max);
    }
}

/// What one line of `/proc/self/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    cpu_ticks: u64,
    threads: u64,
    resident_pages: u64,
}

impl Usage {
    fn parse(stat: &str) -> Option<Self> {
        // The second field is the program's name in brackets, and may itself hold spaces and brackets.
        let after_name = stat.rsplit_once(')')?.1;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self { cpu_ticks: field(14)?.checked_add(field(15)?)?, threads: field(20)?, resident_pages: field(24)? })
    }
}

fn read(path: &str) -> Option<String> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0_u8; 4096];
    let count = rustix::io::read(&file, &mut buffer).ok()?;
    String::from_utf8(buffer.get(..count)?.to_vec()).ok()
}

/// Open descriptors, the one used to count them aside.
fn open_files() -> Option<u64> {
    let dir = openat(CWD, "/proc/self/fd", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let entries = Dir::read_from(&dir).ok()?;
    let listed = entries.flatten().filter(|entry| !entry.file_name().to_bytes().starts_with(b".")).count();
    // `dir` itself, and the descriptor that `Dir` reads from.
    u64::try_from(listed.saturating_sub(2)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12345 1000000 321 18446744073709551615";
        assert_eq!(Usage::parse(stat), Some(Usage { cpu_ticks: 300, threads: 9, resident_pages: 321 }));
        assert_eq!(Usage::parse("7 (a) S 1"), None);
    }

    #[test]
    fn every_line_is_a_series_with_its_type() {
        let mut out = String::new();
        render(&mut out);
        for line in out.lines() {
            assert!(line.starts_with("# TYPE veena_process_") || line.starts_with("veena_process_"), "{line}");
        }
    }
}
