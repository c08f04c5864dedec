//! The audit trail: who changed what, when, from where, and what came of it. Two chains of records for each tenant, of which the newest are kept:
//! one of changes and one of denials, so that whoever is refused again and again cannot push out what was changed.
//!
//! A record is one line of JSON whose last member is the SHA-256 of the line without it. Each names the hash of the record before it, so that a
//! line that was changed, dropped or moved is found by whoever reads the lines, with any tool. The lines are replicated state: every node, of
//! every version, has to write the same one, so what stands in them changes with a [`FeatureLevel`](crate::FeatureLevel) alone.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet, Vector};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::ids::{NodeId, TenantId};
use crate::limits;
use crate::username::Username;
use crate::users::Actor;

mod verify;

pub use verify::{Broken, Verified, Verifier};

/// The hash of a record.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AuditHash([u8; AuditHash::BYTES]);

impl AuditHash {
    const BYTES: usize = 32;
    /// What the first record of a chain names as the one before it.
    pub const NONE: Self = Self([0; Self::BYTES]);

    /// The hash of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }
}

impl fmt::Display for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for AuditHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is no hash of a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("want 64 of 0-9 a-f")]
pub struct InvalidAuditHash;

impl FromStr for AuditHash {
    type Err = InvalidAuditHash;

    fn from_str(text: &str) -> Result<Self, InvalidAuditHash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(InvalidAuditHash),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != Self::BYTES || !rest.is_empty() {
            return Err(InvalidAuditHash);
        }
        let mut hash = Self::NONE;
        for (byte, [high, low]) in hash.0.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(hash)
    }
}

impl TryFrom<String> for AuditHash {
    type Error = InvalidAuditHash;

    fn try_from(text: String) -> Result<Self, InvalidAuditHash> {
        text.parse()
    }
}

impl From<AuditHash> for String {
    fn from(hash: AuditHash) -> Self {
        hash.to_string()
    }
}

/// For whom a change is proposed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The node does it by itself.
    #[default]
    Node,
    /// Somebody has asked for it.
    Asked {
        /// Who; nobody is known where security is off.
        caller: Option<Actor>,
        /// From which address.
        source: Option<IpAddr>,
        /// By which request.
        request: Option<u64>,
        /// With which key, by its name.
        key: Option<Arc<str>>,
    },
}

impl Origin {
    /// Somebody has asked for it, and no more is known; without a caller the node does it by itself.
    #[must_use]
    pub fn of(caller: Option<Actor>) -> Self {
        caller.map_or(Self::Node, |caller| Self::Asked { caller: Some(caller), source: None, request: None, key: None })
    }

    /// On whose behalf.
    #[must_use]
    pub fn caller(&self) -> Option<&Actor> {
        match self {
            Self::Node => None,
            Self::Asked { caller, .. } => caller.as_ref(),
        }
    }

    /// What is written of it with the command. `node` is who writes it.
    #[must_use]
    pub fn stamp(&self, at_ms: u64, node: &NodeId) -> Stamp {
        match self {
            Self::Node => Stamp { at_ms, node: Some(node.clone()), ..Stamp::default() },
            Self::Asked { caller: _, source, request, key } => Stamp {
                at_ms,
                node: None,
                source: source.map(|source| source.to_canonical().to_string()),
                request: request.map(|request| format!("{request:016x}")),
                key: key.clone(),
            },
        }
    }
}

/// When and from where a command comes, as it stands beside it in the log. Whose it is, the command says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// When it was proposed, by the clock of the node that did.
    pub at_ms: u64,
    /// The node, if it did it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The address that it was asked for from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The request, as its answer names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The name of the key that the caller has signed in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
}

/// What is only noted: it changes nothing else of the metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// A dead member is given up. Written before it is.
    ForgetMember {
        /// Which.
        node: NodeId,
    },
    /// What the node that writes this has refused of late.
    Denials {
        /// Since when.
        since_ms: u64,
        /// How often, and to whom.
        denials: Vec<Denial>,
        /// How many more there were than are told apart.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
}

/// How often one rule has refused somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Whose user; `default` of whoever is not known.
    #[serde(default = "TenantId::default_tenant", skip_serializing_if = "TenantId::is_default")]
    pub tenant: TenantId,
    /// Who; none of whoever has not signed in. What they called themselves may be a password in the wrong place, and is not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<Username>,
    /// The code of the refusal, and what was asked for.
    pub rule: String,
    /// How often.
    pub count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What came of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditDecision {
    /// It was applied.
    Allowed,
    /// It was not.
    Refused,
}

/// Which of a tenant's two chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// What was changed, or was not, where it would have been applied.
    #[default]
    Changes,
    /// What nodes have refused before that, counted.
    Denials,
}

impl AuditKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Changes, Self::Denials];

    /// As on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Denials => "denials",
        }
    }

    const fn is_changes(&self) -> bool {
        matches!(self, Self::Changes)
    }
}

/// What a record says, but for its place in the chain.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// In whose chain it stands.
    pub tenant: TenantId,
    /// When and from where.
    pub stamp: Stamp,
    /// Who: see [`AuditEntry::user`].
    pub actor: String,
    /// What was done: the command, in snake case; [`AuditEntry::DENIALS`] stands in a chain of its own.
    pub action: &'static str,
    /// To what: `topic:orders`, say.
    pub object: String,
    /// More of what was done, if it is small; never a secret, and nothing that was made of one.
    pub detail: Option<Box<RawValue>>,
}

impl AuditEntry {
    /// What was denied.
    pub const DENIALS: &str = "denials";
    /// Whoever signs in nowhere.
    pub const ANONYMOUS: &str = "anonymous";
    /// Whoever runs the cluster, in the chain of another tenant.
    pub const OPERATOR: &str = "operator";

    fn kind(&self) -> AuditKind {
        if self.action == Self::DENIALS { AuditKind::Denials } else { AuditKind::Changes }
    }

    /// A user. There is a colon in no name, so that nobody is called like somebody else.
    #[must_use]
    pub fn user(actor: &Actor) -> String {
        format!("user:{}@{}", actor.username, actor.tenant)
    }

    /// A node.
    #[must_use]
    pub fn node(node: &NodeId) -> String {
        format!("node:{node}")
    }

    /// A value as [`detail`](Self::detail): itself, or when it is too large how large it is, and its hash.
    #[must_use]
    pub fn small(value: &impl Serialize) -> Option<Box<RawValue>> {
        let text = serde_json::to_string(value).ok()?;
        let small = match text.as_str() {
            "{}" => return None,
            _ if text.len() <= limits::AUDIT_DETAIL_BYTES_MAX => text,
            _ => format!(r#"{{"bytes":{},"sha256":"{}"}}"#, text.len(), AuditHash::of(&text)),
        };
        RawValue::from_string(small).ok()
    }
}

/// A record without its hash, in the order in which it is written.
#[derive(Serialize)]
struct Body<'a> {
    seq: u64,
    at_ms: u64,
    actor: &'a str,
    tenant: &'a TenantId,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    action: &'a str,
    object: &'a str,
    decision: AuditDecision,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a RawValue>,
    prev: AuditHash,
}

/// One chain: the newest records, and the hash of what came before them.
#[derive(Clone, Debug, Default)]
struct Chain {
    /// How many of the oldest are not kept any more: the first that is kept has the next number.
    dropped: u64,
    before: AuditHash,
    head: AuditHash,
    lines: Vector<Arc<str>>,
    /// How long the lines are together.
    bytes: usize,
}

impl Chain {
    fn size(&self) -> (usize, usize) {
        (self.lines.len(), self.bytes)
    }

    fn push(&mut self, entry: &AuditEntry, decision: AuditDecision, reason: Option<&str>) {
        let Stamp { at_ms, node: _, source, request, key } = &entry.stamp;
        let body = Body {
            seq: self.dropped + self.lines.len() as u64 + 1,
            at_ms: *at_ms,
            actor: &entry.actor,
            tenant: &entry.tenant,
            source: source.as_deref(),
            request: request.as_deref(),
            key: key.as_deref(),
            action: entry.action,
            object: &entry.object,
            decision,
            reason,
            detail: entry.detail.as_deref(),
            prev: self.head,
        };
        let body = serde_json::to_string(&body).expect("invariant: plain data with string keys");
        self.head = AuditHash::of(&body);
        let line = verify::sealed(&body, self.head);
        self.bytes += line.len();
        self.lines.push_back(line.into());
    }

    /// Lets the oldest record go.
    fn drop_oldest(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.dropped += 1;
            self.before = verify::hash_of(&line).unwrap_or(self.before);
            self.bytes -= line.len();
        }
    }
}

type ChainKey = (TenantId, AuditKind);

/// The chains of all tenants. Cloning shares structure. However many tenants there are, and however busy one of them is, together they are
/// bounded: of too many records the chain with most loses its oldest, and of too many bytes the chain with most of those. So each keeps at
/// least an equal share of either, whatever the others do.
#[derive(Clone, Debug, Default)]
pub struct AuditTrail {
    chains: OrdMap<ChainKey, Chain>,
    /// The chains by how many records are kept of each.
    by_count: OrdSet<(usize, ChainKey)>,
    /// The chains by how many bytes are kept of each.
    by_bytes: OrdSet<(usize, ChainKey)>,
    records: usize,
    bytes: usize,
}

/// A chain as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainDump {
    tenant: TenantId,
    #[serde(default, skip_serializing_if = "AuditKind::is_changes")]
    kind: AuditKind,
    #[serde(default, skip_serializing_if = "is_zero")]
    dropped: u64,
    before: AuditHash,
    head: AuditHash,
    records: Vec<Box<RawValue>>,
}

impl AuditTrail {
    /// Is there nothing in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Adds a record at the end of its tenant's chain.
    pub fn push(&mut self, entry: &AuditEntry, decision: AuditDecision, reason: Option<&str>) {
        let key = (entry.tenant.clone(), entry.kind());
        self.change(&key, |chain| chain.push(entry, decision, reason));
        loop {
            let most = match () {
                () if self.records > limits::AUDIT_RECORDS_MAX => self.by_count.get_max(),
                () if self.bytes > limits::AUDIT_BYTES_MAX => self.by_bytes.get_max(),
                () => return,
            };
            let Some((_, most)) = most.cloned() else { return };
            self.change(&most, Chain::drop_oldest);
        }
    }

    fn change(&mut self, key: &ChainKey, change: impl FnOnce(&mut Chain)) {
        let chain = self.chains.entry(key.clone()).or_default();
        let before = chain.size();
        change(chain);
        let after = chain.size();
        self.uncount(key, before);
        self.count(key, after);
    }

    fn count(&mut self, key: &ChainKey, (records, bytes): (usize, usize)) {
        self.records += records;
        self.bytes += bytes;
        self.by_count.insert((records, key.clone()));
        self.by_bytes.insert((bytes, key.clone()));
    }

    fn uncount(&mut self, key: &ChainKey, (records, bytes): (usize, usize)) {
        self.records -= records;
        self.bytes -= bytes;
        self.by_count.remove(&(records, key.clone()));
        self.by_bytes.remove(&(bytes, key.clone()));
    }

    /// Forgets the chains of a tenant that is no more.
    pub fn forget(&mut self, tenant: &TenantId) {
        for key in AuditKind::ALL.map(|kind| (tenant.clone(), kind)) {
            let Some(chain) = self.chains.remove(&key) else { continue };
            self.uncount(&key, chain.size());
        }
    }

    /// The records of a tenant's chain behind number `after`, as far as they are kept, in order.
    pub fn after<'a>(&'a self, tenant: &TenantId, kind: AuditKind, after: u64) -> impl Iterator<Item = &'a Arc<str>> {
        let kept = self.chains.get(&(tenant.clone(), kind));
        kept.into_iter().flat_map(move |chain| {
            let skipped = usize::try_from(after.saturating_sub(chain.dropped)).unwrap_or(usize::MAX);
            chain.lines.iter().skip(skipped)
        })
    }

    /// The chains, to be written down.
    pub fn dump(&self) -> impl Iterator<Item = ChainDump> {
        self.chains.iter().map(|((tenant, kind), chain)| {
            let record = |line: &Arc<str>| RawValue::from_string(String::from(&**line)).expect("invariant: a record is JSON");
            let records = chain.lines.iter().map(record).collect();
            ChainDump { tenant: tenant.clone(), kind: *kind, dropped: chain.dropped, before: chain.before, head: chain.head, records }
        })
    }

    /// Reads what [`dump`](Self::dump) wrote.
    #[must_use]
    pub fn from_dump(chains: Vec<ChainDump>) -> Self {
        let mut trail = Self::default();
        for ChainDump { tenant, kind, dropped, before, head, records } in chains {
            let lines: Vector<Arc<str>> = records.iter().map(|record| Arc::from(record.get())).collect();
            let bytes = lines.iter().map(|line| line.len()).sum();
            let chain = Chain { dropped, before, head, lines, bytes };
            trail.count(&(tenant.clone(), kind), chain.size());
            trail.chains.insert((tenant, kind), chain);
        }
        trail
    }
}

#[cfg(test)]
mod tests;
