//! Routes of topics.

use reqwest::Method;

use super::Client;
use crate::bodies::{AttachChild, Children, CreateTopic, PatchTopic, SchemaHistory, Topic, TopicDetail, TopicList};
use crate::error::ClientError;

impl Client {
    /// `POST /v1/topics`: creates a topic.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn create_topic(&self, topic: &CreateTopic) -> Result<Topic, ClientError> {
        self.change(Method::POST, self.v1(&["topics"]), Some(topic)).await
    }

    /// `GET /v1/topics`: one page of topics, in name order.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn topics_page(&self, limit: Option<u32>, token: Option<&str>) -> Result<TopicList, ClientError> {
        let route = self.v1(&["topics"]).with_some("limit", limit).with_some("page_token", token);
        self.get(route).await
    }

    /// Every topic, page by page.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn topics(&self) -> Result<Vec<Topic>, ClientError> {
        let mut topics = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = self.topics_page(Some(1000), token.as_deref()).await?;
            topics.extend(page.topics);
            if page.next_page_token.is_empty() {
                return Ok(topics);
            }
            token = Some(page.next_page_token);
        }
    }

    /// `GET /v1/topics/{topic}`: a topic with its partitions (all, or one).
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn topic(&self, name: &str, partition: Option<u32>) -> Result<TopicDetail, ClientError> {
        self.get(self.v1(&["topics", name]).with_some("partition", partition)).await
    }

    /// `PATCH /v1/topics/{topic}`: changes a topic.
    ///
    /// # Errors
    /// As the server refuses; groups of fields before the one that was refused stay changed.
    pub async fn patch_topic(&self, name: &str, patch: &PatchTopic) -> Result<Topic, ClientError> {
        self.change(Method::PATCH, self.v1(&["topics", name]), Some(patch)).await
    }

    /// `DELETE /v1/topics/{topic}`: deletes a topic with its messages.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_topic(&self, name: &str) -> Result<(), ClientError> {
        self.remove(self.v1(&["topics", name])).await
    }

    /// `GET /v1/topics/{topic}/schema`: the history of a topic's schema.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn schema(&self, name: &str) -> Result<SchemaHistory, ClientError> {
        self.get(self.v1(&["topics", name, "schema"])).await
    }

    /// `POST /v1/topics/{parent}/children`: attaches a child. Answers the parent.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn attach(&self, parent: &str, body: &AttachChild) -> Result<Topic, ClientError> {
        self.change(Method::POST, self.v1(&["topics", parent, "children"]), Some(body)).await
    }

    /// `GET /v1/topics/{parent}/children`: the children of a topic and how far they are behind.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn children(&self, parent: &str) -> Result<Children, ClientError> {
        self.get(self.v1(&["topics", parent, "children"])).await
    }

    /// `DELETE /v1/topics/{parent}/children/{child}`: detaches a child, which keeps its messages.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn detach(&self, parent: &str, child: &str) -> Result<(), ClientError> {
        self.remove(self.v1(&["topics", parent, "children", child])).await
    }
}
