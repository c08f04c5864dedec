//! Whose tokens are taken.

use std::sync::Arc;

use veena_contract::records::CommandError;
use veena_contract::{TokenIssuer, TokenIssuerRecord};

use super::State;
use super::tenants::next_revision;

impl State {
    pub(super) fn put_token_issuer(&mut self, issuer: TokenIssuer, revision: Option<u64>) -> Result<(), CommandError> {
        issuer.check()?;
        // Where nobody's tokens were taken, any first revision is one.
        let revision = match self.view.token_issuer.as_deref() {
            Some(standing) => next_revision(revision, standing.revision, standing.issuer == issuer)?,
            None => revision.unwrap_or(1),
        };
        let record = TokenIssuerRecord { issuer, revision };
        // What was said again stays what it was: who has seen it sees that it is the same.
        if self.view.token_issuer.as_deref() != Some(&record) {
            self.view.token_issuer = Some(Arc::new(record));
        }
        Ok(())
    }
}
