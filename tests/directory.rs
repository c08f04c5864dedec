//! One data directory has one process.

use std::path::Path;
use std::time::Duration;

use veena_loadtest_driver::api::Client;
use veena_loadtest_driver::node::{NodeConfig, free_addr};

use crate::support::{BIN, consume_exactly, create_narrow, produce_all, scratch, start};

#[tokio::test]
async fn a_second_process_on_one_data_directory_refuses_to_start_and_leaves_the_first_alone() {
    let dir = scratch();
    let node = start(dir.path()).await;
    let mut client = Client::new(node.addr());
    create_narrow(&mut client, "orders", 30_000).await;
    let mut second = NodeConfig::in_dir(Path::new(BIN), dir.path());
    second.log = dir.path().join("second.log");
    let status = second.run_to_end(free_addr().expect("a free port"), Duration::from_secs(20)).await.expect("it ends by itself");
    assert!(!status.success(), "{status}");
    let told = std::fs::read_to_string(&second.log).expect("a log");
    let shown = second.data_dir.display().to_string();
    assert!(told.contains("in use by another process") && told.contains(&shown), "it must say which directory is in use: {told}");
    produce_all(&mut client, "orders", &["still here".to_owned()]).await;
    assert_eq!(consume_exactly(&mut client, "orders", 1).await[0].payload, b"still here");
}
