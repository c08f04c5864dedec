//! A JSON reader with bounds of its own: depth, exponents, and no number that cannot be held. The last of repeated keys wins.

use serde_json::{Map, Number, Value};
use veena_contract::limits;

/// Why bytes are not one JSON text within the bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    /// Not JSON.
    #[error("not valid JSON at byte {at}: {what}")]
    Syntax {
        /// Where.
        at: usize,
        /// What was wrong.
        what: &'static str,
    },
    /// Nested too deep.
    #[error("payload nests deeper than {max} levels")]
    TooDeep {
        /// The bound.
        max: usize,
    },
    /// A number too large to be compared.
    #[error("a number's exponent is larger than {}", limits::PAYLOAD_EXPONENT_MAX)]
    Exponent,
}

/// Reads exactly one JSON text.
pub(crate) fn parse(bytes: &[u8], depth_max: usize) -> Result<Value, ParseError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ParseError::Syntax { at: error.valid_up_to(), what: "not UTF-8" })?;
    let mut reader = Reader { text, bytes, at: 0, depth: 0, depth_max };
    let value = reader.value()?;
    reader.space();
    if reader.at < bytes.len() { Err(reader.wrong("more after the value")) } else { Ok(value) }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    depth_max: usize,
}

impl Reader<'_> {
    fn wrong(&self, what: &'static str) -> ParseError {
        ParseError::Syntax { at: self.at, what }
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.bytes.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Result<Value, ParseError> {
        self.space();
        match self.bytes.get(self.at) {
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => Err(self.wrong("expected a value")),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, ParseError>) -> Result<Value, ParseError> {
        self.at += 1;
        self.depth += 1;
        if self.depth > self.depth_max {
            return Err(ParseError::TooDeep { max: self.depth_max });
        }
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Result<Value, ParseError> {
        let mut map = Map::new();
        self.space();
        if self.take(b'}') {
            return Ok(Value::Object(map));
        }
        loop {
            self.space();
            if self.bytes.get(self.at) != Some(&b'"') {
                return Err(self.wrong("expected a key"));
            }
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return Err(self.wrong("expected a colon"));
            }
            let value = self.value()?;
            map.insert(key, value);
            self.space();
            if self.take(b'}') {
                return Ok(Value::Object(map));
            }
            if !self.take(b',') {
                return Err(self.wrong("expected a comma or the object's end"));
            }
        }
    }

    fn array(&mut self) -> Result<Value, ParseError> {
        let mut list = Vec::new();
        self.space();
        if self.take(b']') {
            return Ok(Value::Array(list));
        }
        loop {
            list.push(self.value()?);
            self.space();
            if self.take(b']') {
                return Ok(Value::Array(list));
            }
            if !self.take(b',') {
                return Err(self.wrong("expected a comma or the array's end"));
            }
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, ParseError> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.wrong("expected a value"));
        }
        self.at += word.len();
        Ok(value)
    }

    /// serde_json reads the escapes; here only the end is found.
    fn string(&mut self) -> Result<String, ParseError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                None => return Err(self.wrong("a string without an end")),
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(0..=0x1f) => return Err(self.wrong("a control character in a string")),
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        let quoted = self.text.get(start..self.at).ok_or(ParseError::Syntax { at: start, what: "a string without an end" })?;
        serde_json::from_str(quoted).map_err(|_| ParseError::Syntax { at: start, what: "a broken escape" })
    }

    fn digits(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("expected a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<Value, ParseError> {
        let start = self.at;
        let is_negative = self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        let mut is_integer = true;
        if self.take(b'.') {
            is_integer = false;
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            is_integer = false;
            let _sign = self.take(b'+') || self.take(b'-');
            let exponent = self.at;
            self.digits()?;
            let digits = self.text[exponent..self.at].trim_start_matches('0');
            if digits.len() > 4 || digits.parse::<u64>().unwrap_or(0) > limits::PAYLOAD_EXPONENT_MAX {
                return Err(ParseError::Exponent);
            }
        }
        let text = &self.text[start..self.at];
        if is_integer {
            let exact = if is_negative { text.parse::<i64>().map(Number::from).ok() } else { text.parse::<u64>().map(Number::from).ok() };
            if let Some(number) = exact {
                return Ok(Value::Number(number));
            }
        }
        // Larger than a double holds: the largest double compares like it with every bound that a document can write.
        let double = text.parse::<f64>().unwrap_or(0.0).clamp(f64::MIN, f64::MAX);
        Ok(Number::from_f64(double).map_or(Value::Null, Value::Number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_as_they_are() {
        for (text, want) in [
            (r#" {"a":[1,-2,3.5,"x\u00e9\n"],"a2":{},"b":[]} "#, json!({"a": [1, -2, 3.5, "xé\n"], "a2": {}, "b": []})),
            (r#"{"a":1,"a":2}"#, json!({"a": 2})),
            ("18446744073709551615", json!(u64::MAX)),
            ("-0", json!(0)),
            ("1e1000", json!(f64::MAX)),
            ("true", json!(true)),
            ("null", json!(null)),
        ] {
            assert_eq!(parse(text.as_bytes(), 4).expect("valid"), want, "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "01",
            "1.",
            "1e",
            "+1",
            "tru",
            "\"",
            "\"\\",
            "\"\\x\"",
            "\"a\nb\"",
            "1 2",
            "{'a':1}",
            "nan",
            "\"\\ud800\"",
            "[1}",
            "\u{feff}1",
        ] {
            assert!(matches!(parse(text.as_bytes(), 4), Err(ParseError::Syntax { .. })), "{text:?}");
        }
        assert!(parse(b"\"\xff\"", 4).is_err());
    }

    #[test]
    fn depth_and_exponents_are_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(256).as_bytes(), 256).is_ok());
        assert_eq!(parse(nested(257).as_bytes(), 256).expect_err("deep").to_string(), "payload nests deeper than 256 levels");
        assert!(parse("[".repeat(1_000_000).as_bytes(), 256).is_err());
        assert!(parse(b"[[],[],[[]]]", 3).is_ok());
        for text in ["1e1001", "1e-1001", "1E+99999999999999999999"] {
            assert_eq!(parse(text.as_bytes(), 4), Err(ParseError::Exponent));
        }
        assert!(parse(b"1e0000000001000", 4).is_ok());
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(text in r#"[\[\]{}",:0-9truefalsn\\ .eE+-]{0,24}"#) {
            let theirs = serde_json::from_str::<Value>(&text);
            match parse(text.as_bytes(), 256) {
                Ok(ours) => {
                    if let Ok(theirs) = theirs {
                        let is_same = ours == theirs || text.contains(['.', 'e', 'E', '-']);
                        prop_assert!(is_same);
                    }
                }
                Err(ParseError::Syntax { .. }) => prop_assert!(theirs.is_err()),
                Err(_) => {}
            }
        }
    }
}
