//! Whose tokens are taken.

use veena_contract::{FeatureLevel, Origin, TenantState, TokenIssuer, TokenKey, UserKind};

use super::users::{actor, user_name};
use super::*;

fn issuer(kids: &[&str]) -> TokenIssuer {
    let key = |kid: &&str| TokenKey { kid: (*kid).to_owned(), x: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo".to_owned() };
    TokenIssuer { issuer: "https://id.example".to_owned(), audience: "veena".to_owned(), keys: kids.iter().map(key).collect() }
}

fn put(kids: &[&str], revision: Option<u64>) -> Command {
    Command::PutTokenIssuer { issuer: Box::new(issuer(kids)), revision }
}

fn revision(state: &State) -> Option<u64> {
    state.view().token_issuer.as_ref().map(|record| record.revision)
}

#[test]
fn an_issuer_is_put_again_and_again_changed_by_revision_and_taken_away() {
    let mut state = State::default();
    state.apply(put(&["a"], None)).expect("the first");
    let first = state.view().token_issuer.clone().expect("there");
    assert_eq!((first.revision, &first.issuer), (1, &issuer(&["a"])));
    state.apply(put(&["a"], None)).expect("the same again");
    assert!(Arc::ptr_eq(&first, state.view().token_issuer.as_ref().expect("there")), "nothing has changed");
    state.apply(put(&["a", "b"], None)).expect("a change");
    state.apply(put(&["b"], Some(7))).expect("named by whoever sets it");
    assert_eq!(revision(&state), Some(7));
    assert_eq!(state.apply(put(&["c"], Some(6))), Err(CommandError::RevisionPassed { given: 6, applied: 7 }));
    assert_eq!(state.apply(put(&["c"], Some(7))), Err(CommandError::RevisionTaken { revision: 7 }));
    state.apply(put(&["b"], Some(7))).expect("the same again");
    assert!(matches!(state.apply(put(&[], None)), Err(CommandError::InvalidTokenIssuer { .. })));
    assert_eq!((revision(&state), state.view().token_issuer.as_ref().map(|record| record.issuer.clone())), (Some(7), Some(issuer(&["b"]))));
    state.apply(Command::DeleteTokenIssuer).expect("taken away");
    state.apply(Command::DeleteTokenIssuer).expect("as good as said");
    assert_eq!(revision(&state), None);
    state.apply(put(&["c"], Some(0))).expect("any first one");
    assert_eq!(revision(&state), Some(0));
}

#[test]
fn an_issuer_is_in_a_dump_that_only_newer_members_read_and_a_dump_without_one_is_read() {
    let mut state = State::default();
    assert_eq!(state.level(), FeatureLevel::FIRST);
    let without = String::from_utf8(state.dump()).expect("JSON");
    assert!(!without.contains("issuer") && State::from_dump(without.as_bytes()).expect("reads").view().token_issuer.is_none());
    state.apply(put(&["a"], Some(3))).expect("an issuer");
    assert_eq!(
        (state.level(), put(&["a"], None).level(), Command::DeleteTokenIssuer.level()),
        (FeatureLevel::TENANTS, FeatureLevel::TENANTS, FeatureLevel::TENANTS)
    );
    let read = State::from_dump(&state.dump()).expect("its own dump");
    assert_eq!(read.view().token_issuer, state.view().token_issuer);
    assert_eq!(read.dump(), state.dump());
    let golden = r#""token_issuer":{"issuer":"https://id.example","audience":"veena","keys":[{"kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}],"revision":3}"#;
    assert!(String::from_utf8(state.dump()).expect("JSON").contains(golden));
    let command = serde_json::to_string(&put(&["a"], Some(3))).expect("JSON");
    assert_eq!(serde_json::from_str::<Command>(&command).expect("its own JSON"), put(&["a"], Some(3)));
}

#[test]
fn only_operators_say_whose_tokens_are_taken() {
    let other = || TenantId::parse("other").expect("a name");
    let mut state = state([Command::PutTenant { tenant: other(), state: TenantState::Active, revision: None, at_ms: 1, by_hand: false }]);
    let admin = veena_contract::GrantText { action: "admin".into(), patterns: vec![] };
    for (tenant, name, grants) in [(tenant(), "ann", vec![admin.clone()]), (tenant(), "joe", vec![]), (other(), "eve", vec![admin])] {
        let user = UserRecord {
            tenant,
            username: user_name(name),
            kind: UserKind::Person,
            hash: Some(StoredHash::new("h".into())),
            grants: Grants::parse(&grants).expect("grants"),
            is_root: false,
            created_at_ms: 1,
            updated_at_ms: 1,
            revision: 0,
        };
        state.apply(Command::CreateUser { user }).expect("created");
    }
    for (who, may) in [(actor("joe"), false), (veena_contract::Actor { tenant: other(), ..actor("eve") }, false), (actor("ann"), true)] {
        for command in [put(&["a"], None), Command::DeleteTokenIssuer] {
            let answer = state.apply_by(who.clone(), command);
            assert!(answer.is_ok() == may && (may || matches!(answer, Err(CommandError::Forbidden { .. }))), "{who:?}: {answer:?}");
        }
    }
}

#[test]
fn a_change_of_the_issuer_is_recorded_with_its_public_keys() {
    let mut state = State::default();
    let origin = Origin::Asked { caller: None, source: None, request: Some(5), key: None };
    for command in [put(&["a"], None), Command::DeleteTokenIssuer] {
        let stamp = origin.stamp(7, &node_id("n1"));
        let text = super::super::encode_from(super::super::Operation::catalog(None, command, FeatureLevel::CURRENT), Some(stamp));
        state.apply_text(text.expect("JSON").get()).expect("understood");
    }
    let lines: Vec<String> =
        state.view().audit.after(&tenant(), veena_contract::AuditKind::Changes, 0).map(|line| line.to_string()).collect();
    assert_eq!(lines.len(), 2);
    for part in
        [r#""action":"put_token_issuer","object":"token_issuer","decision":"allowed""#, r#""issuer":"https://id.example""#, r#""kid":"a""#]
    {
        assert!(lines[0].contains(part), "{}", lines[0]);
    }
    assert!(lines[1].contains(r#""action":"delete_token_issuer","object":"token_issuer""#), "{}", lines[1]);
}
