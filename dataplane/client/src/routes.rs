//! Addresses of the routes, with names and keys escaped.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use reqwest::Url;

/// Builds one address: a base, path segments, query parameters.
pub(crate) struct Route {
    url: Url,
    query: String,
}

impl Route {
    /// An address below the base; each segment is escaped.
    pub(crate) fn new(base: &Url, segments: &[&str]) -> Self {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        Self { url, query: String::new() }
    }

    /// Adds a parameter; any bytes.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if !self.query.is_empty() {
            self.query.push('&');
        }
        self.query.push_str(name);
        self.query.push('=');
        self.query.extend(percent_encode(value.as_ref(), NON_ALPHANUMERIC));
        self
    }

    /// Adds a parameter when there is a value.
    pub(crate) fn with_some(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value.to_string()),
            None => self,
        }
    }

    /// The finished address.
    pub(crate) fn url(mut self) -> Url {
        if !self.query.is_empty() {
            self.url.set_query(Some(&self.query));
        }
        self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_are_escaped() {
        let base = Url::parse("http://h:1/prefix/").expect("a valid address");
        let url = Route::new(&base, &["v1", "topics", "a/b"]).with("key", [0xff, b'&']).with_some("partition", Some(3)).url();
        assert_eq!(url.as_str(), "http://h:1/prefix/v1/topics/a%2Fb?key=%FF%26&partition=3");
        let base = Url::parse("http://h:1").expect("a valid address");
        assert_eq!(Route::new(&base, &["healthz"]).url().as_str(), "http://h:1/healthz");
    }
}
