//! Values as an operator would write them, and the reference page that is made from the table of keys.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use veena_client::format_duration;
use veena_contract::PeerAddr;

use super::keys::KEYS;
use super::{CodecChoice, Config, LogFormat, LogLevel};

/// A value as it is written in the file.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_as_display {
    ($($type:ty)*) => {
        $(impl Shown for $type {
            fn shown(&self) -> String {
                self.to_string()
            }
        })*
    };
}

shown_as_display!(bool u32 u64 usize String);

impl Shown for Duration {
    fn shown(&self) -> String {
        format_duration(*self)
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Shown for Option<PathBuf> {
    fn shown(&self) -> String {
        self.as_ref().map_or_else(String::new, Shown::shown)
    }
}

impl Shown for Option<String> {
    fn shown(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Shown for Vec<PeerAddr> {
    fn shown(&self) -> String {
        self.iter().map(|peer| format!("{}@{}", peer.node, peer.addr)).collect::<Vec<_>>().join(",")
    }
}

impl Shown for CodecChoice {
    fn shown(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Zstd => "zstd".to_owned(),
        }
    }
}

impl Shown for LogLevel {
    fn shown(&self) -> String {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
        .to_owned()
    }
}

impl Shown for LogFormat {
    fn shown(&self) -> String {
        match self {
            Self::Json => "json".to_owned(),
            Self::Text => "text".to_owned(),
        }
    }
}

const HEAD: &str = "\
# Configuration

Every setting of a node, with what it is unless something else is said.

Later sources win: built-in values, the file of `veena node --config`, environment variables, flags. The file is one JSON object with a
section for the part of a key before a point. A key that is not known, or a value that makes no sense, stops the start, and everything that
is wrong is reported at once; a `VEENA_*` variable that is not known is warned of. Durations are text, like `\"10s\"` or `\"1m30s\"`.

| Key | Default | Variable | Flag | Meaning |
|---|---|---|---|---|
";

/// The reference page.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    let code = |text: String| if text.is_empty() { String::new() } else { format!("`{text}`") };
    for key in KEYS.iter().filter(|key| !matches!(key.path, "http.port" | "storage.slow_flush" | "storage.stall_file")) {
        let default = code((key.show)(&Config::default()));
        let env = code(key.env.unwrap_or_default().to_owned());
        let flag = code(key.flag.map(|flag| format!("--{flag}")).unwrap_or_default());
        writeln!(page, "| `{}` | {default} | {env} | {flag} | {} |", key.path, key.about).expect("invariant: text can be appended");
    }
    page
}
