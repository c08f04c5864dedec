//! What processes cost: CPU time, memory, open files. Linux only.

use std::time::Duration;

use anyhow::Context as _;

/// CPU time of this process so far.
#[must_use]
pub fn own() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or_default())
}

/// CPU time of another process so far, user and system, to a hundredth of a second.
///
/// # Errors
/// The process is gone.
pub fn of_process(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    // The command is in parentheses and may hold spaces; the fields behind it count from 3.
    let (_, behind) = stat.rsplit_once(')').context("no command in /proc/<pid>/stat")?;
    let field = |number: usize| -> anyhow::Result<u64> {
        let text = behind.split_ascii_whitespace().nth(number - 3).context("too few fields in /proc/<pid>/stat")?;
        Ok(text.parse()?)
    };
    let ticks = field(14)? + field(15)?;
    Ok(Duration::from_micros(ticks * 1_000_000 / rustix::param::clock_ticks_per_second()))
}

/// Resident memory of a process, in bytes.
///
/// # Errors
/// The process is gone.
pub fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).context("the process is gone")?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1).context("too few fields in /proc/<pid>/statm")?.parse()?;
    Ok(pages * u64::try_from(rustix::param::page_size())?)
}

/// How many files a process has open whose path holds `part`.
///
/// # Errors
/// The process is gone.
pub fn open_files(pid: u32, part: &str) -> anyhow::Result<usize> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).context("the process is gone")?;
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(targets.filter(|target| target.to_string_lossy().contains(part)).count())
}

/// The load average of the last minute.
#[must_use]
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_rising_clock() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).expect("this process lives") > 100_000);
        assert!(open_files(pid, "").expect("this process lives") > 0);
        of_process(pid).expect("this process lives");
        let before = own();
        let mut sum = 0_u64;
        while own() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(own() > before);
    }
}
