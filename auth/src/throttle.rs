//! How many wrong passwords are computed: a few in a row for each user and for each address, and a few for the node once users fail.
//!
//! A check takes its place before it computes and gives it back when it did not fail, so that checks at the same time are counted too. An
//! address counts failures alone: many may stand behind one, and whoever has not failed is not in another's way.
//!
//! Whoever signed in from an address lately is known there: their failures from it are counted by themselves, and nobody else's hold them up.
//! So whoever sends wrong passwords for a user keeps those out who come from a new address, and nobody else.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use veena_contract::limits;

use veena_contract::Actor;

/// So many at once, and one more every so often.
struct Rate {
    at_once: u64,
    every_ms: u64,
}

const PER_USER: Rate = Rate { at_once: limits::LOGIN_FAILURES_MAX, every_ms: limits::LOGIN_FAILURE_MS };
const PER_SOURCE: Rate = Rate { at_once: limits::LOGIN_FAILURES_SOURCE_MAX, every_ms: limits::LOGIN_FAILURE_SOURCE_MS };
const PER_NODE: Rate = Rate { at_once: limits::LOGIN_FAILURES_NODE_MAX, every_ms: limits::LOGIN_FAILURE_NODE_MS };

/// A token bucket, kept as the time at which it is full.
#[derive(Clone, Copy, Default)]
struct Bucket {
    full_at_ms: u64,
}

impl Bucket {
    /// Is there a token? If not, how long until there is one.
    fn look(self, rate: &Rate, now_ms: u64) -> Result<(), Duration> {
        let full_at_ms = self.full_at_ms.max(now_ms) + rate.every_ms;
        let wait_ms = full_at_ms.saturating_sub(now_ms + rate.at_once * rate.every_ms);
        if wait_ms > 0 { Err(Duration::from_millis(wait_ms)) } else { Ok(()) }
    }

    /// Takes a token, or says how long until there is one.
    fn take(&mut self, rate: &Rate, now_ms: u64) -> Result<(), Duration> {
        self.look(rate, now_ms)?;
        self.full_at_ms = self.full_at_ms.max(now_ms) + rate.every_ms;
        Ok(())
    }

    /// Takes a token if there is one.
    fn spend(&mut self, rate: &Rate, now_ms: u64) {
        let _ = self.take(rate, now_ms);
    }

    const fn give_back(&mut self, rate: &Rate) {
        self.full_at_ms = self.full_at_ms.saturating_sub(rate.every_ms);
    }

    const fn is_full(self, now_ms: u64) -> bool {
        self.full_at_ms <= now_ms
    }
}

/// Where a request comes from, as far as failures are counted: an address, and of IPv6 what one subscriber has at least, a /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Source(IpAddr);

impl Source {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// An address from which a user signed in.
struct Device {
    source: Source,
    known_ms: u64,
    bucket: Bucket,
}

impl Device {
    const fn is_known(&self, now_ms: u64) -> bool {
        now_ms < self.known_ms + limits::LOGIN_DEVICE_MS
    }
}

#[derive(Default)]
struct Buckets {
    users: BTreeMap<Actor, Bucket>,
    sources: BTreeMap<Source, Bucket>,
    node: Bucket,
    /// The addresses of each user, the one that is known best last.
    devices: BTreeMap<Actor, Vec<Device>>,
}

impl Buckets {
    fn device(&mut self, actor: &Actor, source: Source) -> Option<&mut Device> {
        self.devices.get_mut(actor)?.iter_mut().find(|device| device.source == source)
    }
}

/// Failures, and from where users signed in. Times are milliseconds on any clock that does not step back.
#[derive(Default)]
pub(crate) struct Throttle(RwLock<Buckets>);

impl Throttle {
    /// May this user's password be computed? If not, after which time.
    pub(crate) fn begin(self: &Arc<Self>, actor: &Actor, address: Option<IpAddr>, now_ms: u64) -> Result<Attempt, Duration> {
        let mut guard = self.0.write();
        let buckets = &mut *guard;
        let source = address.map(Source::of);
        if let Some(device) = source.and_then(|source| buckets.device(actor, source)).filter(|device| device.is_known(now_ms)) {
            device.bucket.take(&PER_USER, now_ms)?;
            return Ok(Attempt { throttle: Arc::clone(self), actor: actor.clone(), source, way: Way::Known, failed_ms: None });
        }
        let mut user = buckets.users.get(actor).copied().unwrap_or_default();
        let has_failed = !user.is_full(now_ms);
        user.take(&PER_USER, now_ms)?;
        if let Some(bucket) = source.and_then(|source| buckets.sources.get(&source)) {
            bucket.look(&PER_SOURCE, now_ms)?;
        }
        if has_failed {
            buckets.node.take(&PER_NODE, now_ms)?;
        }
        make_room(&mut buckets.users, actor, now_ms);
        buckets.users.insert(actor.clone(), user);
        let way = Way::New { of_node: has_failed };
        Ok(Attempt { throttle: Arc::clone(self), actor: actor.clone(), source, way, failed_ms: None })
    }

    /// This user has signed in from there.
    pub(crate) fn signed_in(&self, actor: &Actor, address: Option<IpAddr>, now_ms: u64) {
        let Some(source) = address.map(Source::of) else { return };
        // Nearly always it is known, and nothing is written.
        let is_fresh = |device: &Device| device.source == source && now_ms < device.known_ms + limits::LOGIN_DEVICE_MS / 2;
        if self.0.read().devices.get(actor).is_some_and(|devices| devices.iter().any(is_fresh)) {
            return;
        }
        let mut buckets = self.0.write();
        if buckets.devices.len() >= limits::LOGIN_FAILURE_USERS_MAX && !buckets.devices.contains_key(actor) {
            buckets.devices.retain(|_, devices| devices.last().is_some_and(|device| device.is_known(now_ms)));
            let last_ms = |devices: &Vec<Device>| devices.last().map(|device| device.known_ms);
            let oldest = buckets.devices.iter().min_by_key(|(_, devices)| last_ms(devices)).map(|(actor, _)| actor.clone());
            if let Some(oldest) = oldest.filter(|_| buckets.devices.len() >= limits::LOGIN_FAILURE_USERS_MAX) {
                buckets.devices.remove(&oldest);
            }
        }
        let devices = buckets.devices.entry(actor.clone()).or_default();
        let bucket = devices.iter().find(|device| device.source == source).map(|device| device.bucket).unwrap_or_default();
        devices.retain(|device| device.source != source);
        if devices.len() == limits::LOGIN_DEVICES_MAX {
            devices.remove(0);
        }
        devices.push(Device { source, known_ms: now_ms, bucket });
    }
}

/// Room for one more: whose bucket is full needs none, and then who is soonest without a failure.
fn make_room<K: Ord + Clone>(buckets: &mut BTreeMap<K, Bucket>, new: &K, now_ms: u64) {
    if buckets.len() < limits::LOGIN_FAILURE_USERS_MAX || buckets.contains_key(new) {
        return;
    }
    buckets.retain(|_, bucket| !bucket.is_full(now_ms));
    if buckets.len() < limits::LOGIN_FAILURE_USERS_MAX {
        return;
    }
    let soonest = buckets.iter().min_by_key(|(_, bucket)| bucket.full_at_ms).map(|(key, _)| key.clone());
    if let Some(key) = soonest {
        buckets.remove(&key);
    }
}

/// Against what a check counts.
enum Way {
    /// Against the user at an address that is known.
    Known,
    /// Against the user, the address, and the node if the user has failed before.
    New { of_node: bool },
}

/// A check under way. Dropped, it gives back what it took, unless it failed.
pub(crate) struct Attempt {
    throttle: Arc<Throttle>,
    actor: Actor,
    source: Option<Source>,
    way: Way,
    failed_ms: Option<u64>,
}

impl Attempt {
    /// The password was wrong.
    pub(crate) fn failed(mut self, now_ms: u64) {
        self.failed_ms = Some(now_ms);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut guard = self.throttle.0.write();
        let buckets = &mut *guard;
        match (&self.way, self.failed_ms) {
            (Way::Known, Some(_)) => {}
            (Way::Known, None) => {
                if let Some(device) = self.source.and_then(|source| buckets.device(&self.actor, source)) {
                    device.bucket.give_back(&PER_USER);
                }
            }
            (Way::New { .. }, Some(now_ms)) => {
                if let Some(source) = self.source {
                    make_room(&mut buckets.sources, &source, now_ms);
                    buckets.sources.entry(source).or_default().spend(&PER_SOURCE, now_ms);
                }
            }
            (Way::New { of_node }, None) => {
                if let Some(user) = buckets.users.get_mut(&self.actor) {
                    user.give_back(&PER_USER);
                }
                if *of_node {
                    buckets.node.give_back(&PER_NODE);
                }
            }
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
        fail_from(throttle, name, None, now_ms)
    }

    fn fail_from(throttle: &Arc<Throttle>, name: &str, from: Option<&str>, now_ms: u64) -> Result<(), u128> {
        let from = from.map(|text| text.parse().expect("an address"));
        throttle.begin(&actor(name), from, now_ms).map(|attempt| attempt.failed(now_ms)).map_err(|wait| wait.as_millis())
    }

    fn sign_in(throttle: &Throttle, name: &str, from: &str, now_ms: u64) {
        throttle.signed_in(&actor(name), Some(from.parse().expect("an address")), now_ms);
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
            drop(throttle.begin(&actor("joe"), None, 0).expect("one is left, and comes back"));
        }
        assert_eq!(fail(&throttle, "joe", 0), Ok(()));
        assert!(throttle.begin(&actor("joe"), None, 0).is_err());
    }

    #[test]
    fn checks_at_the_same_time_are_counted() {
        let throttle = Arc::new(Throttle::default());
        let under_way: Vec<Attempt> = (0..5).map(|_| throttle.begin(&actor("joe"), None, 0).expect("five")).collect();
        assert!(throttle.begin(&actor("joe"), None, 0).is_err());
        drop(under_way);
        assert!(throttle.begin(&actor("joe"), None, 0).is_ok());
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
        assert_eq!(throttle.0.read().users.len(), limits::LOGIN_FAILURE_USERS_MAX);
        assert_eq!(fail(&throttle, "later", 60_000), Ok(()));
        assert_eq!(throttle.0.read().users.len(), 1, "whose bucket is full needs no entry");
    }

    #[test]
    fn who_signed_in_from_an_address_is_not_held_up_there_by_the_failures_of_others() {
        let throttle = Arc::new(Throttle::default());
        sign_in(&throttle, "admin", "10.0.0.7", 0);
        for at in 0..5 {
            assert_eq!(fail_from(&throttle, "admin", Some(&format!("192.0.2.{at}")), 0), Ok(()));
        }
        assert!(fail_from(&throttle, "admin", Some("192.0.2.9"), 0).is_err(), "wherever else somebody is, they wait");
        for _ in 0..100 {
            drop(throttle.begin(&actor("admin"), Some("10.0.0.7".parse().expect("an address")), 0).expect("known here"));
        }
        for _ in 0..5 {
            assert_eq!(fail_from(&throttle, "admin", Some("10.0.0.7"), 0), Ok(()), "failures here are counted by themselves");
        }
        assert_eq!(fail_from(&throttle, "admin", Some("10.0.0.7"), 0), Err(12_000));
        assert!(fail_from(&throttle, "joe", Some("10.0.0.7"), 0).is_ok(), "who is known here is one user, and no other");
    }

    #[test]
    fn an_address_is_known_for_a_week_and_a_use_in_between_makes_it_longer() {
        let (throttle, day_ms) = (Arc::new(Throttle::default()), 86_400_000);
        let is_known = |now_ms| {
            throttle
                .0
                .write()
                .device(&actor("joe"), Source::of("10.0.0.7".parse().expect("an address")))
                .is_some_and(|device| device.is_known(now_ms))
        };
        sign_in(&throttle, "joe", "10.0.0.7", 0);
        assert!(is_known(7 * day_ms - 1) && !is_known(7 * day_ms));
        sign_in(&throttle, "joe", "10.0.0.7", 4 * day_ms);
        assert!(is_known(11 * day_ms - 1) && !is_known(11 * day_ms));
    }

    #[test]
    fn an_address_has_32_failures_over_all_users_and_another_has_its_own() {
        let throttle = Arc::new(Throttle::default());
        for at in 0..32 {
            assert_eq!(fail_from(&throttle, &format!("u{at}"), Some("2001:db8::1"), 0), Ok(()), "{at}");
        }
        assert_eq!(fail_from(&throttle, "one-more", Some("2001:db8::ffff"), 0), Err(1_000), "of the same /64");
        assert_eq!(fail_from(&throttle, "one-more", Some("2001:db8:0:1::1"), 0), Ok(()));
        assert_eq!(fail_from(&throttle, "another", Some("::ffff:192.0.2.1"), 0), Ok(()));
        sign_in(&throttle, "joe", "2001:db8::2", 0);
        assert_eq!(fail_from(&throttle, "joe", Some("2001:db8::2"), 0), Ok(()), "who is known here does not wait for it");
        assert_eq!(fail_from(&throttle, "one-more", Some("2001:db8::1"), 1_000), Ok(()));
    }

    #[test]
    fn who_has_not_failed_is_not_in_the_way_of_others_at_the_same_address() {
        let throttle = Arc::new(Throttle::default());
        let from = Some("192.0.2.1".parse().expect("an address"));
        let under_way: Vec<Attempt> =
            (0..200).map(|at| throttle.begin(&actor(&format!("u{at}")), from, 0).expect("nobody has failed")).collect();
        under_way.into_iter().for_each(|attempt| attempt.failed(0));
        assert_eq!(
            fail_from(&throttle, "late", Some("192.0.2.1"), 0),
            Err(1_000),
            "many failures at once are no longer wait than many in turn"
        );
    }

    #[test]
    fn addresses_and_users_are_remembered_up_to_bounds() {
        let throttle = Arc::new(Throttle::default());
        for at in 0..limits::LOGIN_DEVICES_MAX + 3 {
            sign_in(&throttle, "joe", &format!("10.0.0.{at}"), at as u64);
        }
        let sources: Vec<String> = throttle.0.read().devices[&actor("joe")].iter().map(|device| device.source.0.to_string()).collect();
        assert_eq!(sources.len(), limits::LOGIN_DEVICES_MAX);
        assert_eq!(sources[0], "10.0.0.3", "the oldest goes");
        for at in 0..limits::LOGIN_FAILURE_USERS_MAX {
            sign_in(&throttle, &format!("u{at}"), "10.0.0.1", 100);
        }
        assert_eq!(throttle.0.read().devices.len(), limits::LOGIN_FAILURE_USERS_MAX);
        assert!(!throttle.0.read().devices.contains_key(&actor("joe")), "who was away longest goes");
        for at in 0..=limits::LOGIN_FAILURE_USERS_MAX {
            let from = IpAddr::from([10, 1, u8::try_from(at / 256).expect("few"), u8::try_from(at % 256).expect("few")]);
            throttle.begin(&actor(&format!("x{at}")), Some(from), 0).expect("the first failure of each").failed(0);
        }
        assert_eq!(throttle.0.read().sources.len(), limits::LOGIN_FAILURE_USERS_MAX);
    }
}
