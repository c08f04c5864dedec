//! Where blocking file calls run: on threads in production, inline in the simulator, so that a simulated run has one thread.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// A bounded place for blocking calls. Cheap to clone; clones share the bound.
#[derive(Clone)]
pub struct Io {
    threads: Option<Arc<Semaphore>>,
}

impl Io {
    /// Calls run on the runtime's blocking threads, at most `at_once` of them.
    #[must_use]
    pub fn threads(at_once: usize) -> Self {
        Self { threads: Some(Arc::new(Semaphore::new(at_once))) }
    }

    /// Calls run where they are made.
    #[must_use]
    pub fn inline() -> Self {
        Self { threads: None }
    }

    /// Do calls run where they are made?
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.threads.is_none()
    }

    /// Runs one blocking call. Once started it runs to its end, even when the returned future is dropped.
    ///
    /// # Panics
    /// With the call's own panic.
    pub async fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let Some(threads) = &self.threads else {
            return call();
        };
        let permit = Arc::clone(threads).acquire_owned().await.expect("invariant: the semaphore is never closed");
        let running = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            call()
        });
        match running.await {
            Ok(value) => value,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
