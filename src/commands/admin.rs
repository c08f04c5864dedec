//! The root admin of nodes for trying things out: a password that is made up once and kept beside the data, so that it can be told again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use tokio::fs::{self, DirBuilder, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep};
use veena_client::Client;
use veena_node::AdminPassword;

use crate::output::Failure;

/// The root admin's name.
const NAME: &str = "admin";
/// How long the root admin may take to be created, once the nodes are ready.
const CREATED_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The password that is kept in a directory.
pub struct Kept {
    /// The password.
    pub password: AdminPassword,
    path: PathBuf,
    /// Was it made up just now? The root admin may be older.
    is_new: bool,
}

/// Reads the password that is kept in the directory, or makes one up and keeps it.
pub async fn keep_in(dir: &Path) -> Result<Kept, Failure> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).await.with_context(|| format!("cannot create {}", dir.display()))?;
    let path = dir.join("admin-password");
    let parsed = |text: &str| {
        let password = AdminPassword::parse(text.trim_end());
        password
            .map_err(|error| Failure::Usage(format!("{}: {error}; remove the file and set another with veena user passwd", path.display())))
    };
    match fs::read_to_string(&path).await {
        Ok(text) => return Ok(Kept { password: parsed(&text)?, path: path.clone(), is_new: false }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(anyhow::Error::from(error).context(format!("cannot read {}", path.display())).into()),
    }
    let password = AdminPassword::random().map_err(anyhow::Error::from)?;
    let written = async {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).await?;
        file.write_all(format!("{}\n", password.expose()).as_bytes()).await?;
        file.sync_all().await
    };
    written.await.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Kept { password, path, is_new: true })
}

/// How one signs in.
pub struct SignIn {
    /// In words.
    pub told: String,
    /// What a shell is given for it.
    pub export: String,
}

impl Kept {
    /// How to sign in at a node, once that works.
    pub async fn sign_in(self, url: &str) -> SignIn {
        let path = self.path.display();
        if self.works(url).await {
            let told = format!("user {NAME}, password {} (kept in {path})", self.password.expose());
            return SignIn { told, export: format!("export VEENA_USER={NAME} VEENA_PASSWORD=$(cat '{path}')") };
        }
        if self.is_new {
            // Nothing was created with it.
            let _removed = fs::remove_file(&self.path).await;
        }
        let told = format!("user {NAME}, with the password that was set earlier; if nobody knows it, see docs/operate/users.md");
        SignIn { told, export: format!("export VEENA_USER={NAME} VEENA_PASSWORD='that password'") }
    }

    /// Waits until the root admin is there, and tells whether this is the password. Asked again and again it counts as one wrong password.
    async fn works(&self, url: &str) -> bool {
        let Ok(client) = Client::builder(url).sign_in(NAME, self.password.expose()).build() else { return false };
        let until = Instant::now() + CREATED_WITHIN;
        loop {
            match client.user(NAME).await {
                Ok(_) => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
}
