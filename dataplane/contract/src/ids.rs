//! Identifiers and positions. A number that has a name is never passed as a bare integer.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! position {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The position right behind this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }

            /// The bare number, for arithmetic and for the wire.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

position! {
    /// A position in a partition log; dense from 0.
    Offset(u64)
}
position! {
    /// A position in a node's ingress WAL; rises over the life of the directory.
    WalSeq(u64)
}
position! {
    /// Which partition of a topic, from 0.
    PartitionIndex(u32)
}
position! {
    /// A position in the metastore's log.
    LogIndex(u64)
}
position! {
    /// How often the ownership of a partition has changed, from 1. Whoever has seen a higher one refuses a lower one; 0 is of a cluster
    /// that has ever been one node.
    OwnershipEpoch(u64)
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident($inner:ty, $width:literal)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:0width$x}", self.0, width = $width)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let digits = text.len() == $width && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if !digits {
                    return Err(InvalidId);
                }
                <$inner>::from_str_radix(text, 16).map(Self).map_err(|_| InvalidId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// The text is not the lower-case hexadecimal form of an id.
#[derive(Debug, thiserror::Error)]
#[error("not an id: want fixed-width lower-case hexadecimal")]
pub struct InvalidId;

hex_id! {
    /// An incarnation: this life of a topic name. Stamped on WAL records, directories, cursors and links (design I7).
    TopicId(u64, 16)
}
hex_id! {
    /// Which attachment of a child to its parent something belongs to.
    AttachEpoch(u64, 16)
}
hex_id! {
    /// One conversation from one source into one partition log. Minted at random, never derived.
    StreamId(u128, 32)
}
hex_id! {
    /// The identity of one partition log, minted when it is created empty.
    LogId(u128, 32)
}

hex_id! {
    /// One life of a metastore, minted when it is created empty. Folders of another lineage are quarantined, never deleted.
    LineageId(u128, 32)
}

hex_id! {
    /// One move of one partition, minted at random by whoever begins it. Whatever belongs to a move names it by this, so that nothing of one
    /// is taken for another's.
    MoveToken(u128, 32)
}

hex_id! {
    /// One time of being taken out of the cluster, minted at random by whoever asks for it: what was seen of a former time says nothing of it.
    DrainMark(u128, 32)
}

/// The customer boundary: owner of names, quotas and users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(Arc<str>);

impl TenantId {
    /// The tenant of a cluster that no control plane manages.
    pub const DEFAULT: &'static str = "default";

    /// The tenant `default`.
    #[must_use]
    pub fn default_tenant() -> Self {
        Self(Arc::from(Self::DEFAULT))
    }

    /// The name of a tenant, if it is one: 1 to 63 lower-case letters, digits and hyphens, the first no hyphen.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        const LEN_MAX: usize = 63;
        let is_char = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_name = (1..=LEN_MAX).contains(&text.len()) && text.bytes().all(is_char) && !text.starts_with('-');
        is_name.then(|| Self(Arc::from(text)))
    }

    /// Is it that one?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self.0 == *Self::DEFAULT
    }

    /// The tenant's name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of one node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub Arc<str>);

impl NodeId {
    /// How long a name may be, in bytes.
    pub const LEN_MAX: usize = 64;

    /// May this stand in a node's name? What it is part of (addresses, lists, log lines, paths) must stay whole.
    #[must_use]
    pub const fn is_name_char(char: char) -> bool {
        char.is_ascii_alphanumeric() || matches!(char, '.' | '_' | '-')
    }

    /// The name, if it is one: 1 to [`LEN_MAX`](Self::LEN_MAX) letters, digits, dots, underscores and hyphens, the first a letter or a digit.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_name = text.len() <= Self::LEN_MAX && text.chars().all(Self::is_name_char);
        (is_name && text.starts_with(|first: char| first.is_ascii_alphanumeric())).then(|| Self(text.into()))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message's name for life: the stream and sequence of its first acceptance. Stays through reroute, move, fan-out and links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The stream under which the message was first accepted.
    pub stream: StreamId,
    /// Its sequence in that stream.
    pub sequence: u64,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_a_node_holds_nothing_that_tears_what_it_stands_in() {
        let longest = "n".repeat(NodeId::LEN_MAX);
        for name in ["a", "node-1", "eu_1.rack-2", longest.as_str()] {
            assert_eq!(NodeId::parse(name).map(|node| node.to_string()).as_deref(), Some(name));
        }
        for text in ["", ".", "../x", "-a", "x@y", "x,y", "x:1", "a b", "a\nb", "n\u{e4}", &format!("{longest}n")] {
            assert_eq!(NodeId::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_id_survives_its_text_form() {
        let id = TopicId(0x00ab_cdef_0123_4567);
        assert_eq!(id.to_string(), "00abcdef01234567");
        assert_eq!("00abcdef01234567".parse::<TopicId>().expect("own text form"), id);
        let stream = StreamId(7);
        assert_eq!(stream.to_string().len(), 32);
        assert_eq!(stream.to_string().parse::<StreamId>().expect("own text form"), stream);
    }

    #[test]
    fn an_id_of_another_shape_is_refused() {
        for text in ["", "1", "00ABCDEF01234567", "00abcdef0123456", "+0abcdef01234567", "00abcdef012345678"] {
            assert!(text.parse::<TopicId>().is_err(), "{text:?}");
        }
    }
}
