//! How a node comes into its cluster, at each of its starts; and how it becomes a voter.

use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use veena_contract::{Catalog, CatalogView, CatalogWriter, Command, NodeId, PeerAddr, PeerError, PeerRefusal, limits};
use veena_metastore::{MemberError, Metastore, Runtime, StartError};

use super::PeerPlane;
use super::watch::{Question, ask};
use crate::config::ClusterConfig;
use crate::data_dir::DataDir;

/// Why a node is not taken into its cluster.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The metastore.
    #[error("this node does not come into its cluster")]
    Metastore(#[from] StartError),
    /// It belongs to no cluster, and was told of none.
    #[error(
        "this node belongs to no cluster yet: set cluster.bootstrap on the node that founds one, and cluster.join on each other, with nodes \
         that run"
    )]
    NoCluster,
    /// It was to found a cluster, and there is one.
    #[error(
        "cluster.bootstrap is set, the data directory is empty, and {node} is in a cluster already: this node has lost its directory, or was \
         never to found one. Nothing was founded. Put the directory back, or take cluster.bootstrap away and set cluster.join"
    )]
    AlreadyFounded {
        /// Who is in one.
        node: NodeId,
    },
    /// A node that it should know does not know it.
    #[error(
        "{node} does not serve this node: the data directory is of another cluster, or the name of this node is taken; start it with a \
         directory of this cluster, or with an empty one and a name of its own. If the cluster was restored or recovered since this node was \
         last in it: veena cluster rejoin"
    )]
    Stranger {
        /// Who refused.
        node: NodeId,
    },
    /// It owns partitions, and has nothing of them.
    #[error(
        "partitions of this cluster belong to {node} ({partitions} of them), and its data directory is new: they would look empty. Put \
         the directory back, or start under another name; nothing was touched"
    )]
    LostDirectory {
        /// This node.
        node: NodeId,
        /// How many.
        partitions: usize,
    },
}

/// Founds or enters the cluster. Goes on trying while the others may only be starting too, and says what it waits for.
pub(crate) async fn enter(config: &ClusterConfig, plane: &PeerPlane, runtime: &Runtime) -> Result<(), EnterError> {
    let metastore = &plane.metastore;
    let known: Vec<PeerAddr> = config.join.iter().filter(|peer| peer.node != plane.me).cloned().collect();
    let may_found = config.bootstrap && !plane.has_left;
    if metastore.is_blank() && !may_found && known.is_empty() {
        return Err(EnterError::NoCluster);
    }
    let founds = if metastore.is_blank() { may_found && is_first(plane, &known).await? } else { config.bootstrap };
    loop {
        refuse_among_strangers(plane, &known).await?;
        let entered = if founds { metastore.found(runtime).await } else { metastore.enter(&known).await };
        let entered = match entered {
            Ok(()) => own_what_nobody_owns(founds, &plane.me, metastore).await,
            failed => failed,
        };
        match entered {
            Ok(()) => return Ok(()),
            Err(error) if may_come(&error) => {
                warn!(err = &error as &dyn std::error::Error, "this node is not in its cluster yet; it goes on trying");
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Is nobody in a cluster yet that this node, which has nothing, is to found? Founded twice it would be two, each with its own half of the
/// messages. Every node that it knows has to say so: one that is not there may be in it. A node that knows nobody listens for a while, since
/// the members of a cluster call those that they miss. If there is one, a node that knows whom to ask joins it, as far as it is let in.
async fn is_first(plane: &PeerPlane, known: &[PeerAddr]) -> Result<bool, EnterError> {
    let (client, question) = (plane.client(), Question::default());
    let mut waits_for: Option<NodeId> = None;
    loop {
        if known.is_empty() {
            tokio::time::sleep(Duration::from_millis(limits::FOUND_LISTEN_MS)).await;
        }
        let answers = join_all(known.iter().map(|peer| ask(client.as_ref(), peer, &question))).await;
        match plane.gate.met() {
            Some(node) if known.is_empty() => return Err(EnterError::AlreadyFounded { node }),
            Some(node) => {
                warn!(%node, "cluster.bootstrap is set, and there is a cluster already: this node joins it");
                return Ok(false);
            }
            None => {}
        }
        let Some((peer, _)) = known.iter().zip(answers).find(|(_, answer)| answer.is_err()) else { return Ok(true) };
        if waits_for.as_ref() != Some(&peer.node) {
            info!(node = %peer.node, "a cluster is founded once this node has answered that it is in none");
            waits_for = Some(peer.node.clone());
        }
        tokio::time::sleep(Duration::from_millis(limits::METADATA_BACKOFF_MS_MAX)).await;
    }
}

/// May it succeed later, without anybody's doing?
fn may_come(error: &StartError) -> bool {
    matches!(
        error,
        StartError::NotReady { .. }
            | StartError::Member(MemberError::NoLeader { .. } | MemberError::Lost { .. } | MemberError::Timeout { .. })
    )
}

/// A node of another cluster would else lead that one beside this, without a word.
async fn refuse_among_strangers(plane: &PeerPlane, known: &[PeerAddr]) -> Result<(), EnterError> {
    // Nodes that have not joined anew are strangers to what was restored or recovered, and it does not wait for them.
    if plane.metastore.is_only_voter() && !plane.metastore.former().is_empty() {
        return Ok(());
    }
    let client = plane.client();
    let question = Question::default();
    let answers = join_all(known.iter().map(|peer| ask(client.as_ref(), peer, &question))).await;
    let refused =
        known.iter().zip(answers).find(|(_, answer)| matches!(answer, Err(PeerError::Refused { refusal: PeerRefusal::NotAdmitted, .. })));
    refused.map_or(Ok(()), |(peer, _)| Err(EnterError::Stranger { node: peer.node.clone() }))
}

/// Names the owner of what was made while this node was alone: it is here and nowhere else. Tried again at each start while no other node
/// votes, and then at one that founds.
async fn own_what_nobody_owns(founds: bool, me: &NodeId, metastore: &Metastore) -> Result<(), StartError> {
    let was_alone = founds || metastore.is_only_voter();
    if !was_alone || metastore.view().by_id.values().all(|topic| !topic.owners.is_empty()) {
        return Ok(());
    }
    let within = Duration::from_millis(limits::METADATA_PROPOSE_MS_MAX);
    let named = metastore.propose(Command::NameOwner { node: me.clone() }).await;
    let view = named.map_err(|error| StartError::NotReady { within, reason: error.to_string() })?;
    info!(node = %me, topics = view.topics.len(), "this node was alone, and owns what was made then");
    Ok(())
}

/// A directory that was never used with this metadata has nothing of what the metadata says is in it, unless it `is_known`: the cluster has
/// let it in, and gives it partitions from then on.
pub(crate) fn check_directory(data: &DataDir, is_known: bool, view: &CatalogView) -> Result<(), EnterError> {
    let partitions = view.partitions_of(&data.node);
    if data.lineage().is_none() && !is_known && partitions > 0 {
        return Err(EnterError::LostDirectory { node: data.node.clone(), partitions });
    }
    Ok(())
}

/// Makes this node a voter, if it is none and there are few; asks until it is one.
pub(crate) async fn become_voter(metastore: Metastore, me: NodeId, stop: CancellationToken) {
    loop {
        let members = metastore.status().members;
        let voters = members.iter().filter(|member| member.is_voter).count();
        if voters >= limits::VOTERS_UNASKED_MAX || members.iter().any(|member| member.is_voter && member.peer.node == me) {
            return;
        }
        match stop.run_until_cancelled(metastore.promote(&me)).await {
            None => return,
            Some(Ok(())) => info!(node = %me, "this node votes on metadata"),
            Some(Err(error)) => {
                debug!(%error, "this node is no voter yet");
                let pause = tokio::time::sleep(Duration::from_millis(limits::PROMOTE_AGAIN_MS));
                if stop.run_until_cancelled(pause).await.is_none() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use veena_consensus::NoPeers;
    use veena_contract::{CallerGone, FeatureLevel, LineageId, NodeDirectory, PeerClass, PeerOp, PeerRequest, TopicRecord};
    use veena_metastore::{MemLog, MetastoreConfig};
    use veena_storage::disk::real::RealDisk;

    use super::*;
    use crate::system::OsEntropy;

    fn topic(owners: &[&str]) -> TopicRecord {
        let owners: Vec<_> = owners.iter().map(|owner| json!({"node": owner, "epoch": 1})).collect();
        serde_json::from_value(json!({
            "tenant": "default", "name": "t", "id": "0000000000000007", "partitions": 2, "retention_ms": 0, "visibility_timeout_ms": 1,
            "max_in_flight_per_partition": 1, "max_acked_ahead_per_partition": 1, "created_at_ms": 0, "owners": owners,
        }))
        .expect("a record")
    }

    #[test]
    fn a_directory_that_is_new_and_should_hold_partitions_is_refused() {
        let topic = topic(&["a", "b"]);
        let mut view = CatalogView::default();
        view.by_id.insert(topic.id, Arc::new(topic));
        let open = |name: &str| {
            let temp = tempfile::tempdir().expect("a temporary directory");
            let data = DataDir::open(&RealDisk, temp.path(), Some(name), &OsEntropy).expect("created");
            (data, temp)
        };
        let (mut lost, _temp) = open("a");
        let error = check_directory(&lost, false, &view).expect_err("its partition is not there");
        assert!(error.to_string().contains("belong to a (1 of them)"), "{error}");
        check_directory(&lost, true, &view).expect("what it owns was given to it just now");
        lost.bind(&RealDisk, LineageId(7), &[], |_| Ok(())).expect("bound");
        check_directory(&lost, false, &view).expect("it has been used with this metadata");
        let (new, _temp) = open("c");
        check_directory(&new, false, &view).expect("it owns nothing");
    }

    #[tokio::test]
    async fn what_was_made_alone_is_named_at_a_later_start_too_while_no_other_node_votes() {
        let (me, topic) = (NodeId("a".into()), topic(&[]));
        let runtime = Runtime::new(Arc::new(OsEntropy));
        let metastore = Metastore::open(MetastoreConfig::new(me.clone()), MemLog::new(), &runtime, Arc::new(NoPeers)).await.expect("opens");
        metastore.found(&runtime).await.expect("founded");
        metastore.propose(Command::CreateTopic { topic: topic.clone(), attach: None }).await.expect("made");
        let joins = PeerRequest {
            from: NodeId("b".into()),
            class: PeerClass::Control,
            op: PeerOp::METADATA_MEMBERS,
            remaining: Duration::from_secs(10),
            caller: CallerGone::default(),
            body: json!({"v": 1, "body": {"join": {"name": "b", "addr": "b:1", "level": FeatureLevel::CURRENT}}}).to_string().into(),
        };
        metastore.serve(joins).expect("a call of the metastore").await.expect("served");
        assert_eq!(metastore.nodes(), [me.clone(), NodeId("b".into())]);
        own_what_nobody_owns(false, &me, &metastore).await.expect("named");
        assert_eq!(metastore.view().partitions_of(&me), topic.partitions as usize);
        metastore.shutdown().await;
    }
}
