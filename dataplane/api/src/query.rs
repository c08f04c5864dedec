//! Query strings, read by hand: keys are bytes, so they cannot go through text.

use std::borrow::Cow;

use veena_contract::limits;

use crate::problem::Problem;

/// A percent escape is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL escape {0:?}")]
pub(crate) struct BadEscape(pub(crate) String);

/// The pairs of a query, undecoded values, in order.
pub(crate) fn pairs(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, [u8]>, &str)> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A name with a broken escape can be none of ours; its raw form matches nothing.
        (unescape(name).unwrap_or(Cow::Borrowed(name.as_bytes())), value)
    })
}

/// Decodes percent escapes and `+`. Borrows when there is nothing to decode.
pub(crate) fn unescape(text: &str) -> Result<Cow<'_, [u8]>, BadEscape> {
    let bytes = text.as_bytes();
    let Some(first) = bytes.iter().position(|b| matches!(b, b'%' | b'+')) else {
        return Ok(Cow::Borrowed(bytes));
    };
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(&bytes[..first]);
    let mut at = first;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let escape = bytes.get(at..at + 3).and_then(|e| Some(hex(e[1])? << 4 | hex(e[2])?));
                let Some(byte) = escape else {
                    let end = bytes.len().min(at + 3);
                    return Err(BadEscape(String::from_utf8_lossy(&bytes[at..end]).into_owned()));
                };
                out.push(byte);
                at += 3;
            }
            b'+' => {
                out.push(b' ');
                at += 1;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Ok(Cow::Owned(out))
}

/// Decodes percent escapes of a path segment (`+` stays). `None` when an escape is broken or the result is not UTF-8.
pub(crate) fn unescape_segment(segment: &str) -> Option<Cow<'_, str>> {
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    let shielded = segment.replace('+', "%2B");
    let bytes = unescape(&shielded).ok()?.into_owned();
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Decodes a value that has to be text.
pub(crate) fn text(raw: &str) -> Result<Cow<'_, str>, BadEscape> {
    match unescape(raw)? {
        Cow::Borrowed(_) => Ok(Cow::Borrowed(raw)),
        Cow::Owned(bytes) => {
            String::from_utf8(bytes).map(Cow::Owned).map_err(|e| BadEscape(String::from_utf8_lossy(e.as_bytes()).into_owned()))
        }
    }
}

/// The first value of a parameter, decoded as text.
pub(crate) fn first<'a>(query: Option<&'a str>, name: &str) -> Result<Option<Cow<'a, str>>, BadEscape> {
    pairs(query).find(|(found, _)| found.as_ref() == name.as_bytes()).map(|(_, raw)| text(raw)).transpose()
}

/// Which part of a list is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<'a> {
    pub(crate) limit: usize,
    /// The last name of the page before.
    pub(crate) after: Option<Cow<'a, str>>,
}

/// `limit` and `page_token`.
pub(crate) fn page(query: Option<&str>) -> Result<Page<'_>, Problem> {
    let malformed = |error: BadEscape| Problem::malformed(error.to_string());
    let limit = match first(query, "limit").map_err(malformed)?.filter(|text| !text.is_empty()) {
        None => limits::LIST_PAGE_DEFAULT,
        Some(text) => {
            let number = text.parse::<i64>().ok().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            number.ok_or_else(|| Problem::invalid("limit must be a positive integer"))?.min(limits::LIST_PAGE_MAX)
        }
    };
    let after = first(query, "page_token").map_err(malformed)?.filter(|text| !text.is_empty());
    Ok(Page { limit, after })
}

/// The refusal of a `page_token` that cannot be one.
pub(crate) fn bad_page_token() -> Problem {
    Problem::invalid("invalid page_token")
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_every_byte() {
        assert_eq!(unescape("a%00%ff+b%2B").expect("valid").as_ref(), b"a\x00\xff b+");
        assert!(matches!(unescape("plain"), Ok(Cow::Borrowed(b"plain"))));
    }

    #[test]
    fn a_broken_escape_is_an_error() {
        for text in ["%", "%4", "%zz", "a%4"] {
            assert!(unescape(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_value_of_a_repeated_parameter_wins() {
        assert_eq!(first(Some("a=1&b=2&a=3"), "a").expect("valid").as_deref(), Some("1"));
        assert_eq!(first(Some("%61=1"), "a").expect("valid").as_deref(), Some("1"));
        assert_eq!(first(Some("a"), "a").expect("valid").as_deref(), Some(""));
        assert_eq!(first(None, "a"), Ok(None));
        assert!(first(Some("a=%ff"), "a").is_err());
    }

    #[test]
    fn a_plus_in_a_path_stays_a_plus() {
        assert_eq!(unescape_segment("a+b%2Ec").as_deref(), Some("a+b.c"));
        assert_eq!(unescape_segment("%ff"), None);
    }
}
