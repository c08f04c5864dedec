//! What the audit trail says of each command. Applying it and recording it is one step: neither is there without the other.
//!
//! Not recorded: what nodes do again and again without anybody having decided it (`name_owner`, `node_gone`, and `freeze_partition`, which is the
//! middle of a move), and what of theirs is refused, which changes nothing and is how they find out that somebody else was faster.

use serde::Serialize;
use serde_json::value::RawValue;
use veena_contract::records::{Command, CommandError};
use veena_contract::{
    Actor, AuditDecision, AuditEntry, Grants, KeyId, NodeId, Note, PartitionAt, PartitionIndex, Quota, Reroute, Stamp, TenantId,
    TenantState, TokenKey, TopicName, UserKind, Username,
};

use super::State;
use super::users::tenant_of;

/// More of what a command does. The order is that of the record.
#[derive(Default, Serialize)]
struct Detail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    partitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a TopicName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<&'a TopicName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_in_flight_per_partition: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_acked_ahead_per_partition: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_window_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reroute: Option<Reroute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grants: Option<&'a Grants>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a KeyId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<TenantState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'a Quota>,
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audience: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<&'a [TokenKey]>,
}

/// There is one at most, of all tenants.
const TOKEN_ISSUER: &str = "token_issuer";

/// One row of what was denied.
#[derive(Serialize)]
struct Denied<'a> {
    actor: String,
    rule: &'a str,
    count: u64,
}

#[derive(Serialize)]
struct Denials<'a> {
    since_ms: u64,
    denials: Vec<Denied<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    others: Option<u64>,
}

/// What a command is called in a record, what it changes, and more of it.
struct Said(&'static str, String, Option<Box<RawValue>>);

/// Who has proposed a command, and what it says of itself: found out before it is applied, written down after it.
pub(super) struct Pending {
    stamp: Stamp,
    caller: Option<Actor>,
    /// Whose things it changes.
    tenant: TenantId,
    said: Vec<(TenantId, Said)>,
}

impl State {
    /// What will have to be said of a command, which was not applied yet.
    pub(super) fn pending(&self, caller: Option<Actor>, command: &Command, stamp: Stamp) -> Pending {
        let tenant = tenant_of(command).cloned().unwrap_or_else(TenantId::default_tenant);
        let said = match command {
            Command::Note { what: Note::Denials { since_ms, denials, others } } => self::denials(&stamp, *since_ms, denials, *others),
            command => self.said(command).into_iter().map(|said| (tenant.clone(), said)).collect(),
        };
        Pending { stamp, caller, tenant, said }
    }

    /// Writes it down.
    pub(super) fn record(&mut self, pending: Pending, outcome: &Result<(), CommandError>) {
        let Pending { stamp, caller, tenant, said } = pending;
        let is_by_node = stamp.node.is_some();
        if is_by_node && outcome.is_err() {
            return;
        }
        let is_denied = said.iter().any(|(_, Said(action, ..))| *action == AuditEntry::DENIALS);
        let decision = if outcome.is_err() || is_denied { AuditDecision::Refused } else { AuditDecision::Allowed };
        let reason = outcome.as_ref().err().map(reason);
        for (chain, Said(action, object, detail)) in said {
            let actor = match (&caller, &stamp.node) {
                (Some(caller), _) => AuditEntry::user(caller),
                (None, Some(node)) => AuditEntry::node(node),
                (None, None) => AuditEntry::ANONYMOUS.to_owned(),
            };
            let mut entry = AuditEntry { tenant: chain, stamp: stamp.clone(), actor, action, object, detail };
            if let Some(caller) = caller.as_ref().filter(|caller| caller.tenant != tenant) {
                // A tenant is told that something of theirs was changed, and not by whom. What was refused has not reached them.
                if outcome.is_ok() {
                    let stamp = Stamp { at_ms: stamp.at_ms, ..Stamp::default() };
                    let told = AuditEntry { stamp, actor: AuditEntry::OPERATOR.to_owned(), ..entry.clone() };
                    self.chained(told, decision, None);
                }
                entry.object = format!("{}@{tenant}", entry.object);
                entry.tenant = caller.tenant.clone();
            }
            self.chained(entry, decision, reason.as_deref());
        }
    }

    /// Puts a record into its tenant's chain. Of a tenant that is gone nothing is begun anew: whoever runs the cluster is told.
    fn chained(&mut self, mut entry: AuditEntry, decision: AuditDecision, reason: Option<&str>) {
        if self.view.tenant_state(&entry.tenant).is_none() {
            entry.tenant = TenantId::default_tenant();
        }
        self.view.audit.push(&entry, decision, reason);
    }

    fn said(&self, command: &Command) -> Option<Said> {
        let of_topic = |action, name: &TopicName, detail: Detail<'_>| Said(action, format!("topic:{name}"), AuditEntry::small(&detail));
        let of_user = |action, kind: UserKind, name: &Username, grants| {
            let of = if kind.is_person() { "user" } else { "account" };
            Said(action, format!("{of}:{name}"), AuditEntry::small(&Detail { grants, ..Detail::default() }))
        };
        let of_tenant =
            |action, tenant: &TenantId, detail: Detail<'_>| Said(action, format!("tenant:{tenant}"), AuditEntry::small(&detail));
        let of_node = |action, node: &NodeId| Said(action, AuditEntry::node(node), None);
        let of_partition =
            |action, at: &PartitionAt, to| Said(action, self.partition(at), AuditEntry::small(&Detail { to, ..Detail::default() }));
        Some(match command {
            Command::CreateTopic { topic, attach } => {
                let parent = attach.as_ref().map(|attach| &attach.parent);
                let delay_ms = attach.as_ref().map(|attach| attach.delay_ms);
                of_topic("create_topic", &topic.name, Detail { partitions: Some(topic.partitions), parent, delay_ms, ..Detail::default() })
            }
            Command::DeleteTopic { name, .. } => of_topic("delete_topic", name, Detail::default()),
            Command::SetBounds {
                name,
                retention_ms,
                retention_bytes,
                max_in_flight_per_partition,
                max_acked_ahead_per_partition,
                dedup_window_ms,
                reroute,
                ..
            } => {
                let detail = Detail {
                    retention_ms: *retention_ms,
                    retention_bytes: *retention_bytes,
                    max_in_flight_per_partition: *max_in_flight_per_partition,
                    max_acked_ahead_per_partition: *max_acked_ahead_per_partition,
                    dedup_window_ms: *dedup_window_ms,
                    reroute: *reroute,
                    ..Detail::default()
                };
                of_topic("set_bounds", name, detail)
            }
            Command::GrowPartitions { name, partitions, .. } => {
                of_topic("grow_partitions", name, Detail { partitions: Some(*partitions), ..Detail::default() })
            }
            Command::AddSchema { name, base_version, .. } => {
                of_topic("add_schema", name, Detail { schema_version: Some(base_version.saturating_add(1)), ..Detail::default() })
            }
            Command::AttachChild { child, attach, .. } => {
                let detail = Detail { child: Some(child), delay_ms: Some(attach.delay_ms), ..Detail::default() };
                of_topic("attach_child", &attach.parent, detail)
            }
            Command::DetachChild { parent, child, .. } => {
                of_topic("detach_child", parent, Detail { child: Some(child), ..Detail::default() })
            }
            Command::NameOwner { .. } | Command::FreezePartition { .. } | Command::NodeGone { .. } => return None,
            Command::BeginMove { at, to, .. } => of_partition("begin_move", at, Some(to)),
            Command::FlipOwner { at, .. } => of_partition("flip_owner", at, None),
            Command::AbortMove { at, .. } => of_partition("abort_move", at, None),
            Command::SetDraining { node, draining: true, .. } => of_node("decommission", node),
            Command::SetDraining { node, draining: false, .. } => of_node("cancel_decommission", node),
            Command::LetGo { node, .. } => of_node("let_go", node),
            Command::CreateUser { user } => {
                of_user("create_user", user.kind, &user.username, Some(&user.grants).filter(|grants| !grants.is_empty()))
            }
            Command::DeleteUser { username, kind, .. } => of_user("delete_user", *kind, username, None),
            Command::SetGrants { username, kind, grants, .. } => of_user("set_grants", *kind, username, Some(grants)),
            Command::SetPassword { username, .. } => of_user("set_password", UserKind::Person, username, None),
            Command::CreateKey { key } => {
                let detail = Detail { grants: key.scopes.as_ref(), key: Some(&key.id), ..Detail::default() };
                Said("create_key", format!("account:{}", key.username), AuditEntry::small(&detail))
            }
            Command::DeleteKey { username, id, .. } => {
                Said("delete_key", format!("account:{username}"), AuditEntry::small(&Detail { key: Some(id), ..Detail::default() }))
            }
            Command::PutUser { username, hash, grants, revision, .. } => {
                let password = hash.as_ref().map(|_| "set");
                let detail = Detail { grants: grants.as_ref(), password, revision: *revision, ..Detail::default() };
                Said("put_user", format!("user:{username}"), AuditEntry::small(&detail))
            }
            Command::PutTenant { tenant, state, revision, .. } => {
                of_tenant("put_tenant", tenant, Detail { state: Some(*state), revision: *revision, ..Detail::default() })
            }
            Command::DeleteTenant { tenant, .. } => of_tenant("delete_tenant", tenant, Detail::default()),
            Command::TenantGone { tenant, .. } => of_tenant("tenant_gone", tenant, Detail::default()),
            Command::SetQuota { tenant, topic, quota, revision } => {
                let object = topic.as_ref().map_or_else(|| format!("quota:{tenant}"), |topic| format!("quota:{tenant}/{topic}"));
                Said("set_quota", object, AuditEntry::small(&Detail { quota: Some(quota), revision: *revision, ..Detail::default() }))
            }
            Command::PutTokenIssuer { issuer, revision } => {
                let (audience, keys) = (Some(issuer.audience.as_str()), Some(issuer.keys.as_slice()));
                let detail = Detail { issuer: Some(&issuer.issuer), audience, keys, revision: *revision, ..Detail::default() };
                Said("put_token_issuer", TOKEN_ISSUER.to_owned(), AuditEntry::small(&detail))
            }
            Command::DeleteTokenIssuer => Said("delete_token_issuer", TOKEN_ISSUER.to_owned(), None),
            Command::Note { what: Note::ForgetMember { node } } => of_node("forget_member", node),
            // Told of each tenant by itself.
            Command::Note { what: Note::Denials { .. } } => return None,
        })
    }

    /// A partition by name: moves are told to whoever runs the cluster, so its tenant is part of it.
    fn partition(&self, PartitionAt { tenant, topic, index: PartitionIndex(index), .. }: &PartitionAt) -> String {
        match self.view.topic_by_id(*topic) {
            Some(record) => format!("partition:{tenant}/{}/{index}", record.name),
            None => format!("partition:{tenant}/{topic}/{index}"),
        }
    }
}

/// One record for each tenant whose users were denied something; how much is not told apart is said to whoever runs the cluster.
fn denials(stamp: &Stamp, since_ms: u64, denials: &[veena_contract::Denial], others: u64) -> Vec<(TenantId, Said)> {
    let object = stamp.node.as_ref().map_or_else(|| AuditEntry::ANONYMOUS.to_owned(), AuditEntry::node);
    let others = Some(others).filter(|others| *others > 0);
    let operators = TenantId::default_tenant();
    let mut tenants: Vec<&TenantId> = denials.iter().map(|denial| &denial.tenant).chain(others.map(|_| &operators)).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let of = |tenant: &TenantId| {
        let rows = denials.iter().filter(|denial| denial.tenant == *tenant).map(|denial| {
            let user = |username: &Username| AuditEntry::user(&Actor { tenant: tenant.clone(), username: username.clone(), checked: None });
            let actor = denial.username.as_ref().map_or_else(|| AuditEntry::ANONYMOUS.to_owned(), user);
            Denied { actor, rule: &denial.rule, count: denial.count }
        });
        let told = Denials { since_ms, denials: rows.collect(), others: others.filter(|_| *tenant == operators) };
        // As many as a node tells apart: that is bounded where it is written.
        let detail = serde_json::value::to_raw_value(&told).ok();
        (tenant.clone(), Said(AuditEntry::DENIALS, object.clone(), detail))
    };
    tenants.into_iter().map(of).collect()
}

/// Why a command was refused, in the words that the log has for it: the texts that callers see may differ between versions, and with them
/// what the nodes would write.
fn reason(error: &CommandError) -> String {
    #[derive(serde::Deserialize)]
    struct Tags {
        error: String,
        #[serde(default)]
        why: Option<Why>,
    }
    #[derive(serde::Deserialize)]
    struct Why {
        why: String,
    }
    let tags = serde_json::to_string(error).and_then(|text| serde_json::from_str::<Tags>(&text));
    match tags {
        Ok(Tags { error, why: Some(Why { why }) }) => format!("{error}: {why}"),
        Ok(Tags { error, why: None }) => error,
        Err(_) => "refused".to_owned(),
    }
}
