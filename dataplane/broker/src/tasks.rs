//! Tasks that somebody ends: every task of a node is started here, is told to stop by one token, and is waited for at shutdown.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::error;

/// What a panic of a task means for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// The node cannot do without it: stop the node.
    Shutdown,
    /// Log it; what the task did is started again by whoever needs it.
    Log,
}

/// Starts tasks and waits for them. Cheap to clone; clones share the token.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    token: CancellationToken,
    runtime: Handle,
}

impl Tasks {
    /// Tasks on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { tracker: TaskTracker::new(), token: CancellationToken::new(), runtime }
    }

    /// Cancelled when the tasks are to end.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Starts a task. It must end by itself once the token is cancelled.
    pub fn spawn(&self, name: &'static str, on_exit: OnExit, task: impl Future<Output = ()> + Send + 'static) {
        let token = self.token.clone();
        let guarded = async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                error!(task = name, "a task panicked");
                if on_exit == OnExit::Shutdown {
                    token.cancel();
                }
            }
        };
        drop(self.tracker.spawn_on(guarded, &self.runtime));
    }

    /// Keeps [`stop`](Self::stop) waiting for as long as what is returned lives; `None` once the tasks are to end. For work that others ask
    /// for, and that is no task.
    #[must_use]
    pub fn hold(&self) -> Option<TaskTrackerToken> {
        // Taken before the look: who stops afterwards waits for it.
        let held = self.tracker.token();
        (!self.token.is_cancelled()).then_some(held)
    }

    /// Tells every task to end and waits until all have.
    pub async fn stop(&self) {
        self.token.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
