//! What the last checks of passwords found, so that no request computes a hash.
//!
//! Neither a password nor a plain hash of one is kept: only a MAC under a key that is made up when the process starts. It covers the stored
//! hash that was checked against, so a password that was changed, or a user that was deleted and made anew, ends what was remembered at once,
//! and nobody has to be told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use veena_contract::limits;

use crate::password::{NoRandomness, Password, PasswordHash};
use crate::secret::Secret;
use veena_contract::Actor;

/// Stands for a user, a password and the stored hash it was checked against. Worth nothing outside of this process.
pub(crate) struct Mac([u8; 32]);

impl Mac {
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    pub(crate) const fn copy(&self) -> Self {
        Self(self.0)
    }
}

/// What is remembered of one user.
#[derive(Default)]
struct Known {
    verified: Option<Mac>,
    /// Wrong ones, and until when, the oldest first.
    refused: VecDeque<(Mac, u64)>,
    /// When `verified` was last right, to the second.
    used_ms: AtomicU64,
}

impl Known {
    fn is_verified(&self, now_ms: u64) -> bool {
        self.verified.is_some() && now_ms < self.used_ms.load(Ordering::Relaxed) + limits::VERIFIED_IDLE_MS
    }

    fn is_over(&self, now_ms: u64) -> bool {
        !self.is_verified(now_ms) && self.refused.back().is_none_or(|(_, until_ms)| *until_ms <= now_ms)
    }
}

/// The credentials of at most [`limits::VERIFIED_USERS_MAX`] users. Times are milliseconds on any clock that does not step back.
pub(crate) struct Verified {
    key: hmac::Key,
    users: RwLock<BTreeMap<Actor, Known>>,
}

/// A key of this process alone, under which what was verified is remembered.
pub(crate) fn random_mac_key() -> Result<hmac::Key, NoRandomness> {
    let mut key = [0; 32];
    SystemRandom::new().fill(&mut key).map_err(|_| NoRandomness)?;
    let key = Secret::new(key);
    Ok(hmac::Key::new(hmac::HMAC_SHA256, key.expose()))
}

impl Verified {
    pub(crate) fn new() -> Result<Self, NoRandomness> {
        Ok(Self { key: random_mac_key()?, users: RwLock::default() })
    }

    /// The form in which credentials are remembered.
    pub(crate) fn mac(&self, actor: &Actor, password: &Password, hash: &PasswordHash) -> Mac {
        let mut context = hmac::Context::with_key(&self.key);
        for part in [actor.tenant.as_str(), actor.username.as_str(), hash.text(), password.expose()] {
            context.update(&part.len().to_be_bytes());
            context.update(part.as_bytes());
        }
        let mut mac = [0; 32];
        mac.copy_from_slice(context.sign().as_ref());
        Mac(mac)
    }

    /// Were they right, were they wrong, or is it not known?
    pub(crate) fn look(&self, actor: &Actor, mac: &Mac, now_ms: u64) -> Option<bool> {
        /// To write each use would move a cache line between cores for nothing.
        const USED_MS: u64 = 1_000;
        let users = self.users.read();
        let known = users.get(actor)?;
        if known.is_verified(now_ms) && known.verified.as_ref().is_some_and(|verified| verified.is(mac)) {
            if now_ms >= known.used_ms.load(Ordering::Relaxed) + USED_MS {
                known.used_ms.fetch_max(now_ms, Ordering::Relaxed);
            }
            return Some(true);
        }
        let is_refused = known.refused.iter().any(|(refused, until_ms)| now_ms < *until_ms && refused.is(mac));
        is_refused.then_some(false)
    }

    /// Remembers what a check found.
    pub(crate) fn remember(&self, actor: &Actor, mac: Mac, is_right: bool, now_ms: u64) {
        let mut users = self.users.write();
        if !users.contains_key(actor) {
            make_room(&mut users, now_ms);
        }
        let known = users.entry(actor.clone()).or_default();
        if is_right {
            known.verified = Some(mac);
            known.used_ms.fetch_max(now_ms, Ordering::Relaxed);
            return;
        }
        known.refused.retain(|(_, until_ms)| now_ms < *until_ms);
        if known.refused.len() == limits::REFUSED_PER_USER_MAX {
            known.refused.pop_front();
        }
        known.refused.push_back((mac, now_ms + limits::REFUSED_MS));
    }
}

/// Room for one more: whatever is over goes first, then who only ever failed, then who was away longest.
fn make_room(users: &mut BTreeMap<Actor, Known>, now_ms: u64) {
    if users.len() < limits::VERIFIED_USERS_MAX {
        return;
    }
    users.retain(|_, known| !known.is_over(now_ms));
    if users.len() < limits::VERIFIED_USERS_MAX {
        return;
    }
    let worth = |known: &Known| (known.is_verified(now_ms), known.used_ms.load(Ordering::Relaxed));
    let least = users.iter().min_by_key(|(_, known)| worth(known)).map(|(actor, _)| actor.clone());
    if let Some(actor) = least {
        users.remove(&actor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use veena_contract::{TenantId, Username};

    fn actor(text: &str) -> Actor {
        let (name, tenant) = text.split_once('@').unwrap_or((text, TenantId::DEFAULT));
        Actor { tenant: TenantId::parse(tenant).expect("a name"), username: Username::parse(name).expect("a name"), checked: None }
    }

    fn password(text: &str) -> Password {
        Password::new(text.to_owned()).expect("a password")
    }

    fn hash(text: &str) -> PasswordHash {
        PasswordHash::try_from(text.to_owned()).expect("short enough")
    }

    fn verified() -> Verified {
        Verified::new().expect("random")
    }

    #[test]
    fn what_was_right_is_right_until_it_was_not_used_for_long() {
        let (verified, joe) = (verified(), actor("joe"));
        let mac = verified.mac(&joe, &password("x"), &hash("h"));
        assert_eq!(verified.look(&joe, &mac, 0), None);
        verified.remember(&joe, mac.copy(), true, 0);
        assert_eq!(verified.look(&joe, &mac, 0), Some(true));
        let mut now = 0;
        for _ in 0..5 {
            now += limits::VERIFIED_IDLE_MS - 1;
            assert_eq!(verified.look(&joe, &mac, now), Some(true), "each use keeps it");
        }
        assert_eq!(verified.look(&joe, &mac, now + limits::VERIFIED_IDLE_MS), None);
    }

    #[test]
    fn a_changed_password_another_user_and_another_process_know_nothing_of_it() {
        let (verified, other, joe) = (verified(), super::Verified::new().expect("random"), actor("joe"));
        let mac = verified.mac(&joe, &password("x"), &hash("h"));
        verified.remember(&joe, mac.copy(), true, 0);
        assert_eq!(verified.look(&joe, &verified.mac(&joe, &password("x"), &hash("h2")), 0), None);
        assert_eq!(verified.look(&joe, &verified.mac(&joe, &password("y"), &hash("h")), 0), None);
        assert_eq!(verified.look(&actor("joe2"), &mac, 0), None);
        assert!(!other.mac(&joe, &password("x"), &hash("h")).is(&mac));
        // what belongs to which part makes a difference
        assert!(!verified.mac(&actor("ab"), &password("x"), &hash("c")).is(&verified.mac(&actor("a"), &password("x"), &hash("bc"))));
    }

    #[test]
    fn a_wrong_password_is_remembered_for_a_minute_and_the_right_one_beside_it() {
        let (verified, joe) = (verified(), actor("joe"));
        let [right, wrong] = ["right", "wrong"].map(|text| verified.mac(&joe, &password(text), &hash("h")));
        verified.remember(&joe, right.copy(), true, 0);
        verified.remember(&joe, wrong.copy(), false, 0);
        assert_eq!(verified.look(&joe, &right, 1), Some(true));
        assert_eq!(verified.look(&joe, &wrong, limits::REFUSED_MS - 1), Some(false));
        assert_eq!(verified.look(&joe, &wrong, limits::REFUSED_MS), None);
    }

    #[test]
    fn of_one_user_the_last_16_wrong_passwords_are_remembered() {
        let (verified, joe) = (verified(), actor("joe"));
        let macs: Vec<Mac> = (0..20).map(|at| verified.mac(&joe, &password(&at.to_string()), &hash("h"))).collect();
        for mac in &macs {
            verified.remember(&joe, mac.copy(), false, 0);
        }
        let known: Vec<bool> = macs.iter().map(|mac| verified.look(&joe, mac, 1).is_some()).collect();
        assert_eq!(known, [[false; 4].as_slice(), &[true; 16]].concat());
    }

    #[test]
    fn of_4096_users_and_no_more_something_is_remembered() {
        let verified = verified();
        let add = |name: &str, is_right: bool, now_ms: u64| {
            let mac = verified.mac(&actor(name), &password("x"), &hash("h"));
            verified.remember(&actor(name), mac, is_right, now_ms);
        };
        let has = |name: &str, now_ms: u64| {
            verified.look(&actor(name), &verified.mac(&actor(name), &password("x"), &hash("h")), now_ms).is_some()
        };
        add("failed", false, 50);
        add("first", true, 1);
        for at in 2..limits::VERIFIED_USERS_MAX {
            add(&format!("u{at}"), true, 2);
        }
        add("one-more", true, 60);
        assert!(!has("failed", 60) && has("first", 60) && has("u2", 60), "who only ever failed goes first");
        assert_eq!(verified.users.read().len(), limits::VERIFIED_USERS_MAX);
        add("two-more", true, 60);
        assert!(!has("first", 60) && has("u2", 60) && has("two-more", 60), "then who was away longest");
        assert_eq!(verified.users.read().len(), limits::VERIFIED_USERS_MAX);
        add("later", true, 60 + limits::VERIFIED_IDLE_MS);
        assert_eq!(verified.users.read().len(), 1, "what is over goes altogether");
    }
}
