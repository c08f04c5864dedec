//! Users, and what is changed on behalf of them.

use veena_contract::{Actor, Forbidden, GrantText, LogIndex};

use super::*;

pub(super) fn user_name(text: &str) -> Username {
    Username::parse(text).expect("a good name")
}

pub(super) fn actor(text: &str) -> Actor {
    Actor { tenant: TenantId::default_tenant(), username: user_name(text), checked: None }
}

pub(super) fn grants(of: &[(&str, &[&str])]) -> Grants {
    let text = |(action, patterns): &(&str, &[&str])| GrantText {
        action: (*action).to_owned(),
        patterns: patterns.iter().map(ToString::to_string).collect(),
    };
    Grants::parse(&of.iter().map(text).collect::<Vec<_>>()).expect("grants")
}

pub(super) fn user(text: &str, of: &[(&str, &[&str])]) -> UserRecord {
    UserRecord {
        tenant: tenant(),
        username: user_name(text),
        kind: UserKind::Person,
        hash: Some(StoredHash::new(format!("hash of {text}").into())),
        grants: grants(of),
        is_root: text == Username::ROOT,
        created_at_ms: 5,
        updated_at_ms: 5,
        revision: 0,
    }
}

pub(super) fn create_user(text: &str, of: &[(&str, &[&str])]) -> Command {
    Command::CreateUser { user: user(text, of) }
}

pub(super) fn delete_user(text: &str) -> Command {
    Command::DeleteUser { tenant: tenant(), username: user_name(text), kind: UserKind::Person, by_hand: false }
}

fn set_grants(text: &str, of: &[(&str, &[&str])]) -> Command {
    Command::SetGrants { tenant: tenant(), username: user_name(text), kind: UserKind::Person, grants: grants(of), at_ms: 9 }
}

fn set_password(text: &str, checked: Option<&str>) -> Command {
    let checked = checked.map(|hash| StoredHash::new(hash.into()));
    let hash = StoredHash::new("another hash".into());
    Command::SetPassword { tenant: tenant(), username: user_name(text), hash, checked, at_ms: 9 }
}

/// The root admin, an admin, somebody with a few grants, and somebody with none.
pub(super) fn with_users() -> State {
    state([
        create_user("admin", &[]),
        create_user("ann", &[("admin", &[])]),
        create_user("joe", &[("create", &["orders.*", "x"]), ("produce", &["*"])]),
        create_user("eve", &[]),
    ])
}

pub(super) fn by(state: &mut State, caller: &str, command: Command) -> Result<(), CommandError> {
    let before = state.clone();
    let answer = state.apply_by(actor(caller), command);
    assert!(answer.is_ok() || same(&before, state), "a refused command changed something");
    answer
}

pub(super) fn forbidden(why: Forbidden) -> Result<(), CommandError> {
    Err(CommandError::Forbidden { why })
}

pub(super) fn told(state: &mut State, caller: &str, command: Command) -> String {
    by(state, caller, command).expect_err("refused").to_string()
}

#[test]
fn a_user_has_one_life_for_each_name_and_only_the_root_admin_is_called_admin() {
    let mut state = with_users();
    assert_eq!(state.apply(create_user("joe", &[])), Err(CommandError::UserExists));
    assert_eq!(state.apply(create_user("admin", &[])), Err(CommandError::UserExists));
    let mut another_root = user("root", &[]);
    another_root.is_root = true;
    assert_eq!(state.apply(Command::CreateUser { user: another_root }), Err(CommandError::UserExists));
    let mut no_root = user("admin", &[]);
    no_root.is_root = false;
    assert_eq!(State::default().apply(Command::CreateUser { user: no_root }), Err(CommandError::UserExists));
    state.apply(delete_user("joe")).expect("deleted");
    assert_eq!(state.apply(delete_user("joe")), Err(CommandError::UserNotFound));
    assert_eq!(state.apply(set_grants("joe", &[])), Err(CommandError::UserNotFound));
    assert_eq!(state.apply(set_password("joe", None)), Err(CommandError::UserNotFound));
    state.apply(create_user("joe", &[])).expect("the name is free");
    let names: Vec<_> = state.view().users_of(&tenant()).map(|user| user.username.to_string()).collect();
    assert_eq!(names, ["admin", "ann", "eve", "joe"]);
}

#[test]
fn the_number_of_users_is_bounded() {
    let mut state = State::default();
    for n in 0..limits::USERS_MAX {
        state.create_user(user(&format!("u{n}"), &[])).expect("room");
    }
    assert!(matches!(state.apply(create_user("one-more", &[])), Err(CommandError::LimitReached { .. })));
}

#[test]
fn the_root_admin_stays_with_its_rights_whoever_asks() {
    let mut state = with_users();
    for caller in ["admin", "ann"] {
        assert_eq!(told(&mut state, caller, delete_user("admin")), "the root admin cannot be deleted");
        assert_eq!(by(&mut state, caller, set_grants("admin", &[])), forbidden(Forbidden::RootGrants));
    }
    assert_eq!(state.apply(delete_user("admin")), forbidden(Forbidden::RootStays));
    assert_eq!(by(&mut state, "ann", set_password("admin", None)), forbidden(Forbidden::RootPassword));
    by(&mut state, "admin", set_password("admin", Some("hash of admin"))).expect("its own");
    state.apply(set_password("admin", None)).expect("security is off, so nobody asks: the way back for who has lost it");
}

#[test]
fn users_are_the_admins_and_admin_is_given_by_the_root_admin_alone() {
    let mut state = with_users();
    for command in [create_user("new", &[]), delete_user("eve"), set_grants("eve", &[]), set_password("eve", None)] {
        assert_eq!(told(&mut state, "joe", command.clone()), "admin privileges required");
        assert_eq!(told(&mut state, "nobody", command), "caller unknown to the leader");
    }
    let admin: &[(&str, &[&str])] = &[("admin", &[])];
    assert_eq!(told(&mut state, "ann", create_user("new", admin)), "cannot grant permissions you do not hold");
    assert_eq!(by(&mut state, "ann", set_grants("joe", admin)), forbidden(Forbidden::NotHeld));
    assert_eq!(by(&mut state, "joe", set_grants("eve", admin)), forbidden(Forbidden::NotAdmin), "no admin, whatever is given");
    assert_eq!(by(&mut state, "ann", Command::CreateUser { user: user("admin", &[]) }), forbidden(Forbidden::NotHeld));
    by(&mut state, "ann", create_user("new", &[("consume", &["*"])])).expect("an admin holds everything else");
    by(&mut state, "admin", set_grants("new", admin)).expect("the root admin gives admin");
    by(&mut state, "ann", set_grants("new", &[])).expect("an admin may take it away");
    by(&mut state, "ann", delete_user("new")).expect("deleted");
}

#[test]
fn nobody_deletes_themselves_or_sets_their_own_rights_but_everybody_their_password() {
    let mut state = with_users();
    assert_eq!(told(&mut state, "ann", delete_user("ann")), "cannot delete your own account");
    assert_eq!(told(&mut state, "ann", set_grants("ann", &[])), "cannot change your own grants");
    assert_eq!(by(&mut state, "joe", set_grants("joe", &[])), forbidden(Forbidden::NotAdmin));
    by(&mut state, "eve", set_password("eve", Some("hash of eve"))).expect("her own");
    let eve = state.view().user(&tenant(), &user_name("eve")).expect("there").clone();
    assert_eq!((eve.created_at_ms, eve.updated_at_ms, &**eve.hash.as_ref().expect("a password").expose()), (5, 9, "another hash"));
    let stale = || set_password("eve", Some("hash of eve"));
    assert_eq!(by(&mut state, "eve", stale()), Err(CommandError::UserChanged), "the password that was checked is gone");
    by(&mut state, "ann", delete_user("eve")).expect("deleted");
    by(&mut state, "ann", Command::CreateUser { user: UserRecord { hash: Some(StoredHash::new("new".into())), ..user("eve", &[]) } })
        .expect("anew");
    assert_eq!(by(&mut state, "eve", stale()), Err(CommandError::UserChanged), "it was that of another of the name");
}

#[test]
fn a_change_that_waited_is_not_made_when_its_callers_password_was_replaced_or_the_caller_is_another_of_the_name() {
    let as_was = || Actor { checked: Some(StoredHash::new("hash of ann".into())), ..actor("ann") };
    let mut state = with_users();
    state.apply_by(as_was(), create("a", 1)).expect("it is hers");
    let unknown = || forbidden(Forbidden::CallerUnknown);
    by(&mut state, "admin", set_password("ann", None)).expect("replaced");
    for command in [create("b", 2), create_user("new", &[]), delete_user("eve"), set_password("ann", Some("hash of ann"))] {
        assert_eq!(state.apply_by(as_was(), command), unknown());
    }
    let mut state = with_users();
    by(&mut state, "admin", delete_user("ann")).expect("deleted");
    let again = UserRecord { hash: Some(StoredHash::new("of another".into())), ..user("ann", &[("admin", &[])]) };
    by(&mut state, "admin", Command::CreateUser { user: again }).expect("another ann");
    assert_eq!(state.apply_by(as_was(), delete_user("eve")), unknown());
    by(&mut state, "ann", delete_user("eve")).expect("she herself may");
}

#[test]
fn nobody_sets_their_own_password_without_the_one_they_have_except_where_older_members_let_them() {
    use super::super::{Operation, encode};
    for caller in ["admin", "ann", "eve"] {
        assert_eq!(by(&mut with_users(), caller, set_password(caller, None)), Err(CommandError::UserChanged), "{caller}");
    }
    let checked = Actor { checked: Some(StoredHash::new("hash of ann".into())), ..actor("ann") };
    let written = |level| encode(Operation::catalog(Some(checked.clone()), set_password("ann", None), level)).expect("JSON");
    let answered = |level| with_users().apply_text(written(level).get()).expect("understood");
    assert_eq!(answered(FeatureLevel::USERS), "{}", "a log that is read again says what it said");
    assert_eq!(answered(FeatureLevel::TENANTS), r#"{"refused":{"error":"user_changed"}}"#);
}

#[test]
fn rights_that_were_taken_away_are_gone_where_a_change_is_made() {
    let mut state = with_users();
    by(&mut state, "ann", set_grants("joe", &[])).expect("taken away");
    assert_eq!(told(&mut state, "joe", create("orders.eu", 1)), "create not allowed on this topic");
    by(&mut state, "admin", set_grants("ann", &[])).expect("taken away");
    assert_eq!(by(&mut state, "ann", delete_user("eve")), forbidden(Forbidden::NotAdmin));
    by(&mut state, "admin", delete_user("eve")).expect("deleted");
    assert_eq!(by(&mut state, "eve", create("x", 1)), forbidden(Forbidden::CallerUnknown));
}

#[test]
fn a_topic_belongs_to_who_creates_it_and_is_changed_by_its_owner_and_admins_alone() {
    let mut state = with_users();
    let mut forged = record("orders.eu", 1);
    forged.owner = Some("ann".into());
    by(&mut state, "joe", Command::CreateTopic { topic: forged, attach: None }).expect("covered");
    assert_eq!(get(&state, "orders.eu").owner.as_deref(), Some("joe"));
    assert_eq!(by(&mut state, "joe", create("y", 2)), forbidden(Forbidden::MayNotCreate));
    for command in [delete("orders.eu", 1), retention("orders.eu", 1, HOUR), grow("orders.eu", 1, 5), schema("orders.eu", 1, 0, "{}")] {
        let text = "only the owner of topic \"orders.eu\" or an admin may modify it";
        assert_eq!(told(&mut state, "eve", command), text);
    }
    by(&mut state, "joe", retention("orders.eu", 1, HOUR)).expect("the owner's");
    by(&mut state, "ann", grow("orders.eu", 1, 5)).expect("an admin's");
    assert_eq!(get(&state, "orders.eu").owner.as_deref(), Some("joe"), "changed by another, it stays whose it is");
    assert_eq!(by(&mut state, "eve", delete("nosuch", 9)), Err(CommandError::TopicNotFound));
    by(&mut state, "joe", delete("orders.eu", 1)).expect("the owner's");
}

#[test]
fn a_link_takes_the_owner_of_both_topics_to_tie_and_of_one_to_untie() {
    let mut state = with_users();
    by(&mut state, "joe", create("x", 1)).expect("covered");
    by(&mut state, "ann", create("p", 2)).expect("an admin's");
    by(&mut state, "admin", create("q", 3)).expect("the root admin's");
    let not_owner = |topic: &str| forbidden(Forbidden::NotOwner { topic: name(topic) });
    assert_eq!(by(&mut state, "joe", attach(("p", 2), ("x", 1), 0)), not_owner("p"));
    assert_eq!(by(&mut state, "joe", attach(("x", 1), ("p", 2), 0)), not_owner("p"));
    let in_one_step = Command::CreateTopic { topic: record("orders.eu", 4), attach: Some(attachment("p", 2, 0)) };
    assert_eq!(by(&mut state, "joe", in_one_step), not_owner("p"));
    by(&mut state, "ann", attach(("p", 2), ("x", 1), 0)).expect("an admin's");
    assert_eq!(by(&mut state, "eve", detach("p", "x")), not_owner("x"));
    by(&mut state, "joe", detach("p", "x")).expect("the child is the caller's");
}

#[test]
fn nodes_are_the_admins() {
    let mut state = with_users();
    let drain = || Command::SetDraining { node: node_id("n"), draining: true, mark: None, beside: None };
    assert_eq!(by(&mut state, "joe", drain()), forbidden(Forbidden::NotAdmin));
    by(&mut state, "ann", drain()).expect("an admin's");
}

#[test]
fn users_are_in_the_dump_which_older_programs_do_not_read() {
    let mut state = with_users();
    state.apply(set_grants("eve", &[("consume", &["a*", "b"])])).expect("set");
    let bytes = state.dump();
    let read = State::from_dump(&bytes).expect("its own dump");
    assert!(same(&state, &read));
    let text = String::from_utf8(bytes).expect("JSON");
    assert!(text.starts_with(r#"{"v":3,"#), "{text}");
    let golden = concat!(
        r#"{"tenant":"default","username":"admin","hash":"hash of admin","is_root":true,"created_at_ms":5,"updated_at_ms":5},"#,
        r#"{"tenant":"default","username":"ann","hash":"hash of ann","grants":[{"action":"admin"}],"created_at_ms":5,"updated_at_ms":5},"#,
        r#"{"tenant":"default","username":"eve","hash":"hash of eve","grants":[{"action":"consume","patterns":["a*","b"]}],"created_at_ms":5,"updated_at_ms":9}"#,
    );
    assert!(text.contains(golden), "{text}");
    assert_eq!(super::super::State::default().level(), veena_contract::FeatureLevel::FIRST);
}

#[test]
fn the_log_carries_the_caller_in_a_form_that_stays() {
    use super::super::{Operation, encode};
    let text = |caller: Option<&str>, command| {
        encode(Operation::catalog(caller.map(actor), command, FeatureLevel::CURRENT)).expect("JSON").get().to_owned()
    };
    let golden = r#"{"v":3,"op":{"catalog_by":{"caller":"joe","command":{"command":"delete_topic","tenant":"default","name":"a","id":"0000000000000001"}}}}"#;
    assert_eq!(text(Some("joe"), delete("a", 1)), golden);
    let golden = r#"{"v":3,"op":{"catalog":{"command":"set_password","tenant":"default","username":"joe","hash":"another hash","checked":"old hash","at_ms":9}}}"#;
    assert_eq!(text(None, set_password("joe", Some("old hash"))), golden);
    assert!(text(None, delete("a", 1)).starts_with(r#"{"v":1,"#), "without a caller it is what it was");

    let mut state = with_users();
    let answer = state.apply_text(&text(Some("eve"), create("x", 1))).expect("understood");
    assert_eq!(answer, r#"{"refused":{"error":"forbidden","why":{"why":"may_not_create"}}}"#);
    assert_eq!(super::super::decode_answer(&answer).expect("JSON"), forbidden(Forbidden::MayNotCreate));
    assert_eq!(state.apply_text(&text(Some("joe"), create("x", 1))).expect("understood"), "{}");
}

#[test]
fn a_hash_is_in_no_debug_text() {
    let mut state = with_users();
    state.view.applied = LogIndex(1);
    assert!(!format!("{state:?}{:?}", set_password("joe", None)).contains("hash of"));
    assert!(!format!("{:?}", set_password("joe", None)).contains("another"));
}

#[test]
fn what_a_life_goes_on_with_are_its_users_too() {
    let mut state = with_users();
    state.name_lineage(LineageId(1));
    assert_eq!(state.begin_life(LineageId(2), Vec::new(), None).view().users, state.view().users);
}
