//! What tenants may use each second, and how many of their consumers wait: decided here, with the time passed in and no I/O.
//!
//! A tenant without limits costs one look into the catalog's view, which is there anyway. What is stored is another matter: see
//! [`stored`].

pub mod bucket;
pub mod exchange;
pub mod shares;
pub mod stored;
mod table;

use std::time::Duration;

use veena_contract::{Limit, QuotaScope, limits};

pub use table::{Demand, Held, Quotas, Records, Share};

/// What a request uses of each rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Requests.
    pub requests: u64,
    /// Messages produced.
    pub messages_in: u64,
    /// Bytes produced.
    pub bytes_in: u64,
    /// Messages delivered.
    pub messages_out: u64,
    /// Bytes delivered.
    pub bytes_out: u64,
}

/// The limits on rates, in the order of [`Use::tokens`].
pub const RATES: [Limit; 5] = [Limit::RequestsPerS, Limit::MessagesInPerS, Limit::BytesInPerS, Limit::MessagesOutPerS, Limit::BytesOutPerS];

impl Use {
    /// One request.
    pub const REQUEST: Self = Self { requests: 1, messages_in: 0, bytes_in: 0, messages_out: 0, bytes_out: 0 };

    /// Messages that are produced.
    #[must_use]
    pub const fn produced(messages: u64, bytes: u64) -> Self {
        Self { requests: 0, messages_in: messages, bytes_in: bytes, messages_out: 0, bytes_out: 0 }
    }

    /// Messages that are delivered.
    #[must_use]
    pub const fn delivered(messages: u64, bytes: u64) -> Self {
        Self { requests: 0, messages_in: 0, bytes_in: 0, messages_out: messages, bytes_out: bytes }
    }

    /// How much of each rate.
    #[must_use]
    pub const fn tokens(&self) -> [u64; RATES.len()] {
        [self.requests, self.messages_in, self.bytes_in, self.messages_out, self.bytes_out]
    }
}

/// Why a request is refused: which limit, whose, how much of it is used, and when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Which limit.
    pub limit: Limit,
    /// Whose.
    pub scope: QuotaScope,
    /// What is used: of a rate, by this node within the last second.
    pub current: u64,
    /// What may be used: of a rate, by this node.
    pub allowed: u64,
    /// The limit itself, of the whole cluster.
    pub quota: u64,
    /// When to come back.
    pub wait: Duration,
    /// For how long the connection is left alone, whatever its client does: those that were refused come back one after the other, as the rate
    /// lets them in, and not all for one place.
    pub pause: Duration,
}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, scope, quota, .. } = self;
        let or = match () {
            () if self.passes() => "retry later, or ",
            () if *quota > 0 => "remove something, or ",
            () => "",
        };
        write!(f, "quota exceeded: the {scope} may have {quota} {limit}; {or}ask an operator to raise it")
    }
}

/// How long a share of a rate holds. After it, a node uses no more than the share and no more than an equal one for as long again, and then
/// an equal one: by then, what others were given of the rest has ended too.
pub const SHARE_VALID_US: u64 = 2 * limits::QUOTA_TALLY_MS * 1_000;

impl Exceeded {
    /// How long a connection is left alone at most.
    pub const PAUSE_MAX: Duration = Duration::from_millis(limits::QUOTA_PAUSE_MS_MAX);

    /// Can the same request succeed if it only waits?
    #[must_use]
    pub const fn passes(&self) -> bool {
        self.limit.passes() && self.quota > 0
    }

    /// How long a wait is told at most.
    const WAIT_MAX: Duration = Duration::from_millis(limits::QUOTA_RETRY_MS_MAX);
}
