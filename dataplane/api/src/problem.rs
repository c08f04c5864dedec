//! Refusals: one status, one code, one effect and one text each. Every operation's error is translated here, by one exhaustive match.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use http::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use veena_broker::errors::{BatchError, ConsumeError, ControlError, ProduceError, ReplayError, SettleError};
use veena_broker::quota::Exceeded;
use veena_client::bodies::ErrorBody;
use veena_contract::{Actor, CommandError, Effect, ErrorCode, Forbidden, InvalidName, ProposeError, limits};

use crate::answer::{self, Answer};

const CODE: HeaderName = HeaderName::from_static("veena-error-code");
const EFFECT: HeaderName = HeaderName::from_static("veena-effect");
/// What credentials are wanted, as the contract has it.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"narad\"");

/// A refusal, before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: ErrorCode,
    pub(crate) effect: Effect,
    pub(crate) text: Cow<'static, str>,
    retry_after_s: Option<u32>,
    is_plain: bool,
    closes: bool,
    allow: Option<String>,
    /// Which limit of the tenant is reached.
    exceeded: Option<Box<Exceeded>>,
    /// Can the same request succeed later?
    is_retryable: bool,
    /// Who was refused at the door, though they have proven who they are. Nothing of it is told in the answer.
    proven: Option<Box<Actor>>,
}

impl Problem {
    /// A refusal in JSON. 503 and 429 say when to come back, if the same request can succeed then.
    pub(crate) fn new(status: StatusCode, code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        let comes_back = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let retry_after_s = (comes_back && code.is_retryable()).then_some(1);
        Self {
            status,
            code,
            effect: code.effect(),
            text: text.into(),
            retry_after_s,
            is_plain: false,
            closes: false,
            allow: None,
            exceeded: None,
            is_retryable: code.is_retryable(),
            proven: None,
        }
    }

    /// 400, a value out of its range.
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument, text)
    }

    /// 400, something that cannot be parsed.
    pub(crate) fn malformed(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::MalformedRequest, text)
    }

    /// 503, rights that cannot be trusted.
    pub(crate) fn security_stale() -> Self {
        let text = "this node has known no leader for too long to trust what it knows of rights; ask another node";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::SecurityStale, text)
    }

    /// 404, no such topic.
    pub(crate) fn topic_not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::TopicNotFound, "topic not found")
    }

    /// 405.
    pub(crate) fn method_not_allowed(allow: String) -> Self {
        let mut problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, "Method Not Allowed").plain();
        problem.allow = Some(allow);
        problem
    }

    /// The same with another effect than its code's usual one.
    pub(crate) fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// The same, with when to come back; at the earliest in a second.
    pub(crate) fn retry_after_ms(mut self, wait_ms: u64) -> Self {
        self.retry_after_s = Some(u32::try_from(wait_ms.div_ceil(1000).max(1)).unwrap_or(u32::MAX));
        self
    }

    /// The same, with the limit that is reached. Of one that does not pass it is not said when to come back.
    pub(crate) fn exceeding(mut self, exceeded: Exceeded) -> Self {
        self.is_retryable = exceeded.passes();
        self.retry_after_s = self.retry_after_s.filter(|_| self.is_retryable);
        self.exceeded = Some(Box::new(exceeded));
        self
    }

    /// Which limit of the tenant is reached, if one is.
    pub(crate) fn exceeded(&self) -> Option<&Exceeded> {
        self.exceeded.as_deref()
    }

    /// The same, said to somebody who has proven who they are.
    pub(crate) fn said_to(mut self, actor: Actor) -> Self {
        self.proven = Some(Box::new(actor));
        self
    }

    /// Who was refused at the door, if they have proven who they are.
    pub(crate) fn proven(&self) -> Option<&Actor> {
        self.proven.as_deref()
    }

    /// The same as plain text, where the contract has it so.
    pub(crate) fn plain(mut self) -> Self {
        self.is_plain = true;
        self
    }

    /// The same, with the connection closed behind it.
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// The same, said of one message of a batch.
    pub(crate) fn of_message(mut self, index: usize) -> Self {
        self.text = format!("message {index}: {}", self.text).into();
        self
    }

    /// Writes it. `instance` names this occurrence.
    pub(crate) fn into_answer(self, instance: u64) -> Answer {
        let mut answer = if self.is_plain {
            let mut answer = answer::text(self.status, &self.text);
            let headers = answer.headers_mut();
            headers.insert(CODE, HeaderValue::from_static(self.code.as_str()));
            headers.insert(EFFECT, HeaderValue::from_static(self.effect.as_str()));
            answer
        } else {
            let body = ErrorBody {
                error: self.text.into_owned(),
                code: Some(self.code.as_str().to_owned()),
                effect: Some(self.effect.as_str().to_owned()),
                retryable: Some(self.is_retryable),
                retry_after_ms: self.retry_after_s.map(|s| u64::from(s) * 1000),
                instance: Some(format!("{instance:016x}")),
                limit: self.exceeded.as_ref().map(|exceeded| exceeded.limit.to_string()),
                scope: self.exceeded.as_ref().map(|exceeded| exceeded.scope.to_string()),
                current: self.exceeded.as_ref().map(|exceeded| exceeded.current),
                allowed: self.exceeded.as_ref().map(|exceeded| exceeded.allowed),
                quota: self.exceeded.as_ref().map(|exceeded| exceeded.quota),
                raised_by: self.exceeded.as_ref().map(|_| "operator".to_owned()),
            };
            answer::json(self.status, &body)
        };
        let is_challenge = answer.status() == StatusCode::UNAUTHORIZED;
        let headers = answer.headers_mut();
        if is_challenge {
            headers.insert(WWW_AUTHENTICATE, CHALLENGE);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(allow) = self.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

const OWNER_DOWN: &str = "partition owner is down; retry later";

impl From<InvalidName> for Problem {
    fn from(error: InvalidName) -> Self {
        Self::invalid(error.0)
    }
}

impl From<ProduceError> for Problem {
    fn from(error: ProduceError) -> Self {
        let (status, code) = match &error {
            ProduceError::TopicNotFound => (StatusCode::NOT_FOUND, ErrorCode::TopicNotFound),
            ProduceError::NoSuchPartition { .. } => (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument),
            ProduceError::DelayedChild => (StatusCode::CONFLICT, ErrorCode::DelayedChild),
            ProduceError::Overloaded { .. } => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Overloaded),
            ProduceError::OwnerDown => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::OwnerDown),
            ProduceError::DiskFull => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::DiskFull),
            ProduceError::LogPoisoned | ProduceError::LogLatched => (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::LogPoisoned),
            ProduceError::OutcomeUnknown => (StatusCode::BAD_GATEWAY, ErrorCode::OutcomeUnknown),
            ProduceError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady),
            ProduceError::Draining => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Draining),
            ProduceError::KeyReused => (StatusCode::CONFLICT, ErrorCode::IdempotencyKeyReused),
            ProduceError::DedupWindowFull { .. } => (StatusCode::TOO_MANY_REQUESTS, ErrorCode::DedupWindowFull),
            ProduceError::QuotaExceeded(exceeded) => return Self::from(*exceeded),
        };
        let problem = Self::new(status, code, error.to_string()).effect(error.effect());
        if let ProduceError::DedupWindowFull { wait_ms } = error { problem.retry_after_ms(wait_ms) } else { problem }
    }
}

impl From<BatchError> for Problem {
    fn from(BatchError { index, error }: BatchError) -> Self {
        match error {
            // It is the whole batch that is too much.
            ProduceError::QuotaExceeded(exceeded) => Self::from(exceeded),
            error => Self::from(error).of_message(index),
        }
    }
}

impl From<ConsumeError> for Problem {
    fn from(error: ConsumeError) -> Self {
        let (status, code) = match &error {
            ConsumeError::TopicNotFound => (StatusCode::NOT_FOUND, ErrorCode::TopicNotFound),
            ConsumeError::NoSuchPartition { .. } => (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument),
            ConsumeError::OwnerDown => return owner_down(),
            ConsumeError::OutcomeUnknown => (StatusCode::BAD_GATEWAY, ErrorCode::OutcomeUnknown),
            ConsumeError::TooManyWaiters { .. } => (StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited),
            ConsumeError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::NotReady),
            ConsumeError::ReadFailed => (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal),
        };
        let problem = Self::new(status, code, error.to_string()).effect(error.effect());
        if matches!(error, ConsumeError::OutcomeUnknown) { problem.plain() } else { problem }
    }
}

impl From<ReplayError> for Problem {
    fn from(error: ReplayError) -> Self {
        let (status, code) = match &error {
            ReplayError::TopicNotFound => (StatusCode::NOT_FOUND, ErrorCode::TopicNotFound),
            ReplayError::NoSuchPartition { .. } => (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument),
            ReplayError::AgedOut { .. } | ReplayError::Unreadable { .. } => (StatusCode::GONE, ErrorCode::OffsetGone),
            ReplayError::OwnerDown => return owner_down(),
            ReplayError::ReadFailed => (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal),
        };
        Self::new(status, code, error.to_string()).effect(Effect::None)
    }
}

impl From<SettleError> for Problem {
    fn from(error: SettleError) -> Self {
        let (status, code) = match &error {
            SettleError::TopicNotFound => (StatusCode::NOT_FOUND, ErrorCode::TopicNotFound),
            SettleError::LeaseLost => (StatusCode::GONE, ErrorCode::LeaseLost),
            SettleError::OwnerDown => return owner_down(),
            SettleError::NotReached => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::OwnerDown),
            SettleError::OutcomeUnknown => (StatusCode::BAD_GATEWAY, ErrorCode::OutcomeUnknown),
        };
        let problem = Self::new(status, code, error.to_string()).effect(error.effect());
        if matches!(error, SettleError::NotReached | SettleError::OutcomeUnknown) { problem.plain() } else { problem }
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Propose(error) => Self::from(error),
            ControlError::OwnerUnavailable { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::MetadataUnavailable, error.to_string())
            }
        }
    }
}

impl From<ProposeError> for Problem {
    fn from(error: ProposeError) -> Self {
        let text = error.to_string();
        match error {
            ProposeError::Refused(error) => Self::from(error),
            ProposeError::Unavailable { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::MetadataUnavailable, text),
            ProposeError::Uncertain { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::MetadataUncertain, text),
        }
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let (status, code) = match &error {
            CommandError::TopicNotFound => (StatusCode::NOT_FOUND, ErrorCode::TopicNotFound),
            CommandError::LinkNotFound { .. } => (StatusCode::NOT_FOUND, ErrorCode::NotFound),
            CommandError::AlreadyExists | CommandError::CaseClash { .. } => (StatusCode::CONFLICT, ErrorCode::AlreadyExists),
            CommandError::Changed | CommandError::OwnershipChanged | CommandError::SchemaBaseVersion { .. } => {
                (StatusCode::CONFLICT, ErrorCode::Conflict)
            }
            CommandError::NodeChanged { .. } => (StatusCode::CONFLICT, ErrorCode::Blocked),
            CommandError::NodeDraining { .. } => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Draining),
            CommandError::RoleConflict { .. } | CommandError::SchemaParentManaged => (StatusCode::CONFLICT, ErrorCode::RoleConflict),
            CommandError::TooManyChildren { .. } | CommandError::LimitReached { .. } => (StatusCode::CONFLICT, ErrorCode::LimitReached),
            CommandError::ChildSchema => (StatusCode::CONFLICT, ErrorCode::SchemaIncompatible),
            CommandError::DelayExceedsRetention { .. } => (StatusCode::CONFLICT, ErrorCode::InvalidArgument),
            CommandError::PartitionsMustGrow { .. } => (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument),
            CommandError::Forbidden { why: Forbidden::TenantSuspended } => (StatusCode::FORBIDDEN, ErrorCode::TenantSuspended),
            CommandError::Forbidden { .. } => (StatusCode::FORBIDDEN, ErrorCode::Forbidden),
            CommandError::UserNotFound | CommandError::TenantNotFound | CommandError::AccountNotFound => {
                (StatusCode::NOT_FOUND, ErrorCode::NotFound)
            }
            CommandError::UserExists | CommandError::AccountExists => (StatusCode::CONFLICT, ErrorCode::AlreadyExists),
            CommandError::UserChanged
            | CommandError::RevisionPassed { .. }
            | CommandError::RevisionTaken { .. }
            | CommandError::DeletedHere
            | CommandError::SuspendedHere
            | CommandError::TenantStays
            | CommandError::TenantDeleting
            | CommandError::TenantNotEmpty => (StatusCode::CONFLICT, ErrorCode::Conflict),
            CommandError::QuotaExceeded { limit, scope, current, allowed } => {
                let wait = Duration::from_millis(limits::QUOTA_STORED_RETRY_MS);
                let (limit, scope, current, allowed) = (*limit, *scope, *current, *allowed);
                let problem = Self::from(Exceeded { limit, scope, current, allowed, quota: allowed, wait, pause: Exceeded::PAUSE_MAX });
                return Self { text: error.to_string().into(), ..problem };
            }
            CommandError::InvalidQuota { .. } | CommandError::InvalidTokenIssuer { .. } => {
                (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument)
            }
        };
        Self::new(status, code, error.to_string())
    }
}

fn owner_down() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::OwnerDown, OWNER_DOWN).plain()
}

#[cfg(test)]
mod tests {
    use veena_contract::Offset;

    use super::*;

    fn head(problem: impl Into<Problem>) -> (u16, &'static str, &'static str) {
        let problem = problem.into();
        (problem.status.as_u16(), problem.code.as_str(), problem.effect.as_str())
    }

    #[test]
    fn an_error_keeps_its_effect_on_the_way_out() {
        assert_eq!(head(ProduceError::LogPoisoned), (500, "log_poisoned", "possible"));
        assert_eq!(head(ProduceError::LogLatched), (500, "log_poisoned", "none"), "only what was in flight is in doubt");
        assert_eq!(ProduceError::LogLatched.to_string(), ProduceError::LogPoisoned.to_string());
        assert_eq!(head(ProduceError::OutcomeUnknown), (502, "outcome_unknown", "possible"));
        assert_eq!(head(ProduceError::DiskFull), (503, "disk_full", "none"));
        assert_eq!(head(ProduceError::KeyReused), (409, "idempotency_key_reused", "none"));
        assert_eq!(head(ProduceError::DedupWindowFull { wait_ms: 1 }), (429, "dedup_window_full", "none"));
        assert_eq!(head(ConsumeError::ReadFailed), (500, "internal", "none"));
        assert_eq!(head(ConsumeError::OwnerDown), (503, "owner_down", "none"));
        assert_eq!(head(ConsumeError::OutcomeUnknown), (502, "outcome_unknown", "possible"));
        assert_eq!(head(SettleError::LeaseLost), (410, "lease_lost", "none"));
        assert_eq!(head(SettleError::NotReached), (503, "owner_down", "none"));
        assert_eq!(head(SettleError::OutcomeUnknown), (502, "outcome_unknown", "possible"));
        assert_eq!(head(ReplayError::Unreadable { offset: Offset(1) }), (410, "offset_gone", "none"));
        assert_eq!(head(ProposeError::Uncertain { reason: "x".into() }), (503, "metadata_uncertain", "possible"));
        assert_eq!(head(CommandError::DelayExceedsRetention { delay_ms: 1, needed_ms: 2 }), (409, "invalid_argument", "none"));
    }

    #[test]
    fn an_owner_that_is_down_is_said_in_plain_text_with_the_code_in_headers() {
        let answer = Problem::from(SettleError::OwnerDown).into_answer(7);
        assert_eq!(answer.status(), 503);
        for (name, value) in [
            ("retry-after", "1"),
            ("veena-error-code", "owner_down"),
            ("veena-effect", "none"),
            ("content-type", "text/plain; charset=utf-8"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(answer.headers()[name], value);
        }
        assert_eq!(answer.body().len(), OWNER_DOWN.len() + 1);
    }

    #[test]
    fn an_ack_without_an_answer_says_in_plain_text_whether_it_may_have_been_applied() {
        for (error, text, retry_after) in [
            (SettleError::NotReached, "the ack did not reach the partition owner and was not applied; retry", Some("1")),
            (SettleError::OutcomeUnknown, "the partition owner did not answer; the ack may have been applied; retry", None),
        ] {
            let problem = Problem::from(error);
            assert_eq!(problem.text, text);
            let answer = problem.into_answer(7);
            assert_eq!(answer.headers()["content-type"], "text/plain; charset=utf-8");
            assert_eq!(answer.headers().get("retry-after").map(|value| value.to_str().expect("digits")), retry_after);
        }
    }

    #[test]
    fn a_full_window_asks_to_come_back_when_its_oldest_key_has_ended() {
        for (wait_ms, seconds) in [(0, "1"), (1_000, "1"), (1_001, "2"), (3_600_000, "3600")] {
            let answer = Problem::from(ProduceError::DedupWindowFull { wait_ms }).into_answer(1);
            assert_eq!(answer.headers()["retry-after"], seconds);
        }
    }

    #[test]
    fn every_refusal_that_asks_to_come_back_says_when() {
        for problem in [
            Problem::from(ProduceError::Overloaded { detail: "x" }),
            Problem::from(ProduceError::Stopping),
            Problem::from(ConsumeError::TooManyWaiters { limit: 1 }),
            Problem::from(ProposeError::Unavailable { reason: "x".into() }),
        ] {
            assert!(problem.into_answer(1).headers().contains_key("retry-after"));
        }
        assert!(!Problem::from(ProduceError::LogPoisoned).into_answer(1).headers().contains_key("retry-after"));
    }

    #[test]
    fn nobody_is_asked_to_come_back_with_what_may_not_be_repeated() {
        for code in ErrorCode::ALL {
            for status in
                [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS, StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE]
            {
                for problem in [Problem::new(status, *code, "x"), Problem::new(status, *code, "x").plain()] {
                    let answer = problem.into_answer(1);
                    assert!(!answer.headers().contains_key("retry-after") || code.is_retryable(), "{status} {}", code.as_str());
                }
            }
        }
        let uncertain = Problem::from(ProposeError::Uncertain { reason: "x".into() });
        assert_eq!((uncertain.status.as_u16(), uncertain.retry_after_s), (503, None));
    }
}
