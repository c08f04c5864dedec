//! What an answer must be, and what is said when it is not.

use crate::json;
use crate::vars::{Vars, expand};
use crate::wire::Response;

/// What a header or a JSON value must be. Texts have `$name` replaced.
#[derive(Clone, Debug)]
pub enum Is {
    /// Exactly this, as written on the wire (for a JSON string: with its quotes).
    Raw(String),
    /// A string of this text.
    Text(String),
    /// A string that contains this.
    Contains(String),
    /// A string that starts with this.
    Starts(String),
    /// Any string that is not empty.
    AnyText,
    /// An integer of at least this.
    AtLeast(i64),
    /// Sixteen hexadecimal digits, lower case.
    Hex16,
    /// An array of so many elements.
    Len(usize),
    /// An array of which one element is this, as written.
    Holds(String),
    /// An object whose keys include these, in this order.
    KeysInOrder(&'static [&'static str]),
    /// True or false.
    Bool,
    /// Not there.
    Absent,
    /// Not there, or one of these as written.
    AbsentOr(&'static [&'static str]),
    /// One of these as written.
    OneOf(&'static [&'static str]),
    /// A string that differs from this.
    Not(String),
}

impl Is {
    /// Says what is wrong with the raw JSON value, if anything.
    fn check_json(&self, raw: Option<&str>, vars: &Vars) -> Option<String> {
        let Some(raw) = raw else {
            return match self {
                Self::Absent | Self::AbsentOr(_) => None,
                _ => Some(format!("is missing, wanted {self:?}")),
            };
        };
        let text = json::string(raw);
        let fits = match self {
            Self::Raw(want) => raw == expand(want, vars),
            Self::Text(want) => text.as_deref() == Some(&expand(want, vars)),
            Self::Contains(want) => text.is_some_and(|text| text.contains(&expand(want, vars))),
            Self::Starts(want) => text.is_some_and(|text| text.starts_with(&expand(want, vars))),
            Self::AnyText => text.is_some_and(|text| !text.is_empty()),
            Self::AtLeast(least) => raw.parse::<i64>().is_ok_and(|number| number >= *least),
            Self::Hex16 => text.is_some_and(|text| text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))),
            Self::Len(count) => json::elements(raw).is_some_and(|elements| elements.len() == *count),
            Self::Holds(want) => json::elements(raw).is_some_and(|elements| elements.contains(&expand(want, vars).as_str())),
            Self::KeysInOrder(want) => json::keys(raw).is_some_and(|keys| {
                let known: Vec<&str> = keys.iter().map(String::as_str).filter(|key| want.contains(key)).collect();
                known == *want
            }),
            Self::Bool => matches!(raw, "true" | "false"),
            Self::Absent => false,
            Self::AbsentOr(choices) | Self::OneOf(choices) => choices.contains(&raw),
            Self::Not(other) => text.is_some_and(|text| text != expand(other, vars)),
        };
        (!fits).then(|| format!("is {}, wanted {}", clip(raw), expand(&format!("{self:?}"), vars)))
    }

    /// Says what is wrong with a header's value, or a plain text.
    fn check_text(&self, value: Option<&str>, vars: &Vars) -> Option<String> {
        let quoted = value.map(|value| serde_json::to_string(value).unwrap_or_default());
        match (self, value) {
            (Self::Raw(want), Some(value)) if value == expand(want, vars) => None,
            (Self::Raw(want), _) => Some(format!("is {}, wanted {:?}", clip(&format!("{value:?}")), expand(want, vars))),
            _ => self.check_json(quoted.as_deref(), vars),
        }
    }

    fn texts(&self) -> Vec<&str> {
        match self {
            Self::Raw(text) | Self::Text(text) | Self::Contains(text) | Self::Starts(text) | Self::Holds(text) => vec![text],
            Self::OneOf(texts) | Self::AbsentOr(texts) => texts.to_vec(),
            _ => Vec::new(),
        }
    }
}

/// How a body is compared.
#[derive(Clone, Debug)]
pub enum Body {
    /// Not compared.
    Any,
    /// No byte.
    Empty,
    /// `text/plain` with this text; a closing newline may follow.
    Plain(Is),
    /// One line of JSON, of which these members are compared.
    Json(Vec<(String, Is)>),
}

/// What an answer must be.
#[derive(Clone, Debug)]
pub struct Expect {
    pub(crate) statuses: Vec<u16>,
    headers: Vec<(String, Is)>,
    pub(crate) body: Body,
}

/// An answer with this status; nothing else is compared yet.
#[must_use]
pub fn status(status: u16) -> Expect {
    Expect { statuses: vec![status], headers: Vec::new(), body: Body::Any }
}

/// A JSON answer with this status.
#[must_use]
pub fn json(code: u16) -> Expect {
    Expect { body: Body::Json(Vec::new()), ..status(code) }
}

/// An answer without a body.
#[must_use]
pub fn empty(code: u16) -> Expect {
    Expect { body: Body::Empty, ..status(code) }
}

/// A JSON refusal with this status and machine code, certainly without effect.
#[must_use]
pub fn refusal(status: u16, code: &str) -> Expect {
    json(status).field("error", Is::AnyText).field("code", Is::Text(code.into())).field("effect", Is::Text("none".into()))
}

/// A plain-text answer of exactly this text.
#[must_use]
pub fn plain(code: u16, text: &str) -> Expect {
    Expect { body: Body::Plain(Is::Raw(text.into())), ..status(code) }
}

impl Expect {
    /// This status is right as well.
    #[must_use]
    pub fn or_status(mut self, status: u16) -> Self {
        self.statuses.push(status);
        self
    }

    /// This header must be so.
    #[must_use]
    pub fn header(mut self, name: &str, is: Is) -> Self {
        self.headers.push((name.into(), is));
        self
    }

    /// The body is plain text and must be so.
    #[must_use]
    pub fn in_plain_text(mut self, is: Is) -> Self {
        self.body = Body::Plain(is);
        self
    }

    /// This member of the JSON body must be so.
    #[must_use]
    pub fn field(mut self, path: &str, is: Is) -> Self {
        match &mut self.body {
            Body::Json(fields) => fields.push((path.into(), is)),
            _ => self.body = Body::Json(vec![(path.into(), is)]),
        }
        self
    }

    /// This member of the JSON body must be exactly so, as written.
    #[must_use]
    pub fn raw(self, path: &str, want: impl Into<String>) -> Self {
        self.field(path, Is::Raw(want.into()))
    }

    /// This member of the JSON body must be a string of this text.
    #[must_use]
    pub fn text(self, path: &str, want: impl Into<String>) -> Self {
        self.field(path, Is::Text(want.into()))
    }

    /// The refusal says exactly this.
    #[must_use]
    pub fn says(self, text: impl Into<String>) -> Self {
        self.field("error", Is::Text(text.into()))
    }

    /// The refusal's text contains this.
    #[must_use]
    pub fn mentions(self, text: impl Into<String>) -> Self {
        self.field("error", Is::Contains(text.into()))
    }

    /// The refusal's text starts with this.
    #[must_use]
    pub fn begins(self, text: impl Into<String>) -> Self {
        self.field("error", Is::Starts(text.into()))
    }

    /// Every text this expectation compares with.
    #[must_use]
    pub fn texts(&self) -> Vec<&str> {
        let body: Vec<&str> = match &self.body {
            Body::Plain(is) => is.texts(),
            Body::Json(fields) => fields.iter().flat_map(|(_, is)| is.texts()).collect(),
            Body::Any | Body::Empty => Vec::new(),
        };
        self.headers.iter().flat_map(|(_, is)| is.texts()).chain(body).collect()
    }

    /// Everything that is wrong with an answer.
    pub(crate) fn check(&self, answer: &Response, is_head: bool, vars: &Vars) -> Vec<String> {
        let mut wrong = Vec::new();
        if !self.statuses.contains(&answer.status) {
            wrong.push(format!("status is {}, wanted {:?}; body {}", answer.status, self.statuses, clip(&answer.text())));
            return wrong;
        }
        for (name, is) in &self.headers {
            wrong.extend(is.check_text(answer.header(name), vars).map(|why| format!("header {name} {why}")));
        }
        if is_head {
            return wrong;
        }
        match &self.body {
            Body::Any => {}
            Body::Empty if answer.body.is_empty() => {}
            Body::Empty => wrong.push(format!("body is {}, wanted none", clip(&answer.text()))),
            Body::Plain(is) => wrong.extend(check_plain(is, answer, vars)),
            Body::Json(fields) => wrong.extend(check_json(fields, answer, vars)),
        }
        wrong
    }
}

fn check_plain(is: &Is, answer: &Response, vars: &Vars) -> Vec<String> {
    let mut wrong = Vec::new();
    let kind = answer.header("content-type").unwrap_or_default();
    if !kind.starts_with("text/plain") {
        wrong.push(format!("content-type is {kind:?}, wanted text/plain"));
    }
    let text = answer.text();
    let text = text.strip_suffix('\n').unwrap_or(&text);
    wrong.extend(is.check_text(Some(text), vars).map(|why| format!("body {why}")));
    wrong
}

fn check_json(fields: &[(String, Is)], answer: &Response, vars: &Vars) -> Vec<String> {
    let mut wrong = Vec::new();
    let kind = answer.header("content-type").unwrap_or_default();
    if kind != "application/json" {
        wrong.push(format!("content-type is {kind:?}, wanted application/json"));
    }
    if answer.header("content-length").is_none() {
        wrong.push("content-length is missing".into());
    }
    let Ok(text) = std::str::from_utf8(&answer.body) else {
        wrong.push("body is not UTF-8".into());
        return wrong;
    };
    let Some(line) = text.strip_suffix('\n') else {
        wrong.push(format!("body {} does not end with a newline", clip(text)));
        return wrong;
    };
    if json::at(line, "").is_none_or(|whole| whole.len() != line.len()) {
        wrong.push(format!("body {} is not one JSON text and a newline", clip(text)));
        return wrong;
    }
    for (path, is) in fields {
        wrong.extend(is.check_json(json::at(line, path), vars).map(|why| format!("{path:?} {why}")));
    }
    if !wrong.is_empty() {
        wrong.push(format!("body {}", clip(line)));
    }
    wrong
}

/// Shortens what a message quotes.
fn clip(text: &str) -> String {
    const CHARS_MAX: usize = 300;
    let short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() { format!("{short:?}… ({} bytes)", text.len()) } else { format!("{short:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, kind: &str, body: &str) -> Response {
        let headers = vec![("content-type".into(), kind.into()), ("content-length".into(), body.len().to_string())];
        Response { status, headers, body: body.as_bytes().to_vec() }
    }

    #[test]
    fn an_answer_that_differs_in_any_part_is_said_to_be_wrong() {
        let vars = Vars::new();
        let want = refusal(400, "invalid_argument").says("message required");
        let body = "{\"error\":\"message required\",\"code\":\"invalid_argument\",\"effect\":\"none\"}\n";
        assert_eq!(want.check(&answer(400, "application/json", body), false, &vars), Vec::<String>::new());
        assert!(!want.check(&answer(404, "application/json", body), false, &vars).is_empty());
        assert!(!want.check(&answer(400, "text/plain", body), false, &vars).is_empty());
        assert!(!want.check(&answer(400, "application/json", body.trim_end()), false, &vars).is_empty());
        assert!(!want.check(&answer(400, "application/json", &body.replace("required", "needed")), false, &vars).is_empty());
        assert!(!plain(404, "404 page not found").check(&answer(404, "text/plain", "404 page"), false, &vars).is_empty());
        assert!(!empty(202).check(&answer(202, "", "x"), false, &vars).is_empty());
        assert!(!status(200).header("Allow", Is::AnyText).check(&answer(200, "", ""), false, &vars).is_empty());
    }

    #[test]
    fn each_kind_of_value_refuses_another() {
        let vars = Vars::from([("h".to_owned(), "0:1:2".to_owned())]);
        let cases: &[(Is, &str, &str)] = &[
            (Is::Raw("1".into()), "1", "1.0"),
            (Is::Text("$h".into()), "\"0:1:2\"", "\"0:1:3\""),
            (Is::Not("$h".into()), "\"0:1:3\"", "\"0:1:2\""),
            (Is::Contains("b".into()), "\"abc\"", "\"ac\""),
            (Is::Starts("a".into()), "\"abc\"", "\"bac\""),
            (Is::AnyText, "\"a\"", "\"\""),
            (Is::AtLeast(2), "2", "1"),
            (Is::Hex16, "\"0123456789abcdef\"", "\"0123456789ABCDEF\""),
            (Is::Len(1), "[1]", "[]"),
            (Is::Holds("2".into()), "[1,2]", "[1]"),
            (Is::KeysInOrder(&["a", "b"]), r#"{"a":1,"x":1,"b":1}"#, r#"{"b":1,"a":1}"#),
            (Is::Bool, "true", "1"),
            (Is::OneOf(&["1", "2"]), "2", "3"),
            (Is::AbsentOr(&["0"]), "0", "1"),
        ];
        for (is, right, wrong) in cases {
            assert_eq!(is.check_json(Some(right), &vars), None, "{is:?} takes {right}");
            assert!(is.check_json(Some(wrong), &vars).is_some(), "{is:?} refuses {wrong}");
        }
        assert_eq!(Is::Absent.check_json(None, &vars), None);
        assert!(Is::Absent.check_json(Some("0"), &vars).is_some());
        assert!(Is::AnyText.check_json(None, &vars).is_some());
    }
}
