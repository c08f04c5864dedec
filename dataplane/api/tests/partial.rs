//! A partition that cannot be asked: the rest is answered, and the answer says that it is not whole.

use serde_json::{Value, json};
use veena_storage::disk::mem::{Fault, FaultKind, Op};

use crate::support::{Node, until};

#[tokio::test]
async fn a_topic_one_of_whose_logs_cannot_be_opened_is_described_in_part_and_says_so() {
    let node = Node::start().await;
    node.topic(r#"{"name":"t","partitions":3}"#).await;
    assert_eq!(node.send("POST", "/v1/topics/t/produce?partition=0&wait_for=commit", "x").await.status, 200);
    for op in [Op::Open, Op::Create, Op::List] {
        node.disk.inject(Fault { op, path_contains: "p00001".into(), after: 0, times: u64::MAX, kind: FaultKind::Eio });
    }
    let described = node.get("/v1/topics/t").await;
    assert_eq!(described.status, 200, "{}", described.text());
    let described = described.json();
    assert_eq!(described["partial"], true);
    let stats = described["partition_stats"].as_array().expect("a list");
    let of = |name: &str| stats.iter().map(|partition| partition[name].clone()).collect::<Vec<Value>>();
    assert_eq!(of("index"), [json!(0), json!(1), json!(2)]);
    assert_eq!(of("status"), [json!("ok"), json!("owner_unavailable"), json!("ok")]);
    assert_eq!(of("next_offset"), [json!(1), json!(0), json!(0)]);
    assert!(stats[1]["owner_liveness"].is_string() && stats[0].get("owner_liveness").is_none(), "{stats:?}");
    let refused = node.get("/v1/topics/t/consume?partition=1").await;
    assert_eq!(
        (refused.status, refused.header("veena-error-code"), refused.header("veena-effect")),
        (503, Some("owner_down"), Some("none"))
    );
    assert_eq!(node.consume("t").await["partition"], 0, "who takes any partition gets what there is");

    node.disk.clear_faults();
    until("it is whole again", || async { node.get("/v1/topics/t").await.json().get("partial").is_none() }).await;
}
