//! How many wrong passwords are computed: a few in a row for each user, and a few for the node once users fail.
//!
//! A check takes its place before it computes and gives it back when it did not fail, so that checks at the same time are counted too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use veena_contract::limits;

use veena_contract::Actor;

/// So many at once, and one more every so often.
struct Rate {
    at_once: u64,
    every_ms: u64,
}

const PER_USER: Rate = Rate { at_once: limits::LOGIN_FAILURES_MAX, every_ms: limits::LOGIN_FAILURE_MS };
const PER_NODE: Rate = Rate { at_once: limits::LOGIN_FAILURES_NODE_MAX, every_ms: limits::LOGIN_FAILURE_NODE_MS };

/// A token bucket, kept as the time at which it is full.
#[derive(Clone, Copy, Default)]
struct Bucket {
    full_at_ms: u64,
}

impl Bucket {
    /// Takes a token, or says how long until there is one.
    fn take(&mut self, rate: &Rate, now_ms: u64) -> Result<(), Duration> {
        let full_at_ms = self.full_at_ms.max(now_ms) + rate.every_ms;
        let wait_ms = full_at_ms.saturating_sub(now_ms + rate.at_once * rate.every_ms);
        if wait_ms > 0 {
            return Err(Duration::from_millis(wait_ms));
        }
        self.full_at_ms = full_at_ms;
        Ok(())
    }

    const fn give_back(&mut self, rate: &Rate) {
        self.full_at_ms = self.full_at_ms.saturating_sub(rate.every_ms);
    }

    const fn is_full(self, now_ms: u64) -> bool {
        self.full_at_ms <= now_ms
    }
}

#[derive(Default)]
struct Buckets {
    users: BTreeMap<Actor, Bucket>,
    node: Bucket,
}

/// The failures of users that exist. Times are milliseconds on any clock that does not step back.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<Buckets>);

impl Throttle {
    /// May this user's password be computed? If not, after which time.
    pub(crate) fn begin(self: &Arc<Self>, actor: &Actor, now_ms: u64) -> Result<Attempt, Duration> {
        let mut guard = self.0.lock();
        let buckets = &mut *guard;
        let mut user = buckets.users.get(actor).copied().unwrap_or_default();
        let has_failed = !user.is_full(now_ms);
        user.take(&PER_USER, now_ms)?;
        if has_failed {
            buckets.node.take(&PER_NODE, now_ms)?;
        }
        if !buckets.users.contains_key(actor) {
            make_room(&mut buckets.users, now_ms);
        }
        buckets.users.insert(actor.clone(), user);
        Ok(Attempt { throttle: Arc::clone(self), actor: actor.clone(), of_node: has_failed, has_failed: false })
    }
}

/// Room for one more: whose bucket is full needs none, and then who is soonest without a failure.
fn make_room(users: &mut BTreeMap<Actor, Bucket>, now_ms: u64) {
    if users.len() < limits::LOGIN_FAILURE_USERS_MAX {
        return;
    }
    users.retain(|_, bucket| !bucket.is_full(now_ms));
    if users.len() < limits::LOGIN_FAILURE_USERS_MAX {
        return;
    }
    let soonest = users.iter().min_by_key(|(_, bucket)| bucket.full_at_ms).map(|(actor, _)| actor.clone());
    if let Some(actor) = soonest {
        users.remove(&actor);
    }
}

/// A check under way. Dropped, it gives back what it took, unless it failed.
pub(crate) struct Attempt {
    throttle: Arc<Throttle>,
    actor: Actor,
    of_node: bool,
    has_failed: bool,
}

impl Attempt {
    /// The password was wrong.
    pub(crate) fn failed(mut self) {
        self.has_failed = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.has_failed {
            return;
        }
        let mut buckets = self.throttle.0.lock();
        if let Some(user) = buckets.users.get_mut(&self.actor) {
            user.give_back(&PER_USER);
        }
        if self.of_node {
            buckets.node.give_back(&PER_NODE);
        }
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

    fn fail(throttle: &Arc<Throttle>, name: &str, now_ms: u64) -> Result<(), u128> {
        throttle.begin(&actor(name), now_ms).map(Attempt::failed).map_err(|wait| wait.as_millis())
    }

    #[test]
    fn a_user_has_5_failures_and_gets_one_back_every_12_seconds() {
        let throttle = Arc::new(Throttle::default());
        for _ in 0..5 {
            assert_eq!(fail(&throttle, "joe", 1_000), Ok(()));
        }
        assert_eq!(fail(&throttle, "joe", 1_000), Err(12_000));
        assert_eq!(fail(&throttle, "ann", 1_000), Ok(()), "another user has their own");
        assert_eq!(fail(&throttle, "joe", 12_999), Err(1));
        assert_eq!(fail(&throttle, "joe", 13_000), Ok(()));
        assert_eq!(fail(&throttle, "joe", 13_000), Err(12_000));
        for _ in 0..5 {
            assert_eq!(fail(&throttle, "joe", 100_000), Ok(()), "after a minute all are back");
        }
        assert_eq!(fail(&throttle, "joe", 100_000), Err(12_000));
    }

    #[test]
    fn who_does_not_fail_is_not_held_up() {
        let throttle = Arc::new(Throttle::default());
        for _ in 0..4 {
            assert_eq!(fail(&throttle, "joe", 0), Ok(()));
        }
        for _ in 0..100 {
            drop(throttle.begin(&actor("joe"), 0).expect("one is left, and comes back"));
        }
        assert_eq!(fail(&throttle, "joe", 0), Ok(()));
        assert!(throttle.begin(&actor("joe"), 0).is_err());
    }

    #[test]
    fn checks_at_the_same_time_are_counted() {
        let throttle = Arc::new(Throttle::default());
        let under_way: Vec<Attempt> = (0..5).map(|_| throttle.begin(&actor("joe"), 0).expect("five")).collect();
        assert!(throttle.begin(&actor("joe"), 0).is_err());
        drop(under_way);
        assert!(throttle.begin(&actor("joe"), 0).is_ok());
    }

    #[test]
    fn users_that_fail_share_32_further_checks_of_the_node_and_others_do_not_need_them() {
        let throttle = Arc::new(Throttle::default());
        for at in 0..8 {
            for _ in 0..5 {
                assert_eq!(fail(&throttle, &format!("u{at}"), 0), Ok(()), "the first of each user is not the node's");
            }
        }
        assert_eq!(fail(&throttle, "u8", 0), Ok(()), "who has not failed is let through");
        assert_eq!(fail(&throttle, "u8", 0), Err(250), "and then waits for the node");
        assert_eq!(fail(&throttle, "u8", 250), Ok(()));
        assert_eq!(fail(&throttle, "u8", 250), Err(250));
        for _ in 0..2 {
            assert_eq!(fail(&throttle, "u8", 1_000), Ok(()), "what the node refused was not taken from the user");
        }
    }

    #[test]
    fn failures_of_so_many_users_are_remembered_and_no_more() {
        let throttle = Arc::new(Throttle::default());
        for at in 0..limits::LOGIN_FAILURE_USERS_MAX {
            assert_eq!(fail(&throttle, &format!("u{at}"), 1), Ok(()));
        }
        assert_eq!(fail(&throttle, "one-more", 2), Ok(()));
        assert_eq!(throttle.0.lock().users.len(), limits::LOGIN_FAILURE_USERS_MAX);
        assert_eq!(fail(&throttle, "later", 60_000), Ok(()));
        assert_eq!(throttle.0.lock().users.len(), 1, "whose bucket is full needs no entry");
    }
}
