use std::cell::Cell;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::join_all;
use proptest::prelude::*;

use super::*;
use veena_contract::{TenantId, Username};

const CANARY: &str = "canary-7Qx-hunter2";

fn header(username: &str, password: &str) -> Vec<u8> {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))).into_bytes()
}

fn actor(text: &str) -> Actor {
    let (name, tenant) = text.split_once('@').unwrap_or((text, TenantId::DEFAULT));
    Actor { tenant: TenantId::parse(tenant).expect("a name"), username: Username::parse(name).expect("a name"), checked: None }
}

fn password(text: &str) -> Password {
    Password::new(text.to_owned()).expect("a password")
}

fn hash(text: &str) -> PasswordHash {
    PasswordHash::compute(&password(text)).expect("random")
}

/// A hash that costs next to nothing, so that a test may check often.
fn cheap(text: &str) -> PasswordHash {
    let params = argon2::Params::new(8, 1, 1, Some(32)).expect("valid");
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let hash = argon2::PasswordHasher::hash_password_with_salt(&argon2, text.as_bytes(), b"0123456789abcdef").expect("valid");
    PasswordHash::try_from(hash.to_string()).expect("short enough")
}

fn new() -> Authenticator {
    Authenticator::new().expect("random")
}

impl Authenticator {
    async fn login(&self, name: &str, password: &str, stored: Option<&PasswordHash>) -> Result<Actor, AuthError> {
        self.login_from(None, name, password, stored).await
    }

    async fn login_from(&self, from: Option<&str>, name: &str, password: &str, stored: Option<&PasswordHash>) -> Result<Actor, AuthError> {
        let from = from.map(|text| text.parse().expect("an address"));
        self.authenticate(Some(&header(name, password)), from, |_| stored.cloned()).await
    }

    fn computing(&self) -> usize {
        self.0.flights.lock().list.len()
    }
}

#[tokio::test]
async fn the_right_password_names_the_user_and_nothing_else_does() {
    let (auth, stored) = (new(), hash("right"));
    assert_eq!(auth.login("joe", "right", Some(&stored)).await, Ok(actor("joe")));
    assert_eq!(auth.login("joe", "wrong", Some(&stored)).await, Err(AuthError::Wrong));
    assert_eq!(auth.login("joe", "right", None).await, Err(AuthError::Wrong), "no such user");
    assert_eq!(auth.authenticate(None, None, |_| unreachable!("nobody is named")).await, Err(AuthError::Missing));
    assert_eq!(auth.authenticate(Some(b"Bearer x"), None, |_| unreachable!("nobody is named")).await, Err(AuthError::Missing));
    assert_eq!(auth.authenticate(Some(b"Basic x"), None, |_| unreachable!("nobody is named")).await, Err(AuthError::Wrong));
}

#[tokio::test]
async fn a_user_says_of_which_tenant_and_of_default_unless_it_is_said() {
    let (auth, stored) = (new(), cheap("right"));
    for (name, who) in [("joe", "joe@default"), ("joe@default", "joe@default"), ("joe@acme", "joe@acme")] {
        let mut asked = None;
        let lookup = |actor: &Actor| {
            asked = Some(actor.clone());
            Some(stored.clone())
        };
        assert_eq!(auth.authenticate(Some(&header(name, "right")), None, lookup).await, Ok(actor(who)));
        assert_eq!(asked, Some(actor(who)));
    }
    for name in ["joe@", "joe@ACME", "joe@a@b"] {
        let outcome = auth.authenticate(Some(&header(name, "right")), None, |_| unreachable!("no tenant has such a name")).await;
        assert_eq!(outcome, Err(AuthError::Wrong), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_user_says_nothing_of_who_has_the_same_name_in_another_tenant() {
    let (auth, stored) = (new(), cheap("right"));
    assert!(auth.login("joe", "right", Some(&stored)).await.is_ok());
    let places: Vec<Place> = (0..limits::PASSWORD_CHECKS_MAX).map(|_| auth.0.permits.try_join().expect("free")).collect();
    let busy = Err(AuthError::Busy { retry_after: RETRY });
    assert_eq!(auth.login("joe@acme", "right", Some(&stored)).await, busy, "the same hash and password, and another user: it is computed");
    drop(places);
    for guess in 0..limits::LOGIN_FAILURES_MAX {
        assert_eq!(auth.login("joe@acme", &format!("guess{guess}"), Some(&stored)).await, Err(AuthError::Wrong));
    }
    assert!(matches!(auth.login("joe@acme", "right", Some(&stored)).await, Err(AuthError::Throttled { .. })));
    assert_eq!(auth.login("joe", "another", Some(&stored)).await, Err(AuthError::Wrong), "only who failed is throttled");
}

#[tokio::test]
async fn a_repeat_computes_nothing_until_the_password_changes_or_the_user_is_gone() {
    let (auth, stored) = (new(), cheap("right"));
    assert!(auth.login("joe", "right", Some(&stored)).await.is_ok());
    // with no turn to be had, only what is remembered is answered
    let places: Vec<Place> = (0..limits::PASSWORD_CHECKS_MAX).map(|_| auth.0.permits.try_join().expect("free")).collect();
    assert!(auth.login("joe", "right", Some(&stored)).await.is_ok());
    let busy = Err(AuthError::Busy { retry_after: RETRY });
    assert_eq!(auth.login("joe", "right", Some(&hash("right"))).await, busy, "a new salt is a new password");
    assert_eq!(auth.login("joe", "wrong", Some(&stored)).await, busy);
    assert_eq!(auth.login("joe", "right", None).await, busy);
    drop(places);
    assert_eq!(auth.login("joe", "right", Some(&cheap("changed"))).await, Err(AuthError::Wrong));
    assert_eq!(auth.login("joe", "right", None).await, Err(AuthError::Wrong));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_password_counts_once_while_it_is_remembered() {
    let (auth, stored) = (new(), cheap("right"));
    for _ in 0..50 {
        assert_eq!(auth.login("joe", "stale", Some(&stored)).await, Err(AuthError::Wrong));
    }
    for guess in ["1", "2", "3", "4"] {
        assert_eq!(auth.login("joe", guess, Some(&stored)).await, Err(AuthError::Wrong), "{guess}");
    }
    assert_eq!(auth.login("joe", "5", Some(&stored)).await, Err(AuthError::Throttled { retry_after: Duration::from_secs(12) }));
    assert_eq!(auth.login("joe", "stale", Some(&stored)).await, Err(AuthError::Wrong), "what is known needs no check");
    tokio::time::advance(Duration::from_secs(12)).await;
    assert_eq!(auth.login("joe", "right", Some(&stored)).await, Ok(actor("joe")));
}

#[tokio::test(start_paused = true)]
async fn who_was_let_in_before_is_let_in_while_others_guess() {
    let (auth, stored) = (new(), cheap("right"));
    assert!(auth.login("joe", "right", Some(&stored)).await.is_ok());
    for guess in 0..20 {
        assert!(auth.login("joe", &format!("guess{guess}"), Some(&stored)).await.is_err());
    }
    assert_eq!(auth.login("joe", "right", Some(&stored)).await, Ok(actor("joe")));
}

#[tokio::test]
async fn the_same_credentials_at_the_same_time_are_checked_once() {
    let (auth, stored) = (new(), hash("right"));
    for (text, says) in [("right", Ok(actor("joe"))), ("wrong", Err(AuthError::Wrong))] {
        let before = Arc::strong_count(&auth.0);
        let waiting: Vec<_> = (0..100).map(|_| Box::pin(auth.login("joe", text, Some(&stored)))).collect();
        let all = join_all(waiting);
        let seen = Cell::new(0);
        let watched = async {
            tokio::task::yield_now().await;
            seen.set(auth.computing());
        };
        let (answers, ()) = tokio::join!(all, watched);
        assert!(answers.iter().all(|answer| *answer == says), "{answers:?}");
        assert_eq!(seen.get(), 1);
        assert_eq!((auth.computing(), Arc::strong_count(&auth.0)), (0, before), "nothing is left of it");
    }
    // one wrong check was counted, so that four are left
    for guess in ["1", "2", "3", "4"] {
        assert_eq!(auth.login("joe", guess, Some(&cheap("right"))).await, Err(AuthError::Wrong), "{guess}");
    }
    assert!(matches!(auth.login("joe", "5", Some(&stored)).await, Err(AuthError::Throttled { .. })));
}

#[tokio::test]
async fn a_caller_that_goes_away_fails_no_other() {
    let (auth, stored) = (new(), hash("right"));
    let mut first = Box::pin(auth.login("joe", "right", Some(&stored)));
    assert!(first.as_mut().now_or_never().is_none(), "it computes");
    let mut second = Box::pin(auth.login("joe", "right", Some(&stored)));
    assert!(second.as_mut().now_or_never().is_none(), "it waits for the first");
    assert_eq!(auth.computing(), 1);
    drop(first);
    assert_eq!(second.await, Ok(actor("joe")));
}

#[tokio::test]
async fn a_check_that_nobody_waits_for_any_more_is_not_begun_and_leaves_nothing() {
    let (auth, stored) = (new(), hash("right"));
    let taken = auth.0.permits.all_turns().await;
    let mut waits = Box::pin(auth.login("joe", "right", Some(&stored)));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(auth.computing(), 1);
    drop(waits);
    assert_eq!(auth.computing(), 0);
    assert_eq!(Arc::strong_count(&auth.0), 1);
    drop(taken);
    assert_eq!(auth.login("joe", "right", Some(&stored)).await, Ok(actor("joe")));
}

#[tokio::test(start_paused = true)]
async fn going_away_does_not_spare_a_guesser_the_failure() {
    let (auth, stored) = (new(), hash("right"));
    for guess in ["1", "2", "3", "4", "5"] {
        let mut begun = Box::pin(auth.login("joe", guess, Some(&stored)));
        assert!(begun.as_mut().now_or_never().is_none(), "{guess}");
        drop(begun);
        // a turn comes back when the computation has ended
        drop(auth.0.permits.all_turns().await);
    }
    assert!(matches!(auth.login("joe", "6", Some(&stored)).await, Err(AuthError::Throttled { .. })));
    assert_eq!(auth.login("joe", "5", Some(&stored)).await, Err(AuthError::Wrong), "what was found is remembered");
}

/// What was answered to these passwords, in turn, and how many were computed.
async fn course(
    auth: &Authenticator,
    name: &str,
    stored: Option<&PasswordHash>,
    passwords: &[&str],
) -> Vec<(Result<Actor, AuthError>, usize)> {
    let mut course = Vec::new();
    for password in passwords {
        let before = auth.0.permits.computed();
        let answer = auth.login_from(Some("192.0.2.1"), name, password, stored).await;
        course.push((answer, auth.0.permits.computed() - before));
    }
    course
}

#[tokio::test(start_paused = true)]
async fn whether_a_name_is_a_users_shows_in_no_answer_and_in_no_work() {
    let stored = cheap("right");
    // a repeat, a new one, and on until it is throttled; what is remembered is answered then too
    let passwords = ["1", "1", "2", "3", "4", "5", "5", "6", "1", "7"];
    let known = course(&new(), "joe", Some(&stored), &passwords).await;
    let unknown = course(&new(), "joe", None, &passwords).await;
    assert_eq!(known, unknown);
    assert_eq!(known.iter().map(|(_, computed)| *computed).collect::<Vec<_>>(), [1, 0, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert!(matches!(known[7].0, Err(AuthError::Throttled { .. })));
    // who is made meanwhile has not failed with this password, and is let in once it is their turn
    let auth = new();
    assert_eq!(auth.login("joe", "right", None).await, Err(AuthError::Wrong));
    assert_eq!(auth.login("joe", "right", Some(&stored)).await, Ok(actor("joe")));
}

#[tokio::test(start_paused = true)]
async fn whoever_sends_wrong_passwords_for_a_user_keeps_nobody_out_where_they_signed_in_before() {
    let (auth, stored) = (new(), cheap("right"));
    let login = async |from: &'static str, password: String| auth.login_from(Some(from), "joe", &password, Some(&stored)).await;
    assert!(login("10.0.0.7", "right".to_owned()).await.is_ok());
    // by now what was found right is forgotten, and a check is needed
    tokio::time::advance(Duration::from_millis(limits::VERIFIED_IDLE_MS)).await;
    for guess in 0..limits::LOGIN_FAILURES_MAX {
        assert_eq!(login("192.0.2.1", format!("guess{guess}")).await, Err(AuthError::Wrong));
    }
    let elsewhere = login("10.0.0.8", "right".to_owned()).await;
    assert!(matches!(elsewhere, Err(AuthError::Throttled { .. })), "an address that nobody knows waits: {elsewhere:?}");
    assert_eq!(login("10.0.0.7", "right".to_owned()).await, Ok(actor("joe")));
    // what is remembered lets in from anywhere, and that makes the address known
    assert_eq!(login("10.0.0.8", "right".to_owned()).await, Ok(actor("joe")));
    tokio::time::advance(Duration::from_millis(limits::VERIFIED_IDLE_MS)).await;
    for guess in 0..limits::LOGIN_FAILURES_MAX {
        assert_eq!(login("192.0.2.1", format!("later{guess}")).await, Err(AuthError::Wrong));
    }
    assert_eq!(login("10.0.0.8", "right".to_owned()).await, Ok(actor("joe")));
}

#[tokio::test]
async fn strangers_take_a_bounded_part_of_the_line() {
    let (auth, stored) = (new(), hash("right"));
    let strangers: Vec<_> = (0..100).map(|at| format!("stranger{at}")).collect();
    let mut waiting: Vec<_> = strangers.iter().map(|name| Box::pin(auth.login(name, "x", None))).collect();
    let refused = waiting.iter_mut().filter_map(|login| login.as_mut().now_or_never()).collect::<Vec<_>>();
    assert_eq!(refused.len(), 100 - limits::PASSWORD_CHECKS_UNKNOWN_MAX);
    assert!(refused.iter().all(|answer| *answer == Err(AuthError::Throttled { retry_after: RETRY })), "{refused:?}");
    let mut joe = Box::pin(auth.login("joe", "right", Some(&stored)));
    assert!(joe.as_mut().now_or_never().is_none(), "a user still finds a place");
    drop(waiting);
    assert_eq!(joe.await, Ok(actor("joe")));
}

#[tokio::test]
async fn a_stored_hash_that_is_not_computed_is_no_failure_of_the_user() {
    let auth = new();
    let costly = PasswordHash::try_from(
        "$argon2id$v=19$m=4194304,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned(),
    );
    let costly = costly.expect("short enough");
    for _ in 0..10 {
        assert_eq!(auth.login("joe", "right", Some(&costly)).await, Err(AuthError::Unavailable));
    }
}

#[tokio::test]
async fn a_new_password_is_hashed_and_known() {
    let auth = new();
    let stored = auth.hash(password("new")).await.expect("a turn");
    assert_eq!(auth.check(&actor("joe"), None, password("new"), Some(&stored)).await, Ok(()));
    assert_eq!(auth.check(&actor("joe"), None, password("old"), Some(&stored)).await, Err(AuthError::Wrong));
}

#[tokio::test]
async fn the_future_may_move_between_threads() {
    const fn is_send<T: Send>(it: T) -> T {
        it
    }
    let (auth, stored) = (new(), cheap("right"));
    assert!(is_send(auth.login("joe", "right", Some(&stored))).await.is_ok());
}

/// Everything that can be printed and has seen a password.
#[tokio::test(start_paused = true)]
async fn nothing_that_can_be_printed_shows_a_password_or_its_hash() {
    let (auth, stored) = (new(), hash(CANARY));
    let mut shown = vec![format!("{stored:?}"), format!("{:?}", Some(&stored))];
    for given in [CANARY, "wrong", CANARY, &CANARY.repeat(5)] {
        for stored in [Some(&stored), None] {
            let answer = auth.login("joe", given, stored).await;
            shown.push(format!("{answer:?} {}", answer.as_ref().err().map(ToString::to_string).unwrap_or_default()));
        }
    }
    for text in [header("joe", CANARY), header("joe", &CANARY.repeat(5)), CANARY.into(), header("j e", CANARY), header(CANARY, "")] {
        if let Err(error) = Credentials::parse(&text) {
            shown.push(format!("{error:?} {error}"));
        }
    }
    for text in [CANARY.repeat(5), String::new()] {
        let error = Password::new(text).err().expect("no password");
        shown.push(format!("{error:?} {error}"));
    }
    for text in [CANARY.to_owned(), format!("$argon2id${CANARY}"), CANARY.repeat(20)] {
        let answer = PasswordHash::try_from(text).and_then(|hash| hash.verify(&password(CANARY)));
        let error = answer.expect_err("no hash");
        shown.push(format!("{error:?} {error}"));
    }
    let (_, computed) = stored.text().rsplit_once('$').expect("parts");
    for text in shown {
        let encoded = STANDARD.encode(CANARY);
        assert!(!text.contains(CANARY) && !text.contains(&encoded[..16]) && !text.contains(computed), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_header_lets_anybody_in_who_has_no_password(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (auth, stored) = (new(), cheap(CANARY));
        let answer = runtime.block_on(auth.authenticate(Some(&bytes), None, |_| Some(stored)));
        prop_assert!(answer.is_err());
        let framed = format!("Basic {}", STANDARD.encode(&bytes)).into_bytes();
        let stored = cheap(CANARY);
        let answer = runtime.block_on(auth.authenticate(Some(&framed), None, |_| Some(stored)));
        prop_assert!(answer.is_err());
    }
}
