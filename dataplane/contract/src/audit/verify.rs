//! Looks at the lines of one chain, without a node: is each what was written, and none missing between two?

use serde::Deserialize;

use super::AuditHash;
use crate::ids::TenantId;

/// Before the hash at the end of a line.
const HASH: &str = r#","hash":""#;
/// Behind it.
const END: &str = r#""}"#;

/// A record with its hash, which stands at its end.
pub(super) fn sealed(body: &str, hash: AuditHash) -> String {
    let open = body.strip_suffix('}').unwrap_or(body);
    format!("{open}{HASH}{hash}{END}")
}

/// The two parts of a line: the record as it was hashed, and the hash.
fn parted(line: &str) -> Option<(String, AuditHash)> {
    let (open, hash) = line.strip_suffix(END)?.rsplit_once(HASH)?;
    Some((format!("{open}}}"), hash.parse().ok()?))
}

/// The hash that a line says it has.
pub(super) fn hash_of(line: &str) -> Option<AuditHash> {
    parted(line).map(|(_, hash)| hash)
}

/// What of a record says where it belongs. A newer program may write more.
#[derive(Deserialize)]
struct Place {
    seq: u64,
    tenant: TenantId,
    prev: AuditHash,
}

/// The lines are not the chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {seq}: {why} (line {line})")]
pub struct Broken {
    /// The first record that is not as it was written, or not there.
    pub seq: u64,
    /// On which line that was found, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: String,
}

/// What the lines are that are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whose chain.
    pub tenant: TenantId,
    /// The first record. Above 1, what came before it is not among the lines, and nothing is said of it.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Its hash. Lines that were cut off at the end are missed by whoever has noted it elsewhere.
    pub head: AuditHash,
}

/// Takes the lines of one chain one after the other.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    good: Option<Verified>,
    lines: u64,
}

impl Verifier {
    /// The next line, without its end.
    ///
    /// # Errors
    /// [`Broken`]: it is not the one that was written next.
    pub fn line(&mut self, line: &str) -> Result<(), Broken> {
        self.lines += 1;
        let expected = self.good.as_ref().map(|good| good.last + 1);
        let found = serde_json::from_str::<Place>(line);
        let seq = expected.or(found.as_ref().ok().map(|place| place.seq)).unwrap_or(1);
        let broken = |why: String| Broken { seq, line: self.lines, why };
        let (body, hash) = parted(line).ok_or_else(|| broken("it does not end with its hash".to_owned()))?;
        let place = found.map_err(|error| broken(format!("it cannot be read: {error}")))?;
        if AuditHash::of(&body) != hash {
            return Err(broken("it was changed: its hash is of another text".to_owned()));
        }
        match &self.good {
            None if place.seq == 1 && place.prev != AuditHash::NONE => {
                return Err(broken("it says that it is the first, and names one before it".to_owned()));
            }
            Some(good) if place.tenant != good.tenant => {
                return Err(broken(format!("a record of the tenant {} stands in its place", place.tenant)));
            }
            Some(_) if place.seq != seq => return Err(broken(format!("record {} stands in its place", place.seq))),
            Some(good) if place.prev != good.head => {
                return Err(broken("it follows another record than the one before it".to_owned()));
            }
            None | Some(_) => {}
        }
        let first = self.good.as_ref().map_or(place.seq, |good| good.first);
        self.good = Some(Verified { tenant: place.tenant, first, last: place.seq, head: hash });
        Ok(())
    }

    /// What the lines were so far, if there was any.
    #[must_use]
    pub fn verified(&self) -> Option<&Verified> {
        self.good.as_ref()
    }
}
