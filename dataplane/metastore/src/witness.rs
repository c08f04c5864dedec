//! The way to a confirmed read, and to readiness.

use std::sync::Arc;

use tokio::time::timeout;
use veena_contract::{BoxFuture, CatalogView, LeaderPort, ProposeError};

use crate::Metastore;

impl LeaderPort for Metastore {
    fn confirmed_view(&self) -> BoxFuture<'_, Result<Arc<CatalogView>, ProposeError>> {
        Box::pin(async move {
            let within = self.config().confirm_within;
            let at = self.consensus().barrier(within).await.map_err(|e| ProposeError::Unavailable { reason: e.to_string() })?;
            let late = |_| ProposeError::Unavailable { reason: format!("this node has not caught up within {within:?}") };
            timeout(within, self.replica().reached(at)).await.map_err(late)
        })
    }

    fn backup(&self) -> BoxFuture<'_, Result<Vec<u8>, ProposeError>> {
        Box::pin(async move {
            self.confirmed_view().await?;
            let copy = self.copy();
            let unavailable = |reason: String| ProposeError::Unavailable { reason };
            let encoded = tokio::task::spawn_blocking(move || copy.encode()).await.map_err(|e| unavailable(e.to_string()))?;
            encoded.map_err(|e| unavailable(e.to_string()))
        })
    }

    fn not_ready_reason(&self) -> Option<String> {
        let status = self.consensus().status();
        let reason = if let Some(reason) = status.stopped {
            format!("it takes no changes any more: {reason}")
        } else if !status.has_leader {
            "no leader".to_owned()
        } else if self.replica().lineage().is_none() {
            "it has not applied the first change yet".to_owned()
        } else {
            return None;
        };
        Some(format!("metastore: node is not ready: {reason}"))
    }
}
