//! What the checker found.

use std::fmt;

/// How many violations are kept in words; all are counted.
const VIOLATIONS_KEPT_MAX: usize = 50;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// R1: an answered message was never delivered as it was sent.
    Lost,
    /// R2, R3: something was delivered that nobody sent, that was refused, or that differs from what was sent.
    Phantom,
    /// R4: two unexpired leases on one message.
    DoubleLease,
    /// I3: one message was appended twice.
    Duplicate,
    /// R5: a settled message came again outside the documented window.
    RedeliveredAcked,
    /// R6: messages of one key are in another order than they were sent.
    Order,
    /// R7: one tenant saw another's message or name.
    Tenant,
    /// R8: offsets with holes or used twice, a watermark or frontier that went back.
    Offsets,
}

/// One broken promise, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub rule: Rule,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)
    }
}

/// What the history held: a verdict over nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts to send that were answered ok.
    pub sent_ok: u64,
    /// Attempts to send that certainly had no effect.
    pub sent_fail: u64,
    /// Attempts to send of unknown outcome.
    pub sent_unknown: u64,
    /// Deliveries, repeats included.
    pub delivered: u64,
    /// Places in partition logs that were delivered at least once.
    pub positions: u64,
    /// Acks answered ok.
    pub acked: u64,
    /// Deliveries of settled messages inside the documented window.
    pub redelivered_inside: u64,
    /// The oldest ack lost inside the window: how long before the node's end it was answered, in microseconds of running time.
    pub oldest_lost_ack_us: u64,
    /// Messages present more than once because a repeat of an unanswered produce, or one whose outcome was unknown, allows it.
    pub repeats_allowed: u64,
    /// Clean stops.
    pub stops: u64,
    /// Kills.
    pub kills: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Pauses.
    pub pauses: u64,
}

/// The checker's answer. All zero is a clean history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// R1.
    pub lost: u64,
    /// R2, R3.
    pub phantom: u64,
    /// R4.
    pub double_lease: u64,
    /// Appended twice, outside what I3 allows.
    pub duplicates_outside: u64,
    /// R5.
    pub redelivered_acked: u64,
    /// R6.
    pub order: u64,
    /// R7.
    pub tenant: u64,
    /// R8.
    pub offsets: u64,
    /// What the history held.
    pub counts: Counts,
    /// The first violations, in words.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Was no promise broken?
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.total() == 0
    }

    /// How many violations in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        let leases = self.double_lease + self.redelivered_acked;
        self.lost + self.phantom + leases + self.duplicates_outside + self.order + self.tenant + self.offsets
    }

    /// Counts `times` violations of `rule`, described by `what`.
    pub(crate) fn add(&mut self, rule: Rule, times: u64, what: impl FnOnce() -> String) {
        let counter = match rule {
            Rule::Lost => &mut self.lost,
            Rule::Phantom => &mut self.phantom,
            Rule::DoubleLease => &mut self.double_lease,
            Rule::Duplicate => &mut self.duplicates_outside,
            Rule::RedeliveredAcked => &mut self.redelivered_acked,
            Rule::Order => &mut self.order,
            Rule::Tenant => &mut self.tenant,
            Rule::Offsets => &mut self.offsets,
        };
        *counter += times;
        if self.violations.len() < VIOLATIONS_KEPT_MAX {
            self.violations.push(Violation { rule, what: what() });
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lost {}, phantom {}, double lease {}, duplicates outside I3 {}, acked redelivered outside the window {}, order {}, tenant {}, offsets {}",
            self.lost,
            self.phantom,
            self.double_lease,
            self.duplicates_outside,
            self.redelivered_acked,
            self.order,
            self.tenant,
            self.offsets
        )?;
        let c = &self.counts;
        write!(
            f,
            " (sent {} ok, {} fail, {} unknown; delivered {} of {} places; acked {}, {} again inside the window, oldest {} ms; repeats allowed {}; kills {}, power cuts {}, stops {}, pauses {})",
            c.sent_ok,
            c.sent_fail,
            c.sent_unknown,
            c.delivered,
            c.positions,
            c.acked,
            c.redelivered_inside,
            c.oldest_lost_ack_us / 1000,
            c.repeats_allowed,
            c.kills,
            c.power_cuts,
            c.stops,
            c.pauses
        )
    }
}
