//! From an `Authorization` header to a user of a tenant, without a password hash per request.
//!
//! A check goes through these, and the first that knows ends it:
//!
//! 1. [`crate::basic`] reads the header; the caller looks the user up in its catalog and hands in the stored hash,
//! 2. `verified` knows the same credentials, right or wrong, from a check before,
//! 3. a check of the same credentials that is under way is waited for: any number of requests cost one computation,
//! 4. `permits` has a place in the line for it, or tells it to come back,
//! 5. `throttle` refuses users, and addresses, with too many failures.
//!
//! A name that is no user's goes the same way, step by step: it is held against the hash of nobody, costs a computation once, is remembered, and
//! is throttled (http-contract 1.0 speaks of users alone; then the sixth wrong password would tell who is one). So neither an answer nor the time
//! it takes says whether there is such a user. All that is remembered is bounded. Strangers take a bounded part of the line, for there is no
//! bound to names; whoever fills it learns of one name a time whether it is a stranger's, and fails for it.
//!
//! What nobody can be called (`joe@ACME`) is refused at once, as a header that cannot be read is: that it is nobody's is known.
//!
//! What was found is written down where it was computed. So a caller that goes away neither escapes its failure nor costs others theirs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use veena_contract::limits;

use crate::basic::{Credentials, InvalidBasic};
use crate::password::{Memory, NoRandomness, Password, PasswordHash, UnusableHash};
use crate::permits::{NotComputed, Permits, Place};
use crate::throttle::{Attempt, Throttle};
use crate::token::{InvalidToken, SignedToken, Token, Tokens};
use crate::verified::{Mac, Verified};
use veena_contract::{Actor, TokenIssuerRecord};

/// Why a request has no user. Holds nothing of what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No credentials, or of another scheme: 401.
    #[error("authentication required")]
    Missing,
    /// No such user, not the password, or nothing that could be either: 401, and nobody learns which.
    #[error("authentication required")]
    Wrong,
    /// Too many failures: 429.
    #[error("too many failed authentication attempts")]
    Throttled {
        /// How long until it may go on.
        retry_after: Duration,
    },
    /// Too many passwords are being checked: 503.
    #[error("authentication busy")]
    Busy {
        /// When to come back.
        retry_after: Duration,
    },
    /// It cannot be found out, and waiting does not help: 500.
    #[error("authentication unavailable")]
    Unavailable,
}

impl From<NotComputed> for AuthError {
    fn from(error: NotComputed) -> Self {
        match error {
            NotComputed::Busy => Self::Busy { retry_after: RETRY },
            NotComputed::Unavailable => Self::Unavailable,
        }
    }
}

impl From<UnusableHash> for AuthError {
    fn from(_: UnusableHash) -> Self {
        Self::Unavailable
    }
}

const RETRY: Duration = Duration::from_millis(limits::PASSWORD_RETRY_MS);

/// Was it the password?
type Outcome = Result<bool, AuthError>;
type Check = Shared<BoxFuture<'static, Outcome>>;

/// A check that somebody waits for. When nobody does any more, it is gone.
struct Flight {
    id: u64,
    mac: Mac,
    check: WeakShared<BoxFuture<'static, Outcome>>,
}

/// The checks under way; there are no more than places in the line.
#[derive(Default)]
struct Flights {
    next: u64,
    list: Vec<Flight>,
}

/// Finds out who sends a request. One for each node; cheap to clone.
#[derive(Clone)]
pub struct Authenticator(Arc<Core>);

struct Core {
    verified: Verified,
    tokens: Tokens,
    throttle: Arc<Throttle>,
    permits: Permits,
    strangers: Arc<Semaphore>,
    nobody: PasswordHash,
    flights: Mutex<Flights>,
    start: Instant,
}

impl Authenticator {
    /// Remembers nothing yet.
    ///
    /// # Errors
    /// [`NoRandomness`]: there is no key to remember under.
    pub fn new() -> Result<Self, NoRandomness> {
        Ok(Self(Arc::new(Core {
            verified: Verified::new()?,
            tokens: Tokens::new()?,
            throttle: Arc::default(),
            permits: Permits::default(),
            strangers: Arc::new(Semaphore::new(limits::PASSWORD_CHECKS_UNKNOWN_MAX)),
            nobody: PasswordHash::of_nobody(),
            flights: Mutex::default(),
            start: Instant::now(),
        })))
    }

    /// Who sends this `Authorization` header, `from` there? `lookup` says what is stored for a user, `None` for a name that is no user's; whoever cannot
    /// know must not ask. It is called at once, or not at all.
    ///
    /// # Errors
    /// [`AuthError`].
    pub async fn authenticate(
        &self,
        header: Option<&[u8]>,
        from: Option<IpAddr>,
        lookup: impl FnOnce(&Actor) -> Option<PasswordHash>,
    ) -> Result<Actor, AuthError> {
        let credentials = Credentials::parse(header.ok_or(AuthError::Missing)?).map_err(|error| match error {
            InvalidBasic::OtherScheme => AuthError::Missing,
            InvalidBasic::Malformed => AuthError::Wrong,
        })?;
        let actor = credentials.actor().ok_or(AuthError::Wrong)?;
        let hash = lookup(&actor);
        self.check(&actor, from, credentials.password, hash.as_ref()).await?;
        Ok(actor)
    }

    /// Is this the user's password, given what is stored for the user? As [`authenticate`](Self::authenticate), for a password that stands
    /// elsewhere in a request.
    ///
    /// # Errors
    /// [`AuthError`].
    pub async fn check(
        &self,
        actor: &Actor,
        from: Option<IpAddr>,
        password: Password,
        hash: Option<&PasswordHash>,
    ) -> Result<(), AuthError> {
        let is_right = match self.0.board(actor, from, password, hash)? {
            Boarded::Known(is_right) => is_right,
            Boarded::Waits(check) => check.await?,
        };
        // Nobody is nobody, whatever they send.
        if !is_right || hash.is_none() {
            return Err(AuthError::Wrong);
        }
        self.0.throttle.signed_in(actor, from, self.0.now_ms());
        Ok(())
    }

    /// What does this token say, if this issuer has signed it, and it is good now?
    ///
    /// # Errors
    /// [`InvalidToken`].
    pub fn verify_token(&self, token: Token<'_>, issuer: &Arc<TokenIssuerRecord>, now_ms: u64) -> Result<Arc<SignedToken>, InvalidToken> {
        self.0.tokens.verify(token, issuer, now_ms)
    }

    /// Computes what is stored of a new password, behind the same permits.
    ///
    /// # Errors
    /// [`AuthError::Busy`], [`AuthError::Unavailable`].
    pub async fn hash(&self, password: Password) -> Result<PasswordHash, AuthError> {
        let place = self.0.permits.try_join()?;
        let hash = self.0.permits.compute(place, move |memory| PasswordHash::compute_in(&password, memory)).await?;
        hash.map_err(|NoRandomness| AuthError::Unavailable)
    }

    /// Is it the password of which this is stored? For somebody who may set it anyway: nothing is counted against its user.
    ///
    /// # Errors
    /// [`AuthError::Busy`], [`AuthError::Unavailable`].
    pub async fn is_of(&self, hash: PasswordHash, password: Password) -> Result<bool, AuthError> {
        let place = self.0.permits.try_join()?;
        Ok(self.0.permits.compute(place, move |memory| hash.verify_in(&password, memory)).await??)
    }
}

enum Boarded {
    Known(bool),
    Waits(Check),
}

/// All that a check needs.
struct Passenger {
    actor: Actor,
    password: Password,
    hash: PasswordHash,
    mac: Mac,
    attempt: Attempt,
    place: Place,
    /// A place among strangers, if it is one.
    stranger: Option<OwnedSemaphorePermit>,
}

impl Core {
    /// Milliseconds since this process began to check.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn board(
        self: &Arc<Self>,
        actor: &Actor,
        from: Option<IpAddr>,
        password: Password,
        stored: Option<&PasswordHash>,
    ) -> Result<Boarded, AuthError> {
        let hash = stored.unwrap_or(&self.nobody);
        let mac = self.verified.mac(actor, &password, hash);
        let now_ms = self.now_ms();
        if let Some(is_right) = self.verified.look(actor, &mac, now_ms) {
            return Ok(Boarded::Known(is_right));
        }
        let mut flights = self.flights.lock();
        if let Some(check) = flights.list.iter().find(|flight| flight.mac.is(&mac)).and_then(|flight| flight.check.upgrade()) {
            return Ok(Boarded::Waits(check));
        }
        // It may have landed between the two looks.
        if let Some(is_right) = self.verified.look(actor, &mac, now_ms) {
            return Ok(Boarded::Known(is_right));
        }
        let stranger = || Arc::clone(&self.strangers).try_acquire_owned().map_err(|_| AuthError::Throttled { retry_after: RETRY });
        let stranger = stored.is_none().then(stranger).transpose()?;
        let place = self.permits.try_join()?;
        let attempt = self.throttle.begin(actor, from, now_ms).map_err(|retry_after| AuthError::Throttled { retry_after })?;
        let id = flights.next;
        flights.next += 1;
        let passenger = Passenger { actor: actor.clone(), password, hash: hash.clone(), mac: mac.copy(), attempt, place, stranger };
        let check = fly(Arc::clone(self), passenger, Landing { core: Arc::clone(self), id }).boxed().shared();
        if let Some(check) = check.downgrade() {
            flights.list.push(Flight { id, mac, check });
        }
        Ok(Boarded::Waits(check))
    }
}

/// Takes a flight off the list when it has landed, or when nobody waits for it any more. Never dropped under the lock of the list.
struct Landing {
    core: Arc<Core>,
    id: u64,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.core.flights.lock().list.retain(|flight| flight.id != self.id);
    }
}

async fn fly(core: Arc<Core>, passenger: Passenger, _landing: Landing) -> Outcome {
    let Passenger { actor, password, hash, mac, attempt, place, stranger } = passenger;
    let written = Arc::clone(&core);
    let work = move |memory: &mut Memory| {
        let is_right = hash.verify_in(&password, memory)?;
        written.verified.remember(&actor, mac, is_right, written.now_ms());
        if is_right {
            drop(attempt);
        } else {
            attempt.failed(written.now_ms());
        }
        drop(stranger);
        Ok(is_right)
    };
    core.permits.compute(place, work).await?
}

#[cfg(test)]
mod tests;
