//! The root admin, whom the leader of the metadata creates once: without one nobody could sign in.
//!
//! Two leaders may create it at once, each with a password of its own; the one whose change was applied first says where its password is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use veena_auth::{Authenticator, Password, PasswordHash};
use veena_contract::{
    Catalog as _, CatalogWriter as _, Command, FeatureLevel, Grants, NodeId, StoredHash, TenantId, UserKind, UserRecord, Username,
    WallClock,
};
use veena_metastore::Metastore;

use crate::admin_password::KeptPassword;
use crate::config::AdminPassword;

/// How soon it is looked at again what could not be done: there is no leader, another node leads, or a member is too old.
const AGAIN: Duration = Duration::from_millis(250);

/// Creates the root admin, if this node leads and there is none.
pub(crate) struct RootAdmin {
    pub(crate) me: NodeId,
    pub(crate) metastore: Metastore,
    pub(crate) authenticator: Authenticator,
    pub(crate) clock: Arc<dyn WallClock>,
    /// What the operator wants the password to be; `None` makes one up.
    pub(crate) password: Option<AdminPassword>,
    /// Where one that was made up is kept.
    pub(crate) dir: PathBuf,
}

/// What is to be stored of the password, and the file that keeps it, if it was made up.
struct Drawn {
    hash: StoredHash,
    kept: Option<KeptPassword>,
}

impl RootAdmin {
    /// Goes on until there is one.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let _told_to_stop = stop.run_until_cancelled(self.seed()).await;
    }

    async fn seed(self) {
        let mut drawn: Option<Drawn> = None;
        let mut last_failure = String::new();
        loop {
            if let Some(root) = self.root() {
                return tell(&root, drawn).await;
            }
            let leads = self.metastore.status().leader.as_ref() == Some(&self.me);
            if leads && self.metastore.level() >= FeatureLevel::USERS {
                let failure = match self.attempt(&mut drawn).await {
                    // A refusal means that it is there; the view shows it at once or a little later.
                    Ok(()) => String::new(),
                    Err(failure) => failure,
                };
                if !failure.is_empty() && failure != last_failure {
                    warn!(reason = %failure, "the root admin is not created yet, without which nobody can sign in; tried again until it is");
                }
                last_failure = failure;
                if self.root().is_some() {
                    continue;
                }
            }
            sleep(AGAIN).await;
        }
    }

    fn root(&self) -> Option<Arc<UserRecord>> {
        self.metastore.view().user(&TenantId::default_tenant(), &Username::root()).cloned()
    }

    async fn attempt(&self, drawn: &mut Option<Drawn>) -> Result<(), String> {
        let hash = match drawn {
            Some(drawn) => drawn.hash.clone(),
            None => drawn.insert(self.draw().await?).hash.clone(),
        };
        let now_ms = self.clock.now_ms();
        let user = UserRecord {
            tenant: TenantId::default_tenant(),
            username: Username::root(),
            kind: UserKind::Person,
            hash: Some(hash),
            grants: Grants::none(),
            is_root: true,
            created_at_ms: now_ms,
            updated_at_ms: now_ms,
            revision: 0,
        };
        match self.metastore.propose(Command::CreateUser { user }).await {
            Ok(_) | Err(veena_contract::ProposeError::Refused(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn draw(&self) -> Result<Drawn, String> {
        let (password, kept) = match &self.password {
            Some(password) => (password.clone(), None),
            None => {
                let kept = KeptPassword::of(&self.dir).await.map_err(|error| error.to_string())?;
                (kept.password.clone(), Some(kept))
            }
        };
        let to_hash = Password::new(password.expose().to_owned()).map_err(|error| error.to_string())?;
        let hash: PasswordHash = self.authenticator.hash(to_hash).await.map_err(|error| error.to_string())?;
        Ok(Drawn { hash: hash.into(), kept })
    }
}

/// Says how to sign in, if it is this node that knows.
async fn tell(root: &UserRecord, drawn: Option<Drawn>) {
    let Some(Drawn { hash, kept }) = drawn else { return };
    let is_ours = root.hash.as_ref() == Some(&hash);
    match kept {
        None if is_ours => info!(user = Username::ROOT, "the root admin was created, with the password of VEENA_ADMIN_PASSWORD"),
        None => {}
        Some(kept) if is_ours => warn!(
            user = Username::ROOT, file = %kept.path.display(),
            "the root admin was created with a password that was made up: it is in this file; change it (veena user passwd), then remove the file"
        ),
        Some(kept) => {
            if let Err(error) = kept.discard().await {
                warn!(file = %kept.path.display(), %error, "another node has created the root admin; the password in this file is nobody's");
            }
        }
    }
}
