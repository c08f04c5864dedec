//! The shared leaf of the data plane: what a thing is called, how large it may be, what a refusal is, and the seams between crates.
//!
//! No I/O, no runtime, no HTTP server: everything here is plain data, pure functions and traits. Every other crate may depend on this
//! one; this one depends on none of ours.

pub mod audit;
pub mod catalog;
pub mod clock;
pub mod cluster;
pub mod grants;
pub mod ids;
pub mod issuer;
pub mod keys;
pub mod limits;
pub mod map;
pub mod names;
pub mod peer;
pub mod placement;
pub mod problem;
pub mod quiet;
pub mod quota;
pub mod records;
pub mod sabotage;
pub mod tenants;
pub mod username;
pub mod users;
pub mod witness;

pub use audit::{AuditDecision, AuditEntry, AuditHash, AuditKind, AuditTrail, Denial, Note, Origin, Stamp};
pub use catalog::{BoxFuture, Catalog, CatalogView, CatalogWriter, LeaderPort, ProposeError};
pub use clock::{Entropy, WallClock};
pub use cluster::{ForgetError, Member, Members, Obstacle, ObstacleCode, Standing};
pub use grants::{Action, Grant, GrantText, Grants, InvalidGrants, Pattern};
pub use ids::{
    AttachEpoch, DrainMark, LineageId, LogId, LogIndex, MessageId, MoveToken, NodeId, Offset, OwnershipEpoch, PartitionIndex, StreamId,
    TenantId, TopicId, WalSeq,
};
pub use issuer::{InvalidTokenIssuer, TokenIssuer, TokenIssuerRecord, TokenKey};
pub use keys::{InvalidKeyPart, KeyHash, KeyId, KeyRecord};
pub use names::{HeaderName, IdempotencyKey, InvalidName, Key, TopicName};
pub use peer::{
    CallerGone, NodeDirectory, PeerAddr, PeerCall, PeerClass, PeerClient, PeerError, PeerOp, PeerRefusal, PeerRequest, PeerService,
};
pub use problem::{Effect, ErrorCode};
pub use quiet::Quiet;
pub use quota::{InvalidQuota, Limit, Quota, QuotaRecord, QuotaScope, Quotas};
pub use records::{
    ChildLink, Command, CommandError, FeatureLevel, Frozen, Move, Ownership, ParentLink, PartitionAt, Reroute, SchemaVersion, TopicRecord,
};
pub use tenants::{TenantCounts, TenantRecord, TenantState};
pub use username::{InvalidUsername, Username};
pub use users::{Actor, Forbidden, StoredHash, UserKind, UserRecord};
pub use witness::{Confirmed, Copy, CopyMoved, LinkGone, StreamsEnded, TopicGone, Unconfirmed, Witness};
