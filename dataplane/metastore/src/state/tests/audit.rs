//! The audit trail: every change has its record, made with it.

use serde_json::{Value, json};
use veena_contract::audit::{Verified, Verifier};
use veena_contract::{Actor, AuditKind, Denial, FeatureLevel, GrantText, LogIndex, Note, Origin, Stamp};

use super::super::{Operation, encode, encode_from};
use super::*;

fn of(tenant: &str, name: &str) -> Actor {
    Actor { tenant: TenantId::parse(tenant).expect("a tenant"), username: Username::parse(name).expect("a name"), checked: None }
}

fn asked(caller: Option<Actor>) -> Origin {
    Origin::Asked { caller, source: Some([10, 0, 0, 1].into()), request: Some(5), key: None }
}

/// As a node writes it at time 7.
fn text(origin: &Origin, command: Command) -> String {
    let stamp = origin.stamp(7, &node_id("n1"));
    encode_from(Operation::catalog(origin.caller().cloned(), command, FeatureLevel::CURRENT), Some(stamp)).expect("JSON").get().to_owned()
}

fn take(state: &mut State, origin: &Origin, command: Command) -> String {
    state.apply_text(&text(origin, command)).expect("understood")
}

fn lines(state: &State, tenant: &str) -> Vec<String> {
    lines_of(state, tenant, AuditKind::Changes)
}

fn lines_of(state: &State, tenant: &str, kind: AuditKind) -> Vec<String> {
    state.view.audit.after(&TenantId::parse(tenant).expect("a tenant"), kind, 0).map(|line| String::from(&**line)).collect()
}

fn records(state: &State, tenant: &str) -> Vec<Value> {
    lines(state, tenant).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn verified(lines: &[String]) -> Option<Verified> {
    let mut verifier = Verifier::default();
    lines.iter().try_for_each(|line| verifier.line(line)).expect("a chain");
    verifier.verified().cloned()
}

/// Actor, action, object, decision and reason.
fn told(record: &Value) -> String {
    let part = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
    ["actor", "action", "object", "decision", "reason"].map(part).join(" ")
}

fn user(tenant: &str, name: &str, grants: &[GrantText]) -> Command {
    let Actor { tenant, username, .. } = of(tenant, name);
    Command::CreateUser {
        user: UserRecord {
            is_root: tenant.is_default() && username.as_str() == Username::ROOT,
            tenant,
            username,
            hash: Some(StoredHash::new("secret-hash".into())),
            kind: UserKind::Person,
            grants: Grants::parse(grants).expect("grants"),
            created_at_ms: 1,
            updated_at_ms: 1,
            revision: 0,
        },
    }
}

fn put_acme() -> Command {
    Command::PutTenant {
        tenant: TenantId::parse("acme").expect("a tenant"),
        state: TenantState::Active,
        revision: None,
        at_ms: 3,
        by_hand: false,
    }
}

fn admin_of(tenant: &str, name: &str) -> Command {
    user(tenant, name, &[GrantText { action: "admin".into(), patterns: Vec::new() }])
}

#[test]
fn a_change_and_its_record_are_one() {
    let mut state = State::default();
    let (node, root, eve) = (Origin::Node, asked(Some(of("default", "admin"))), asked(Some(of("default", "eve"))));
    let at = PartitionAt { tenant: tenant(), topic: TopicId(1), index: PartitionIndex(2), epoch: OwnershipEpoch(1) };
    let mut owned = record("orders", 1);
    owned.owners = vec![Ownership::new(node_id("x"), OwnershipEpoch(1)); 3];
    let password = Command::SetPassword {
        tenant: tenant(),
        username: Username::parse("eve").expect("a name"),
        hash: StoredHash::new("secret-hash".into()),
        checked: Some(StoredHash::new("secret-hash".into())),
        at_ms: 3,
    };
    let may_create = [GrantText { action: "create".into(), patterns: vec!["a*".into()] }];
    for (origin, command, expected) in [
        (&node, user("default", "admin", &[]), "node:n1 create_user user:admin allowed -"),
        (&root, user("default", "eve", &may_create), "user:admin@default create_user user:eve allowed -"),
        (&eve, create("orders", 1), "user:eve@default create_topic topic:orders refused forbidden: may_not_create"),
        (&root, Command::CreateTopic { topic: owned, attach: None }, "user:admin@default create_topic topic:orders allowed -"),
        (&root, create("orders", 2), "user:admin@default create_topic topic:orders refused already_exists"),
        (&asked(None), delete("gone", 9), "anonymous delete_topic topic:gone refused topic_not_found"),
        (&eve, password, "user:eve@default set_password user:eve allowed -"),
        (
            &node,
            Command::BeginMove { at: at.clone(), to: node_id("y"), token: MoveToken(1) },
            "node:n1 begin_move partition:default/orders/2 allowed -",
        ),
        (&root, Command::AbortMove { at, token: MoveToken(1) }, "user:admin@default abort_move partition:default/orders/2 allowed -"),
        (
            &root,
            Command::SetDraining { node: node_id("x"), draining: true, mark: None, beside: None },
            "user:admin@default decommission node:x allowed -",
        ),
        (&root, Command::Note { what: Note::ForgetMember { node: node_id("z") } }, "user:admin@default forget_member node:z allowed -"),
        (&root, delete("orders", 1), "user:admin@default delete_topic topic:orders allowed -"),
    ] {
        let before = records(&state, "default").len();
        take(&mut state, origin, command);
        let records = records(&state, "default");
        assert_eq!((records.len(), told(&records[before]).as_str()), (before + 1, expected));
        let Origin::Asked { .. } = origin else { continue };
        assert_eq!((records[before]["source"].as_str(), records[before]["request"].as_str()), (Some("10.0.0.1"), Some("0000000000000005")));
    }
    let good = verified(&lines(&state, "default")).expect("some");
    assert_eq!((good.first, good.last), (1, 12));
    let all = records(&state, "default");
    assert_eq!(all[1]["detail"], json!({ "grants": [{ "action": "create", "patterns": ["a*"] }] }));
    assert_eq!(all[3]["detail"], json!({ "partitions": 3 }));
    assert!(!lines(&state, "default").concat().contains("secret-hash"));
}

#[test]
fn what_nodes_do_all_the_time_and_what_of_theirs_is_refused_is_not_recorded() {
    let mut state = State::default();
    let at = PartitionAt { tenant: tenant(), topic: TopicId(1), index: PartitionIndex(2), epoch: OwnershipEpoch(1) };
    for command in [
        Command::NameOwner { node: node_id("x") },
        Command::NodeGone { node: node_id("x") },
        Command::FreezePartition { at: at.clone(), token: MoveToken(1), end: Offset(1) },
        Command::FlipOwner { at, token: MoveToken(1) },
    ] {
        take(&mut state, &Origin::Node, command);
    }
    assert!(state.view.audit.is_empty());
    assert_eq!(state.level(), FeatureLevel::FIRST, "an older program reads it as before");
}

#[test]
fn a_log_of_before_makes_no_record() {
    let mut state = State::default();
    let text = encode(Operation::catalog(None, create("a", 1), FeatureLevel::CURRENT)).expect("JSON").get().to_owned();
    assert!(text.starts_with(r#"{"v":1,"#) && !text.contains("from"), "{text}");
    assert_eq!(state.apply_text(&text).expect("understood"), "{}");
    assert!(state.view.audit.is_empty());
}

#[test]
fn the_log_carries_where_a_change_comes_from_in_a_form_that_stays() {
    let golden = r#"{"v":4,"op":{"catalog":{"command":"name_owner","node":"x"}},"from":{"at_ms":7,"node":"n1"}}"#;
    assert_eq!(text(&Origin::Node, Command::NameOwner { node: node_id("x") }), golden);
    let golden = r#"{"v":4,"op":{"catalog":{"command":"name_owner","node":"x"}},"from":{"at_ms":7,"source":"10.0.0.1","request":"0000000000000005"}}"#;
    assert_eq!(text(&asked(None), Command::NameOwner { node: node_id("x") }), golden);
    let denial = Denial { tenant: TenantId::parse("acme").expect("a tenant"), username: None, rule: "r".into(), count: 2 };
    let note = Command::Note { what: Note::Denials { since_ms: 1, denials: vec![denial], others: 3 } };
    let golden =
        r#"{"command":"note","what":{"note":"denials","since_ms":1,"denials":[{"tenant":"acme","rule":"r","count":2}],"others":3}}"#;
    assert_eq!(serde_json::to_string(&note).expect("JSON"), golden);
    let stamp: Stamp = serde_json::from_str(r#"{"at_ms":1,"later":2}"#).expect("a newer one");
    assert_eq!(stamp, Stamp { at_ms: 1, ..Stamp::default() });
}

#[test]
fn each_tenant_is_told_of_its_own_denials_and_operators_of_the_rest() {
    let denial = |tenant: &str, username: Option<&str>, rule: &str, count| Denial {
        tenant: TenantId::parse(tenant).expect("a tenant"),
        username: username.map(|name| Username::parse(name).expect("a name")),
        rule: rule.to_owned(),
        count,
    };
    let denials = vec![
        denial("default", None, "unauthenticated", 4),
        denial("acme", Some("joe"), "forbidden GET /v1/users", 2),
        denial("acme", None, "rate_limited", 1),
    ];
    let mut state = state([put_acme()]);
    take(&mut state, &Origin::Node, Command::Note { what: Note::Denials { since_ms: 3, denials, others: 9 } });
    let denials = |state: &State, tenant: &str| -> Vec<Value> {
        let lines = lines_of(state, tenant, AuditKind::Denials);
        lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let (ours, acmes) = (denials(&state, "default"), denials(&state, "acme"));
    assert_eq!((told(&ours[0]).as_str(), ours.len()), ("node:n1 denials node:n1 refused -", 1));
    assert_eq!(
        ours[0]["detail"],
        json!({ "since_ms": 3, "denials": [{ "actor": "anonymous", "rule": "unauthenticated", "count": 4 }], "others": 9 })
    );
    let rows = json!([
        { "actor": "user:joe@acme", "rule": "forbidden GET /v1/users", "count": 2 },
        { "actor": "anonymous", "rule": "rate_limited", "count": 1 },
    ]);
    assert_eq!((acmes.len(), &acmes[0]["detail"]), (1, &json!({ "since_ms": 3, "denials": rows })));
    take(&mut state, &Origin::Node, Command::Note { what: Note::Denials { since_ms: 3, denials: Vec::new(), others: 2 } });
    assert_eq!(denials(&state, "default")[1]["detail"], json!({ "since_ms": 3, "denials": [], "others": 2 }));
    assert!(lines(&state, "default").is_empty(), "they stand in a chain of their own");
}

#[test]
fn what_was_refused_of_another_tenants_stands_with_whoever_tried_and_nowhere_else() {
    let mut state = state([put_acme(), user("default", "admin", &[]), admin_of("acme", "ann")]);
    for caller in [of("acme", "ann"), of("acme", "nobody")] {
        take(&mut state, &asked(Some(caller)), delete("orders", 1));
    }
    assert!(lines(&state, "default").is_empty());
    let told: Vec<String> = records(&state, "acme").iter().map(told).collect();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0], "user:ann@acme delete_topic topic:orders@default refused forbidden: caller_unknown");
}

#[test]
fn a_tenant_is_told_that_an_operator_has_changed_something_and_not_who() {
    let mut state = state([put_acme(), user("default", "admin", &[])]);
    take(&mut state, &asked(Some(of("default", "admin"))), admin_of("acme", "ann"));
    let (ours, theirs) = (records(&state, "default"), records(&state, "acme"));
    assert_eq!(told(&ours[0]), "user:admin@default create_user user:ann@acme allowed -");
    assert_eq!(told(&theirs[0]), "operator create_user user:ann allowed -");
    assert_eq!((ours.len(), theirs.len(), theirs[0].get("source"), theirs[0].get("request")), (1, 1, None, None));
}

#[test]
fn a_tenants_chain_goes_with_it_and_is_not_begun_anew() {
    let mut state = state([put_acme(), admin_of("acme", "ann")]);
    let (ann, acme) = (asked(Some(of("acme", "ann"))), of("acme", "ann").tenant);
    take(&mut state, &ann, delete("gone", 1));
    assert_eq!(lines(&state, "acme").len(), 1);
    let Actor { tenant, username, .. } = of("acme", "ann");
    for command in [
        Command::DeleteUser { tenant, username, kind: UserKind::Person, by_hand: false },
        Command::DeleteTenant { tenant: acme.clone(), at_ms: 4, by_hand: false },
        Command::TenantGone { tenant: acme, created_at_ms: 3 },
    ] {
        assert_eq!(take(&mut state, &Origin::Node, command), "{}");
    }
    take(&mut state, &ann, delete("gone", 1));
    assert!(lines(&state, "acme").is_empty());
    let told: Vec<String> = records(&state, "default").iter().map(told).collect();
    assert_eq!(told[..2], ["node:n1 delete_tenant tenant:acme allowed -", "node:n1 tenant_gone tenant:acme allowed -"]);
    assert_eq!(told[2], "user:ann@acme delete_topic topic:gone@default refused forbidden: caller_unknown");
}

#[test]
fn the_trail_goes_into_a_dump_and_on_behind_it_and_into_the_next_life() {
    let mut state = State::default();
    for n in 1..5 {
        take(&mut state, &asked(None), create(&format!("t{n}"), n));
    }
    state.view.applied = LogIndex(9);
    assert!(String::from_utf8(state.dump()).expect("JSON").starts_with(r#"{"v":4,"#));
    let mut again = State::from_dump(&state.dump()).expect("its own dump").begin_life(LineageId(2), Vec::new(), None);
    for side in [&mut state, &mut again] {
        take(side, &asked(None), create("t5", 5));
    }
    assert_eq!(lines(&state, "default"), lines(&again, "default"));
    assert_eq!(verified(&lines(&again, "default")).map(|good| good.last), Some(5));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Asked for by nobody in particular, so that most of it is applied.
    #[test]
    fn every_command_that_was_asked_for_has_one_record_and_every_node_has_the_same(
        commands in prop::collection::vec((any_command(), any::<bool>()), 0..60),
    ) {
        let begun = || state([Command::PutTenant { tenant: other(), state: TenantState::Active, revision: None, at_ms: 3, by_hand: false }]);
        let (mut one, mut two) = (begun(), begun());
        let count = |state: &State| ["default", "other"].map(|tenant| lines(state, tenant).len()).iter().sum::<usize>();
        for (command, is_asked) in commands {
            let command = aimed(command, &one);
            let is_silent = matches!(command, Command::NodeGone { .. } | Command::FreezePartition { .. });
            if matches!(command, Command::TenantGone { .. }) {
                continue; // its chain goes with it
            }
            let before = count(&one);
            let text = text(&if is_asked { asked(None) } else { Origin::Node }, command);
            let answer = one.apply_text(&text).expect("understood");
            prop_assert_eq!(&two.apply_text(&text).expect("understood"), &answer);
            let is_recorded = !is_silent && (is_asked || answer == "{}");
            prop_assert_eq!(count(&one) - before, usize::from(is_recorded));
        }
        for tenant in ["default", "other"] {
            let lines = lines(&one, tenant);
            prop_assert_eq!(verified(&lines).map_or(0, |good| good.last), lines.len() as u64);
        }
        prop_assert_eq!(one.dump(), two.dump());
        let restored = State::from_dump(&one.dump()).expect("its own dump");
        prop_assert_eq!(restored.dump(), one.dump());
    }
}
