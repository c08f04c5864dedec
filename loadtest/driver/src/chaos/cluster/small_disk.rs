//! A disk of a node that becomes full: a file system in memory whose size is changed while it is used.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

/// As good as no limit.
const SIZE_BYTES: u64 = 16 * 1024 * 1024 * 1024;
const TRIES: u32 = 100;

/// A mounted file system, in the mount namespace of this process.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one at `at`, which is created.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(at: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(at)?;
        mount(at, &["-t", "tmpfs", "-o", &format!("size={SIZE_BYTES},mode=700"), "tmpfs"])?;
        Ok(Self(at.to_owned()))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves `free` bytes. The node writes meanwhile, so it is nearly that.
    ///
    /// # Errors
    /// The system refuses.
    pub fn leave(&self, free: u64) -> anyhow::Result<()> {
        let mut last = None;
        for _ in 0..TRIES {
            let stat = rustix::fs::statvfs(&self.0)?;
            let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            match self.resize(used + free) {
                // Somebody took room meanwhile: no size below what is used is taken.
                Err(err) => last = Some(err),
                Ok(()) => return Ok(()),
            }
        }
        bail!("the disk cannot be made full: {last:?}")
    }

    /// Makes room again.
    ///
    /// # Errors
    /// The system refuses.
    pub fn make_room(&self) -> anyhow::Result<()> {
        self.resize(SIZE_BYTES)
    }

    fn resize(&self, bytes: u64) -> anyhow::Result<()> {
        mount(&self.0, &["-o", &format!("remount,size={bytes}")])
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A node that still dies holds it: it goes with the last of its users.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn mount(at: &Path, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("mount").args(args).arg(at).stdin(Stdio::null()).output().context("cannot start mount")?;
    ensure!(output.status.success(), "mount {args:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
