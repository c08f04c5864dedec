//! The file that keeps a made-up password of the root admin, readable by its owner alone, so that it stands in no log.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use veena_auth::{InvalidPassword, NoRandomness};

use crate::config::AdminPassword;

const FILE: &str = "admin-password";

/// The password that is kept in a directory.
pub struct KeptPassword {
    /// The password.
    pub password: AdminPassword,
    /// The file.
    pub path: PathBuf,
    /// Was it made up just now? The root admin may be older.
    pub is_new: bool,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum KeepPasswordError {
    /// The file cannot be read or written.
    #[error("the file {path} that keeps the root admin's password: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It holds what can be no password.
    #[error("{path}: {source}; remove the file and set another password (veena user passwd)")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: InvalidPassword,
    },
    /// None can be made up.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
}

impl KeptPassword {
    /// Reads the password that is kept in the directory, or makes one up and keeps it, synced.
    ///
    /// # Errors
    /// [`KeepPasswordError`].
    pub async fn of(dir: &Path) -> Result<Self, KeepPasswordError> {
        let path = dir.join(FILE);
        match fs::read_to_string(&path).await {
            Ok(text) => match AdminPassword::parse(text.trim_end()) {
                Ok(password) => return Ok(Self { password, path, is_new: false }),
                Err(source) => return Err(KeepPasswordError::Unusable { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(KeepPasswordError::File { path, source }),
        }
        let password = AdminPassword::random()?;
        match write(dir, &path, &password).await {
            Ok(()) => Ok(Self { password, path, is_new: true }),
            Err(source) => Err(KeepPasswordError::File { path, source }),
        }
    }

    /// Removes the file: no root admin was created with this password.
    ///
    /// # Errors
    /// What the system says.
    pub async fn discard(&self) -> io::Result<()> {
        fs::remove_file(&self.path).await
    }
}

/// Under another name first: a file that was cut off would be taken for a password.
async fn write(dir: &Path, path: &Path, password: &AdminPassword) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    // What lies there is not written to: it may be a link to elsewhere, or be open to others.
    match fs::remove_file(&unfinished).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).await?;
    file.write_all(format!("{}\n", password.expose()).as_bytes()).await?;
    file.sync_all().await?;
    fs::rename(&unfinished, path).await?;
    File::open(dir).await?.sync_all().await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn a_password_is_made_up_once_and_read_by_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = KeptPassword::of(dir.path()).await.expect("made up");
        let again = KeptPassword::of(dir.path()).await.expect("read");
        assert_eq!((first.is_new, again.is_new, first.password.expose()), (true, false, again.password.expose()));
        assert_eq!(fs::metadata(&first.path).await.expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 1);
        first.discard().await.expect("removed");
        assert!(KeptPassword::of(dir.path()).await.expect("made up").password.expose() != first.password.expose());
        fs::write(&first.path, "").await.expect("cut off");
        let error = KeptPassword::of(dir.path()).await.err().expect("no password").to_string();
        assert!(error.contains("admin-password") && error.contains("veena user passwd"), "{error}");
    }

    #[tokio::test]
    async fn what_lies_in_the_way_of_a_new_file_is_not_written_to() {
        let (dir, elsewhere) = (tempfile::tempdir().expect("a temporary directory"), tempfile::tempdir().expect("another"));
        let target = elsewhere.path().join("target");
        fs::write(&target, "mine").await.expect("written");
        tokio::fs::symlink(&target, dir.path().join("admin-password.tmp")).await.expect("linked");
        let kept = KeptPassword::of(dir.path()).await.expect("made up");
        assert_eq!(fs::read_to_string(&target).await.expect("there"), "mine");
        let metadata = fs::symlink_metadata(&kept.path).await.expect("there");
        assert!(metadata.is_file() && metadata.permissions().mode() & 0o777 == 0o600);
    }
}
