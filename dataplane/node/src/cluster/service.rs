//! What other nodes ask of this one: passed on to the part that answers it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use veena_broker::Broker;
use veena_contract::{BoxFuture, NodeId, PeerOp, PeerRefusal, PeerRequest, PeerService};
use veena_metastore::Metastore;

use super::watch::Watch;

/// The metastore's calls first, since without them nobody becomes ready; then the engine's, of members alone.
pub(super) struct Service {
    me: NodeId,
    metastore: Metastore,
    watch: Arc<Watch>,
    broker: OnceLock<Broker>,
}

impl Service {
    pub fn new(me: NodeId, metastore: Metastore, watch: Arc<Watch>) -> Self {
        Self { me, metastore, watch, broker: OnceLock::new() }
    }

    pub fn engine(&self, broker: Broker) {
        // There is one, and it is set once.
        let _first = self.broker.set(broker);
    }

    async fn serve_engine(&self, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
        if !self.metastore.is_member(&request.from) {
            return Err(PeerRefusal::NotAdmitted);
        }
        let broker = self.broker.get().ok_or(PeerRefusal::NotServing)?;
        if request.op == PeerOp::NODE_STATUS {
            let status = veena_api::node_status(broker, &self.me).await;
            return Ok(serde_json::to_vec(&status).expect("invariant: a status is plain data").into());
        }
        match broker.serve_peer(request) {
            Some(served) => served.await,
            None => Err(PeerRefusal::UnknownOp),
        }
    }
}

impl PeerService for Service {
    fn serve(&self, request: PeerRequest) -> BoxFuture<'_, Result<Bytes, PeerRefusal>> {
        if request.op == PeerOp::NODE_ALIVE {
            return Box::pin(std::future::ready(Ok(self.watch.answer(&request.from, &request.body))));
        }
        match self.metastore.serve(request.clone()) {
            Some(served) => served,
            None => Box::pin(self.serve_engine(request)),
        }
    }
}
