//! The calls about topics and the node itself.

use anyhow::Context as _;
use serde::Deserialize;

use super::{Client, Metrics};
use crate::http::RequestBytes;

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions.
    pub partitions: u32,
    /// How long a lease lives.
    pub visibility_ms: u64,
    /// Keeps the order of keys also while an owner is away: what came for it waits. Otherwise it goes to another partition.
    pub keeps_order: bool,
}

/// A partition's numbers, as described.
#[derive(Clone, Debug, Deserialize)]
pub struct PartitionNumbers {
    /// Which.
    pub index: u32,
    /// The next offset to be written.
    pub next_offset: u64,
    /// The first offset that is not visible.
    pub high_watermark: u64,
    /// The first offset that is not settled, if told.
    #[serde(default)]
    pub frontier: Option<u64>,
    /// The node that owns it, if there are several.
    #[serde(default)]
    pub owner_node: Option<String>,
    status: String,
}

impl Client {
    /// Creates a topic; one of that name that exists already is taken as it is.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn create_topic(&mut self, topic: &NewTopic) -> anyhow::Result<()> {
        let body = serde_json::json!({
            "name": topic.name, "partitions": topic.partitions, "visibility_timeout_ms": topic.visibility_ms,
            "reroute": if topic.keeps_order { "never" } else { "auto" },
        });
        let reply = self.call(&RequestBytes::post_json("/v1/topics", body.to_string().as_bytes())).await?;
        if matches!(reply.status, 201 | 409) { Ok(()) } else { Err(reply.refused("cannot create the topic")) }
    }

    /// Links a topic to its parent, whose messages it gets `delay_ms` later.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn attach(&mut self, parent: &str, child: &str, delay_ms: u64) -> anyhow::Result<()> {
        let body = serde_json::json!({ "child": child, "delay_ms": delay_ms }).to_string();
        let reply = self.call(&RequestBytes::post_json(&format!("/v1/topics/{parent}/children"), body.as_bytes())).await?;
        if reply.status == 200 { Ok(()) } else { Err(reply.refused("cannot attach the child")) }
    }

    /// How many messages the children of a topic have still to get; `None` if not all of them are known.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn lag_of_children(&mut self, parent: &str) -> anyhow::Result<Option<u64>> {
        #[derive(Deserialize)]
        struct Child {
            lag_messages: u64,
            lag_complete: bool,
        }
        #[derive(Deserialize)]
        struct Children {
            children: Vec<Child>,
        }
        let reply = self.get(&format!("/v1/topics/{parent}/children")).await?;
        if reply.status != 200 {
            return Err(reply.refused("cannot list the children"));
        }
        let children = serde_json::from_slice::<Children>(&reply.body).context("the children of a topic")?.children;
        Ok(children.iter().all(|child| child.lag_complete).then(|| children.iter().map(|child| child.lag_messages).sum()))
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn delete_topic(&mut self, topic: &str) -> anyhow::Result<()> {
        let request = RequestBytes::new("DELETE", &format!("/v1/topics/{topic}"), &["X-Veena-Client: load"], b"");
        let reply = self.call(&request).await?;
        if reply.status == 204 { Ok(()) } else { Err(reply.refused("cannot delete the topic")) }
    }

    /// The numbers of a topic's partitions.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn describe(&mut self, topic: &str) -> anyhow::Result<Vec<PartitionNumbers>> {
        #[derive(Deserialize)]
        struct Described {
            partition_stats: Vec<PartitionNumbers>,
        }
        let reply = self.get(&format!("/v1/topics/{topic}")).await?;
        if reply.status != 200 {
            return Err(reply.refused("cannot describe the topic"));
        }
        let mut described = serde_json::from_slice::<Described>(&reply.body).context("the description of a topic")?.partition_stats;
        // One whose log cannot be opened now is described with zeros, which say nothing of it.
        described.retain(|numbers| numbers.status == "ok");
        Ok(described)
    }

    /// The node's metrics.
    ///
    /// # Errors
    /// The node refuses, or does not answer.
    pub async fn metrics(&mut self) -> anyhow::Result<Metrics> {
        let reply = self.get("/metrics").await?;
        if reply.status != 200 {
            return Err(reply.refused("no metrics"));
        }
        Ok(Metrics(String::from_utf8_lossy(&reply.body).into_owned()))
    }
}
