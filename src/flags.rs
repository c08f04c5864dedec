//! Values of flags that need more than a parse: durations, documents, sizes.

use std::io::Read as _;
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::runtime::Handle;
use veena_client::parse_duration;
use veena_contract::Reroute;

use crate::output::Failure;

/// A duration flag: `30s`, `24h`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

/// A retention: a duration, or `forever`.
pub fn retention(text: &str) -> Result<Duration, String> {
    if text == "forever" { Ok(Duration::ZERO) } else { duration(text) }
}

/// How long a lease lasts. To the server 0 is "not said", which nobody means who says it.
pub fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    if millis(lease) == 0 { Err("a lease lasts at least 1ms".to_owned()) } else { Ok(lease) }
}

/// A number of partitions. To the server 0 is "not said", which nobody means who says it.
pub fn partitions(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("a topic has at least one partition; leave the flag out for the usual number".to_owned()),
        Ok(partitions) => Ok(partitions),
        Err(_) => Err("want a whole number from 1".to_owned()),
    }
}

/// A header of a message: `name=value`.
pub fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("want name=value".to_owned()),
    }
}

/// Milliseconds as the HTTP interface takes them.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What becomes of messages for an owner that is down.
pub fn reroute(text: &str) -> Result<Reroute, String> {
    match text {
        "auto" => Ok(Reroute::Auto),
        "never" => Ok(Reroute::Never),
        _ => Err("want auto or never".to_owned()),
    }
}

/// A document given as itself, as `@file`, or as `-` for the standard input.
pub async fn document(given: &str) -> Result<Box<RawValue>, Failure> {
    let (text, source) = match given {
        "-" => {
            let bytes = read_file("-").await?;
            (text_of(bytes, "the standard input")?, "the standard input".to_owned())
        }
        _ => match given.strip_prefix('@') {
            Some(path) => (read_file(path).await.and_then(|bytes| text_of(bytes, path))?, path.to_owned()),
            None => (given.to_owned(), "the argument".to_owned()),
        },
    };
    RawValue::from_string(text.trim().to_owned()).map_err(|error| Failure::Usage(format!("{source} is not JSON: {error}")))
}

/// A file's bytes; `-` is the standard input.
pub async fn read_file(path: &str) -> Result<Vec<u8>, Failure> {
    if path == "-" {
        return tokio::task::block_in_place(|| {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes)?;
            Ok(bytes)
        });
    }
    tokio::fs::read(path).await.map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))
}

/// The same, for whoever cannot wait otherwise.
pub fn read_file_now(path: &str) -> Result<Vec<u8>, Failure> {
    tokio::task::block_in_place(|| Handle::current().block_on(read_file(path)))
}

fn text_of(bytes: Vec<u8>, path: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| Failure::Usage(format!("{path} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_they_want() {
        assert_eq!(retention("forever"), Ok(Duration::ZERO));
        assert_eq!(retention("24h"), Ok(Duration::from_secs(86_400)));
        assert!(retention("24").expect_err("no unit").contains("want a number with a unit"));
        assert_eq!((lease("30s"), partitions("1")), (Ok(Duration::from_secs(30)), Ok(1)));
        assert!(lease("0s").is_err() && lease("999us").is_err() && partitions("-1").is_err() && partitions("x").is_err());
        assert!(partitions("0").expect_err("none").contains("at least one partition"));
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(header("=x").is_err() && header("x").is_err());
    }
}
