//! What this node has applied, as an immutable view that is swapped whole.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use veena_contract::{BoxFuture, Catalog, CatalogView, LineageId, LogIndex};

use crate::Metastore;
use crate::state::State;

/// The newest view and who waits for it.
pub(crate) struct Replica {
    view: ArcSwap<CatalogView>,
    /// All of it, the view included.
    state: ArcSwap<State>,
    applied: watch::Sender<LogIndex>,
}

impl Replica {
    pub(crate) fn new() -> Self {
        Self { view: ArcSwap::default(), state: ArcSwap::default(), applied: watch::Sender::new(LogIndex::default()) }
    }

    /// Shows a newer state: first the view, then the word that it is there.
    pub(crate) fn show(&self, state: State) {
        let view = state.view().clone();
        let applied = view.applied;
        self.state.store(Arc::new(state));
        self.view.store(Arc::new(view));
        self.applied.send_replace(applied);
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.state.load_full()
    }

    pub(crate) fn view(&self) -> Arc<CatalogView> {
        self.view.load_full()
    }

    pub(crate) fn lineage(&self) -> Option<LineageId> {
        self.state.load().lineage()
    }

    /// Completes once the view reflects `at`.
    pub(crate) async fn reached(&self, at: LogIndex) -> Arc<CatalogView> {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.applied.subscribe().wait_for(|applied| *applied >= at).await;
        self.view()
    }
}

impl Catalog for Metastore {
    fn view(&self) -> Arc<CatalogView> {
        self.replica().view()
    }

    fn changed(&self, seen: LogIndex) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.replica().reached(seen.next()).await;
        })
    }
}
