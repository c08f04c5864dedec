//! When a call is repeated: only when the first attempt certainly had no effect, or when a second effect is harmless.

use std::time::Duration;

use veena_contract::Effect;

use crate::error::ClientError;

/// What a call does, as far as repeating it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes nothing.
    Read,
    /// Takes leases; one that is not received ends by itself.
    Lease,
    /// Stores messages: a repeat after a possible effect would store them twice.
    Produce,
    /// Stores messages under idempotency keys: a repeat stores nothing more.
    ProduceKeyed,
    /// Settles leases: a repeat after a possible effect changes nothing more.
    Settle,
    /// Changes a topic.
    Change,
}

/// How often and how long a call is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// Repeats after the first attempt.
    pub repeats_max: u32,
    /// The first pause; doubles.
    pub pause_min: Duration,
    /// The longest pause, also when the server asks for a longer one.
    pub pause_max: Duration,
}

impl Policy {
    /// A few repeats within a few seconds.
    pub(crate) const DEFAULT: Self = Self { repeats_max: 4, pause_min: Duration::from_millis(100), pause_max: Duration::from_secs(5) };

    /// The pause before repeat number `repeat` (from 0), or `None` when the call must not be repeated.
    pub(crate) fn pause(&self, kind: Kind, repeat: u32, error: &ClientError) -> Option<Duration> {
        if repeat >= self.repeats_max || !may_repeat(kind, error) {
            return None;
        }
        let doubled = self.pause_min.saturating_mul(1 << repeat.min(16));
        Some(error.retry_after.unwrap_or(doubled).max(self.pause_min).min(self.pause_max))
    }
}

/// May this call be sent again after this failure?
fn may_repeat(kind: Kind, error: &ClientError) -> bool {
    if !error.is_retryable && !matches!(kind, Kind::Settle | Kind::Read | Kind::ProduceKeyed) {
        return false;
    }
    match (kind, error.effect) {
        (_, Effect::None) => error.is_retryable,
        (Kind::Settle | Kind::ProduceKeyed, Effect::Possible) => is_uncertain(error),
        (_, Effect::Possible) => false,
    }
}

/// Did this attempt end without saying whether it was applied?
pub(crate) fn is_uncertain(error: &ClientError) -> bool {
    error.effect == Effect::Possible && matches!(error.status, None | Some(408 | 500 | 502 | 503 | 504))
}

/// Statuses after which the same request may succeed.
pub(crate) fn is_retryable_status(status: u16) -> bool {
    matches!(status, 408 | 421 | 429 | 500 | 502 | 503 | 504)
}

/// The effect of a refusal that does not state one, as a server without effects means it (http-contract 2.4).
pub(crate) fn assumed_effect(kind: Kind, status: u16, text: &str) -> Effect {
    let is_none = match (kind, status) {
        (Kind::Read, _) => true,
        (_, 400..=499) => true,
        (Kind::Lease | Kind::Settle, 503) => true,
        (Kind::Produce | Kind::ProduceKeyed, 503) => {
            text.contains("being decommissioned and takes no new produce")
                || text.contains("schema validation slot")
                || text.contains("batch produce bodies in flight")
        }
        _ => false,
    };
    if is_none { Effect::None } else { Effect::Possible }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: Option<u16>, effect: Effect, is_retryable: bool) -> ClientError {
        ClientError { status, code: None, effect, is_retryable, text: String::new(), retry_after: None }
    }

    #[test]
    fn a_produce_that_may_have_been_stored_is_never_repeated() {
        for status in [None, Some(500), Some(502), Some(503), Some(504)] {
            assert_eq!(Policy::DEFAULT.pause(Kind::Produce, 0, &error(status, Effect::Possible, true)), None, "{status:?}");
        }
        assert!(Policy::DEFAULT.pause(Kind::Produce, 0, &error(Some(503), Effect::None, true)).is_some());
    }

    #[test]
    fn a_produce_under_an_idempotency_key_is_repeated_until_it_is_known_to_be_stored() {
        for status in [None, Some(500), Some(502), Some(503), Some(504)] {
            assert!(Policy::DEFAULT.pause(Kind::ProduceKeyed, 0, &error(status, Effect::Possible, false)).is_some(), "{status:?}");
        }
        assert_eq!(Policy::DEFAULT.pause(Kind::ProduceKeyed, 0, &error(Some(409), Effect::None, false)), None);
    }

    #[test]
    fn a_topic_change_that_may_have_been_made_is_never_repeated() {
        assert_eq!(Policy::DEFAULT.pause(Kind::Change, 0, &error(Some(503), Effect::Possible, true)), None);
    }

    #[test]
    fn a_settle_is_repeated_after_no_answer_but_not_after_a_refusal() {
        assert!(Policy::DEFAULT.pause(Kind::Settle, 0, &error(None, Effect::Possible, true)).is_some());
        assert!(Policy::DEFAULT.pause(Kind::Settle, 0, &error(Some(502), Effect::Possible, false)).is_some());
        assert_eq!(Policy::DEFAULT.pause(Kind::Settle, 0, &error(Some(410), Effect::None, false)), None);
    }

    #[test]
    fn repeats_end_and_pauses_are_bounded() {
        let mut refusal = error(Some(503), Effect::None, true);
        assert_eq!(Policy::DEFAULT.pause(Kind::Read, Policy::DEFAULT.repeats_max, &refusal), None);
        refusal.retry_after = Some(Duration::from_secs(3600));
        assert_eq!(Policy::DEFAULT.pause(Kind::Read, 0, &refusal), Some(Policy::DEFAULT.pause_max));
    }

    #[test]
    fn a_refusal_without_a_stated_effect_is_read_as_the_contract_says() {
        assert_eq!(assumed_effect(Kind::Produce, 503, "anything"), Effect::Possible);
        assert_eq!(assumed_effect(Kind::Produce, 503, "this node is being decommissioned and takes no new produce"), Effect::None);
        assert_eq!(assumed_effect(Kind::Settle, 503, ""), Effect::None);
        assert_eq!(assumed_effect(Kind::Settle, 502, ""), Effect::Possible);
        assert_eq!(assumed_effect(Kind::Produce, 429, ""), Effect::None);
        assert_eq!(assumed_effect(Kind::Lease, 500, ""), Effect::Possible);
    }
}
