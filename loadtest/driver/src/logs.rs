//! Log hygiene: a warning or an error nobody expected is a failure.

use std::path::Path;

use anyhow::Context as _;

/// Lines of the log at `path` that are a WARN, an ERROR or a panic and hold none of the texts in `allowed`.
///
/// # Errors
/// The file cannot be read.
pub fn unexpected(path: &Path, allowed: &[&str]) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no log at {}", path.display()))?;
    Ok(text.lines().filter(|line| is_bad(line) && !allowed.iter().any(|text| line.contains(text))).map(str::to_owned).collect())
}

fn is_bad(line: &str) -> bool {
    let json_level = |level: &str| line.contains(&format!("\"level\":\"{level}\""));
    let text_level = |level: &str| line.split_ascii_whitespace().take(3).any(|word| word == level);
    line.contains("panicked at") || ["WARN", "ERROR"].iter().any(|level| json_level(level) || text_level(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unexpected_warnings_errors_and_panics_are_told() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let lines = [
            r#"{"timestamp":"t","level":"INFO","message":"WARN is only a word here"}"#,
            r#"{"timestamp":"t","level":"WARN","message":"security is off"}"#,
            r#"{"timestamp":"t","level":"ERROR","message":"boom"}"#,
            "2026-01-01T00:00:00Z  WARN veena: odd",
            "2026-01-01T00:00:00Z  INFO veena: fine, no ERROR at all",
            "thread 'main' panicked at src/x.rs:1",
        ];
        std::fs::write(&path, lines.join("\n")).expect("a writable directory");
        let found = unexpected(&path, &["security is off"]).expect("a readable log");
        assert_eq!(found, [lines[2], lines[3], lines[5]]);
    }
}
