//! The registry of refusals. Codes only grow; each has a status, says whether a repeat can help, and whether the thing may have happened.

use serde::{Deserialize, Serialize};

/// May the operation have been applied? Drives the status, the client's retry and the checker's verdict (design 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Certainly not applied.
    None,
    /// May have been applied: read back before repeating.
    Possible,
}

impl Effect {
    /// The text used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Possible => "possible",
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $retryable:literal, $effect:ident;)*) => {
        /// A machine-readable reason. Append-only: a code never changes its meaning and is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every code, in order of registration.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The text used on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// May the same request succeed later, unchanged?
            #[must_use]
            pub const fn is_retryable(self) -> bool {
                match self {
                    $(Self::$name => $retryable,)*
                }
            }

            /// May the operation have been applied?
            #[must_use]
            pub const fn effect(self) -> Effect {
                match self {
                    $(Self::$name => Effect::$effect,)*
                }
            }
        }
    };
}

codes! {
    /// The request cannot be parsed.
    MalformedRequest = "malformed_request", false, None;
    /// A value is out of its range.
    InvalidArgument = "invalid_argument", false, None;
    /// The payload does not match the topic's schema.
    SchemaViolation = "schema_violation", false, None;
    /// A new schema would refuse messages that an older version accepted.
    SchemaIncompatible = "schema_incompatible", false, None;
    /// No such topic.
    TopicNotFound = "topic_not_found", false, None;
    /// No such thing (a link, a partition, a path).
    NotFound = "not_found", false, None;
    /// The method is not served on this path.
    MethodNotAllowed = "method_not_allowed", false, None;
    /// The name is taken.
    AlreadyExists = "already_exists", false, None;
    /// The thing changed since it was read.
    Conflict = "conflict", false, None;
    /// Parent, child and standalone are exclusive roles.
    RoleConflict = "role_conflict", false, None;
    /// A delayed child takes no direct produce.
    DelayedChild = "delayed_child", false, None;
    /// A limit on how many of something may exist is reached.
    LimitReached = "limit_reached", false, None;
    /// The receipt handle no longer matches a lease.
    LeaseLost = "lease_lost", false, None;
    /// The offset is below what is retained, or unreadable.
    OffsetGone = "offset_gone", false, None;
    /// The body is larger than the route takes.
    BodyTooLarge = "body_too_large", false, None;
    /// The content type or encoding is not taken.
    UnsupportedMediaType = "unsupported_media_type", false, None;
    /// Too many requests in flight.
    RateLimited = "rate_limited", true, None;
    /// The request's headers are too large.
    HeadersTooLarge = "headers_too_large", false, None;
    /// A bug on our side.
    Internal = "internal", false, Possible;
    /// The log refuses writes after a failed sync.
    LogPoisoned = "log_poisoned", true, Possible;
    /// The partition's owner does not take records now.
    OwnerDown = "owner_down", true, None;
    /// The answer is not known: the thing may have happened.
    OutcomeUnknown = "outcome_unknown", false, Possible;
    /// The node has no room for more unwritten or undispatched records.
    Overloaded = "overloaded", true, None;
    /// The data disk is full.
    DiskFull = "disk_full", true, None;
    /// The node is starting or stopping.
    NotReady = "not_ready", true, None;
    /// The metastore does not take the change now; it never left this node.
    MetadataUnavailable = "metadata_unavailable", true, None;
    /// The metastore may or may not have taken the change.
    MetadataUncertain = "metadata_uncertain", false, Possible;
    /// No validation slot came free in time.
    ValidationBusy = "validation_busy", true, None;
    /// The client left before it was answered. Never on the wire.
    ClientGone = "client_gone", false, Possible;
    /// The request was not sent in time.
    RequestTimeout = "request_timeout", true, None;
    /// The node is being taken out of its cluster and takes no new messages.
    Draining = "draining", true, None;
    /// A node cannot be taken out of its cluster, or not kept any more.
    Blocked = "blocked", false, None;
    /// The idempotency key was used for another message.
    IdempotencyKeyReused = "idempotency_key_reused", false, None;
    /// The partition remembers as many idempotency keys as it may.
    DedupWindowFull = "dedup_window_full", true, None;
    /// No user's name and password came with the request, or not the right ones.
    Unauthenticated = "unauthenticated", false, None;
    /// The caller may not do this.
    Forbidden = "forbidden", false, None;
    /// Nobody of the caller's tenant may do anything now.
    TenantSuspended = "tenant_suspended", false, None;
    /// The node has known no leader for so long that rights which were taken away may still stand in its copy of the metadata.
    SecurityStale = "security_stale", true, None;
    /// The tenant, or the topic, has used what it may.
    QuotaExceeded = "quota_exceeded", true, None;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_snake_case_words() {
        let mut texts: Vec<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert!(texts.iter().all(|t| t.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')));
        texts.sort_unstable();
        let count = texts.len();
        texts.dedup();
        assert_eq!(texts.len(), count);
    }
}
