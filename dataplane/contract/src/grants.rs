//! Grants: an action and the topics it may be done to, as they stand in a user's JSON (http-contract 1.5).

use std::fmt;
use std::sync::Arc;

use crate::limits;
use serde::{Deserialize, Serialize};

/// What a grant lets a user do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Send messages.
    Produce,
    /// Read messages; ack, extend and nack them.
    Consume,
    /// Create topics.
    Create,
    /// Everything: every topic, the users, the cluster.
    Admin,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Produce, Self::Consume, Self::Create, Self::Admin];

    /// As on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Create => "create",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why grants were refused. The texts are shown to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGrants {
    /// There is no such action.
    #[error("unknown action {0:?}: want produce, consume, create or admin")]
    UnknownAction(String),
    /// Every action but `admin` says to which topics.
    #[error("action {0} requires at least one pattern")]
    PatternsRequired(Action),
    /// `admin` is for everything.
    #[error("action admin takes no patterns")]
    PatternsForbidden,
    /// It is no topic's name, and no beginning of one with a `*` behind it.
    #[error("invalid pattern {0:?}: want up to {max} of A-Z a-z 0-9 . _ - and at most one * at the end", max = limits::GRANT_PATTERN_BYTES_MAX)]
    InvalidPattern(String),
    /// More than a user has.
    #[error("too many grants: more than {max}", max = limits::GRANTS_MAX)]
    TooManyGrants,
    /// More than all grants of a user have together.
    #[error("too many patterns: more than {max}", max = limits::GRANT_PATTERNS_MAX)]
    TooManyPatterns,
}

/// What is shown of a text that a client sent and that is no good.
fn shown(text: &str) -> String {
    /// Enough to tell what was meant.
    const SHOWN_CHARS: usize = 64;
    text.chars().take(SHOWN_CHARS).collect()
}

/// Which topics are meant: one by its name, or all whose names begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// The topic of this name.
    Name(Arc<str>),
    /// All topics whose names begin with this.
    Prefix(Arc<str>),
}

impl Pattern {
    /// Reads the wire's form: `^[A-Za-z0-9._-]{0,255}\*?$`.
    ///
    /// # Errors
    /// [`InvalidGrants::InvalidPattern`].
    pub fn parse(text: &str) -> Result<Self, InvalidGrants> {
        let (begin, is_prefix) = text.strip_suffix('*').map_or((text, false), |begin| (begin, true));
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if begin.len() > limits::GRANT_PATTERN_BYTES_MAX || !begin.bytes().all(is_good) {
            return Err(InvalidGrants::InvalidPattern(shown(text)));
        }
        Ok(if is_prefix { Self::Prefix(Arc::from(begin)) } else { Self::Name(Arc::from(begin)) })
    }

    /// Is the topic of this name meant?
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        match self {
            Self::Name(name) => **name == *topic,
            Self::Prefix(begin) => topic.starts_with(&**begin),
        }
    }

    /// Is every topic meant that the other means?
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Name(name)) => self.matches(name),
            (Self::Name(_), Self::Prefix(_)) => false,
            (Self::Prefix(begin), Self::Prefix(other)) => other.starts_with(&**begin),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Prefix(begin) => write!(f, "{begin}*"),
        }
    }
}

/// A grant as it stands in JSON: nothing about it is known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantText {
    /// What may be done.
    pub action: String,
    /// To which topics; none for `admin`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
}

/// One grant that is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    action: Action,
    patterns: Vec<Pattern>,
}

impl Grant {
    /// What may be done.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// To which topics; none for `admin`, which is for everything.
    #[must_use]
    pub fn patterns(&self) -> &[Pattern] {
        &self.patterns
    }

    fn parse(text: &GrantText) -> Result<Self, InvalidGrants> {
        let action = Action::ALL.into_iter().find(|action| action.as_str() == text.action);
        let action = action.ok_or_else(|| InvalidGrants::UnknownAction(shown(&text.action)))?;
        match (action, text.patterns.is_empty()) {
            (Action::Admin, false) => return Err(InvalidGrants::PatternsForbidden),
            (Action::Produce | Action::Consume | Action::Create, true) => return Err(InvalidGrants::PatternsRequired(action)),
            (Action::Admin, true) | (Action::Produce | Action::Consume | Action::Create, false) => {}
        }
        let patterns = text.patterns.iter().map(|pattern| Pattern::parse(pattern)).collect::<Result<_, _>>()?;
        Ok(Self { action, patterns })
    }
}

/// All that a user may do, in the order in which it was granted. Cheap to clone. In JSON it is the contract's list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<GrantText>", into = "Vec<GrantText>")]
pub struct Grants(Arc<[Grant]>);

impl Grants {
    /// Nothing at all.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads what a client sent.
    ///
    /// # Errors
    /// [`InvalidGrants`], for the first grant that is no good.
    pub fn parse(grants: &[GrantText]) -> Result<Self, InvalidGrants> {
        if grants.len() > limits::GRANTS_MAX {
            return Err(InvalidGrants::TooManyGrants);
        }
        if grants.iter().map(|grant| grant.patterns.len()).sum::<usize>() > limits::GRANT_PATTERNS_MAX {
            return Err(InvalidGrants::TooManyPatterns);
        }
        grants.iter().map(Grant::parse).collect::<Result<Arc<[Grant]>, _>>().map(Self)
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter()
    }

    /// The first pattern by which this may be done to the topic.
    #[must_use]
    pub fn covering(&self, action: Action, topic: &str) -> Option<&Pattern> {
        let of_action = self.iter().filter(|grant| grant.action == action);
        of_action.flat_map(|grant| &grant.patterns).find(|pattern| pattern.matches(topic))
    }

    /// Is `admin` among them?
    #[must_use]
    pub fn has_admin(&self) -> bool {
        self.iter().any(|grant| grant.action == Action::Admin)
    }
}

impl TryFrom<Vec<GrantText>> for Grants {
    type Error = InvalidGrants;

    fn try_from(grants: Vec<GrantText>) -> Result<Self, InvalidGrants> {
        Self::parse(&grants)
    }
}

impl From<Grants> for Vec<GrantText> {
    fn from(grants: Grants) -> Self {
        let text = |grant: &Grant| GrantText {
            action: grant.action.as_str().to_owned(),
            patterns: grant.patterns.iter().map(ToString::to_string).collect(),
        };
        grants.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).expect("a pattern")
    }

    fn grant(action: &str, patterns: &[&str]) -> GrantText {
        GrantText { action: action.to_owned(), patterns: patterns.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn a_pattern_is_a_name_or_the_beginning_of_one() {
        for good in ["", "*", "orders", "orders-*", "a.b_c-9*", &"x".repeat(255), &format!("{}*", "x".repeat(255))] {
            assert_eq!(pattern(good).to_string(), good);
        }
        for bad in ["**", "a*b", "*a", "a b", "ä", "a/b", "a\n", &"x".repeat(256), &format!("{}*", "x".repeat(256))] {
            assert!(matches!(Pattern::parse(bad), Err(InvalidGrants::InvalidPattern(_))), "{bad:?}");
        }
        assert!(pattern("orders").matches("orders") && !pattern("orders").matches("orders-eu"));
        assert!(
            pattern("orders-*").matches("orders-eu") && pattern("orders-*").matches("orders-") && !pattern("orders-*").matches("orders")
        );
        assert!(pattern("*").matches("orders"));
        assert!(!pattern("Orders").matches("orders"));
    }

    #[test]
    fn grants_are_what_the_contract_says() {
        let json = r#"[{"action":"produce","patterns":["invoices.*","x"]},{"action":"admin"}]"#;
        let grants: Grants = serde_json::from_str(json).expect("grants");
        assert_eq!(serde_json::to_string(&grants).expect("json"), json);
        assert!(grants.has_admin());
        assert_eq!(serde_json::to_string(&Grants::none()).expect("json"), "[]");
        assert!(serde_json::from_str::<Grants>(r#"[{"action":"produce","patterns":["x"],"until":1}]"#).is_err(), "no rule is skipped");
    }

    #[test]
    fn grants_that_are_no_good_are_refused_with_a_text() {
        let many = |grants: usize, patterns: usize| vec![grant("produce", &vec!["x"; patterns]); grants];
        for (grants, text) in [
            (vec![grant("delete", &["x"])], "unknown action \"delete\": want produce, consume, create or admin"),
            (vec![grant("PRODUCE", &["x"])], "unknown action \"PRODUCE\": want produce, consume, create or admin"),
            (vec![grant("create", &[])], "action create requires at least one pattern"),
            (vec![grant("admin", &["*"])], "action admin takes no patterns"),
            (
                vec![grant("produce", &["x"]), grant("consume", &["a*b"])],
                "invalid pattern \"a*b\": want up to 255 of A-Z a-z 0-9 . _ - and at most one * at the end",
            ),
            (many(limits::GRANTS_MAX + 1, 1), "too many grants: more than 64"),
            (many(1, limits::GRANT_PATTERNS_MAX + 1), "too many patterns: more than 1000"),
        ] {
            assert_eq!(Grants::parse(&grants).expect_err(text).to_string(), text);
        }
        assert!(Grants::parse(&many(limits::GRANTS_MAX, 15)).is_ok());
        let long = Grants::parse(&[grant(&"x".repeat(1_000_000), &["x"])]).expect_err("no action").to_string();
        assert!(long.len() < 200, "a long text is not sent back whole");
    }

    proptest! {
        #[test]
        fn what_is_covered_is_matched(one in "[ab]{0,3}\\*?", other in "[ab]{0,3}\\*?", topic in "[ab]{0,5}") {
            let (one, other) = (pattern(&one), pattern(&other));
            if one.covers(&other) && other.matches(&topic) {
                prop_assert!(one.matches(&topic), "{one} {other} {topic}");
            }
        }

        #[test]
        fn what_is_not_covered_means_a_topic_that_is_not_matched(one in "[ab]{0,3}\\*?", other in "[ab]{0,3}\\*?") {
            let (one, other) = (pattern(&one), pattern(&other));
            if !one.covers(&other) {
                let (Pattern::Name(begin) | Pattern::Prefix(begin)) = &other;
                let topics = [begin.to_string(), format!("{begin}c")];
                prop_assert!(topics.iter().any(|topic| other.matches(topic) && !one.matches(topic)), "{one} {other}");
            }
        }

        #[test]
        fn no_text_brings_the_reader_down(text in any::<String>()) {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(pattern.to_string(), text);
            }
        }
    }
}
