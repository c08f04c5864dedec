//! What the metastore keeps, and the commands that change it. Both are append-only: a field is added with a default, a command is added
//! at the end, nothing changes its meaning. Stored as JSON, so that a dump can be read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::audit::Note;
use crate::grants::Grants;
use crate::ids::{AttachEpoch, DrainMark, MoveToken, NodeId, Offset, OwnershipEpoch, PartitionIndex, StreamId, TenantId, TopicId};
use crate::issuer::{InvalidTokenIssuer, TokenIssuer};
use crate::keys::{KeyId, KeyRecord};
use crate::limits;
use crate::names::TopicName;
use crate::quota::{InvalidQuota, Limit, Quota, QuotaScope};
use crate::tenants::TenantState;
use crate::username::Username;
use crate::users::{Forbidden, StoredHash, UserKind, UserRecord};

/// What happens to records whose owner is down (http-contract 12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reroute {
    /// They go to a living partition of the same topic.
    #[default]
    Auto,
    /// They wait, within the budgets.
    Never,
}

/// One version of a topic's JSON Schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaVersion {
    /// From 1.
    pub version: u32,
    /// The document, as registered.
    pub document: Arc<str>,
}

/// How a child sees its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentLink {
    /// The parent's name.
    pub parent: TopicName,
    /// The parent's incarnation.
    pub parent_id: TopicId,
    /// Which attachment this is.
    pub epoch: AttachEpoch,
    /// How long records are held back.
    pub delay_ms: u64,
}

/// How a parent sees one child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLink {
    /// The child's name.
    pub child: TopicName,
    /// The child's incarnation.
    pub child_id: TopicId,
    /// Which attachment this is.
    pub epoch: AttachEpoch,
    /// The stream under which this attachment's records are committed in the child, one per parent partition.
    pub stream: StreamId,
    /// How long records are held back.
    pub delay_ms: u64,
    /// The high watermark of each parent partition at the attachment; partitions added later start at 0.
    pub attach_offsets: Vec<Offset>,
}

/// Who owns one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The owner.
    pub node: NodeId,
    /// Since which change of ownership.
    pub epoch: OwnershipEpoch,
    /// The move that is under way, if one is. Until it ends the owner stays the owner; once it is frozen, nobody serves the partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<Move>,
}

impl Ownership {
    /// An ownership of which nothing moves.
    #[must_use]
    pub const fn new(node: NodeId, epoch: OwnershipEpoch) -> Self {
        Self { node, epoch, moving: None }
    }

    /// Has the owner handed the partition over, so that it serves it no more?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.frozen.is_some())
    }
}

/// A partition on its way to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Whose it will be.
    pub to: NodeId,
    /// Which move it is.
    pub token: MoveToken,
    /// What the owner said when it stopped, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
}

/// The owner has stopped for good, unless the move is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frozen {
    /// The next offset of its log: a copy is complete when it ends here.
    pub end: Offset,
}

/// How much the nodes of a cluster know of what came after its first version. A node does nothing that another one would not understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FeatureLevel(pub u32);

impl FeatureLevel {
    /// The first version, which knew of no level.
    pub const FIRST: Self = Self(0);
    /// Partitions move between nodes, and how many there were is remembered.
    pub const MOVES: Self = Self(1);
    /// There are users, and changes are made on behalf of them.
    pub const USERS: Self = Self(2);
    /// There are tenants.
    pub const TENANTS: Self = Self(3);
    /// What this program knows.
    pub const CURRENT: Self = Self::TENANTS;
}

/// One partition, in the state that the proposer of a command read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionAt {
    /// Whose topic.
    pub tenant: TenantId,
    /// The incarnation of the topic.
    pub topic: TopicId,
    /// Which partition of it.
    pub index: PartitionIndex,
    /// The epoch of its ownership.
    pub epoch: OwnershipEpoch,
}

/// One topic, this incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// Whose topic it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: TopicName,
    /// This incarnation.
    pub id: TopicId,
    /// How many partitions it has; only grows.
    pub partitions: u32,
    /// How many it had before, each time it grew, rising: what was sent under an idempotency key by then may be in another partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_partitions: Vec<u32>,
    /// How long messages are kept; 0 is for ever.
    pub retention_ms: u64,
    /// How many bytes each partition keeps; 0 is no bound.
    #[serde(default)]
    pub retention_bytes: u64,
    /// How long a lease lasts. Fixed at creation.
    pub visibility_timeout_ms: u64,
    /// How many messages of one partition may be leased at once.
    pub max_in_flight_per_partition: u64,
    /// How many messages of one partition may be settled ahead of the frontier before deliveries are held.
    pub max_acked_ahead_per_partition: u64,
    /// How long idempotency keys are remembered.
    #[serde(default)]
    pub dedup_window_ms: u64,
    /// What happens to records of a down owner.
    #[serde(default)]
    pub reroute: Reroute,
    /// When it was created.
    pub created_at_ms: u64,
    /// Who created it, when security is on.
    #[serde(default)]
    pub owner: Option<String>,
    /// Its parent, if it is a child.
    #[serde(default)]
    pub parent: Option<ParentLink>,
    /// Its children, in order of attachment.
    #[serde(default)]
    pub children: Vec<ChildLink>,
    /// Its schema's history, oldest first.
    #[serde(default)]
    pub schemas: Vec<SchemaVersion>,
    /// Rises with each change of this record.
    #[serde(default)]
    pub revision: u64,
    /// The owner of each partition, by index. What has none belongs to the only node that there was when it was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Ownership>,
}

impl TopicRecord {
    /// The schema that new messages must match.
    #[must_use]
    pub fn schema(&self) -> Option<&SchemaVersion> {
        self.schemas.last()
    }

    /// The owner of a partition, if one was ever named.
    #[must_use]
    pub fn owner_of(&self, index: PartitionIndex) -> Option<&Ownership> {
        self.owners.get(usize::try_from(index.get()).ok()?)
    }

    /// The owner of the partition of this topic that partition `child` of a child goes with.
    #[must_use]
    pub fn partner_of(&self, child: PartitionIndex) -> Option<&Ownership> {
        partner_of(&self.owners, child)
    }

    /// The retention a delayed child of `delay_ms` needs: its delay and an hour (0 satisfies every delay).
    #[must_use]
    pub fn retention_covers(retention_ms: u64, delay_ms: u64) -> bool {
        retention_ms == 0 || delay_ms == 0 || retention_ms >= delay_ms.saturating_add(limits::RETENTION_MS_MIN)
    }
}

/// Among the owners of a parent's partitions, the one that a child's partition goes with.
pub(crate) fn partner_of(parent: &[Ownership], child: PartitionIndex) -> Option<&Ownership> {
    let index = usize::try_from(child.get()).ok()?.checked_rem(parent.len())?;
    parent.get(index)
}

/// A child to attach as part of a command. Ids and streams are minted by the proposer, so that applying is deterministic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The parent's name.
    pub parent: TopicName,
    /// The incarnation of the parent that the proposer read, so that a recreated one is not linked by mistake.
    pub parent_id: TopicId,
    /// Minted by the proposer.
    pub epoch: AttachEpoch,
    /// Minted by the proposer.
    pub stream: StreamId,
    /// How long records are held back.
    pub delay_ms: u64,
    /// The high watermark of each parent partition.
    pub attach_offsets: Vec<Offset>,
}

/// A change of the catalog. Deterministic: time and randomness are inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Creates a topic; with `attach`, as a child in one step.
    CreateTopic {
        /// The record to insert; role fields, epochs and revision are set by the state machine.
        topic: TopicRecord,
        /// The parent to attach it to.
        #[serde(default)]
        attach: Option<Attachment>,
    },
    /// Deletes one incarnation. Children become standalone; a child is unlinked from its parent.
    DeleteTopic {
        /// Whose topic.
        tenant: TenantId,
        /// Its name.
        name: TopicName,
        /// The incarnation the proposer read.
        id: TopicId,
    },
    /// Changes bounds of a topic; absent fields stay.
    SetBounds {
        /// Whose topic.
        tenant: TenantId,
        /// Its name.
        name: TopicName,
        /// The incarnation the proposer read.
        id: TopicId,
        /// New retention by time.
        #[serde(default)]
        retention_ms: Option<u64>,
        /// New retention by size.
        #[serde(default)]
        retention_bytes: Option<u64>,
        /// New cap on leases.
        #[serde(default)]
        max_in_flight_per_partition: Option<u64>,
        /// New cap on acks ahead.
        #[serde(default)]
        max_acked_ahead_per_partition: Option<u64>,
        /// New window for idempotency keys.
        #[serde(default)]
        dedup_window_ms: Option<u64>,
        /// New handling of a down owner.
        #[serde(default)]
        reroute: Option<Reroute>,
    },
    /// Grows a topic.
    GrowPartitions {
        /// Whose topic.
        tenant: TenantId,
        /// Its name.
        name: TopicName,
        /// The incarnation the proposer read.
        id: TopicId,
        /// The new count; must be larger.
        partitions: u32,
        /// Who owns the partitions that are added, in order; empty in a cluster that has ever been one node.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        owners: Vec<NodeId>,
    },
    /// Adds a schema version, after the proposer has checked compatibility against `base_version`.
    AddSchema {
        /// Whose topic.
        tenant: TenantId,
        /// Its name.
        name: TopicName,
        /// The incarnation the proposer read.
        id: TopicId,
        /// The version the proposer compared with; 0 is none.
        base_version: u32,
        /// The document.
        document: Arc<str>,
    },
    /// Links a child to a parent.
    AttachChild {
        /// Whose topics.
        tenant: TenantId,
        /// The child's name.
        child: TopicName,
        /// The incarnation of the child that the proposer read.
        child_id: TopicId,
        /// The link.
        attach: Attachment,
    },
    /// Unlinks a child; it keeps its messages.
    DetachChild {
        /// Whose topics.
        tenant: TenantId,
        /// The parent's name.
        parent: TopicName,
        /// The child's name.
        child: TopicName,
    },
    /// Names the owner of every partition that has none: the node that was alone until now.
    NameOwner {
        /// That node.
        node: NodeId,
    },
    /// Begins to move a partition, unless a move of it is under way.
    BeginMove {
        /// Which one.
        #[serde(flatten)]
        at: PartitionAt,
        /// Where to.
        to: NodeId,
        /// Minted by the proposer.
        token: MoveToken,
    },
    /// Says that the owner has stopped serving a partition that moves, and where its log ends. Proposed by the owner alone.
    FreezePartition {
        /// Which one.
        #[serde(flatten)]
        at: PartitionAt,
        /// Under which move.
        token: MoveToken,
        /// The next offset of its log.
        end: Offset,
    },
    /// Makes the target of a frozen move the owner. Proposed by the target alone, once its copy is whole and synced.
    FlipOwner {
        /// Which one.
        #[serde(flatten)]
        at: PartitionAt,
        /// Under which move.
        token: MoveToken,
    },
    /// Ends a move: the owner stays the owner, and goes on. Against a flip, whichever comes first stands.
    AbortMove {
        /// Which one.
        #[serde(flatten)]
        at: PartitionAt,
        /// Under which move.
        token: MoveToken,
    },
    /// Says whether a node is being taken out of the cluster, so that its partitions leave it.
    SetDraining {
        /// Which node.
        node: NodeId,
        /// Is it?
        draining: bool,
        /// Which time it is. One that is being taken out already keeps the mark it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<DrainMark>,
        /// Who else was being taken out when the proposer judged that it can be: with anybody more it has to be judged again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<Vec<NodeId>>,
    },
    /// Lets a node go that is being taken out and has no partitions. From here on that is not taken back: it ceases to be a member.
    LetGo {
        /// Which node.
        node: NodeId,
        /// The time of being taken out in which it has said that it has nothing. Of another time that says nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mark: Option<DrainMark>,
    },
    /// Forgets that a node was taken out. Proposed when it has long ceased to be a member.
    NodeGone {
        /// Which node.
        node: NodeId,
    },
    /// Creates a user. The root admin is created by the leader alone, on behalf of nobody.
    CreateUser {
        /// The record to insert.
        user: UserRecord,
    },
    /// Deletes a user, and their keys.
    DeleteUser {
        /// Whose user.
        tenant: TenantId,
        /// The name.
        username: Username,
        /// Of which kind: one of the other has not been meant.
        #[serde(default, skip_serializing_if = "UserKind::is_person")]
        kind: UserKind,
        /// Did somebody decide it? Then it stays so until it is taken back without a revision, and the topics of the user are nobody's: else
        /// they would be of whoever gets the name next, as they are where this is not said.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_hand: bool,
    },
    /// Replaces what a user may do.
    SetGrants {
        /// Whose user.
        tenant: TenantId,
        /// The name.
        username: Username,
        /// Of which kind: one of the other has not been meant.
        #[serde(default, skip_serializing_if = "UserKind::is_person")]
        kind: UserKind,
        /// All of it.
        grants: Grants,
        /// When it was set.
        at_ms: u64,
    },
    /// Replaces a user's password.
    SetPassword {
        /// Whose user.
        tenant: TenantId,
        /// The name.
        username: Username,
        /// What is stored of the new one.
        hash: StoredHash,
        /// What was stored of the password that the proposer has checked, if it had to check one. No user has ever had the same twice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checked: Option<StoredHash>,
        /// When it was set.
        at_ms: u64,
    },
    /// Creates a tenant, or changes what its users may do at all.
    PutTenant {
        /// Which.
        tenant: TenantId,
        /// What it shall be. [`Deleting`](TenantState::Deleting) is not for this command.
        state: TenantState,
        /// The revision of whoever manages tenants from outside; without one it rises by one with a change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
        /// When it was said.
        at_ms: u64,
        /// Did somebody on the cluster itself say it? What they suspend is not resumed by who names a revision.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_hand: bool,
    },
    /// Begins to delete a tenant: from here on nobody of it signs in, and nothing of it is made.
    DeleteTenant {
        /// Which.
        tenant: TenantId,
        /// When it was said.
        at_ms: u64,
        /// Did somebody on the cluster itself say it? Then who names a revision does not make it again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_hand: bool,
    },
    /// Forgets a tenant that was deleted. Proposed once nothing of it is left on any node.
    TenantGone {
        /// Which.
        tenant: TenantId,
        /// Which life of the name was looked at.
        created_at_ms: u64,
    },
    /// Creates a user of a tenant, or sets what is given of one: what an operator does from outside, as often as they like.
    PutUser {
        /// Whose user.
        tenant: TenantId,
        /// The name.
        username: Username,
        /// What is stored of the password, if it is another than before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hash: Option<StoredHash>,
        /// All that the user may do, if it is set.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grants: Option<Grants>,
        /// As of a tenant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
        /// When it was said.
        at_ms: u64,
    },
    /// Creates a key of a service account.
    CreateKey {
        /// The record to insert.
        key: KeyRecord,
    },
    /// Deletes a key of a service account. One that is not there is as good as deleted.
    DeleteKey {
        /// Whose account.
        tenant: TenantId,
        /// The account.
        username: Username,
        /// Which key.
        id: KeyId,
    },
    /// Adds to the audit trail what changes nothing else here.
    Note {
        /// What.
        what: Note,
    },
    /// Replaces the limits of a tenant or of one of its topics.
    SetQuota {
        /// Whose limits.
        tenant: TenantId,
        /// Of which topic; of none, they are the tenant's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        topic: Option<TopicName>,
        /// All of them.
        quota: Box<Quota>,
        /// Which revision of them this is. A lower one than was applied is refused, and so is another one of the same number; without a number
        /// it is the next.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
    /// Says whose tokens are taken, and by which keys they are known.
    PutTokenIssuer {
        /// All of it.
        issuer: Box<TokenIssuer>,
        /// As of limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
    /// Takes nobody's tokens any more. Where nobody's were taken it is as good as said.
    DeleteTokenIssuer,
}

impl Command {
    /// What every member has to know for this command to be written.
    #[must_use]
    pub fn level(&self) -> FeatureLevel {
        let of_user = |tenant: &TenantId| if tenant.is_default() { FeatureLevel::USERS } else { FeatureLevel::TENANTS };
        match self {
            Self::CreateTopic { .. }
            | Self::DeleteTopic { .. }
            | Self::SetBounds { .. }
            | Self::AddSchema { .. }
            | Self::AttachChild { .. }
            | Self::DetachChild { .. }
            | Self::NameOwner { .. } => FeatureLevel::FIRST,
            // The first version does not remember how many partitions there were.
            Self::GrowPartitions { .. }
            | Self::BeginMove { .. }
            | Self::FreezePartition { .. }
            | Self::FlipOwner { .. }
            | Self::AbortMove { .. }
            | Self::SetDraining { .. }
            | Self::LetGo { .. }
            | Self::NodeGone { .. } => FeatureLevel::MOVES,
            Self::DeleteUser { by_hand: true, .. } => FeatureLevel::TENANTS,
            Self::CreateUser { user: UserRecord { tenant, kind, .. } }
            | Self::DeleteUser { tenant, kind, .. }
            | Self::SetGrants { tenant, kind, .. } => {
                if kind.is_person() {
                    of_user(tenant)
                } else {
                    FeatureLevel::TENANTS
                }
            }
            Self::SetPassword { tenant, .. } => of_user(tenant),
            Self::PutTenant { .. } | Self::DeleteTenant { .. } | Self::TenantGone { .. } | Self::PutUser { .. } => FeatureLevel::TENANTS,
            Self::CreateKey { .. } | Self::DeleteKey { .. } => FeatureLevel::TENANTS,
            Self::Note { .. } | Self::SetQuota { .. } => FeatureLevel::TENANTS,
            Self::PutTokenIssuer { .. } | Self::DeleteTokenIssuer => FeatureLevel::TENANTS,
        }
    }
}

/// Why the catalog refuses a command. The texts are those of http-contract 2.2, with detail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum CommandError {
    /// No such topic.
    #[error("topic not found")]
    TopicNotFound,
    /// No such link.
    #[error("not found: {child} is not a child of {parent}")]
    LinkNotFound {
        /// The parent asked for.
        parent: TopicName,
        /// The child asked for.
        child: TopicName,
    },
    /// The name is taken.
    #[error("topic already exists")]
    AlreadyExists,
    /// The name is taken in another letter case.
    #[error("topic already exists: {name} differs only in letter case from {existing}")]
    CaseClash {
        /// The name asked for.
        name: TopicName,
        /// The name that exists.
        existing: TopicName,
    },
    /// Another incarnation, or another version, than the proposer read.
    #[error("topic changed since it was read")]
    Changed,
    /// A role rule.
    #[error("fan-out role conflict: {detail}")]
    RoleConflict {
        /// Which rule.
        detail: String,
    },
    /// Too many children.
    #[error("parent has reached the maximum number of children ({max})")]
    TooManyChildren {
        /// The bound.
        max: usize,
    },
    /// The child's schema history differs from its parent's.
    #[error("child schema incompatible with parent")]
    ChildSchema,
    /// A child's schema follows its parent's.
    #[error("schema is parent-managed while attached to a fan-out parent")]
    SchemaParentManaged,
    /// The schema's base version is not the newest.
    #[error("topic changed since it was read: schema_base_version is {base}, the newest version is {newest}")]
    SchemaBaseVersion {
        /// What the caller compared with.
        base: u32,
        /// What is newest.
        newest: u32,
    },
    /// The delay and the parent's retention do not fit.
    #[error(
        "delay exceeds what the parent's retention can buffer: a delay of {delay_ms} ms needs a retention of 0 or at least {needed_ms} ms"
    )]
    DelayExceedsRetention {
        /// The delay.
        delay_ms: u64,
        /// The least retention for it.
        needed_ms: u64,
    },
    /// Partitions only grow.
    #[error("invalid argument: partitions must be greater than the current {current}")]
    PartitionsMustGrow {
        /// The count now.
        current: u32,
    },
    /// A bound on how much may exist.
    #[error("limit reached: {detail}")]
    LimitReached {
        /// Which bound and how large it is.
        detail: String,
    },
    /// The partition is owned by another, or moves otherwise, than the proposer read.
    #[error("the ownership of the partition changed since it was read")]
    OwnershipChanged,
    /// The node cannot be let go, or kept, any more or yet.
    #[error("{node} {reason}")]
    NodeChanged {
        /// Which node.
        node: NodeId,
        /// What is so.
        reason: String,
    },
    /// A node that is being taken out of the cluster gets nothing new.
    #[error("{node} is being decommissioned and gets no new partitions")]
    NodeDraining {
        /// Which node.
        node: NodeId,
    },
    /// The caller may not make this change.
    #[error("{why}")]
    Forbidden {
        /// Why not.
        why: Forbidden,
    },
    /// No such user.
    #[error("user not found")]
    UserNotFound,
    /// The user's name is taken.
    #[error("user already exists")]
    UserExists,
    /// The user is another than the proposer read.
    #[error("user changed since it was read")]
    UserChanged,
    /// No such tenant.
    #[error("tenant not found")]
    TenantNotFound,
    /// What was said is older than what is so.
    #[error("revision {given} is lower than the applied {applied}")]
    RevisionPassed {
        /// What the caller said.
        given: u64,
        /// What was applied last.
        applied: u64,
    },
    /// The same revision said something else before.
    #[error("revision {revision} was applied with another content")]
    RevisionTaken {
        /// Which.
        revision: u64,
    },
    /// It was deleted by somebody on the cluster itself.
    #[error("it was deleted on this cluster itself: only a change without a revision makes it again")]
    DeletedHere,
    /// It was suspended by somebody on the cluster itself.
    #[error("the tenant was suspended on this cluster itself: only a change without a revision resumes it")]
    SuspendedHere,
    /// The tenant `default` is for good.
    #[error("the tenant default can be neither suspended nor deleted")]
    TenantStays,
    /// The tenant is going.
    #[error("tenant is being deleted")]
    TenantDeleting,
    /// The tenant has something still, or is not being deleted.
    #[error("something of the tenant is left")]
    TenantNotEmpty,
    /// No such service account.
    #[error("account not found")]
    AccountNotFound,
    /// The account's name is taken, by an account or by a user.
    #[error("a user or a service account of this name already exists")]
    AccountExists,
    /// The change would use more than the tenant may.
    #[error("quota exceeded: the {scope} may have {allowed} {limit} and would have {current}; an operator can raise that")]
    QuotaExceeded {
        /// Which limit.
        limit: Limit,
        /// Whose.
        scope: QuotaScope,
        /// How much there would be.
        current: u64,
        /// How much there may be.
        allowed: u64,
    },
    /// These limits cannot be set.
    #[error("{why}")]
    InvalidQuota {
        /// Why not.
        why: String,
    },
    /// This cannot be an issuer of tokens.
    #[error("{why}")]
    InvalidTokenIssuer {
        /// Why not.
        why: String,
    },
}

impl From<InvalidTokenIssuer> for CommandError {
    fn from(error: InvalidTokenIssuer) -> Self {
        Self::InvalidTokenIssuer { why: error.to_string() }
    }
}

impl From<InvalidQuota> for CommandError {
    fn from(error: InvalidQuota) -> Self {
        Self::InvalidQuota { why: error.to_string() }
    }
}

impl From<Forbidden> for CommandError {
    fn from(why: Forbidden) -> Self {
        Self::Forbidden { why }
    }
}
