//! The calls about the members of a cluster and the moves between them.

use anyhow::Context as _;
use serde::Deserialize;

use super::{Client, Reply};
use crate::http::{Exchange, RequestBytes, escape};

/// A member of a cluster, as one node sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Member {
    /// Its name.
    pub id: String,
    /// `alive`, if it has just answered.
    pub status: String,
    /// Is it being taken out?
    #[serde(default)]
    pub draining: bool,
    /// How many partitions it owns.
    #[serde(default)]
    pub owned_partitions: u64,
    /// Does it vote on metadata?
    pub voter: Option<bool>,
    /// Does it lead? Absent while no leader is known.
    pub leader: Option<bool>,
}

/// A move under way, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct MoveShown {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// Its owner.
    pub from: String,
    /// Who is to own it.
    pub to: String,
}

impl Client {
    /// The members of the cluster, as the node sees them.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn members(&mut self) -> anyhow::Result<Vec<Member>> {
        #[derive(Deserialize)]
        struct Members {
            members: Vec<Member>,
        }
        let reply = self.get("/v1/cluster/members?detail=true").await?;
        if reply.status != 200 {
            return Err(reply.refused("cannot list the members"));
        }
        Ok(serde_json::from_slice::<Members>(&reply.body).context("the members of the cluster")?.members)
    }

    /// The moves under way, as the node sees them.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn moves(&mut self) -> anyhow::Result<Vec<MoveShown>> {
        #[derive(Deserialize)]
        struct Moves {
            moves: Vec<MoveShown>,
        }
        let reply = self.get("/v1/cluster/moves").await?;
        if reply.status != 200 {
            return Err(reply.refused("cannot list the moves"));
        }
        Ok(serde_json::from_slice::<Moves>(&reply.body).context("the moves in the cluster")?.moves)
    }

    /// The owners of a topic's partitions, as the node knows them.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn owners(&mut self, topic: &str) -> anyhow::Result<Vec<(u32, Option<String>)>> {
        #[derive(Deserialize)]
        struct Partition {
            index: u32,
            owner_node: Option<String>,
        }
        #[derive(Deserialize)]
        struct Described {
            partition_stats: Vec<Partition>,
        }
        let reply = self.get(&format!("/v1/topics/{topic}")).await?;
        if reply.status != 200 {
            return Err(reply.refused("cannot describe the topic"));
        }
        let described = serde_json::from_slice::<Described>(&reply.body).context("the description of a topic")?;
        Ok(described.partition_stats.into_iter().map(|partition| (partition.index, partition.owner_node)).collect())
    }

    /// Asks to take a member out.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn decommission(&mut self, member: &str) -> Result<Reply, Exchange> {
        self.call(&RequestBytes::post(&format!("/v1/cluster/members/{}/decommission", escape(member)), b"")).await
    }

    /// Asks to keep a member that was to be taken out.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn keep(&mut self, member: &str) -> Result<Reply, Exchange> {
        let target = format!("/v1/cluster/members/{}/decommission", escape(member));
        self.call(&RequestBytes::new("DELETE", &target, &["X-Veena-Client: load"], b"")).await
    }

    /// Asks to end a move.
    ///
    /// # Errors
    /// See [`Exchange`].
    pub async fn abort(&mut self, moving: &MoveShown) -> Result<Reply, Exchange> {
        let (topic, partition) = (escape(&moving.topic), moving.partition);
        self.call(&RequestBytes::post(&format!("/v1/cluster/moves/{topic}/{partition}/abort"), b"")).await
    }
}
