//! How a client reaches an engine: in its own runtime, where there is one node; or as a request to a node among others, which may be dead
//! or die while it is asked.

use std::future::Future;
use std::sync::Arc;

use veena_broker::Broker;
use veena_contract::{CatalogView, PartitionIndex, TopicRecord};
use veena_loadtest_checker::Outcome;

use crate::chance::Chance;
use crate::cluster::Cluster;

/// Why a node gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It is not there: nothing was asked.
    Refused,
    /// It died, or was silent.
    Lost,
}

impl NoAnswer {
    /// Did what was asked for happen?
    #[must_use]
    pub fn outcome(self) -> Outcome {
        match self {
            Self::Refused => Outcome::Fail,
            Self::Lost => Outcome::Unknown,
        }
    }
}

/// A way to a node.
#[derive(Clone)]
pub enum Door {
    /// The one node there is.
    Here(Broker, Arc<str>),
    /// One node among others; which one changes with each turn.
    Among(Arc<Cluster>, usize),
}

impl Door {
    /// The node's name.
    #[must_use]
    pub fn name(&self) -> Arc<str> {
        match self {
            Self::Here(_, name) => Arc::clone(name),
            Self::Among(cluster, at) => Arc::clone(&cluster.world.machines[*at].name),
        }
    }

    /// Is it one of several?
    #[must_use]
    pub fn is_among(&self) -> bool {
        matches!(self, Self::Among(..))
    }

    /// Goes on to any node.
    pub fn turn(&mut self, chance: &mut Chance) {
        if let Self::Among(cluster, at) = self {
            *at = chance.index(cluster.world.machines.len());
        }
    }

    /// The way to the owner of a partition.
    #[must_use]
    pub fn to_owner(&self, record: &TopicRecord, index: PartitionIndex) -> Self {
        match (self, record.owner_of(index)) {
            (Self::Among(cluster, at), Some(owner)) => Self::Among(Arc::clone(cluster), cluster.place_of(&owner.node).unwrap_or(*at)),
            _ => self.clone(),
        }
    }

    /// The catalog as the node sees it, if it is there.
    #[must_use]
    pub fn catalog(&self) -> Option<Arc<CatalogView>> {
        match self {
            Self::Here(broker, _) => Some(broker.catalog()),
            Self::Among(cluster, at) => cluster.node(*at).map(|node| node.broker.catalog()),
        }
    }

    /// Asks the node's engine, and waits for the answer. Dropped, the request is taken back, as when a connection is closed.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn ask<T, F>(&self, ask: impl FnOnce(Broker) -> F + Send + 'static) -> Result<T, NoAnswer>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match self {
            Self::Here(broker, _) => Ok(ask(broker.clone()).await),
            Self::Among(cluster, at) => cluster.ask(*at, |node| ask(node.broker)).await,
        }
    }

    /// How many accepted records are not at their owners yet, over all nodes.
    #[must_use]
    pub fn undispatched(&self) -> usize {
        match self {
            Self::Here(broker, _) => broker.undispatched(),
            Self::Among(cluster, _) => cluster.nodes().map(|node| node.broker.undispatched()).sum(),
        }
    }
}
