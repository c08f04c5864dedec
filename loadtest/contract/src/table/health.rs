//! Probes and metrics (1.4).

use super::*;

/// The rows of this module.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("a_living_node_says_ok", "1.4 healthz", vec![get("/healthz").gives(json(200).raw("", r#"{"status":"ok"}"#))]),
        Row::new(
            "a_ready_node_says_ready",
            "1.4 readyz",
            vec![get("/readyz").gives(json(200).text("status", "ready").field("error", Is::Absent))],
        ),
        Row::new(
            "a_stopping_node_says_so",
            "1.4 healthz",
            vec![
                get("/healthz").gives(json(503).raw("", r#"{"status":"shutting down"}"#)).until(),
                get("/readyz").gives(json(503).field("error", Is::AnyText)),
            ],
        )
        .on(Profile::Stopping),
        Row::new(
            "a_probe_may_be_a_head",
            "1.0 HEAD",
            vec![head("/healthz").gives(status(200)), head("/readyz").gives(status(200)), head("/metrics").gives(status(200))],
        ),
        Row::new(
            "metrics_are_prometheus_text_under_our_prefix",
            "1.4 metrics",
            vec![
                make("$t", ""),
                get("/metrics").gives(status(200).header("Content-Type", Is::Starts("text/plain".into()))),
                metrics_mention("veena_http_requests_total"),
                metrics_mention(r#"route="POST /v1/topics""#),
            ],
        ),
        Row::new(
            "metrics_name_no_raw_path",
            "1.4 metrics",
            vec![get("/no-such-path/$t").gives(status(404)), metrics_mention(r#"route="unmatched""#).until()],
        ),
    ]
}

fn metrics_mention(text: &str) -> Step {
    get("/metrics").gives(status(200).in_plain_text(Is::Contains(text.into())))
}
