//! Service accounts and their keys.

use veena_contract::{FeatureLevel, Forbidden, KeyHash, KeyId, KeyRecord};

use super::users::{actor, by, create_user, delete_user, forbidden, grants, user, user_name, with_users};
use super::*;

pub(super) fn id(n: u8) -> KeyId {
    KeyId::parse(&format!("key{n:09}")).expect("an id")
}

pub(super) fn key(tenant: TenantId, username: Username, n: u8, created_at_ms: u64, expires_at_ms: Option<u64>) -> KeyRecord {
    let hash = KeyHash::new([n; 32]);
    KeyRecord { id: id(n), tenant, username, hash, scopes: None, created_at_ms, created_by: None, expires_at_ms, description: None }
}

fn other_tenant() -> TenantId {
    TenantId::parse("other").expect("a tenant")
}

pub(super) fn account(text: &str) -> UserRecord {
    UserRecord { kind: UserKind::Service, hash: None, ..user(text, &[]) }
}

fn create_key(n: u8) -> Command {
    Command::CreateKey { key: key(tenant(), user_name("ci"), n, 5, None) }
}

fn create_key_until(n: u8, created_at_ms: u64, expires_at_ms: u64) -> Command {
    Command::CreateKey { key: key(tenant(), user_name("ci"), n, created_at_ms, Some(expires_at_ms)) }
}

fn delete_key(n: u8) -> Command {
    Command::DeleteKey { tenant: tenant(), username: user_name("ci"), id: id(n) }
}

fn delete_account(text: &str) -> Command {
    Command::DeleteUser { tenant: tenant(), username: user_name(text), kind: UserKind::Service, by_hand: false }
}

fn with_account() -> State {
    let mut state = with_users();
    state.apply(Command::CreateUser { user: account("ci") }).expect("created");
    state
}

fn ids(state: &State) -> Vec<KeyId> {
    state.view().keys_of(&tenant(), &user_name("ci")).map(|key| key.id).collect()
}

#[test]
fn accounts_and_users_share_their_names_and_neither_is_taken_for_the_other() {
    let mut state = with_account();
    assert_eq!(state.apply(create_user("ci", &[])), Err(CommandError::AccountExists));
    for taken in ["ci", "joe", "admin"] {
        assert_eq!(
            state.apply(Command::CreateUser { user: UserRecord { is_root: false, ..account(taken) } }),
            Err(CommandError::AccountExists)
        );
    }
    assert_eq!(state.apply(delete_user("ci")), Err(CommandError::UserNotFound));
    assert_eq!(state.apply(delete_account("joe")), Err(CommandError::AccountNotFound));
    let set = |text, kind| Command::SetGrants {
        tenant: tenant(),
        username: user_name(text),
        kind,
        grants: grants(&[("produce", &["a"])]),
        at_ms: 9,
    };
    assert_eq!(state.apply(set("ci", UserKind::Person)), Err(CommandError::UserNotFound));
    assert_eq!(state.apply(set("joe", UserKind::Service)), Err(CommandError::AccountNotFound));
    state.apply(set("ci", UserKind::Service)).expect("set");
    let password =
        Command::SetPassword { tenant: tenant(), username: user_name("ci"), hash: StoredHash::new("x".into()), checked: None, at_ms: 9 };
    assert_eq!(state.apply(password), Err(CommandError::UserNotFound), "an account has no password");
    state.apply(delete_account("ci")).expect("deleted");
    state.apply(create_user("ci", &[])).expect("the name is free");
}

#[test]
fn a_key_is_an_accounts_and_goes_with_it() {
    let mut state = with_account();
    assert_eq!(state.apply(Command::CreateKey { key: key(tenant(), user_name("joe"), 1, 5, None) }), Err(CommandError::AccountNotFound));
    assert_eq!(
        state.apply(Command::CreateKey { key: key(other_tenant(), user_name("ci"), 1, 5, None) }),
        Err(CommandError::TenantNotFound)
    );
    state.apply(create_key(1)).expect("created");
    state.apply(create_key(2)).expect("created");
    assert_eq!(state.apply(create_key(1)), Err(CommandError::Changed), "an id is drawn once");
    assert_eq!(ids(&state), [id(1), id(2)]);
    state.apply(delete_key(1)).expect("deleted");
    state.apply(delete_key(1)).expect("once more is no matter");
    assert_eq!((ids(&state), state.view().key(&id(1)).is_some()), (vec![id(2)], false));
    state.apply(delete_account("ci")).expect("deleted");
    assert!(state.view().keys.is_empty() && state.view().account_keys.is_empty());
    state.apply(Command::CreateUser { user: account("ci") }).expect("anew");
    assert_eq!(ids(&state), []);
}

#[test]
fn an_account_has_few_keys_that_are_good_and_those_that_expired_do_not_count_and_are_forgotten_in_turn() {
    let mut state = with_account();
    for n in 0..5 {
        state.apply(create_key(n)).expect("room");
    }
    let refused = state.apply(create_key(5)).expect_err("no room");
    assert_eq!(refused.to_string(), "limit reached: an account has at most 5 keys that have not expired");
    state.apply(delete_key(0)).expect("deleted");
    for n in 10..17 {
        let n_ms = u64::from(n) * 100;
        state.apply(create_key_until(n, n_ms, n_ms + 50)).expect("the one before has expired");
    }
    let refused = state.apply(create_key_until(17, 1640, 1700));
    assert!(matches!(refused, Err(CommandError::LimitReached { .. })), "the last one has not expired yet");
    let left: Vec<KeyId> = (1..5).chain(11..17).map(id).collect();
    assert_eq!(ids(&state), left);
}

#[test]
fn keys_are_made_and_deleted_by_admins_of_their_tenant_and_say_by_whom() {
    let mut state = with_account();
    for command in [create_key(1), delete_key(1)] {
        assert_eq!(by(&mut state, "joe", command.clone()), forbidden(Forbidden::NotAdmin));
        assert_eq!(by(&mut state, "nobody", command), forbidden(Forbidden::CallerUnknown));
    }
    let mut forged = key(tenant(), user_name("ci"), 1, 5, None);
    forged.created_by = Some("admin".into());
    by(&mut state, "ann", Command::CreateKey { key: forged }).expect("an admin's");
    assert_eq!(state.view().key(&id(1)).expect("there").created_by.as_deref(), Some("ann"));

    let put = Command::PutTenant { tenant: other_tenant(), state: TenantState::Active, revision: None, at_ms: 1, by_hand: false };
    state.apply(put).expect("created");
    let there = || UserRecord { tenant: other_tenant(), ..user("eve", &[("admin", &[])]) };
    state.apply(Command::CreateUser { user: there() }).expect("created");
    let before = state.clone();
    let theirs = Command::DeleteKey { tenant: other_tenant(), username: user_name("ci"), id: id(1) };
    state.apply_by(there().actor(), theirs).expect("there is none, for them");
    assert!(same(&before, &state), "a key of another tenant was deleted");
    assert_eq!(state.apply_by(there().actor(), delete_key(1)), forbidden(Forbidden::NotOperator));
    by(&mut state, "ann", delete_key(1)).expect("an admin's");
}

#[test]
fn keys_are_in_the_dump_which_older_programs_do_not_read() {
    let mut state = with_account();
    assert_eq!((with_users().level(), state.level()), (FeatureLevel::USERS, FeatureLevel::TENANTS));
    let scoped = KeyRecord {
        scopes: Some(grants(&[("consume", &["a*"])])),
        description: Some("for CI".into()),
        ..key(tenant(), user_name("ci"), 2, 5, Some(9))
    };
    state.apply(create_key(1)).expect("created");
    by(&mut state, "ann", Command::CreateKey { key: scoped }).expect("created");
    let bytes = state.dump();
    assert!(same(&State::from_dump(&bytes).expect("its own dump"), &state));
    let text = String::from_utf8(bytes).expect("JSON");
    let hash = |n: &str| n.repeat(32);
    let golden = format!(
        concat!(
            r#""keys":[{{"id":"key000000001","tenant":"default","username":"ci","hash":"{}","created_at_ms":5}},"#,
            r#"{{"id":"key000000002","tenant":"default","username":"ci","hash":"{}","scopes":[{{"action":"consume","patterns":["a*"]}}],"#,
            r#""created_at_ms":5,"created_by":"ann","expires_at_ms":9,"description":"for CI"}}]"#,
        ),
        hash("01"),
        hash("02")
    );
    assert!(text.starts_with(r#"{"v":4,"#) && text.contains(&golden), "{text}");
    assert!(text.contains(r#"{"tenant":"default","username":"ci","kind":"service","created_at_ms":5,"updated_at_ms":5}"#), "{text}");
    state.name_lineage(LineageId(1));
    assert_eq!(state.begin_life(LineageId(2), Vec::new(), None).view().keys, state.view().keys, "another life has them too");
    assert!(!format!("{state:?}").contains("[1, 1, 1"), "a hash is printed");
}

#[test]
fn a_change_by_a_key_that_is_gone_has_expired_or_is_of_another_is_not_made() {
    use super::super::{Operation, encode_from};
    let text = |caller: &str, n: u8, at_ms: u64| {
        let from = veena_contract::Stamp { at_ms, key: Some(id(n).to_string().into()), ..veena_contract::Stamp::default() };
        let operation = Operation::catalog(Some(actor(caller)), create_user("new", &[]), FeatureLevel::CURRENT);
        encode_from(operation, Some(from)).expect("JSON").get().to_owned()
    };
    let mut state = with_users();
    for name in ["ci", "cd"] {
        let grants = grants(&[("admin", &[])]);
        state.apply(Command::CreateUser { user: UserRecord { grants, ..account(name) } }).expect("created");
    }
    state.apply(create_key(1)).expect("created");
    state.apply(create_key_until(2, 5, 9)).expect("created");
    let made = |state: &State, text: &str| {
        let mut state = state.clone();
        let answer = state.apply_text(text).expect("a command");
        let is_there = state.view().user(&tenant(), &user_name("new")).is_some();
        assert_eq!(is_there, answer == "{}", "{answer}");
        is_there
    };
    assert!(made(&state, &text("ci", 1, 8)) && made(&state, &text("ci", 2, 8)));
    assert!(!made(&state, &text("ci", 2, 9)), "it has expired");
    assert!(!made(&state, &text("cd", 1, 8)), "it is another's");
    assert!(!made(&state, &text("ci", 3, 8)), "there is none");
    let mut anew = state.clone();
    anew.apply(delete_key(1)).expect("deleted");
    assert!(!made(&anew, &text("ci", 1, 8)), "it is gone");
    anew = state.clone();
    anew.apply(delete_account("ci")).expect("deleted");
    let grants = grants(&[("admin", &[])]);
    anew.apply(Command::CreateUser { user: UserRecord { grants, ..account("ci") } }).expect("created");
    assert!(!made(&anew, &text("ci", 1, 8)), "its account is another of the same name");
}

#[test]
fn the_log_carries_keys_in_a_form_that_stays() {
    use super::super::{Operation, encode};
    let text = |command| encode(Operation::catalog(None, command, FeatureLevel::CURRENT)).expect("JSON").get().to_owned();
    let golden = r#"{"v":4,"op":{"catalog":{"command":"delete_key","tenant":"default","username":"ci","id":"key000000001"}}}"#;
    assert_eq!(text(delete_key(1)), golden);
    let golden = r#"{"v":4,"op":{"catalog":{"command":"create_key","key":{"id":"key000000001","tenant":"default","username":"ci","hash":""#;
    assert!(text(create_key(1)).starts_with(golden), "{}", text(create_key(1)));
    assert_eq!(
        text(delete_account("ci")),
        r#"{"v":4,"op":{"catalog":{"command":"delete_user","tenant":"default","username":"ci","kind":"service"}}}"#
    );
    assert_eq!(
        text(delete_user("joe")),
        r#"{"v":3,"op":{"catalog":{"command":"delete_user","tenant":"default","username":"joe"}}}"#,
        "as it was"
    );
}

/// Printed, for whoever wants to know: `cargo nextest run --release --no-capture as_many_keys`.
#[test]
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
fn as_many_keys_as_there_may_be_are_written_down_and_read_back() {
    let (mut state, tenants) = (State::default(), limits::TENANTS_MAX - 1);
    let accounts = limits::KEYS_MAX / limits::KEYS_PER_ACCOUNT_MAX;
    for n in 0..accounts {
        let tenant = TenantId::parse(&format!("t{}", n % tenants)).expect("a tenant");
        if n < tenants {
            state.put_tenant(tenant.clone(), TenantState::Active, None, 1, false).expect("room");
        }
        let user = UserRecord { tenant, ..account(&format!("ci-{n}")) };
        state.create_user(user.clone()).expect("room");
        for m in 0..limits::KEYS_PER_ACCOUNT_MAX {
            let id = KeyId::parse(&format!("k{n:06}x{m:04}")).expect("an id");
            let key = KeyRecord { id, ..key(user.tenant.clone(), user.username.clone(), 1, 5, None) };
            state.create_key(key).expect("room");
        }
    }
    let one_more = KeyRecord { id: id(1), ..key(tenant(), user_name("ci"), 1, 5, None) };
    state.create_user(account("ci")).expect("room");
    assert!(matches!(state.create_key(one_more), Err(CommandError::LimitReached { .. })));
    let began = std::time::Instant::now();
    let bytes = state.dump();
    let dumped = began.elapsed();
    let (before, began) = (resident(), std::time::Instant::now());
    let read = State::from_dump(&bytes).expect("its own dump");
    let (took, more) = (began.elapsed(), resident().saturating_sub(before) / 1024);
    let (keys, tenants, bytes) = (state.view.keys.len(), state.view.tenants.len(), bytes.len());
    println!(
        "{keys} keys of {tenants} tenants: {bytes} bytes, written down in {dumped:?}, read in {took:?}, and {more} KiB more in memory"
    );
    assert!(same(&read, &state));
}

/// How many bytes of memory this process has, as far as the system says.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or_default() * 4096
}
