//! Headers of a message: `Veena-Header-<Name>` on a produce, `headers` in a batch entry (http-contract 12).

use http::HeaderMap;
use http::header::{HeaderName as WireName, HeaderValue};
use veena_broker::message::Headers;
use veena_contract::{HeaderName, IdempotencyKey, limits};

use crate::answer::Answer;
use crate::problem::Problem;

const PREFIX: &str = "veena-header-";
const TRACEPARENT: &str = "traceparent";
const IDEMPOTENCY_KEY: WireName = WireName::from_static("idempotency-key");
const REPLAYED: WireName = WireName::from_static("veena-replayed");

/// The idempotency key of a single produce, if it has one.
pub(crate) fn idempotency_key(request: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let mut given = request.get_all(IDEMPOTENCY_KEY).iter();
    match (given.next(), given.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(IdempotencyKey::parse(value.as_bytes())?)),
        (Some(_), Some(_)) => Err(Problem::invalid("header Idempotency-Key is given twice")),
    }
}

/// A key that would be ignored must not be taken silently.
pub(crate) fn refuse_idempotency_key(request: &HeaderMap) -> Result<(), Problem> {
    if request.contains_key(IDEMPOTENCY_KEY) {
        return Err(Problem::invalid("idempotency_key is set per message in a batch produce, not as a header"));
    }
    Ok(())
}

/// Says of an answer that nothing was stored for it: it is that of an earlier request.
pub(crate) fn with_replayed(mut answer: Answer, is_replayed: bool) -> Answer {
    if is_replayed {
        answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    answer
}

/// Takes a message's headers out of a request's.
pub(crate) fn from_request(request: &HeaderMap) -> Result<Headers, Problem> {
    let mut headers = Headers::new();
    let mut bytes = 0;
    for (name, value) in request {
        let Some(name) = name.as_str().strip_prefix(PREFIX) else { continue };
        let value = value.to_str().map_err(|_| unprintable(name))?;
        push(&mut headers, &mut bytes, name, value)?;
    }
    // A trace's context is set by libraries, not by the message's author: what the author says of it wins, and a broken one is dropped.
    let traced = request.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    if let Some(trace) = traced.filter(|trace| !trace.is_empty() && trace.len() <= 256)
        && !headers.iter().any(|(name, _)| name.as_str() == TRACEPARENT)
    {
        push(&mut headers, &mut bytes, TRACEPARENT, trace)?;
    }
    Ok(headers)
}

/// Takes a message's headers from names and values as given.
pub(crate) fn from_pairs<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Headers, Problem> {
    let mut headers = Headers::new();
    let mut bytes = 0;
    for (name, value) in pairs {
        push(&mut headers, &mut bytes, name, value)?;
    }
    Ok(headers)
}

fn push(headers: &mut Headers, bytes: &mut usize, name: &str, value: &str) -> Result<(), Problem> {
    let name = HeaderName::parse(name)?;
    if !value.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        return Err(unprintable(name.as_str()));
    }
    if headers.iter().any(|(known, _)| *known == name) {
        return Err(Problem::invalid(format!("header {} is given twice", name.as_str())));
    }
    *bytes += name.as_str().len() + value.len();
    if headers.len() == limits::HEADERS_MAX || *bytes > limits::HEADERS_BYTES_MAX {
        let (count, size) = (limits::HEADERS_MAX, limits::HEADERS_BYTES_MAX);
        return Err(Problem::invalid(format!("too many message headers: at most {count} with {size} bytes in all")));
    }
    headers.push((name, value.to_owned()));
    Ok(())
}

fn unprintable(name: &str) -> Problem {
    Problem::invalid(format!("the value of header {name} is not printable ASCII"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn request(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        map
    }

    fn texts(headers: &Headers) -> Vec<(&str, &str)> {
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn prefixed_headers_and_the_trace_are_stored() {
        let headers = from_request(&request(&[("host", "x"), ("veena-header-a", "1"), ("traceparent", "00-ab")])).expect("valid");
        assert_eq!(texts(&headers), [("a", "1"), ("traceparent", "00-ab")]);
        let both = from_request(&request(&[("traceparent", "outer"), ("veena-header-traceparent", "mine")])).expect("valid");
        assert_eq!(texts(&both), [("traceparent", "mine")]);
    }

    #[test]
    fn repeated_odd_or_too_many_headers_are_refused() {
        assert!(from_request(&request(&[("veena-header-a", "1"), ("veena-header-a", "2")])).is_err());
        assert!(from_request(&request(&[("veena-header-", "1")])).is_err());
        assert!(from_request(&request(&[("veena-header-a_b", "1")])).is_err());
        assert!(from_request(&request(&[("veena-header-a", "tab\there")])).is_err());
        assert!(from_pairs([("A", "1"), ("a", "2")].into_iter()).is_err());
        assert!(from_pairs([("a", "ä")].into_iter()).is_err());
        assert!(from_pairs([("a", "x".repeat(8192).as_str())].into_iter()).is_err());
        let names: Vec<String> = (0..33).map(|n| format!("h{n}")).collect();
        assert!(from_pairs(names.iter().take(32).map(|name| (name.as_str(), ""))).is_ok());
        assert!(from_pairs(names.iter().map(|name| (name.as_str(), ""))).is_err());
    }
}
