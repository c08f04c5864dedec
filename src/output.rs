//! Printing, progress, and why a command ends.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use veena_client::ClientError;
use veena_contract::{Effect, ErrorCode};

/// Why a command ends without having done what was asked.
#[derive(Debug)]
pub enum Failure {
    /// The flags or arguments make no sense together.
    Usage(String),
    /// Refused or failed.
    Failed(anyhow::Error),
    /// This node is no member of its cluster any more.
    Removed(anyhow::Error),
    /// Nobody reads our output any more.
    PipeClosed,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let effect = match (error.effect, error.status) {
            (Effect::Possible, _) => "it may have been done (effect: possible): look before you repeat it",
            (Effect::None, Some(401)) => {
                "nothing was done (effect: none); say who you are with -u NAME and the password of that user, with a key in VEENA_API_KEY or \
                 --key-file, or with a token in --token-file; if you did, what you sent is wrong or has expired"
            }
            (Effect::None, None) => {
                "nothing was done (effect: none); is a node running there? (veena dev starts one, -s names another; one with a certificate of an \
                 authority of your own needs --ca-file)"
            }
            (Effect::None, _) => "nothing was done (effect: none)",
        };
        let code = error.code.as_deref().map(|code| format!(" [{code}]")).unwrap_or_default();
        // A newer server may have codes whose page is not among ours.
        let known = ErrorCode::ALL.iter().find(|known| error.code.as_deref() == Some(known.as_str()));
        let page = known.map(|code| format!("; see docs/errors/{}.md", code.as_str())).unwrap_or_default();
        Self::Failed(anyhow::anyhow!("{error}{code}\n  {effect}{page}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::PipeClosed } else { Self::Failed(error.into()) }
    }
}

/// What a command answers.
pub type Outcome = Result<(), Failure>;

/// Prints one line.
pub fn line(text: impl AsRef<str>) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Prints bytes as they are.
pub fn raw(bytes: &[u8]) -> Outcome {
    Ok(io::stdout().lock().write_all(bytes)?)
}

/// Prints bytes as they are, and a line end.
pub fn raw_line(bytes: &[u8]) -> Outcome {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Prints one JSON value on one line.
pub fn json(value: &impl Serialize) -> Outcome {
    line(serde_json::to_string(value).map_err(anyhow::Error::from)?)
}

/// A table: columns as wide as their widest cell; the first row is the head.
pub fn table(rows: &[Vec<String>]) -> Outcome {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..columns).map(|c| rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

/// A bar for work whose size is known; hidden when nobody watches.
pub fn progress(total: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), target());
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what);
    bar
}

/// A counter for work without an end.
pub fn counter(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target());
    let style = ProgressStyle::with_template("{spinner} {msg} {pos} ({per_sec})");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// Asks a question on the terminal; no terminal is no answer.
pub fn confirm(question: &str) -> io::Result<Option<bool>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: Option<u16>, code: Option<&str>, effect: Effect) -> String {
        let code = code.map(str::to_owned);
        let error = ClientError { status, code, effect, is_retryable: false, text: "it broke".to_owned(), retry_after: None };
        match Failure::from(error) {
            Failure::Failed(error) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_is_told_with_its_effect_and_its_page() {
        let text = told(Some(404), Some("topic_not_found"), Effect::None);
        assert_eq!(text, "it broke (status 404) [topic_not_found]\n  nothing was done (effect: none); see docs/errors/topic_not_found.md");
        let text = told(Some(502), Some("outcome_unknown"), Effect::Possible);
        assert!(text.contains("may have been done (effect: possible)") && text.contains("docs/errors/outcome_unknown.md"), "{text}");
        assert!(!told(Some(400), Some("not_of_this_version"), Effect::None).contains("docs/"), "no page is named that is not there");
        assert!(told(None, None, Effect::None).contains("is a node running there?"));
        assert!(told(Some(401), None, Effect::None).contains("say who you are with -u NAME"));
    }
}
