//! Every answer that a test sees is held against the OpenAPI document: its status has to be there, and its code under that status.

use std::sync::LazyLock;

use serde_json::Value;

use crate::support::{Answer, Node};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(&veena_api::openapi_json()).expect("the document is JSON"));

/// The operation of a request; `None` when no route serves it.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let method = if method == "HEAD" { "get".to_owned() } else { method.to_lowercase() };
    let matches = |template: &str| {
        let (wanted, given): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
        let fits = |(wanted, given): (&&str, &&str)| wanted == given || (wanted.starts_with('{') && !given.is_empty());
        wanted.len() == given.len() && wanted.iter().zip(&given).all(fits)
    };
    let paths = DOCUMENT["paths"].as_object().expect("paths");
    paths.iter().find(|(template, _)| matches(template))?.1.get(method)
}

/// Is this answer one that the document speaks of?
pub fn check(method: &str, path: &str, answer: &Answer) {
    let Some(operation) = operation(method, path) else { return };
    let documented = &operation["responses"][answer.status.to_string()];
    assert!(documented.is_object(), "{method} {path}: {} is not documented: {}", answer.status, answer.text());
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let code = body.as_ref().and_then(|body| body["code"].as_str()).or(answer.header("veena-error-code"));
    if let Some(code) = code.filter(|_| answer.status >= 400) {
        let codes = documented["x-veena-codes"].as_array().expect("a refusal's codes");
        assert!(codes.iter().any(|known| known == code), "{method} {path}: {} {code} is not documented", answer.status);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_documented_is_noticed() {
    let is_noticed = |method: &str, path: &str, answer: &Answer| {
        let check = std::panic::AssertUnwindSafe(|| check(method, path, answer));
        std::panic::catch_unwind(check).is_err()
    };
    let node = Node::start().await;
    let unknown = node.get("/v1/topics/unknown").await;
    assert_eq!(unknown.status, 404);
    assert!(!is_noticed("GET", "/v1/topics/unknown?partition=0", &unknown));
    assert!(is_noticed("GET", "/metrics", &unknown), "the status is documented there, the code is not");
    assert!(is_noticed("GET", "/healthz", &unknown), "the status is not documented there");
}
