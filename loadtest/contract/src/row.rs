//! A row: a true sentence, where the contract says it, and the steps that show it.

use crate::expect::Expect;
use crate::wire::Request;

const OPEN: (&str, &str) = ("VEENA_SECURITY_ENABLED", "false");

/// What the server must have been started with for a row to mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The defaults, with security off.
    #[default]
    Default,
    /// Small caps, so that one client can reach them.
    SmallCaps,
    /// The cross-site guard is off.
    GuardOff,
    /// The server was told to stop and has a request to finish.
    Stopping,
    /// Security is on, and the root admin's password is [`Profile::ROOT_PASSWORD`].
    Secured,
}

impl Profile {
    /// Every profile.
    pub const ALL: &'static [Profile] = &[Profile::Default, Profile::SmallCaps, Profile::GuardOff, Profile::Stopping, Profile::Secured];
    /// The root admin's password, where there is one.
    pub const ROOT_PASSWORD: &'static str = "contract-root";

    /// The environment the server is started with.
    #[must_use]
    pub const fn env(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Default | Self::Stopping => &[OPEN],
            Self::SmallCaps => &[
                OPEN,
                ("VEENA_HTTP_MAX_CONSUME_IN_FLIGHT_PER_IDENTITY", "2"),
                ("VEENA_HTTP_MAX_PRODUCE_IN_FLIGHT_PER_IDENTITY", "1"),
                ("VEENA_HTTP_MAX_BATCH_BODY_BYTES_IN_FLIGHT", "2097152"),
            ],
            Self::GuardOff => &[OPEN, ("VEENA_HTTP_CROSS_SITE_GUARD", "false")],
            Self::Secured => &[("VEENA_SECURITY_ENABLED", "true"), ("VEENA_ADMIN_PASSWORD", Self::ROOT_PASSWORD)],
        }
    }

    /// The name used on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::SmallCaps => "small-caps",
            Self::GuardOff => "guard-off",
            Self::Stopping => "stopping",
            Self::Secured => "secured",
        }
    }
}

/// One thing a row does.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends a request and compares the answer.
    Call {
        /// What is sent.
        request: Request,
        /// What must come back.
        expect: Expect,
        /// Variables taken from the answer: name, path in the body.
        take: Vec<(&'static str, &'static str)>,
        /// Ask again, up to a bound, until the answer is right.
        is_repeated: bool,
    },
    /// Sends a request on a connection of its own and goes on.
    Park {
        /// Names the parked request.
        slot: &'static str,
        /// What is sent.
        request: Request,
    },
    /// Waits for the answer to a parked request and compares it.
    Join {
        /// Which parked request.
        slot: &'static str,
        /// What must come back.
        expect: Expect,
        /// Variables taken from the answer: name, path in the body.
        take: Vec<(&'static str, &'static str)>,
    },
    /// Sends the first part of a request (`$name` replaced) on a connection of its own and goes on.
    Hold {
        /// Names the held request.
        slot: &'static str,
        /// What is sent.
        bytes: String,
    },
    /// Sends the rest of a held request and compares the answer.
    Release {
        /// Which held request.
        slot: &'static str,
        /// What is sent.
        bytes: String,
        /// What must come back.
        expect: Expect,
    },
    /// Sends a request many times; `$i` counts from `0001`.
    Times {
        /// How often.
        count: usize,
        /// What is sent.
        request: Request,
        /// What must come back each time.
        expect: Expect,
    },
    /// Sends bytes as they are (`$name` replaced) and compares the answers in order.
    Wire {
        /// What is sent.
        bytes: String,
        /// What must come back.
        expects: Vec<Expect>,
    },
}

impl Step {
    /// Keeps a value of the answer's body (its text, if it is a string) under a name.
    ///
    /// # Panics
    /// When the step has no answer to take from: a mistake in the table.
    #[must_use]
    pub fn take(mut self, name: &'static str, path: &'static str) -> Self {
        match &mut self {
            Self::Call { take, .. } | Self::Join { take, .. } => take.push((name, path)),
            _ => panic!("invariant: only a call or a join can take a value"),
        }
        self
    }

    /// Asks again, up to a bound, until the answer is right.
    #[must_use]
    pub fn until(mut self) -> Self {
        if let Self::Call { is_repeated, .. } = &mut self {
            *is_repeated = true;
        }
        self
    }

    /// The expectations of this step.
    #[must_use]
    pub fn expects(&self) -> Vec<&Expect> {
        match self {
            Self::Call { expect, .. } | Self::Join { expect, .. } | Self::Times { expect, .. } | Self::Release { expect, .. } => {
                vec![expect]
            }
            Self::Wire { expects, .. } => expects.iter().collect(),
            Self::Park { .. } | Self::Hold { .. } => Vec::new(),
        }
    }
}

impl Request {
    /// The step that sends this and wants that.
    #[must_use]
    pub fn gives(self, expect: Expect) -> Step {
        Step::Call { request: self, expect, take: Vec::new(), is_repeated: false }
    }

    /// The step that sends this and does not wait for the answer yet.
    #[must_use]
    pub fn park(self, slot: &'static str) -> Step {
        Step::Park { slot, request: self }
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// A true sentence, unique in the table.
    pub name: &'static str,
    /// Where the contract says it.
    pub section: &'static str,
    /// What the server must have been started with.
    pub profile: Profile,
    /// What shows it.
    pub steps: Vec<Step>,
}

impl Row {
    /// A row for a server with the defaults.
    #[must_use]
    pub fn new(name: &'static str, section: &'static str, steps: Vec<Step>) -> Self {
        Self { name, section, profile: Profile::Default, steps }
    }

    /// The same row for a server started in another way.
    #[must_use]
    pub fn on(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }
}
