//! `$name` in a request or an expectation stands for a value the row has taken from an earlier answer.

use std::collections::BTreeMap;

/// The values of one run of one row. `t` is the row's own topic name.
pub(crate) type Vars = BTreeMap<String, String>;

/// Replaces each `$name` that has a value; any other `$` stays, so that `$ref` in a schema is left alone.
pub(crate) fn expand(text: &str, vars: &Vars) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let end = tail.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit())).unwrap_or(tail.len());
        match vars.get(&tail[..end]) {
            Some(value) => {
                out.push_str(value);
                rest = &tail[end..];
            }
            None => {
                out.push('$');
                rest = tail;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_value_are_replaced() {
        let vars = Vars::from([("t".to_owned(), "orders".to_owned())]);
        assert_eq!(expand("/v1/topics/$t-a?x=$t&$ref=$", &vars), "/v1/topics/orders-a?x=orders&$ref=$");
    }
}
