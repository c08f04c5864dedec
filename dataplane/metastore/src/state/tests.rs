mod audit;
mod issuer;
mod keys;
mod moves;
mod quotas;
mod tenants;
mod users;

use std::sync::Arc;

use proptest::prelude::*;
use veena_contract::limits;
use veena_contract::records::{Attachment, Command, CommandError};
use veena_contract::{
    Actor, AttachEpoch, DrainMark, FeatureLevel, Grants, LineageId, MoveToken, NodeId, Offset, Ownership, OwnershipEpoch, PartitionAt,
    PartitionIndex, Reroute, SchemaVersion, StoredHash, StreamId, TenantId, TenantState, TopicId, TopicName, TopicRecord, UserKind,
    UserRecord, Username,
};

use super::State;

const HOUR: u64 = limits::RETENTION_MS_MIN;

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

fn name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a good name")
}

fn record(text: &str, id: u64) -> TopicRecord {
    TopicRecord {
        tenant: tenant(),
        name: name(text),
        id: TopicId(id),
        partitions: 3,
        earlier_partitions: Vec::new(),
        retention_ms: 0,
        retention_bytes: 0,
        visibility_timeout_ms: 30_000,
        max_in_flight_per_partition: 1024,
        max_acked_ahead_per_partition: 1024,
        dedup_window_ms: 0,
        reroute: Reroute::Auto,
        created_at_ms: 1,
        owner: None,
        parent: None,
        children: Vec::new(),
        schemas: Vec::new(),
        owners: Vec::new(),
        revision: 0,
    }
}

fn create(text: &str, id: u64) -> Command {
    Command::CreateTopic { topic: record(text, id), attach: None }
}

fn attachment(parent: &str, parent_id: u64, delay_ms: u64) -> Attachment {
    Attachment {
        parent: name(parent),
        parent_id: TopicId(parent_id),
        epoch: AttachEpoch(9),
        stream: StreamId(9),
        delay_ms,
        attach_offsets: vec![Offset(4), Offset(0), Offset(2)],
    }
}

fn attach(parent: (&str, u64), child: (&str, u64), delay_ms: u64) -> Command {
    Command::AttachChild {
        tenant: tenant(),
        child: name(child.0),
        child_id: TopicId(child.1),
        attach: attachment(parent.0, parent.1, delay_ms),
    }
}

fn detach(parent: &str, child: &str) -> Command {
    Command::DetachChild { tenant: tenant(), parent: name(parent), child: name(child) }
}

fn delete(text: &str, id: u64) -> Command {
    Command::DeleteTopic { tenant: tenant(), name: name(text), id: TopicId(id) }
}

fn retention(text: &str, id: u64, retention_ms: u64) -> Command {
    Command::SetBounds {
        tenant: tenant(),
        name: name(text),
        id: TopicId(id),
        retention_ms: Some(retention_ms),
        retention_bytes: None,
        max_in_flight_per_partition: None,
        max_acked_ahead_per_partition: None,
        dedup_window_ms: None,
        reroute: None,
    }
}

fn node_id(text: &str) -> NodeId {
    NodeId(Arc::from(text))
}

fn grow(text: &str, id: u64, partitions: u32) -> Command {
    grow_on(text, id, partitions, &[])
}

fn grow_on(text: &str, id: u64, partitions: u32, nodes: &[&str]) -> Command {
    let owners = nodes.iter().copied().map(node_id).collect();
    Command::GrowPartitions { tenant: tenant(), name: name(text), id: TopicId(id), partitions, owners }
}

fn create_on(text: &str, id: u64, nodes: &[&str]) -> Command {
    let owner = |node: &&str| Ownership::new(node_id(node), OwnershipEpoch(7));
    Command::CreateTopic { topic: TopicRecord { owners: nodes.iter().map(owner).collect(), ..record(text, id) }, attach: None }
}

/// The owners of a topic's partitions, and their epochs.
fn owners(state: &State, text: &str) -> Vec<(String, u64)> {
    get(state, text).owners.iter().map(|owner| (owner.node.to_string(), owner.epoch.0)).collect()
}

fn schema(text: &str, id: u64, base_version: u32, document: &str) -> Command {
    Command::AddSchema { tenant: tenant(), name: name(text), id: TopicId(id), base_version, document: Arc::from(document) }
}

fn state(commands: impl IntoIterator<Item = Command>) -> State {
    let mut state = State::default();
    for command in commands {
        state.apply(command).expect("taken");
    }
    state
}

fn get(state: &State, text: &str) -> TopicRecord {
    TopicRecord::clone(state.view().topic(&tenant(), &name(text)).expect("there"))
}

#[test]
fn a_name_is_taken_in_every_letter_case() {
    let mut state = state([create("Orders", 1)]);
    assert_eq!(state.apply(create("Orders", 2)), Err(CommandError::AlreadyExists));
    let clash = state.apply(create("oRDERS", 2)).expect_err("clashes");
    assert_eq!(clash, CommandError::CaseClash { name: name("oRDERS"), existing: name("Orders") });
    assert!(clash.to_string().contains("differs only in letter case"));
    state.apply(delete("Orders", 1)).expect("deleted");
    state.apply(create("oRDERS", 2)).expect("free again");
}

#[test]
fn a_partition_is_owned_from_the_first_epoch_on_and_all_are_or_none() {
    let mut state = state([create_on("t", 1, &["a", "b", "a"]), create("old", 2)]);
    let of = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 1)).collect::<Vec<_>>();
    assert_eq!(owners(&state, "t"), of(&["a", "b", "a"]));
    assert_eq!(state.apply(create_on("u", 3, &["a"])), Err(CommandError::Changed));
    for nodes in [&["c"][..], &[], &["c", "c", "c"]] {
        assert_eq!(state.apply(grow_on("t", 1, 5, nodes)), Err(CommandError::Changed));
    }
    state.apply(grow_on("t", 1, 5, &["c", "b"])).expect("grown");
    assert_eq!(owners(&state, "t"), of(&["a", "b", "a", "c", "b"]));
    assert_eq!(state.apply(grow_on("old", 2, 4, &["c"])), Err(CommandError::Changed));
    state.apply(grow("old", 2, 4)).expect("of a cluster of one node");
}

#[test]
fn what_was_made_by_a_node_alone_is_its_own_when_others_come() {
    let mut state = state([create_on("t", 1, &["a", "b", "a"]), create("old", 2)]);
    let alone = Command::NameOwner { node: NodeId(Arc::from("b")) };
    for _ in 0..2 {
        state.apply(alone.clone()).expect("taken");
        assert_eq!(owners(&state, "old"), vec![("b".to_owned(), 1); 3]);
        assert_eq!((get(&state, "old").revision, get(&state, "t").revision), (2, 1));
    }
}

#[test]
fn tenants_share_no_names_and_no_links() {
    let theirs = other();
    let topic = TopicRecord { tenant: other(), ..record("orders", 2) };
    let put = Command::PutTenant { tenant: other(), state: TenantState::Active, revision: None, at_ms: 3, by_hand: false };
    let mut state = state([put, create("orders", 1), Command::CreateTopic { topic, attach: None }, create("child", 3)]);
    let foreign = Command::DeleteTopic { tenant: theirs.clone(), name: name("orders"), id: TopicId(1) };
    assert_eq!(state.apply(foreign), Err(CommandError::TopicNotFound));
    assert_eq!(state.apply(attach(("orders", 2), ("child", 3), 0)), Err(CommandError::Changed));
    assert_eq!(state.view().topic(&theirs, &name("orders")).expect("there").id, TopicId(2));
}

#[test]
fn an_id_in_use_is_not_given_to_another_topic() {
    let mut state = state([create("a", 1)]);
    assert_eq!(state.apply(create("b", 1)), Err(CommandError::Changed));
}

#[test]
fn a_command_for_another_incarnation_is_refused() {
    let mut state = state([create("a", 1), delete("a", 1), create("a", 2)]);
    assert_eq!(state.apply(grow("a", 1, 9)), Err(CommandError::Changed));
    assert_eq!(state.apply(retention("a", 1, HOUR)), Err(CommandError::Changed));
    assert_eq!(state.apply(schema("a", 1, 0, "{}")), Err(CommandError::Changed));
    assert_eq!(state.apply(delete("a", 1)), Err(CommandError::TopicNotFound), "that one is gone already");
    assert_eq!(state.apply(grow("b", 1, 9)), Err(CommandError::TopicNotFound));
    assert_eq!(get(&state, "a").id, TopicId(2));
}

#[test]
fn partitions_only_grow() {
    let mut state = state([create("a", 1), grow("a", 1, 5)]);
    assert_eq!(get(&state, "a").partitions, 5);
    assert_eq!(get(&state, "a").earlier_partitions, [3], "where keys led before");
    assert_eq!(state.apply(grow("a", 1, 5)), Err(CommandError::PartitionsMustGrow { current: 5 }));
    assert_eq!(state.apply(grow("a", 1, 4)), Err(CommandError::PartitionsMustGrow { current: 5 }));
}

#[test]
fn of_a_growth_that_was_written_for_older_programs_all_remember_the_same() {
    let mut state = state([create("a", 1)]);
    let grown = |version: u32, partitions: u32| {
        let command = serde_json::to_string(&grow("a", 1, partitions)).expect("JSON");
        format!(r#"{{"v":{version},"op":{{"catalog":{command}}}}}"#)
    };
    assert_eq!(state.apply_text(&grown(1, 5)).as_deref(), Ok("{}"));
    assert_eq!((get(&state, "a").partitions, get(&state, "a").earlier_partitions), (5, Vec::new()), "an older one remembers nothing");
    assert_eq!(state.apply_text(&grown(2, 7)).as_deref(), Ok("{}"));
    assert_eq!((get(&state, "a").partitions, get(&state, "a").earlier_partitions), (7, vec![5]));
}

#[test]
fn an_attachment_is_seen_from_both_ends_and_ends_at_both() {
    let mut state = state([create("p", 1), create("c", 2), attach(("p", 1), ("c", 2), 0)]);
    let (parent, child) = (get(&state, "p"), get(&state, "c"));
    assert_eq!(parent.children.len(), 1);
    assert_eq!((parent.children[0].child_id, parent.children[0].attach_offsets.len()), (TopicId(2), 3));
    assert_eq!(child.parent.expect("attached").parent_id, TopicId(1));
    state.apply(detach("p", "c")).expect("detached");
    assert!(get(&state, "p").children.is_empty() && get(&state, "c").parent.is_none());
    assert!(matches!(state.apply(detach("p", "c")), Err(CommandError::LinkNotFound { .. })));
    assert_eq!(state.apply(detach("nobody", "c")), Err(CommandError::TopicNotFound));
}

#[test]
fn roles_are_exclusive_and_one_deep() {
    let mut state = state([create("p", 1), create("c", 2), create("x", 3), attach(("p", 1), ("c", 2), 0)]);
    for (parent, child) in [(("p", 1), ("p", 1)), (("p", 1), ("c", 2)), (("x", 3), ("c", 2)), (("c", 2), ("x", 3)), (("x", 3), ("p", 1))] {
        let error = state.apply(attach(parent, child, 0)).expect_err("a role rule");
        assert!(matches!(error, CommandError::RoleConflict { .. }), "{parent:?} {child:?} {error}");
    }
    assert_eq!(state.apply(attach(("nobody", 7), ("x", 3), 0)), Err(CommandError::TopicNotFound));
    assert_eq!(state.apply(attach(("p", 1), ("nobody", 7), 0)), Err(CommandError::TopicNotFound));
}

#[test]
fn a_parent_has_at_most_108_children() {
    let mut state = state([create("p", 1)]);
    for n in 0..108 {
        let text = format!("c{n}");
        state.apply(create(&text, 100 + n)).expect("created");
        state.apply(attach(("p", 1), (&text, 100 + n), 0)).expect("attached");
    }
    state.apply(create("one-more", 2)).expect("created");
    assert_eq!(state.apply(attach(("p", 1), ("one-more", 2), 0)), Err(CommandError::TooManyChildren { max: 108 }));
}

#[test]
fn a_create_with_a_failed_attach_creates_nothing() {
    let mut state = state([create("p", 1), create("c", 2), attach(("p", 1), ("c", 2), 0)]);
    let topic = |text, id| record(text, id);
    let under_child = Command::CreateTopic { topic: topic("n", 3), attach: Some(attachment("c", 2, 0)) };
    assert!(matches!(state.apply(under_child), Err(CommandError::RoleConflict { .. })));
    let under_nobody = Command::CreateTopic { topic: topic("n", 3), attach: Some(attachment("nobody", 9, 0)) };
    assert_eq!(state.apply(under_nobody), Err(CommandError::TopicNotFound));
    assert!(state.view().topic(&tenant(), &name("n")).is_none());
    let under_parent = Command::CreateTopic { topic: topic("n", 3), attach: Some(attachment("p", 1, 0)) };
    state.apply(under_parent).expect("created and attached");
    assert_eq!(get(&state, "p").children.len(), 2);
    assert!(get(&state, "n").parent.is_some());
}

#[test]
fn a_create_cannot_bring_its_own_roles() {
    let mut topic = record("n", 3);
    topic.parent = Some(veena_contract::ParentLink { parent: name("x"), parent_id: TopicId(8), epoch: AttachEpoch(1), delay_ms: 0 });
    topic.revision = 77;
    let state = state([Command::CreateTopic { topic, attach: None }]);
    assert!(get(&state, "n").parent.is_none());
    assert_eq!(get(&state, "n").revision, 1);
}

#[test]
fn a_delay_needs_a_retention_that_covers_it_at_attach_and_ever_after() {
    let mut state = state([create("p", 1), create("c", 2), retention("p", 1, 3 * HOUR)]);
    let refused = Err(CommandError::DelayExceedsRetention { delay_ms: 2 * HOUR + 1, needed_ms: 3 * HOUR + 1 });
    assert_eq!(state.apply(attach(("p", 1), ("c", 2), 2 * HOUR + 1)), refused);
    state.apply(attach(("p", 1), ("c", 2), 2 * HOUR)).expect("covered");
    assert!(matches!(state.apply(retention("p", 1, 3 * HOUR - 1)), Err(CommandError::DelayExceedsRetention { .. })));
    assert_eq!(get(&state, "p").retention_ms, 3 * HOUR);
    state.apply(retention("p", 1, 0)).expect("for ever covers everything");
}

#[test]
fn an_attach_that_asked_fewer_partitions_than_there_are_must_ask_again() {
    let mut state = state([create("p", 1), create("c", 2), grow("p", 1, 4)]);
    assert_eq!(state.apply(attach(("p", 1), ("c", 2), 0)), Err(CommandError::Changed));
}

#[test]
fn a_childs_schemas_are_its_parents_while_it_is_attached() {
    let mut state = state([
        create("p", 1),
        create("empty", 2),
        create("same", 3),
        create("other", 4),
        schema("p", 1, 0, "{\"a\":1}"),
        schema("same", 3, 0, "{\"a\":1}"),
        schema("other", 4, 0, "{\"b\":1}"),
        attach(("p", 1), ("empty", 2), 0),
        attach(("p", 1), ("same", 3), 0),
    ]);
    assert_eq!(state.apply(attach(("p", 1), ("other", 4), 0)), Err(CommandError::ChildSchema));
    assert_eq!(state.apply(schema("empty", 2, 1, "{}")), Err(CommandError::SchemaParentManaged));
    state.apply(schema("p", 1, 1, "{\"a\":2}")).expect("a second version");
    assert_eq!(get(&state, "empty").schemas, get(&state, "p").schemas);
    assert_eq!(get(&state, "same").schemas.len(), 2);
    state.apply(detach("p", "empty")).expect("detached");
    assert_eq!(get(&state, "empty").schemas.len(), 2, "it keeps its history");
    state.apply(create("bare", 5)).expect("created");
    assert_eq!(state.apply(attach(("bare", 5), ("empty", 2), 0)), Err(CommandError::ChildSchema), "a parent without a schema");
}

#[test]
fn a_schema_is_added_to_the_newest_version_only() {
    let mut state = state([create("a", 1), schema("a", 1, 0, "true")]);
    let error = state.apply(schema("a", 1, 0, "{}")).expect_err("not the newest");
    assert_eq!(error, CommandError::SchemaBaseVersion { base: 0, newest: 1 });
    state.apply(schema("a", 1, 1, "{}")).expect("taken");
    assert_eq!(get(&state, "a").schema().expect("there").version, 2);
}

#[test]
fn a_schema_history_is_bounded_in_versions_and_bytes() {
    let mut topic = record("a", 1);
    topic.schemas = (1..=1000).map(|version| SchemaVersion { version, document: Arc::from("{}") }).collect();
    let mut state = state([Command::CreateTopic { topic: topic.clone(), attach: None }, create("b", 2)]);
    assert!(matches!(state.apply(schema("a", 1, 1000, "{}")), Err(CommandError::LimitReached { .. })));
    let large = " ".repeat(limits::SCHEMA_BYTES_MAX);
    for version in 0..16 {
        state.apply(schema("b", 2, version, &large)).expect("16 of 256 KiB fit");
    }
    assert!(matches!(state.apply(schema("b", 2, 16, "x")), Err(CommandError::LimitReached { .. })));
    topic.id = TopicId(3);
    topic.name = name("c");
    topic.schemas.push(SchemaVersion { version: 1001, document: Arc::from("{}") });
    assert!(matches!(state.apply(Command::CreateTopic { topic, attach: None }), Err(CommandError::LimitReached { .. })));
}

/// A topic with as much schema history as one may have. Documents are shared: the state holds them once, and counts each.
fn full_of_schemas(text: &str, id: u64, document: &Arc<str>) -> Command {
    let mut topic = record(text, id);
    let versions = u32::try_from(limits::SCHEMA_TOPIC_BYTES_MAX / document.len()).expect("few");
    topic.schemas = (1..=versions).map(|version| SchemaVersion { version, document: Arc::clone(document) }).collect();
    Command::CreateTopic { topic, attach: None }
}

#[test]
fn all_schema_histories_together_are_bounded_in_bytes() {
    let document: Arc<str> = Arc::from(" ".repeat(limits::SCHEMA_BYTES_MAX));
    let topics = u64::try_from(limits::SCHEMA_CLUSTER_BYTES_MAX / limits::SCHEMA_TOPIC_BYTES_MAX).expect("few");
    let mut state = state((1..=topics).map(|id| full_of_schemas(&format!("t{id}"), id, &document)));
    state.apply(create("small", 900)).expect("a topic without a schema");
    for refused in [schema("small", 900, 0, "{}"), full_of_schemas("more", 901, &document)] {
        assert!(matches!(state.apply(refused), Err(CommandError::LimitReached { detail }) if detail.contains("cluster")));
    }

    state.apply(delete("t1", 1)).expect("deleted");
    state.apply(schema("small", 900, 0, "{}")).expect("there is room again");
    state.apply(delete("small", 900)).expect("deleted");
    state.apply(full_of_schemas("more", 901, &document)).expect("as much as went");
}

#[test]
fn the_history_of_a_child_counts_with_its_parents_until_it_leaves() {
    let document: Arc<str> = Arc::from(" ".repeat(limits::SCHEMA_BYTES_MAX));
    let topics = u64::try_from(limits::SCHEMA_CLUSTER_BYTES_MAX / limits::SCHEMA_TOPIC_BYTES_MAX).expect("few");
    let mut state = state((1..topics).map(|id| full_of_schemas(&format!("t{id}"), id, &document)));
    for (id, child) in [(900, "a"), (901, "b")] {
        state.apply(create(child, id)).expect("created");
        state.apply(attach(("t1", 1), (child, id), 0)).expect("it has its parent's history");
    }
    state.apply(full_of_schemas("last", topics, &document)).expect("the children count nothing");
    state.apply(detach("t1", "a")).expect("a child may leave, whatever its history then weighs");
    state.apply(create("other", 902)).expect("created");
    assert!(matches!(state.apply(schema("other", 902, 0, "{}")), Err(CommandError::LimitReached { .. })));
    state.apply(delete("a", 900)).expect("deleted");
    assert!(matches!(state.apply(schema("other", 902, 0, "{}")), Err(CommandError::LimitReached { .. })), "the rest is full");
    state.apply(delete("last", topics)).expect("deleted");
    state.apply(schema("other", 902, 0, "{}")).expect("there is room");
}

#[test]
fn children_of_a_deleted_parent_are_standalone_and_a_deleted_child_is_unlinked() {
    let mut state = state([
        create("p", 1),
        create("c", 2),
        create("d", 3),
        attach(("p", 1), ("c", 2), 0),
        attach(("p", 1), ("d", 3), 0),
        delete("d", 3),
    ]);
    assert_eq!(get(&state, "p").children.len(), 1);
    state.apply(delete("p", 1)).expect("deleted");
    assert!(get(&state, "c").parent.is_none());
    assert!(state.view().topic_by_id(TopicId(1)).is_none());
}

#[test]
fn the_number_of_topics_of_a_tenant_is_bounded() {
    let mut state = state([create("t0", 0)]);
    state.count(&tenant(), |counts| counts.topics = limits::TOPICS_MAX);
    assert!(matches!(state.apply(create("one-more", u64::MAX)), Err(CommandError::LimitReached { .. })));
    state.apply(delete("t0", 0)).expect("deleted");
    state.apply(create("one-more", u64::MAX)).expect("there is room again");
}

#[test]
fn the_first_lineage_stays() {
    let mut state = State::default();
    state.name_lineage(LineageId(1));
    state.name_lineage(LineageId(2));
    assert_eq!(state.lineage(), Some(LineageId(1)));
}

#[test]
fn a_dump_of_a_later_version_or_of_something_else_is_refused() {
    for bytes in [&b"{\"v\":5,\"applied\":0,\"topics\":[]}"[..], b"", b"{}", b"[1]", b"{\"v\":1}", b"\xff"] {
        assert!(State::from_dump(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn the_dump_keeps_its_form() {
    let mut state = state([
        create("p", 1),
        schema("p", 1, 0, "{\"type\":\"object\"}"),
        Command::CreateTopic { topic: record("c", 2), attach: Some(attachment("p", 1, 5)) },
    ]);
    state.name_lineage(LineageId(3));
    let text = String::from_utf8(state.dump()).expect("JSON");
    let golden = concat!(
        r#"{"v":1,"lineage":"00000000000000000000000000000003","applied":0,"topics":["#,
        r#"{"tenant":"default","name":"c","id":"0000000000000002","partitions":3,"retention_ms":0,"retention_bytes":0,"#,
        r#""visibility_timeout_ms":30000,"max_in_flight_per_partition":1024,"max_acked_ahead_per_partition":1024,"dedup_window_ms":0,"#,
        r#""reroute":"auto","created_at_ms":1,"owner":null,"parent":{"parent":"p","parent_id":"0000000000000001","#,
        r#""epoch":"0000000000000009","delay_ms":5},"children":[],"schemas":[],"revision":1},"#,
        r#"{"tenant":"default","name":"p","id":"0000000000000001","partitions":3,"retention_ms":0,"retention_bytes":0,"#,
        r#""visibility_timeout_ms":30000,"max_in_flight_per_partition":1024,"max_acked_ahead_per_partition":1024,"dedup_window_ms":0,"#,
        r#""reroute":"auto","created_at_ms":1,"owner":null,"parent":null,"children":[{"child":"c","child_id":"0000000000000002","#,
        r#""epoch":"0000000000000009","stream":"00000000000000000000000000000009","delay_ms":5,"attach_offsets":[4,0,2]}],"#,
        r#""schemas":[{"version":1,"document":"{\"type\":\"object\"}"}],"revision":3}]}"#,
    );
    assert_eq!(text, golden);
}

#[test]
fn the_log_carries_operations_in_a_form_that_stays() {
    use super::{Operation, decode_answer, encode};
    let text = |op| encode(op).expect("JSON").get().to_owned();
    assert_eq!(text(Operation::Lineage(LineageId(3))), r#"{"v":1,"op":{"lineage":"00000000000000000000000000000003"}}"#);
    let by_the_node = Operation::Catalog(Box::new(delete("a", 1)));
    let golden = r#"{"v":1,"op":{"catalog":{"command":"delete_topic","tenant":"default","name":"a","id":"0000000000000001"}}}"#;
    assert_eq!(text(by_the_node), golden);
    assert_eq!(decode_answer("{}").expect("JSON"), Ok(()));
    let (default, acme) = (TenantId::default_tenant(), TenantId::parse("acme").expect("a name"));
    for (tenant, level, v, named, shown) in [
        (default.clone(), FeatureLevel::USERS, 3, "", ""),
        (default, FeatureLevel::TENANTS, 4, "", r#""checked":"h","#),
        (acme, FeatureLevel::TENANTS, 4, r#""tenant":"acme","#, r#""checked":"h","#),
    ] {
        let caller = Actor { tenant, username: Username::root(), checked: Some(StoredHash::new("h".into())) };
        let operation = Operation::catalog(Some(caller), delete("a", 1), level);
        let golden = format!(
            r#"{{"v":{v},"op":{{"catalog_by":{{{named}"caller":"admin",{shown}"command":{{"command":"delete_topic","tenant":"default","name":"a","id":"0000000000000001"}}}}}}}}"#
        );
        assert_eq!(text(operation), golden);
    }
    let refused = decode_answer(r#"{"refused":{"error":"too_many_children","max":108}}"#).expect("JSON");
    assert_eq!(refused, Err(CommandError::TooManyChildren { max: 108 }));
}

#[test]
fn an_operation_that_is_not_understood_is_not_skipped() {
    use veena_consensus::StateMachine;
    use veena_contract::LogIndex;
    let mut machine = super::CatalogMachine::new(Arc::new(crate::replica::Replica::new()), Arc::default());
    let later = r#"{"v":5,"op":{"lineage":"00000000000000000000000000000003"}}"#;
    let error = machine.apply(LogIndex(5), later).expect_err("a later version");
    assert!(error.to_string().contains("the command at 5") && error.to_string().contains("version 5"), "{error}");
    for text in [r#"{"v":1,"op":{"unheard_of":1}}"#, "{}", "", "null", r#"{"v":1,"op":{"catalog":{"command":"fly"}}}"#] {
        assert!(machine.apply(LogIndex(6), text).is_err(), "{text}");
    }
}

/// Everything that must hold between records, whatever was applied.
fn check(state: &State) {
    let view = state.view();
    assert_eq!(view.topics.len(), view.by_id.len());
    assert_eq!(view.topics.len(), state.folded.len());
    assert_eq!(view.counts.values().map(|counts| counts.topics).sum::<usize>(), view.topics.len());
    assert_eq!(view.counts.values().map(|counts| counts.users).sum::<usize>(), view.users.len());
    assert!(view.counts.iter().all(|(tenant, counts)| !counts.is_empty() && view.tenants.contains_key(tenant)));
    assert!(view.tenants.contains_key(&tenant()));
    let histories = view.topics.values().filter(|record| record.parent.is_none()).flat_map(|record| &record.schemas);
    assert_eq!(state.schema_bytes, histories.map(|schema| schema.document.len()).sum::<usize>());
    assert!(view.leaving.iter().all(|node| view.draining.contains(node)));
    for ((tenant, username), user) in &view.users {
        let is_root = tenant.is_default() && username.as_str() == Username::ROOT;
        assert_eq!((tenant, username, is_root), (&user.tenant, &user.username, user.is_root));
    }
    assert_eq!(view.account_keys.values().map(|ids| ids.len()).sum::<usize>(), view.keys.len());
    for ((tenant, account), ids) in &view.account_keys {
        assert!(!ids.is_empty() && view.user(tenant, account).is_some_and(|user| !user.is_person()));
        let is_its = |id| view.key(id).is_some_and(|key| (&key.id, &key.tenant, &key.username) == (id, tenant, account));
        assert!(ids.iter().all(is_its));
    }
    for ((tenant, name), record) in &view.topics {
        assert_eq!((tenant, name), (&record.tenant, &record.name));
        assert!(Arc::ptr_eq(record, view.topic_by_id(record.id).expect("by id too")));
        assert_eq!(state.folded.get(&(tenant.clone(), name.folded())), Some(name));
        assert!(record.parent.is_none() || record.children.is_empty(), "one role");
        for owner in &record.owners {
            assert!(owner.moving.as_ref().is_none_or(|moving| moving.to != owner.node), "a move goes somewhere else");
            assert!(!view.leaving.contains(&owner.node), "who leaves has nothing");
            assert!(owner.moving.as_ref().is_none_or(|moving| !view.leaving.contains(&moving.to)), "nor will have anything");
        }
        if let Some(link) = &record.parent {
            let parent = view.topic_by_id(link.parent_id).expect("its parent lives");
            assert!(parent.parent.is_none(), "depth one");
            assert_eq!(parent.schemas, record.schemas);
            assert!(TopicRecord::retention_covers(parent.retention_ms, link.delay_ms));
            let back = parent.children.iter().filter(|back| back.child_id == record.id && back.epoch == link.epoch);
            assert_eq!(back.count(), 1);
        }
        for link in &record.children {
            let child = view.topic_by_id(link.child_id).expect("its child lives");
            assert_eq!(child.parent.as_ref().expect("attached").parent_id, record.id);
        }
    }
}

fn same(a: &State, b: &State) -> bool {
    a.lineage == b.lineage
        && a.former == b.former
        && a.view.applied == b.view.applied
        && a.view.topics == b.view.topics
        && a.view.by_id == b.view.by_id
        && a.view.draining == b.view.draining
        && a.view.leaving == b.view.leaving
        && a.view.users == b.view.users
        && a.view.keys == b.view.keys
        && a.view.account_keys == b.view.account_keys
        && a.folded == b.folded
        && a.view.tenants == b.view.tenants
        && a.view.counts == b.view.counts
        && a.tombstones.dump().eq(b.tombstones.dump())
        && a.view.counts == b.view.counts
        && a.schema_bytes == b.schema_bytes
}

fn any_name() -> impl Strategy<Value = TopicName> {
    prop::sample::select(vec!["a", "A", "b", "c", "d", "e"]).prop_map(name)
}

fn other() -> TenantId {
    TenantId::parse("other").expect("a name")
}

fn any_tenant() -> impl Strategy<Value = TenantId> {
    prop::sample::select(vec!["default", "other"]).prop_map(|text| serde_json::from_value(text.into()).expect("a tenant"))
}

fn any_attachment() -> impl Strategy<Value = Attachment> {
    let delay = prop::sample::select(vec![0, 1, HOUR, 5 * HOUR]);
    (any_name(), 0..8_u64, any::<u64>(), delay, 2..5_usize).prop_map(|(parent, parent_id, unique, delay_ms, offsets)| Attachment {
        parent,
        parent_id: TopicId(parent_id),
        epoch: AttachEpoch(unique),
        stream: StreamId(unique.into()),
        delay_ms,
        attach_offsets: vec![Offset(unique >> 1); offsets],
    })
}

fn any_node() -> impl Strategy<Value = NodeId> {
    prop::sample::select(vec!["x", "y", "z"]).prop_map(node_id)
}

fn any_mark() -> impl Strategy<Value = Option<DrainMark>> {
    prop::option::of((0..2_u128).prop_map(DrainMark))
}

fn any_user() -> impl Strategy<Value = Username> {
    prop::sample::select(vec!["admin", "joe", "ann"]).prop_map(|text| Username::parse(text).expect("a good name"))
}

fn any_tenant_state() -> impl Strategy<Value = TenantState> {
    prop::sample::select(vec![TenantState::Active, TenantState::Active, TenantState::Suspended, TenantState::Deleting])
}

fn any_kind() -> impl Strategy<Value = UserKind> {
    prop::sample::select(vec![UserKind::Person, UserKind::Service])
}

fn any_token() -> impl Strategy<Value = MoveToken> {
    (0..3_u128).prop_map(MoveToken)
}

fn any_place() -> impl Strategy<Value = PartitionAt> {
    (any_tenant(), 0..8_u64, 0..4_u32, 0..4_u64).prop_map(|(tenant, topic, index, epoch)| PartitionAt {
        tenant,
        topic: TopicId(topic),
        index: PartitionIndex(index),
        epoch: OwnershipEpoch(epoch),
    })
}

fn any_command() -> impl Strategy<Value = Command> {
    let ids = || (any_tenant(), any_name(), (0..8_u64).prop_map(TopicId));
    let retention = || prop::option::of(prop::sample::select(vec![0, HOUR, 2 * HOUR, 10 * HOUR]));
    prop_oneof![
        4 => (ids(), prop::option::weighted(0.3, any_attachment()), any::<bool>()).prop_map(|((tenant, name, id), attach, owned)| {
            let mut topic = record("a", 0);
            if owned {
                topic.owners = ["x", "y", "z"].map(|node| Ownership::new(node_id(node), OwnershipEpoch(1))).to_vec();
            }
            (topic.tenant, topic.name, topic.id) = (tenant, name, id);
            Command::CreateTopic { topic, attach }
        }),
        2 => ids().prop_map(|(tenant, name, id)| Command::DeleteTopic { tenant, name, id }),
        2 => (ids(), retention(), prop::option::of(any::<u64>())).prop_map(|((tenant, name, id), retention_ms, cap)| {
            Command::SetBounds {
                tenant, name, id, retention_ms, retention_bytes: cap, max_in_flight_per_partition: cap,
                max_acked_ahead_per_partition: None, dedup_window_ms: None, reroute: Some(Reroute::Never),
            }
        }),
        1 => (ids(), 0..6_u32).prop_map(|((tenant, name, id), partitions)| Command::GrowPartitions { tenant, name, id, partitions, owners: Vec::new() }),
        2 => (ids(), 0..3_u32, prop::sample::select(vec!["{}", "true"])).prop_map(|((tenant, name, id), base_version, document)| {
            Command::AddSchema { tenant, name, id, base_version, document: Arc::from(document) }
        }),
        6 => (ids(), any_attachment()).prop_map(|((tenant, child, child_id), attach)| Command::AttachChild { tenant, child, child_id, attach }),
        2 => (any_tenant(), any_name(), any_name()).prop_map(|(tenant, parent, child)| Command::DetachChild { tenant, parent, child }),
        3 => (any_place(), any_node(), any_token()).prop_map(|(at, to, token)| Command::BeginMove { at, to, token }),
        3 => (any_place(), any_token(), 0..3_u64).prop_map(|(at, token, end)| Command::FreezePartition { at, token, end: Offset(end) }),
        3 => (any_place(), any_token()).prop_map(|(at, token)| Command::FlipOwner { at, token }),
        1 => (any_place(), any_token()).prop_map(|(at, token)| Command::AbortMove { at, token }),
        1 => (any_node(), any::<bool>(), any_mark()).prop_map(|(node, draining, mark)| Command::SetDraining { node, draining, mark, beside: None }),
        1 => (any_node(), any_mark()).prop_map(|(node, mark)| Command::LetGo { node, mark }),
        1 => any_node().prop_map(|node| Command::NodeGone { node }),
        3 => (any_tenant(), any_user(), any_kind()).prop_map(|(tenant, username, kind)| Command::CreateUser {
            user: UserRecord {
                is_root: tenant.is_default() && username.as_str() == Username::ROOT,
                tenant,
                username,
                kind,
                hash: kind.is_person().then(|| StoredHash::new("h".into())),
                grants: Grants::none(),
                created_at_ms: 1,
                updated_at_ms: 1,
                revision: 0,
            },
        }),
        2 => (any_tenant(), any_tenant_state(), prop::option::of(0..6_u64)).prop_map(|(tenant, state, revision)| Command::PutTenant {
            tenant, state, revision, at_ms: 3, by_hand: revision.is_none(),
        }),
        1 => any_tenant().prop_map(|tenant| Command::DeleteTenant { tenant, at_ms: 4, by_hand: true }),
        2 => any_tenant().prop_map(|tenant| Command::TenantGone { tenant, created_at_ms: 3 }),
        2 => (any_tenant(), any_user(), any::<bool>(), any::<bool>(), prop::option::of(0..4_u64)).prop_map(|(tenant, username, has_hash, has_grants, revision)| Command::PutUser {
            tenant, username, hash: has_hash.then(|| StoredHash::new("p".into())), grants: has_grants.then(Grants::none), revision, at_ms: 5,
        }),
        1 => (any_tenant(), any_user(), any_kind()).prop_map(|(tenant, username, kind)| Command::DeleteUser { tenant, username, kind, by_hand: true }),
        3 => (any_tenant(), any_user(), 0..30_u8, 0..20_u64, prop::option::of(0..20_u64)).prop_map(|(tenant, username, n, created_at_ms, expires_at_ms)| {
            Command::CreateKey { key: keys::key(tenant, username, n, created_at_ms, expires_at_ms) }
        }),
        1 => (any_tenant(), any_user(), 0..30_u8).prop_map(|(tenant, username, n)| Command::DeleteKey { tenant, username, id: keys::id(n) }),
        1 => (any_tenant(), any_user(), any_kind(), any::<u64>()).prop_map(|(tenant, username, kind, at_ms)| Command::SetGrants {
            tenant, username, kind, grants: Grants::none(), at_ms,
        }),
        1 => (any_tenant(), any_user(), prop::option::of(prop::sample::select(vec!["h", "g"]))).prop_map(|(tenant, username, checked)| Command::SetPassword {
            tenant, username, hash: StoredHash::new("g".into()), checked: checked.map(|hash| StoredHash::new(hash.into())), at_ms: 2,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The ids are aimed at topics that live, as proposers aim them; a tenth stay as drawn.
    #[test]
    fn apply_is_deterministic_and_keeps_the_rules_and_a_restored_dump_is_the_same(
        commands in prop::collection::vec((any_command(), 0..10_u8), 0..120),
    ) {
        let begun = || state([Command::PutTenant { tenant: other(), state: TenantState::Active, revision: None, at_ms: 3, by_hand: false }]);
        let (mut one, mut two) = (begun(), begun());
        for (command, aim) in commands {
            let command = if aim == 0 { command } else { aimed(command, &one) };
            let text = serde_json::to_string(&command).expect("JSON");
            let read: Command = serde_json::from_str(&text).expect("its own JSON");
            prop_assert_eq!(&read, &command);
            let before = one.clone();
            let answer = one.apply(command);
            prop_assert_eq!(&two.apply(read), &answer);
            prop_assert!(answer.is_ok() || same(&before, &one), "a refused command changed something");
            check(&one);
        }
        prop_assert!(same(&one, &two));
        let restored = State::from_dump(&one.dump()).expect("its own dump");
        prop_assert!(same(&restored, &one));
        prop_assert_eq!(restored.dump(), one.dump());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_dump_is_read_or_refused_but_never_a_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let whole = state([
            create("p", 1),
            schema("p", 1, 0, "{}"),
            Command::CreateTopic { topic: record("c", 2), attach: Some(attachment("p", 1, 5)) },
        ]);
        let mut bytes = whole.dump();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        match State::from_dump(&bytes) {
            Ok(read) => prop_assert_eq!(read.view().topics.len(), 2),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// The command with the ids, counts and versions that a proposer would have read.
fn aimed(mut command: Command, state: &State) -> Command {
    let find = |tenant: &TenantId, name: &TopicName| state.view().topic(tenant, name).cloned();
    let aim = |tenant: &TenantId, attach: &mut Attachment| {
        if let Some(parent) = find(tenant, &attach.parent) {
            attach.parent_id = parent.id;
            attach.attach_offsets.resize(usize::try_from(parent.partitions).expect("small"), Offset(0));
        }
    };
    match &mut command {
        Command::CreateTopic { topic, attach } => {
            if let Some(attach) = attach {
                aim(&topic.tenant, attach);
            }
        }
        Command::DeleteTopic { tenant, name, id } | Command::SetBounds { tenant, name, id, .. } => {
            *id = find(tenant, name).map_or(*id, |topic| topic.id);
        }
        Command::GrowPartitions { tenant, name, id, partitions, owners } => {
            if let Some(topic) = find(tenant, name) {
                *id = topic.id;
                let added = partitions.saturating_sub(topic.partitions);
                owners.resize(if topic.owners.is_empty() { 0 } else { usize::try_from(added).expect("few") }, node_id("x"));
            }
        }
        Command::AddSchema { tenant, name, id, base_version, .. } => {
            if let Some(topic) = find(tenant, name) {
                *id = topic.id;
                *base_version = topic.schema().map_or(0, |schema| schema.version);
            }
        }
        Command::AttachChild { tenant, child, child_id, attach } => {
            *child_id = find(tenant, child).map_or(*child_id, |topic| topic.id);
            aim(tenant, attach);
        }
        Command::DetachChild { .. }
        | Command::NameOwner { .. }
        | Command::SetDraining { .. }
        | Command::LetGo { .. }
        | Command::NodeGone { .. }
        | Command::CreateUser { .. }
        | Command::DeleteUser { .. }
        | Command::PutTenant { .. }
        | Command::DeleteTenant { .. }
        | Command::TenantGone { .. }
        | Command::PutUser { .. }
        | Command::SetGrants { .. }
        | Command::SetPassword { .. }
        | Command::CreateKey { .. }
        | Command::DeleteKey { .. }
        | Command::Note { .. }
        | Command::SetQuota { .. }
        | Command::PutTokenIssuer { .. }
        | Command::DeleteTokenIssuer => {}
        Command::BeginMove { at, .. }
        | Command::FreezePartition { at, .. }
        | Command::FlipOwner { at, .. }
        | Command::AbortMove { at, .. } => {
            aim_at(at, state);
        }
    }
    command
}

/// A move of a partition that there is, in the epoch that it is in; which one depends on what was drawn.
fn aim_at(at: &mut PartitionAt, state: &State) {
    let topics: Vec<_> = state.view().by_id.values().filter(|topic| !topic.owners.is_empty()).collect();
    if topics.is_empty() {
        return;
    }
    let topic = topics[usize::try_from(at.topic.0).expect("small") % topics.len()];
    at.index = PartitionIndex(at.index.get() % topic.partitions);
    (at.tenant, at.topic) = (topic.tenant.clone(), topic.id);
    at.epoch = topic.owner_of(at.index).expect("each has one").epoch;
}
