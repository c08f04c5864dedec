//! Limits of tenants and topics.

use veena_contract::{FeatureLevel, Limit, Quota, QuotaScope, TenantState, UserKind};

use super::*;

fn set(topic: Option<&str>, quota: Quota, revision: Option<u64>) -> Command {
    Command::SetQuota { tenant: tenant(), topic: topic.map(name), quota: Box::new(quota), revision }
}

fn topics(topics: u64, partitions: u64) -> Quota {
    Quota { topics: Some(topics), partitions: Some(partitions), ..Quota::default() }
}

fn other() -> TenantId {
    TenantId::parse("other").expect("a name")
}

fn put_other() -> Command {
    Command::PutTenant { tenant: other(), state: TenantState::Active, revision: None, at_ms: 1, by_hand: false }
}

fn exceeded(limit: Limit, current: u64, allowed: u64) -> Result<(), CommandError> {
    Err(CommandError::QuotaExceeded { limit, scope: QuotaScope::Tenant, current, allowed })
}

#[test]
fn a_tenant_has_as_many_topics_and_partitions_as_its_limits_say() {
    let mut state = State::default();
    state.apply(set(None, topics(2, 7), None)).expect("limits");
    state.apply(create("a", 1)).expect("the first");
    state.apply(create("b", 2)).expect("the second");
    assert_eq!(state.apply(create("c", 3)), exceeded(Limit::Topics, 3, 2));
    assert_eq!(state.apply(grow("a", 1, 5)), exceeded(Limit::Partitions, 8, 7));
    state.apply(grow("a", 1, 4)).expect("seven partitions");
    state.apply(delete("a", 1)).expect("deleting always works");
    state.apply(create("c", 3)).expect("there is room again");
    state.apply(delete("b", 2)).expect("deleted");
    let large = TopicRecord { partitions: 5, ..record("d", 4) };
    assert_eq!(state.apply(Command::CreateTopic { topic: large, attach: None }), exceeded(Limit::Partitions, 8, 7));
    state.apply(put_other()).expect("another tenant");
    let others = TopicRecord { tenant: other(), partitions: 100, ..record("d", 4) };
    state.apply(Command::CreateTopic { topic: others, attach: None }).expect("another tenant has its own limits, here none");
    state.apply(set(None, topics(0, 0), None)).expect("limits below what there is");
    assert_eq!(state.view().topics.len(), 2, "nothing is taken away by a limit");
    assert_eq!(state.apply(create("e", 5)), exceeded(Limit::Topics, 2, 0));
}

#[test]
fn partitions_are_counted_over_every_change_and_after_a_restore() {
    let mut state = State::default();
    for (nth, count) in [3, 1, 9, 4].into_iter().enumerate() {
        let id = nth as u64 + 1;
        let topic = TopicRecord { partitions: count, ..record(&format!("t{id}"), id) };
        state.apply(Command::CreateTopic { topic, attach: None }).expect("created");
        state.apply(grow(&format!("t{id}"), id, count + 2)).expect("grown");
        state.apply(retention(&format!("t{id}"), id, HOUR)).expect("changed");
    }
    state.apply(delete("t3", 3)).expect("deleted");
    assert_eq!(state.partition_count(&tenant()), 14);
    assert_eq!(State::from_dump(&state.dump()).expect("reads").partition_count(&tenant()), 14);
    for id in [1, 2, 4] {
        state.apply(delete(&format!("t{id}"), id)).expect("deleted");
    }
    assert_eq!(state.partition_count(&tenant()), 0);
}

#[test]
fn a_revision_is_applied_once_and_never_after_a_newer_one() {
    let mut state = State::default();
    state.apply(set(None, topics(2, 7), Some(5))).expect("any first revision");
    state.apply(set(None, topics(2, 7), Some(5))).expect("the same again");
    let another = state.apply(set(None, topics(3, 7), Some(5)));
    assert_eq!(another, Err(CommandError::RevisionTaken { revision: 5 }), "another one of the same number");
    assert_eq!(state.apply(set(None, topics(2, 7), Some(4))), Err(CommandError::RevisionPassed { given: 4, applied: 5 }));
    state.apply(set(None, Quota::default(), None)).expect("the next one");
    assert_eq!(state.view().quota(&tenant(), None).expect("it is kept that there were limits").revision, 6);
    state.apply(create("a", 1)).expect("no limits any more");
}

#[test]
fn a_topics_limits_go_with_it() {
    let mut state = State::default();
    let quota = Quota { stored_bytes: Some(5), ..Quota::default() };
    assert_eq!(state.apply(set(Some("a"), quota.clone(), None)), Err(CommandError::TopicNotFound));
    state.apply(create("a", 1)).expect("created");
    assert!(matches!(state.apply(set(Some("a"), topics(1, 1), None)), Err(CommandError::InvalidQuota { .. })));
    state.apply(set(Some("a"), quota, None)).expect("limits");
    assert!(state.view().quota(&tenant(), Some(&name("a"))).is_some());
    state.apply(delete("a", 1)).expect("deleted");
    state.apply(create("a", 2)).expect("created anew");
    assert!(state.view().quota(&tenant(), Some(&name("a"))).is_none() && state.view().quotas.is_empty());
}

#[test]
fn only_operators_set_limits_and_only_newer_members_read_them() {
    let mut state = state([]);
    let user = |text: &str, is_admin: bool| UserRecord {
        tenant: tenant(),
        username: Username::parse(text).expect("a name"),
        hash: Some(StoredHash::new("x".into())),
        kind: UserKind::Person,
        grants: if is_admin {
            Grants::parse(&[veena_contract::GrantText { action: "admin".into(), patterns: vec![] }]).expect("grants")
        } else {
            Grants::default()
        },
        is_root: false,
        created_at_ms: 1,
        updated_at_ms: 1,
        revision: 0,
    };
    state.apply(put_other()).expect("another tenant");
    let strangers = UserRecord { tenant: other(), ..user("eve", true) };
    for user in [user("ann", true), user("joe", false), strangers.clone()] {
        state.apply(Command::CreateUser { user }).expect("created");
    }
    assert!(matches!(state.apply_by(user("joe", false).actor(), set(None, topics(1, 1), None)), Err(CommandError::Forbidden { .. })));
    let own = Command::SetQuota { tenant: strangers.tenant.clone(), topic: None, quota: Box::new(topics(1, 1)), revision: None };
    assert!(
        matches!(state.apply_by(strangers.actor(), own), Err(CommandError::Forbidden { .. })),
        "an admin of another tenant is no operator"
    );
    state.apply_by(user("ann", true).actor(), set(None, topics(1, 1), None)).expect("an operator");
    let mut other = State::default();
    assert_eq!(other.level(), FeatureLevel::FIRST);
    other.apply(set(None, topics(1, 1), None)).expect("limits");
    assert_eq!(other.level(), FeatureLevel::TENANTS);
    assert_eq!(set(None, topics(1, 1), None).level(), FeatureLevel::TENANTS);
    assert_eq!(State::from_dump(&state.dump()).expect("reads").view().quotas, state.view().quotas);
}

#[test]
fn limits_are_of_tenants_that_are_there_and_go_with_them() {
    let mut state = State::default();
    let quota = |topic: Option<&str>| Command::SetQuota {
        tenant: other(),
        topic: topic.map(name),
        quota: Box::new(Quota { stored_bytes: Some(1), ..Quota::default() }),
        revision: None,
    };
    assert_eq!(state.apply(quota(None)), Err(CommandError::TenantNotFound));
    state.apply(put_other()).expect("a tenant");
    state.apply(quota(None)).expect("limits");
    state.apply(set(None, topics(1, 3), None)).expect("those of another");
    state.apply(Command::DeleteTenant { tenant: other(), at_ms: 2, by_hand: false }).expect("going");
    assert_eq!(state.apply(quota(None)), Err(CommandError::TenantDeleting));
    state.apply(Command::TenantGone { tenant: other(), created_at_ms: 1 }).expect("gone");
    assert!(state.view().quota(&other(), None).is_none() && state.view().quota(&tenant(), None).is_some());
}

#[test]
fn a_tenant_has_as_many_keys_as_its_limits_say() {
    let mut state = State::default();
    let bot = Username::parse("bot").expect("a name");
    let user = UserRecord {
        tenant: tenant(),
        username: bot.clone(),
        hash: None,
        kind: UserKind::Service,
        grants: Grants::default(),
        is_root: false,
        created_at_ms: 1,
        updated_at_ms: 1,
        revision: 0,
    };
    state.apply(Command::CreateUser { user }).expect("an account");
    state.apply(set(None, Quota { keys: Some(1), ..Quota::default() }, None)).expect("limits");
    let create = |n: u8| Command::CreateKey { key: super::keys::key(tenant(), bot.clone(), n, 1, None) };
    state.apply(create(1)).expect("the first");
    assert_eq!(state.apply(create(2)), exceeded(Limit::Keys, 2, 1));
    state.apply(set(None, Quota { keys: Some(2), ..Quota::default() }, None)).expect("raised");
    state.apply(create(2)).expect("the second");
}

#[test]
fn no_tenant_takes_the_keys_of_all_unless_an_operator_says_so() {
    let mut state = State::default();
    let accounts = limits::KEYS_PER_TENANT_MAX / limits::KEYS_PER_ACCOUNT_MAX;
    let key = |n: usize, account: usize| {
        let id = veena_contract::KeyId::parse(&format!("k{n:06}xabcd")).expect("an id");
        veena_contract::KeyRecord { id, ..super::keys::key(tenant(), super::users::user_name(&format!("ci-{account}")), 1, 5, None) }
    };
    for account in 0..=accounts {
        state.create_user(super::keys::account(&format!("ci-{account}"))).expect("room");
    }
    for n in 0..limits::KEYS_PER_TENANT_MAX {
        state.create_key(key(n, n / limits::KEYS_PER_ACCOUNT_MAX)).expect("room");
    }
    let one_more = key(limits::KEYS_PER_TENANT_MAX, accounts);
    assert!(matches!(state.create_key(one_more.clone()), Err(CommandError::LimitReached { .. })));
    let more = Quota { keys: Some(limits::KEYS_PER_TENANT_MAX as u64 + 1), ..Quota::default() };
    let mut raised = state.clone();
    raised.set_quota(tenant(), None, more, None).expect("set");
    raised.create_key(one_more.clone()).expect("an operator has said so");
    state.delete_user(&tenant(), &super::users::user_name("ci-0"), UserKind::Service, true).expect("deleted");
    assert_eq!(state.view().counts_of(&tenant()).keys, limits::KEYS_PER_TENANT_MAX - limits::KEYS_PER_ACCOUNT_MAX);
    state.create_key(one_more).expect("room again");
}
