//! A small disk of its own for a node: a file system in memory of limited size, in a mount namespace that needs no root.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const FILLER: &str = "filler";
const TRIES: u32 = 100;
const MOUNT: &str = r#"mount -t tmpfs -o "size=$1,mode=700" tmpfs "$0" && echo mounted && exec cat"#;

/// A mounted volume. It is gone when this value is dropped and nobody uses it any more.
#[derive(Debug)]
pub struct Volume {
    /// Keeps the namespace; ends when its input does, so also when we die.
    holder: Child,
    at: PathBuf,
    has_user_namespace: bool,
}

impl Volume {
    /// Mounts `bytes` at the folder `at`, which is created.
    ///
    /// # Errors
    /// Namespaces are refused here.
    pub fn create(at: &Path, bytes: u64) -> anyhow::Result<Self> {
        std::fs::create_dir_all(at)?;
        let at = at.canonicalize()?;
        let mut told = Vec::new();
        for has_user_namespace in [true, false] {
            match Self::mount(&at, bytes, has_user_namespace) {
                Ok(holder) => return Ok(Self { holder, at, has_user_namespace }),
                Err(err) => told.push(format!("{err:#}")),
            }
        }
        bail!(
            "a full disk needs a mount namespace: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0) or run as root: {}",
            told.join("; ")
        )
    }

    fn mount(at: &Path, bytes: u64, has_user_namespace: bool) -> anyhow::Result<Child> {
        let mut command = Command::new("unshare");
        if has_user_namespace {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "sh", "-c", MOUNT]).arg(at).arg(bytes.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().context("cannot start unshare")?;
        let mut line = String::new();
        let stdout = holder.stdout.take().context("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() == "mounted" {
            return Ok(holder);
        }
        let output = holder.wait_with_output()?;
        bail!("unshare: {} {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
    }

    /// The words to put before a command that is to see the volume.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={}", self.holder.id())];
        if self.has_user_namespace {
            words.extend(["--user".to_owned(), "--preserve-credentials".to_owned()]);
        }
        words.extend(["--mount".to_owned(), "--".to_owned()]);
        words
    }

    /// Where it is for those who see it.
    #[must_use]
    pub fn inside(&self) -> &Path {
        &self.at
    }

    /// Where it is for us.
    fn outside(&self) -> PathBuf {
        let at = self.at.strip_prefix("/").unwrap_or(&self.at);
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(at)
    }

    /// How many bytes are free.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn available(&self) -> anyhow::Result<u64> {
        let stat = rustix::fs::statvfs(self.outside())?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    /// How large a file is; 0 when it is not there.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn bytes_of(&self, name: &str) -> anyhow::Result<u64> {
        match self.outside().join(name).metadata() {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err.into()),
            found => Ok(found.map_or(0, |meta| meta.len())),
        }
    }

    /// Makes the filler so large that `leave` bytes are free. The node writes meanwhile, so it is nearly that.
    ///
    /// # Errors
    /// There is less room even without the filler, or the system refuses.
    pub fn fill(&self, leave: u64) -> anyhow::Result<()> {
        let path = self.outside().join(FILLER);
        let filler = OpenOptions::new().create(true).truncate(false).write(true).open(path).context("cannot fill the volume")?;
        for _ in 0..TRIES {
            let (available, filled) = (self.available()?, filler.metadata()?.len());
            if available < leave {
                filler.set_len(filled.checked_sub(leave - available).context("the volume is fuller than it is to become")?)?;
            } else if available > leave {
                match rustix::fs::fallocate(&filler, FallocateFlags::empty(), filled, available - leave) {
                    // Somebody else was faster.
                    Err(Errno::NOSPC) => continue,
                    outcome => outcome.context("cannot fill the volume")?,
                }
            }
            return Ok(());
        }
        bail!("the volume cannot be filled: somebody else takes its room again and again")
    }

    /// Takes the filler away.
    ///
    /// # Errors
    /// The system refuses.
    pub fn empty(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(self.outside().join(FILLER)) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(err.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
