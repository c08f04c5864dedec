//! What a call can fail with: the server's refusal, or no answer.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};
use veena_contract::Effect;

use crate::bodies::ErrorBody;
use crate::headers;
use crate::retry::{self, Kind};

/// The longest text kept of an answer that is not a JSON error body.
const TEXT_CHARS_MAX: usize = 512;

/// A call that did not do what was asked, or may not have.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}{}", status.map(|s| format!(" (status {s})")).unwrap_or_default())]
pub struct ClientError {
    /// The HTTP status; `None` when there was no answer, or it could not be read.
    pub status: Option<u16>,
    /// The error code, when the server gave one.
    pub code: Option<String>,
    /// May the operation have been applied?
    pub effect: Effect,
    /// May the same request succeed later?
    pub is_retryable: bool,
    /// One line that says what went wrong.
    pub text: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl ClientError {
    /// Is this the status?
    #[must_use]
    pub fn is(&self, status: u16) -> bool {
        self.status == Some(status)
    }

    /// A request that was never sent because it cannot be built.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self { status: None, code: None, effect: Effect::None, is_retryable: false, text: text.into(), retry_after: None }
    }

    /// An answer that was received and cannot be understood.
    pub(crate) fn unreadable(kind: Kind, status: u16, text: impl Into<String>) -> Self {
        let effect = if kind == Kind::Read { Effect::None } else { Effect::Possible };
        Self { status: Some(status), code: None, effect, is_retryable: false, text: text.into(), retry_after: None }
    }

    /// No answer.
    pub(crate) fn transport(kind: Kind, error: &reqwest::Error) -> Self {
        let effect = if error.is_connect() || error.is_builder() || kind == Kind::Read { Effect::None } else { Effect::Possible };
        Self { status: None, code: None, effect, is_retryable: !error.is_builder(), text: chain_text(error), retry_after: None }
    }

    /// A refusal: JSON, or plain text with the code and effect in headers.
    pub(crate) fn refusal(kind: Kind, status: u16, header_map: &HeaderMap, body: &[u8]) -> Self {
        let text_header = |name: &str| header_map.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let parsed = serde_json::from_slice::<ErrorBody>(body).ok();
        let (text, code, effect, retryable) = match parsed {
            Some(body) => (body.error, body.code, body.effect, body.retryable),
            None => (plain_text(status, body), None, None, None),
        };
        let code = code.or_else(|| text_header(headers::ERROR_CODE));
        let stated = effect.or_else(|| text_header(headers::EFFECT));
        let effect = match stated.as_deref() {
            Some("none") => Effect::None,
            Some(_) => Effect::Possible,
            None => retry::assumed_effect(kind, status, &text),
        };
        let is_retryable = retryable.unwrap_or_else(|| retry::is_retryable_status(status));
        let retry_after = text_header(RETRY_AFTER.as_str()).and_then(|text| text.parse().ok()).map(Duration::from_secs);
        Self { status: Some(status), code, effect, is_retryable, text, retry_after }
    }
}

fn plain_text(status: u16, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or_default().trim();
    if line.is_empty() { format!("the server answered {status}") } else { line.chars().take(TEXT_CHARS_MAX).collect() }
}

/// The error with its causes: reqwest's own text does not say why.
fn chain_text(error: &reqwest::Error) -> String {
    let mut text = if error.is_connect() { "cannot connect".to_owned() } else { error.to_string() };
    if let Some(url) = error.url().filter(|_| error.is_connect()) {
        text = format!("cannot connect to {}", url.origin().ascii_serialization());
    }
    let mut cause = std::error::Error::source(error);
    let mut last = None;
    while let Some(error) = cause {
        last = Some(error.to_string());
        cause = error.source();
    }
    match last {
        Some(last) if !text.contains(&last) => format!("{text}: {last}"),
        _ => text,
    }
}
