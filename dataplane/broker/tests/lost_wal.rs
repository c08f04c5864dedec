//! A WAL whose newest segments are gone: it is refused by name, set aside by the tools, and what was dispatched from it is there once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use veena_broker::OpenError;
use veena_contract::Offset;
use veena_storage::disk::Disk;
use veena_storage::disk::mem::MemDisk;
use veena_storage::offline;
use veena_storage::wal::WalOpenError;

use crate::support::{FakeCatalog, Node, replay_all, small_config, topic};

const INGRESS: &str = "/data/ingress";

/// Removes files of the WAL by what their names end in.
fn remove(disk: &MemDisk, ending: &str) {
    let dir = Path::new(INGRESS);
    let names = disk.list(dir).expect("listed").into_iter().map(|entry| entry.name).filter(|name| name.ends_with(ending));
    names.for_each(|name| disk.remove_file(&dir.join(name)).expect("removed"));
}

/// As `veena log repair --apply` does.
fn repair(disk: &MemDisk) {
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let found = offline::find(disk, Path::new("/data")).expect("ours");
    let survey = offline::survey(&dyn_disk, &found, &|_| Offset(0), &mut |_| {}).expect("read");
    assert!(survey.lost_end.is_some(), "{survey:?}");
    offline::set_wal_aside(disk, Path::new(INGRESS), Path::new("/data/quarantine"), 17).expect("set aside");
}

#[tokio::test(start_paused = true)]
async fn after_its_wal_was_set_aside_a_node_takes_new_messages_and_repeats_none() {
    // Without the list of streams nothing is left that tells how many lives the old log had.
    for is_list_gone in [false, true] {
        let (disk, catalog) = (MemDisk::new(), FakeCatalog::new());
        catalog.put(topic("orders", 1, 1));
        let mut expected = Vec::new();
        for life in 1..4 {
            let node = Node::start(Arc::new(disk.reopen()), &catalog, life).await;
            for n in 0..3 {
                expected.push(format!("{life}-{n}"));
                assert!(node.produce("orders", None, &expected[expected.len() - 1]).await);
            }
            assert_eq!(node.drain("orders").await.len(), 3);
            assert!(node.broker.stop().await);
        }
        remove(&disk, ".wal");
        if is_list_gone {
            remove(&disk, "streams");
        }
        let refused = Node::try_start(Arc::new(disk.reopen()), &catalog, 4, small_config()).await.err().expect("refused");
        assert!(matches!(refused, OpenError::Wal(WalOpenError::CheckpointBeyondEnd { .. })), "{refused}");

        repair(&disk);
        let node = Node::start(Arc::new(disk.reopen()), &catalog, 5).await;
        assert!(node.produce("orders", None, "new").await);
        assert_eq!(node.drain("orders").await, BTreeMap::from([("new".to_owned(), 1)]));
        expected.push("new".to_owned());
        let there: Vec<String> = replay_all(&node, "orders", 0).await.into_iter().map(|(_, text)| text).collect();
        assert_eq!(there, expected, "each is in the log once");
        assert_eq!(node.broker.metrics().streams_forked.get(), 0);
        assert!(node.broker.stop().await);
    }
}
