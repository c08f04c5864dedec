//! The way in: one command, answered once this node shows it.

use std::sync::Arc;

use tokio::time::timeout;
use veena_contract::records::Command;
use veena_contract::{BoxFuture, CatalogView, CatalogWriter, Effect, FeatureLevel, Origin, ProposeError};

use crate::Metastore;
use crate::state::{Operation, decode_answer, encode_from};

impl Metastore {
    /// Has one operation committed, applied and shown here.
    pub(crate) async fn commit(&self, operation: Operation, origin: &Origin) -> Result<Arc<CatalogView>, ProposeError> {
        if let Some(reason) = self.held().why(|| Some(operation.clone())) {
            return Err(ProposeError::Unavailable { reason });
        }
        let level = self.level();
        if operation.level() > level {
            let reason = "a node of this cluster runs an older program, which would not understand the change".to_owned();
            return Err(ProposeError::Unavailable { reason });
        }
        let deadline = self.config().propose_within;
        let stamp = (level >= FeatureLevel::TENANTS).then(|| origin.stamp(self.now_ms(), &self.config().consensus.node));
        let command = encode_from(operation, stamp)
            .map_err(|e| ProposeError::Unavailable { reason: format!("the change cannot be written: {e}") })?;
        let (at, answer) = self.consensus().propose(command, deadline).await.map_err(|error| {
            let reason = error.to_string();
            match error.effect() {
                Effect::None => ProposeError::Unavailable { reason },
                Effect::Possible => ProposeError::Uncertain { reason },
            }
        })?;
        let uncertain = |reason: String| ProposeError::Uncertain { reason };
        decode_answer(&answer).map_err(|e| uncertain(format!("the answer cannot be read: {e}")))??;
        match timeout(deadline, self.replica().reached(at)).await {
            Ok(view) => Ok(view),
            Err(_) => Err(uncertain(format!("this node has not applied it within {deadline:?}"))),
        }
    }
}

impl CatalogWriter for Metastore {
    fn propose_from(&self, origin: Origin, command: Command) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        let operation = Operation::catalog(origin.caller().cloned(), command, self.level());
        Box::pin(async move { self.commit(operation, &origin).await })
    }
}
