//! One connection, as its handler, its socket and its watchdog see it together: which phase it is in since when, who its peer is, and
//! which leases ride on answers that the socket has not taken yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use tokio::time::Instant;
use veena_broker::engine::Deliveries;
use veena_contract::{Actor, TenantId, limits};

/// Something that rides on an answer: it counts once the socket has taken the answer, and is released when dropped before.
pub(crate) trait Written: Send + 'static {
    /// The socket has taken the answer.
    fn written(self);
}

impl Written for Deliveries {
    fn written(self) {
        Deliveries::written(self);
    }
}

/// What a connection is doing. Each but `Busy` has a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Open, nothing received yet.
    New = 0,
    /// Between requests.
    Idle = 1,
    /// A request's head has begun to arrive.
    Head = 2,
    /// A handler is at work, maybe parked in a long poll; it keeps its own time.
    Busy = 3,
    /// An answer is on its way out.
    Answering = 4,
}

/// How long each phase may last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseLimits {
    pub(crate) head: Duration,
    pub(crate) idle: Duration,
    pub(crate) answer: Duration,
}

impl PhaseLimits {
    /// How often a connection is looked at while nothing limits it.
    pub(crate) fn step(&self) -> Duration {
        self.head.min(self.idle).min(self.answer)
    }
}

/// What the watchdog should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Look again then.
    Until(Instant),
    /// The phase has lasted too long: close.
    Expired,
}

/// State shared by the parts of one connection.
pub(crate) struct Conn<D = Deliveries> {
    opened: Instant,
    phase: AtomicU8,
    since_ms: AtomicU64,
    linger: AtomicBool,
    leases: Mutex<SmallVec<[D; 1]>>,
    /// Until when the limits of a tenant leave its requests alone, after one was refused.
    paused: Mutex<Option<(TenantId, Instant)>>,
    pub(crate) identity: Arc<Identity>,
}

impl<D: Written> Conn<D> {
    pub(crate) fn new(identity: Arc<Identity>) -> Self {
        Self {
            opened: Instant::now(),
            phase: AtomicU8::new(Phase::New as u8),
            since_ms: AtomicU64::new(0),
            linger: AtomicBool::new(false),
            leases: Mutex::new(SmallVec::new()),
            paused: Mutex::new(None),
            identity,
        }
    }

    fn enter(&self, phase: Phase) {
        let elapsed = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(elapsed, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Bytes arrived: if no request was under way, one has begun.
    pub(crate) fn bytes_arrived(&self) {
        if self.phase.load(Ordering::Relaxed) <= Phase::Idle as u8 {
            self.enter(Phase::Head);
        }
    }

    /// A request's head is complete.
    pub(crate) fn request_began(&self) {
        self.linger.store(false, Ordering::Relaxed);
        self.phase.store(Phase::Busy as u8, Ordering::Relaxed);
    }

    /// The handler has answered.
    pub(crate) fn answer_began(&self) {
        self.enter(Phase::Answering);
    }

    /// Leases on their way: they stand once the socket has taken everything written so far.
    pub(crate) fn riding(&self, leases: D) {
        self.leases.lock().push(leases);
    }

    /// The socket has taken everything that was written.
    pub(crate) fn flushed(&self) {
        let riding = std::mem::take(&mut *self.leases.lock());
        for leases in riding {
            leases.written();
        }
        if self.phase.load(Ordering::Relaxed) == Phase::Answering as u8 {
            self.enter(Phase::Idle);
        }
    }

    /// A request was answered before its body was read: do not reset the connection under the answer.
    pub(crate) fn linger_at_close(&self) {
        self.linger.store(true, Ordering::Relaxed);
    }

    pub(crate) fn lingers(&self) -> bool {
        self.linger.load(Ordering::Relaxed)
    }

    /// A tenant is over a limit: its requests on this connection are left alone until then.
    pub(crate) fn pause(&self, tenant: TenantId, until: Instant) {
        *self.paused.lock() = Some((tenant, until));
    }

    /// Until when requests of this tenant are left alone; told once.
    pub(crate) fn paused(&self, tenant: &TenantId) -> Option<Instant> {
        let mut paused = self.paused.lock();
        if paused.as_ref().is_some_and(|(of, _)| of == tenant) { paused.take().map(|(_, until)| until) } else { None }
    }

    /// Has the phase lasted too long?
    pub(crate) fn watch(&self, now: Instant, limits: &PhaseLimits) -> Watch {
        let phase = self.phase.load(Ordering::Relaxed);
        let limit = if phase == Phase::Busy as u8 {
            return Watch::Until(now + limits.step());
        } else if phase == Phase::Idle as u8 {
            limits.idle
        } else if phase == Phase::Answering as u8 {
            limits.answer
        } else {
            limits.head
        };
        let until = self.opened + Duration::from_millis(self.since_ms.load(Ordering::Relaxed)) + limit;
        if now >= until { Watch::Expired } else { Watch::Until(until) }
    }
}

/// Who is calling, as far as limits are concerned: the user; without security, the peer's address.
#[derive(Default)]
pub(crate) struct Identity {
    /// The address, of a peer.
    pub(crate) address: Option<IpAddr>,
    consumes: AtomicUsize,
    produces: AtomicUsize,
    password_changes: AtomicUsize,
}

/// A counted part of an identity's cap, given back when dropped.
pub(crate) struct InFlight<'a> {
    counter: &'a AtomicUsize,
    count: usize,
}

impl Identity {
    /// Room for consumes of `count` messages, unless the cap (0: none) is reached.
    pub(crate) fn consume(&self, count: usize, max: usize) -> Option<InFlight<'_>> {
        InFlight::take(&self.consumes, count, max)
    }

    /// Room for one produce, unless the cap (0: none) is reached.
    pub(crate) fn produce(&self, max: usize) -> Option<InFlight<'_>> {
        InFlight::take(&self.produces, 1, max)
    }

    /// Room for a change of the password: one at a time.
    pub(crate) fn change_password(&self) -> Option<InFlight<'_>> {
        InFlight::take(&self.password_changes, 1, 1)
    }
}

impl<'a> InFlight<'a> {
    fn take(counter: &'a AtomicUsize, count: usize, max: usize) -> Option<Self> {
        let count = if max == 0 { 0 } else { count.min(max) };
        let before = counter.fetch_add(count, Ordering::Relaxed);
        let taken = Self { counter, count };
        (count == 0 || before + count <= max).then_some(taken)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// The identities that have a connection open. Ordered, because callers choose their addresses.
#[derive(Default)]
pub(crate) struct Identities {
    open: Mutex<BTreeMap<IpAddr, (Arc<Identity>, usize)>>,
}

impl Identities {
    pub(crate) fn enter(&self, address: IpAddr) -> Arc<Identity> {
        let mut open = self.open.lock();
        let new = || (Arc::new(Identity { address: Some(address), ..Identity::default() }), 0);
        let (identity, connections) = open.entry(address).or_insert_with(new);
        *connections += 1;
        Arc::clone(identity)
    }

    pub(crate) fn leave(&self, address: IpAddr) {
        let mut open = self.open.lock();
        if let Some((_, connections)) = open.get_mut(&address) {
            *connections -= 1;
            if *connections == 0 {
                open.remove(&address);
            }
        }
    }
}

#[derive(Default)]
struct Seen {
    by_user: BTreeMap<Actor, Arc<Identity>>,
    /// How many there are when it is next looked for those that nobody holds: where many are held, not at each that comes.
    look_at: usize,
}

/// The identities of users. One that is forgotten and comes again counts from zero, so only those go that nobody holds.
#[derive(Default)]
pub(crate) struct Users {
    seen: RwLock<Seen>,
}

impl Users {
    pub(crate) fn of(&self, user: &Actor) -> Arc<Identity> {
        if let Some(identity) = self.seen.read().by_user.get(user) {
            return Arc::clone(identity);
        }
        let mut seen = self.seen.write();
        if seen.by_user.len() >= seen.look_at.max(limits::VERIFIED_USERS_MAX) {
            seen.by_user.retain(|_, identity| Arc::strong_count(identity) > 1);
            seen.look_at = 2 * seen.by_user.len();
        }
        Arc::clone(seen.by_user.entry(user.clone()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{TenantId, Username};

    use super::*;

    impl Written for Arc<AtomicUsize> {
        fn written(self) {
            self.fetch_add(1, Ordering::Relaxed);
        }
    }

    const LIMITS: PhaseLimits =
        PhaseLimits { head: Duration::from_secs(10), idle: Duration::from_secs(60), answer: Duration::from_secs(30) };

    #[tokio::test(start_paused = true)]
    async fn a_parked_request_never_expires_and_every_other_phase_does() {
        let conn: Conn<Arc<AtomicUsize>> = Conn::new(Arc::default());
        let later = |s| Instant::now() + Duration::from_secs(s);
        assert_eq!(conn.watch(later(10), &LIMITS), Watch::Expired);
        conn.bytes_arrived();
        assert_eq!(conn.watch(later(10), &LIMITS), Watch::Expired);
        conn.request_began();
        assert!(matches!(conn.watch(later(1000), &LIMITS), Watch::Until(_)));
        conn.answer_began();
        assert!(matches!(conn.watch(later(29), &LIMITS), Watch::Until(_)));
        assert_eq!(conn.watch(later(30), &LIMITS), Watch::Expired);
        conn.flushed();
        assert!(matches!(conn.watch(later(59), &LIMITS), Watch::Until(_)));
        assert_eq!(conn.watch(later(60), &LIMITS), Watch::Expired);
    }

    #[test]
    fn leases_count_when_the_socket_took_them_and_not_before() {
        let count = Arc::new(AtomicUsize::new(0));
        let conn = Conn::new(Arc::default());
        conn.riding(Arc::clone(&count));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        conn.flushed();
        conn.flushed();
        assert_eq!(count.load(Ordering::Relaxed), 1);
        conn.riding(Arc::clone(&count));
        drop(conn);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&count), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_tenant_that_was_refused_is_left_alone_and_once() {
        let conn: Conn<Arc<AtomicUsize>> = Conn::new(Arc::default());
        let (theirs, others) = (TenantId::default_tenant(), TenantId::parse("other").expect("a name"));
        assert_eq!(conn.paused(&theirs), None);
        let until = Instant::now() + Duration::from_secs(1);
        conn.pause(theirs.clone(), until);
        assert_eq!((conn.paused(&others), conn.paused(&theirs), conn.paused(&theirs)), (None, Some(until), None));
    }

    #[test]
    fn a_cap_counts_live_requests_only() {
        let identity = Identity::default();
        let first = identity.consume(3, 4).expect("room");
        assert!(identity.consume(2, 4).is_none());
        let second = identity.consume(1, 4).expect("room");
        drop((first, second));
        assert!(identity.consume(100, 4).is_some(), "one request larger than the cap is clamped to it");
        assert!(identity.consume(100, 0).is_some());
    }

    #[test]
    fn users_are_counted_by_name_and_forgotten_only_when_nobody_holds_them() {
        let users = Users::default();
        let name = |number: usize| Actor {
            tenant: TenantId::default_tenant(),
            username: Username::parse(&format!("u{number}")).expect("a name"),
            checked: None,
        };
        let held = users.of(&name(0));
        assert!(Arc::ptr_eq(&held, &users.of(&name(0))) && !Arc::ptr_eq(&held, &users.of(&name(1))));
        for number in 0..=limits::VERIFIED_USERS_MAX {
            drop(users.of(&name(number)));
        }
        assert!(users.seen.read().by_user.len() <= 2);
        assert!(Arc::ptr_eq(&held, &users.of(&name(0))));

        let many: Vec<_> = (0..=limits::VERIFIED_USERS_MAX).map(|number| users.of(&name(number))).collect();
        let idle = users.of(&name(limits::VERIFIED_USERS_MAX + 1));
        drop(idle);
        drop(users.of(&name(limits::VERIFIED_USERS_MAX + 2)));
        assert!(users.seen.read().by_user.len() >= many.len() + 2, "while many are held, those that come do not throw each other out");
    }

    #[test]
    fn an_identity_is_forgotten_with_its_last_connection() {
        let identities = Identities::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        let (a, b) = (identities.enter(address), identities.enter(address));
        assert!(Arc::ptr_eq(&a, &b));
        identities.leave(address);
        assert!(Arc::ptr_eq(&a, &identities.enter(address)));
        identities.leave(address);
        identities.leave(address);
        assert!(identities.open.lock().is_empty());
    }
}
