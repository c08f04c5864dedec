//! How many files this process, and the servers that it starts, may have open.

use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the bound on open files to `wanted` or as far as the system lets; children inherit it. Gives the bound.
///
/// # Errors
/// Fewer than `needed` can be had.
pub(super) fn raise_open_files(needed: u64, wanted: u64) -> anyhow::Result<u64> {
    let now = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if !is_enough(now.current) {
        // The hard bound may be raised by root only.
        let all = Rlimit { current: Some(wanted), maximum: now.maximum.map(|maximum| maximum.max(wanted)) };
        if setrlimit(Resource::Nofile, all).is_err() {
            setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })?;
        }
    }
    let got = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(got >= needed, "only {got} files may be open and {needed} are needed: raise `ulimit -n`");
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_cannot_be_had_is_an_error_and_what_is_there_is_enough() {
        let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(raise_open_files(1, 1).expect("one file may be open") >= now.min(1));
        assert!(raise_open_files(u64::MAX, 1).is_err() || now == u64::MAX);
    }
}
