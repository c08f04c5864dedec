//! The root admin of nodes for trying things out: a password that is made up once and kept beside the data, so that it can be told again.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::fs::DirBuilder;
use tokio::time::{Instant, sleep};
use veena_client::Client;
use veena_node::{AdminPassword, KeepPasswordError, KeptPassword};

use crate::output::Failure;

/// The root admin's name.
const NAME: &str = "admin";
/// How long the root admin may take to be created, once the nodes are ready.
const CREATED_WITHIN: Duration = Duration::from_secs(10);
/// The same where a start before this one kept the password, and so has most likely created it.
const SEEN_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The password that is kept in a directory, which is created if it is not there.
pub struct Kept(KeptPassword);

/// Reads the password that is kept in the directory, or makes one up and keeps it.
pub async fn keep_in(dir: &Path) -> Result<Kept, Failure> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).await.with_context(|| format!("cannot create {}", dir.display()))?;
    match KeptPassword::of(dir).await {
        Ok(kept) => Ok(Kept(kept)),
        Err(error @ KeepPasswordError::Unusable { .. }) => Err(Failure::Usage(error.to_string())),
        Err(error) => Err(anyhow::Error::from(error).into()),
    }
}

/// How one signs in.
pub struct SignIn {
    /// In words.
    pub told: String,
    /// What a shell is given for it.
    pub export: String,
}

/// A text as a shell takes it for one word.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

impl Kept {
    /// The password.
    pub fn password(&self) -> &AdminPassword {
        &self.0.password
    }

    /// How to sign in at a node, once that works.
    pub async fn sign_in(self, url: &str) -> SignIn {
        let path = self.0.path.display();
        if self.works(url).await {
            let told = format!("user {NAME}, password {} (kept in {path})", self.0.password.expose());
            return SignIn { told, export: format!("export VEENA_USER={NAME} VEENA_PASSWORD=$(cat {})", quoted(&path.to_string())) };
        }
        let mut told = format!("user {NAME}, with the password that was set earlier; if nobody knows it, see docs/operate/users.md");
        if self.0.is_new
            && let Err(error) = self.0.discard().await
        {
            told = format!("{told}; {path} is nobody's password, and cannot be removed: {error}");
        }
        SignIn { told, export: format!("export VEENA_USER={NAME} VEENA_PASSWORD='that password'") }
    }

    /// Waits until the root admin is there, and tells whether this is the password. Asked again and again it counts as one wrong password.
    async fn works(&self, url: &str) -> bool {
        let Ok(client) = Client::builder(url).sign_in(NAME, self.0.password.expose()).build() else { return false };
        let until = Instant::now() + if self.0.is_new { CREATED_WITHIN } else { SEEN_WITHIN };
        loop {
            match client.user(NAME).await {
                Ok(_) => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_path_is_one_word_to_a_shell_whatever_is_in_it() {
        assert_eq!(super::quoted("/home/o'neil/a b"), r"'/home/o'\''neil/a b'");
    }
}
