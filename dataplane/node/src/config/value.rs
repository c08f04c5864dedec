//! One value as it was given: JSON from the file, text from the environment or a flag.

use std::time::Duration;

use serde_json::Value;
use veena_client::parse_duration;
use veena_contract::NodeId;

/// A value before it is understood.
#[derive(Clone, Copy, Debug)]
pub enum Raw<'a> {
    /// From the file.
    Json(&'a Value),
    /// From the environment or a flag.
    Text(&'a str),
}

impl Raw<'_> {
    /// Text that is not empty.
    pub(super) fn text(&self) -> Result<String, String> {
        let text = match self {
            Self::Json(Value::String(text)) => text,
            Self::Json(other) => return Err(format!("want text, not {other}")),
            Self::Text(text) => *text,
        };
        if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
    }

    /// A node's name.
    pub(super) fn node(&self) -> Result<String, String> {
        let text = self.text()?;
        NodeId::parse(&text).map(|node| node.to_string()).ok_or_else(|| no_node_name(&text))
    }

    /// Texts: a list in the file, with commas between them elsewhere.
    pub(super) fn list(&self) -> Result<Vec<String>, String> {
        let of = |value: &Value| value.as_str().map(str::to_owned).ok_or_else(|| format!("want a list of texts; {value} is none"));
        match self {
            Self::Json(Value::Array(values)) => values.iter().map(of).collect(),
            Self::Json(other) => Err(format!("want a list of texts, not {other}")),
            Self::Text(text) => Ok(text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()),
        }
    }

    /// A duration as text.
    pub(super) fn duration(&self) -> Result<Duration, String> {
        match self {
            Self::Json(Value::String(text)) => parse_duration(text).map_err(|error| error.to_string()),
            Self::Json(other) => Err(format!("want a duration as text, like \"10s\", not {other}")),
            Self::Text(text) => parse_duration(text).map_err(|error| error.to_string()),
        }
    }

    /// A whole number from 0.
    pub(super) fn whole<T: TryFrom<u64>>(&self) -> Result<T, String> {
        let number = match self {
            Self::Json(value) => value.as_u64().ok_or_else(|| format!("want a whole number from 0, not {value}"))?,
            Self::Text(text) => text.parse::<u64>().map_err(|_| format!("want a whole number from 0, not {text:?}"))?,
        };
        T::try_from(number).map_err(|_| format!("{number} is too large"))
    }

    /// Yes or no.
    pub(super) fn truth(&self) -> Result<bool, String> {
        match self {
            Self::Json(Value::Bool(truth)) => Ok(*truth),
            Self::Json(other) => Err(format!("want true or false, not {other}")),
            Self::Text("true" | "1") => Ok(true),
            Self::Text("false" | "0") => Ok(false),
            Self::Text(text) => Err(format!("want true or false, not {text:?}")),
        }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, String> {
        let text = self.text()?;
        words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            format!("want one of {}, not {text:?}", words.join(", "))
        })
    }
}

/// What is wrong with a text that is no node's name.
pub(super) fn no_node_name(text: &str) -> String {
    let len_max = NodeId::LEN_MAX;
    format!("want a node's name (1 to {len_max} letters, digits, '.', '_' and '-', the first a letter or a digit), not {text:?}")
}
