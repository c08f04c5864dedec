//! Who is let in.

use std::fmt;
use std::sync::Arc;

use veena_auth::{InvalidPassword, NoRandomness, Password};
use veena_contract::limits;

/// Who is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityConfig {
    /// Callers are users. Otherwise nobody is asked who they are, and everybody may do everything.
    pub enabled: bool,
    /// The password with which the root admin is created, if there is none yet; `None` makes one up.
    pub admin_password: Option<AdminPassword>,
    /// Where that stands, for the log.
    pub password_from: &'static str,
    /// How long a node without a leader decides who may do what, in ms; 0 is for ever.
    pub stale_after_ms: u64,
}

impl Default for SecurityConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            admin_password: None,
            password_from: "VEENA_ADMIN_PASSWORD",
            stale_after_ms: limits::SECURITY_STALE_MS_DEFAULT,
        }
    }
}

/// The first password of the root admin. Cannot be printed.
#[derive(Clone)]
pub struct AdminPassword(Arc<Password>);

impl AdminPassword {
    /// Takes one that was given.
    ///
    /// # Errors
    /// [`InvalidPassword`], which holds nothing of it.
    pub fn parse(text: &str) -> Result<Self, InvalidPassword> {
        Ok(Self(Arc::new(Password::new(text.to_owned())?)))
    }

    /// Makes one up.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn random() -> Result<Self, NoRandomness> {
        Ok(Self(Arc::new(Password::random()?)))
    }

    /// The password. Whoever calls this must not let it out.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for AdminPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminPassword")
    }
}

impl PartialEq for AdminPassword {
    /// Is it the same one, not: does it say the same? Nothing of it is compared.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AdminPassword {}
