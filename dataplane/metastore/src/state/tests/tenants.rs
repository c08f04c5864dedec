//! Tenants, what they have, and who changes them.

use veena_contract::{Actor, FeatureLevel, Forbidden, GrantText, TenantRecord};

use crate::state::machine::{Operation, encode};

use super::*;

fn tenant_of(text: &str) -> TenantId {
    TenantId::parse(text).expect("a good name")
}

fn put(text: &str, state: TenantState, revision: Option<u64>) -> Command {
    Command::PutTenant { tenant: tenant_of(text), state, revision, at_ms: 7, by_hand: false }
}

fn end(text: &str) -> Command {
    Command::DeleteTenant { tenant: tenant_of(text), at_ms: 8, by_hand: false }
}

fn gone(text: &str) -> Command {
    Command::TenantGone { tenant: tenant_of(text), created_at_ms: 7 }
}

fn admin() -> Grants {
    Grants::parse(&[GrantText { action: "admin".to_owned(), patterns: Vec::new() }]).expect("grants")
}

fn put_user(who: &str, hash: Option<&str>, grants: Option<Grants>, revision: Option<u64>) -> Command {
    let Actor { tenant, username, .. } = actor(who);
    Command::PutUser { tenant, username, hash: hash.map(|hash| StoredHash::new(hash.into())), grants, revision, at_ms: 9 }
}

/// `name@tenant`.
fn actor(who: &str) -> Actor {
    let (name, tenant) = who.split_once('@').expect("name@tenant");
    Actor { tenant: tenant_of(tenant), username: Username::parse(name).expect("a good name"), checked: None }
}

fn create_in(text: &str, name: &str, id: u64) -> Command {
    let topic = TopicRecord { tenant: tenant_of(text), ..record(name, id) };
    Command::CreateTopic { topic, attach: None }
}

/// An operator, and two tenants with an admin and somebody each.
fn two_tenants() -> State {
    state([
        put_user("ann@default", Some("h"), Some(admin()), None),
        put("acme", TenantState::Active, None),
        put("zen", TenantState::Active, None),
        put_user("ann@acme", Some("h"), Some(admin()), None),
        put_user("joe@acme", Some("h"), None, None),
        put_user("ann@zen", Some("h"), Some(admin()), None),
        put_user("joe@zen", Some("h"), None, None),
        create_in("acme", "t", 1),
        create_in("zen", "t", 2),
    ])
}

fn told(state: &mut State, who: &str, command: Command) -> String {
    let before = state.clone();
    let text = state.apply_by(actor(who), command).expect_err("refused").to_string();
    assert!(same(&before, state), "a refused command changed something");
    text
}

fn record_of(state: &State, text: &str) -> TenantRecord {
    TenantRecord::clone(state.view().tenants.get(&tenant_of(text)).expect("there"))
}

#[test]
fn a_tenant_is_created_suspended_and_resumed_as_often_as_one_likes() {
    let mut state = State::default();
    assert_eq!(state.view().tenant_state(&tenant_of("acme")), None);
    for (to, revision) in [
        (TenantState::Active, 1),
        (TenantState::Active, 1),
        (TenantState::Suspended, 2),
        (TenantState::Suspended, 2),
        (TenantState::Active, 3),
    ] {
        state.apply(put("acme", to, None)).expect("put");
        let acme = record_of(&state, "acme");
        assert_eq!((acme.state, acme.revision, acme.created_at_ms), (to, revision, 7));
    }
}

#[test]
fn a_revision_that_has_passed_is_refused_and_one_that_was_applied_says_the_same() {
    let mut state = state([put("acme", TenantState::Active, Some(5))]);
    let passed = CommandError::RevisionPassed { given: 4, applied: 5 };
    assert_eq!(state.apply(put("acme", TenantState::Active, Some(4))), Err(passed));
    state.apply(put("acme", TenantState::Active, Some(5))).expect("the same again");
    assert_eq!(state.apply(put("acme", TenantState::Suspended, Some(5))), Err(CommandError::RevisionTaken { revision: 5 }));
    state.apply(put("acme", TenantState::Active, Some(9))).expect("a later one that says the same");
    assert_eq!(record_of(&state, "acme").revision, 9);
    state.apply(put("acme", TenantState::Suspended, None)).expect("somebody here says so");
    assert_eq!(record_of(&state, "acme").revision, 10, "so that who says what was so before is refused");
}

#[test]
fn a_user_is_put_as_often_as_one_likes_and_keeps_what_is_not_given() {
    let mut state = state([put("acme", TenantState::Active, None)]);
    assert_eq!(state.apply(put_user("joe@acme", None, Some(admin()), None)), Err(CommandError::UserNotFound), "a new one has a password");
    state.apply(put_user("joe@acme", Some("h"), Some(admin()), None)).expect("created");
    let seen = |state: &State| {
        let Actor { tenant, username, .. } = actor("joe@acme");
        let user = state.view().user(&tenant, &username).expect("there").clone();
        (user.hash.as_ref().expect("a password").expose().to_string(), user.grants.has_admin(), user.revision)
    };
    assert_eq!(seen(&state), ("h".to_owned(), true, 1));
    state.apply(put_user("joe@acme", None, Some(admin()), None)).expect("the same");
    assert_eq!(seen(&state), ("h".to_owned(), true, 1));
    state.apply(put_user("joe@acme", Some("g"), None, None)).expect("a password");
    assert_eq!(seen(&state), ("g".to_owned(), true, 2));
    state.apply(put_user("joe@acme", None, Some(Grants::none()), Some(7))).expect("grants");
    assert_eq!(seen(&state), ("g".to_owned(), false, 7));
    assert_eq!(state.apply(put_user("joe@acme", Some("x"), None, Some(6))), Err(CommandError::RevisionPassed { given: 6, applied: 7 }));
    assert_eq!(state.apply(put_user("joe@acme", Some("x"), None, Some(7))), Err(CommandError::RevisionTaken { revision: 7 }));
}

#[test]
fn the_tenant_default_is_always_there() {
    let mut state = State::default();
    let default = tenant();
    assert_eq!(state.apply(end("default")), Err(CommandError::TenantStays));
    assert_eq!(state.apply(put("default", TenantState::Suspended, None)), Err(CommandError::TenantStays));
    state.apply(put("default", TenantState::Active, None)).expect("that is so");
    assert_eq!(state.view().tenant_state(&default), Some(TenantState::Active));
    assert_eq!(String::from_utf8(state.dump()).expect("JSON").find("tenants"), None, "nothing was said about it");
}

#[test]
fn nothing_is_made_for_a_tenant_that_is_not_there_or_goes() {
    let mut state = two_tenants();
    assert_eq!(state.apply(create_in("nobody", "t", 9)), Err(CommandError::TenantNotFound));
    assert_eq!(state.apply(put_user("joe@nobody", Some("h"), None, None)), Err(CommandError::TenantNotFound));
    assert_eq!(state.apply(end("nobody")), Err(CommandError::TenantNotFound));
    state.apply(end("acme")).expect("begun");
    state.apply(end("acme")).expect("begun already");
    assert_eq!(record_of(&state, "acme").revision, 2);
    for command in [create_in("acme", "u", 9), put_user("eve@acme", Some("h"), None, None), put("acme", TenantState::Active, Some(99))] {
        assert_eq!(state.apply(command), Err(CommandError::TenantDeleting));
    }
    assert_eq!(told(&mut state, "ann@acme", create_in("acme", "u", 9)), "caller unknown to the leader");
}

#[test]
fn a_tenant_is_forgotten_when_it_has_nothing_and_its_name_is_free_then() {
    let mut state = two_tenants();
    assert_eq!(state.apply(gone("acme")), Err(CommandError::TenantNotEmpty), "it is not going");
    state.apply(end("acme")).expect("begun");
    let left = [
        Command::DeleteTopic { tenant: tenant_of("acme"), name: name("t"), id: TopicId(1) },
        Command::DeleteUser { tenant: tenant_of("acme"), username: actor("ann@acme").username, kind: UserKind::Person, by_hand: false },
        Command::DeleteUser { tenant: tenant_of("acme"), username: actor("joe@acme").username, kind: UserKind::Person, by_hand: false },
    ];
    for command in left {
        assert_eq!(state.apply(gone("acme")), Err(CommandError::TenantNotEmpty));
        state.apply(command).expect("deleted");
    }
    let of_another_life = Command::TenantGone { tenant: tenant_of("acme"), created_at_ms: 6 };
    assert_eq!(state.apply(of_another_life), Err(CommandError::TenantNotEmpty));
    state.apply(gone("acme")).expect("forgotten");
    assert_eq!(state.view().tenant_state(&tenant_of("acme")), None);
    assert_eq!(state.view().users_of(&tenant_of("zen")).count(), 2, "another's are there");
    state.apply(put("acme", TenantState::Active, None)).expect("created anew");
}

#[test]
fn nobody_of_a_suspended_tenant_changes_anything_and_operators_do() {
    let mut state = two_tenants();
    state.apply(put("acme", TenantState::Suspended, None)).expect("suspended");
    assert_eq!(told(&mut state, "ann@acme", create_in("acme", "u", 9)), "tenant is suspended");
    state.apply_by(actor("ann@zen"), create_in("zen", "u", 10)).expect("another tenant is not");
    state.apply_by(actor("ann@default"), put_user("joe@acme", Some("x"), None, None)).expect("an operator's");
    state.apply_by(actor("ann@default"), put("acme", TenantState::Active, None)).expect("resumed");
    state.apply_by(actor("ann@acme"), create_in("acme", "u", 9)).expect("as before");
}

#[test]
fn an_admin_of_a_tenant_manages_it_and_nothing_else() {
    let mut state = two_tenants();
    let acme =
        Command::DeleteUser { tenant: tenant_of("acme"), username: actor("joe@acme").username, kind: UserKind::Person, by_hand: false };
    for command in [
        put("acme", TenantState::Active, Some(9)),
        end("zen"),
        Command::SetDraining { node: node_id("n"), draining: true, mark: None, beside: None },
    ] {
        assert_eq!(told(&mut state, "ann@acme", command), "operator privileges required");
    }
    for command in [acme.clone(), put_user("joe@acme", Some("x"), None, None), create_in("acme", "u", 9)] {
        assert!(["operator privileges required", "caller unknown to the leader"].contains(&&*told(&mut state, "ann@zen", command)));
    }
    state.apply_by(actor("ann@acme"), acme).expect("her own");
    assert_eq!(told(&mut state, "ann@acme", put_user("joe@acme", Some("x"), None, None)), "operator privileges required");
}

#[test]
fn an_operator_manages_tenants_and_their_users_and_none_of_their_topics() {
    let mut state = two_tenants();
    for command in [
        put("new", TenantState::Active, None),
        put_user("first@new", Some("h"), Some(admin()), None),
        put_user("first@new", None, Some(Grants::none()), None),
        Command::DeleteUser { tenant: tenant_of("new"), username: actor("first@new").username, kind: UserKind::Person, by_hand: false },
        end("zen"),
    ] {
        state.apply_by(actor("ann@default"), command).expect("an operator's");
    }
    for command in [create_in("acme", "u", 9), Command::DeleteTopic { tenant: tenant_of("acme"), name: name("t"), id: TopicId(1) }] {
        assert_eq!(told(&mut state, "ann@default", command), "caller unknown to the leader");
    }
    assert_eq!(told(&mut state, "ann@default", put_user("ann@default", None, Some(Grants::none()), None)), "cannot change your own grants");
    assert_eq!(
        told(&mut state, "ann@default", put_user("eve@default", Some("h"), Some(admin()), None)),
        "cannot grant permissions you do not hold"
    );
    state.apply(put_user("eve@default", Some("h"), None, None)).expect("put");
    assert_eq!(told(&mut state, "eve@default", end("acme")), "admin privileges required");
}

#[test]
fn the_same_name_is_another_user_in_another_tenant_and_only_the_root_admin_is_root() {
    let mut state = two_tenants();
    let root = UserRecord { is_root: true, ..user_record("admin@acme") };
    assert_eq!(state.apply(Command::CreateUser { user: root }), Err(CommandError::UserExists));
    state.apply(put_user("admin@acme", Some("h"), None, None)).expect("a name like others");
    let own = |who: &str| state.view().user(&actor(who).tenant, &actor(who).username).cloned();
    assert!(!own("admin@acme").expect("there").is_root);
    assert_eq!(own("admin@default"), None);
}

fn user_record(who: &str) -> UserRecord {
    let Actor { tenant, username, .. } = actor(who);
    let hash = Some(StoredHash::new("h".into()));
    UserRecord {
        tenant,
        username,
        kind: UserKind::Person,
        hash,
        grants: Grants::none(),
        is_root: false,
        created_at_ms: 1,
        updated_at_ms: 1,
        revision: 0,
    }
}

#[test]
fn the_users_of_a_tenant_are_its_own_and_counted_apart() {
    let state = two_tenants();
    let names = |text: &str| state.view().users_of(&tenant_of(text)).map(|user| user.username.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (names("acme"), names("zen"), names("default"), names("b")),
        (vec!["ann".into(), "joe".into()], vec!["ann".into(), "joe".into()], vec!["ann".into()], vec![])
    );
    let mut full = state.clone();
    full.count(&tenant_of("acme"), |counts| counts.users = limits::USERS_MAX);
    assert!(matches!(full.apply(put_user("one-more@acme", Some("h"), None, None)), Err(CommandError::LimitReached { .. })));
    full.apply(put_user("one-more@zen", Some("h"), None, None)).expect("another tenant has room");
}

#[test]
fn the_number_of_tenants_is_bounded() {
    let mut state = State::default();
    for at in 1..limits::TENANTS_MAX {
        state.insert_tenant(TenantRecord { tenant: tenant_of(&format!("t{at}")), ..TenantRecord::of_default() });
    }
    assert!(matches!(state.apply(put("one-more", TenantState::Active, None)), Err(CommandError::LimitReached { .. })));
    state.apply(put("t1", TenantState::Suspended, None)).expect("one that is there");
}

#[test]
fn tenants_are_in_the_dump_which_older_programs_do_not_read() {
    let state = two_tenants();
    let read = State::from_dump(&state.dump()).expect("its own dump");
    assert!(same(&state, &read));
    let text = String::from_utf8(state.dump()).expect("JSON");
    assert!(text.starts_with(r#"{"v":4,"#), "{text}");
    let golden = r#""tenants":[{"tenant":"acme","state":"active","revision":1,"created_at_ms":7,"updated_at_ms":7},"#;
    assert!(text.contains(golden), "{text}");
    assert_eq!(put("a", TenantState::Active, None).level(), FeatureLevel::TENANTS);
    assert_eq!(Command::CreateUser { user: user_record("joe@acme") }.level(), FeatureLevel::TENANTS);
    assert_eq!(Command::CreateUser { user: user_record("joe@default") }.level(), FeatureLevel::USERS);
}

#[test]
fn commands_of_tenants_have_a_form_that_stays() {
    use super::super::{Operation, encode};
    let text = |command| encode(Operation::catalog(None, command, FeatureLevel::CURRENT)).expect("JSON").get().to_owned();
    for (command, golden) in [
        (put("acme", TenantState::Suspended, Some(3)), r#""put_tenant","tenant":"acme","state":"suspended","revision":3,"at_ms":7"#),
        (put("acme", TenantState::Active, None), r#""put_tenant","tenant":"acme","state":"active","at_ms":7"#),
        (end("acme"), r#""delete_tenant","tenant":"acme","at_ms":8"#),
        (gone("acme"), r#""tenant_gone","tenant":"acme","created_at_ms":7"#),
        (
            put_user("joe@acme", Some("h"), None, Some(2)),
            r#""put_user","tenant":"acme","username":"joe","hash":"h","revision":2,"at_ms":9"#,
        ),
    ] {
        assert_eq!(text(command), format!(r#"{{"v":4,"op":{{"catalog":{{"command":{golden}}}}}}}"#));
    }
    assert_eq!(Forbidden::TenantSuspended.to_string(), "tenant is suspended");
}

fn by_hand(mut command: Command) -> Command {
    match &mut command {
        Command::PutTenant { by_hand, .. } | Command::DeleteTenant { by_hand, .. } | Command::DeleteUser { by_hand, .. } => *by_hand = true,
        _ => unreachable!("nothing else is said by hand"),
    }
    command
}

fn end_user(who: &str) -> Command {
    let Actor { tenant, username, .. } = actor(who);
    Command::DeleteUser { tenant, username, kind: UserKind::Person, by_hand: false }
}

fn read_back(state: &State) -> State {
    let read = State::from_dump(&state.dump()).expect("its own dump");
    assert!(same(&read, state));
    read
}

#[test]
fn a_tenant_that_was_deleted_by_hand_is_made_again_only_by_who_names_no_revision() {
    let mut state = state([put("acme", TenantState::Active, Some(5)), by_hand(end("acme")), gone("acme")]);
    state = read_back(&state);
    for revision in [4, 5, 6, 100] {
        assert_eq!(state.apply(put("acme", TenantState::Active, Some(revision))), Err(CommandError::DeletedHere));
    }
    state.apply(by_hand(put("acme", TenantState::Active, None))).expect("lifted");
    assert_eq!(record_of(&state, "acme").revision, 7, "it goes on from where it was");
    let passed = CommandError::RevisionPassed { given: 5, applied: 7 };
    assert_eq!(state.apply(put("acme", TenantState::Suspended, Some(5))), Err(passed), "what is older stays so");
    state.apply(put("acme", TenantState::Suspended, Some(8))).expect("what is newer is done");
}

#[test]
fn a_tenant_that_was_suspended_by_hand_is_resumed_only_by_who_names_no_revision() {
    let mut state = state([put("acme", TenantState::Active, Some(5)), by_hand(put("acme", TenantState::Suspended, None))]);
    state = read_back(&state);
    assert_eq!(state.apply(put("acme", TenantState::Active, Some(9))), Err(CommandError::SuspendedHere));
    state.apply(put("acme", TenantState::Suspended, Some(10))).expect("both want it");
    assert_eq!(state.apply(put("acme", TenantState::Active, Some(11))), Err(CommandError::SuspendedHere), "and still it was said here");
    state.apply(by_hand(put("acme", TenantState::Active, None))).expect("lifted");
    state.apply(put("acme", TenantState::Suspended, Some(20))).expect("said from outside");
    state.apply(put("acme", TenantState::Active, Some(21))).expect("and taken back from there");
    state.apply(put("acme", TenantState::Suspended, Some(22))).expect("once more");
    state.apply(by_hand(put("acme", TenantState::Suspended, None))).expect("and here too");
    assert_eq!(state.apply(put("acme", TenantState::Active, Some(30))), Err(CommandError::SuspendedHere));
}

#[test]
fn a_user_who_was_deleted_by_hand_is_made_again_only_by_who_names_no_revision() {
    let joe = |revision| put_user("joe@acme", Some("h"), None, revision);
    let mut state = state([put("acme", TenantState::Active, None), joe(Some(5)), by_hand(end_user("joe@acme"))]);
    state = read_back(&state);
    assert_eq!(state.apply(joe(Some(6))), Err(CommandError::DeletedHere));
    let mut other = state.clone();
    state.apply(joe(None)).expect("lifted");
    assert_eq!(state.apply(joe(Some(5))), Err(CommandError::RevisionPassed { given: 5, applied: 6 }));
    let user = UserRecord { tenant: tenant_of("acme"), ..super::users::user("joe", &[]) };
    other.apply(Command::CreateUser { user }).expect("their own admin lifts it too");
    assert_eq!(other.apply(joe(Some(5))), Err(CommandError::RevisionPassed { given: 5, applied: 6 }));
}

#[test]
fn what_was_written_before_anything_was_said_by_hand_means_what_it_meant() {
    let mut state =
        state([put("acme", TenantState::Suspended, None), put("acme", TenantState::Active, Some(5)), end("acme"), gone("acme")]);
    state.apply(put("acme", TenantState::Active, Some(5))).expect("made again");
    for command in [put_user("joe@acme", Some("h"), None, Some(3)), end_user("joe@acme"), put_user("joe@acme", Some("h"), None, Some(3))] {
        state.apply(command).expect("as often as one likes");
    }
}

#[test]
fn what_was_deleted_first_is_forgotten_first() {
    let mut state = State::default();
    for n in 0..=limits::TOMBSTONES_MAX as u64 {
        state.bury(&tenant_of(&format!("t{n}")), None, n);
    }
    state = read_back(&state);
    assert_eq!(state.tombstones.dump().count(), limits::TOMBSTONES_MAX);
    state.apply(put("t0", TenantState::Active, Some(1))).expect("forgotten");
    assert_eq!(state.apply(put("t1", TenantState::Active, Some(9))), Err(CommandError::DeletedHere));
}

#[test]
fn with_a_tenant_goes_what_is_remembered_of_its_users_and_no_other() {
    let mut state = state([put("acme", TenantState::Active, None), put("acme-b", TenantState::Active, None)]);
    for who in ["joe@acme", "joe@acme-b"] {
        state.apply(put_user(who, Some("h"), None, Some(1))).expect("created");
        state.apply(by_hand(end_user(who))).expect("deleted");
    }
    state.apply(by_hand(end("acme"))).expect("going");
    state.apply(gone("acme")).expect("gone");
    state.apply(by_hand(put("acme", TenantState::Active, None))).expect("another life");
    state.apply(put_user("joe@acme", Some("h"), None, Some(1))).expect("nothing is known of the former joe");
    assert_eq!(state.apply(put_user("joe@acme-b", Some("h"), None, Some(2))), Err(CommandError::DeletedHere));
}

#[test]
fn topics_of_a_user_who_was_deleted_are_nobodys() {
    let Actor { tenant, username, .. } = actor("joe@acme");
    let owned = |text: &str, by: &str, id| {
        let topic = TopicRecord { tenant: tenant_of(text), owner: Some(by.into()), ..record(&format!("t{id}"), id) };
        Command::CreateTopic { topic, attach: None }
    };
    let owner = |state: &State, id| state.view().topic_by_id(TopicId(id)).expect("there").owner.clone();
    let begun = || {
        let mut state = two_tenants();
        for command in [owned("acme", "joe", 3), owned("acme", "ann", 4), owned("zen", "joe", 5)] {
            state.apply(command).expect("created");
        }
        state
    };
    let mut state = begun();
    state.apply(by_hand(end_user("joe@acme"))).expect("deleted");
    assert_eq!(owner(&state, 3), None);
    assert_eq!((owner(&state, 4).as_deref(), owner(&state, 5).as_deref()), (Some("ann"), Some("joe")), "nobody else's");
    let mut old = begun();
    let text = |by_hand| {
        encode(Operation::Catalog(Box::new(Command::DeleteUser {
            tenant: tenant.clone(),
            username: username.clone(),
            kind: UserKind::Person,
            by_hand,
        })))
    };
    old.apply_text(text(false).expect("json").get()).expect("as it was written");
    assert_eq!(owner(&old, 3).as_deref(), Some("joe"), "old logs mean what they meant");
    assert!(text(true).expect("json").get().starts_with(r#"{"v":4,"#), "older members do not get to see it");
}
