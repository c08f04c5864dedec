//! Where blocking file calls run: on threads in production, inline in the simulator, so that a simulated run has one thread.

use crate::lanes::Lane;
use crate::turns::Turns;

/// A bounded place for blocking calls, for which lanes take turns. Cheap to clone; clones share the bound.
#[derive(Clone)]
pub struct Io {
    threads: Option<Turns>,
}

impl Io {
    /// Calls run on the runtime's blocking threads, at most `at_once` of them.
    #[must_use]
    pub fn threads(at_once: usize) -> Self {
        Self { threads: Some(Turns::new(at_once)) }
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

    /// How many calls wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.threads.as_ref().map_or(0, Turns::waiting)
    }

    /// Runs one blocking call that is nobody's in particular. Once started it runs to its end, even when the returned future is dropped.
    ///
    /// # Panics
    /// With the call's own panic.
    pub async fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        self.run_in(Lane::default(), 0, call).await
    }

    /// As [`run`](Self::run), in a lane, of about so many bytes: however many calls others have waiting, its turn comes.
    ///
    /// # Panics
    /// With the call's own panic.
    pub async fn run_in<T: Send + 'static>(&self, lane: Lane, bytes: usize, call: impl FnOnce() -> T + Send + 'static) -> T {
        let Some(threads) = &self.threads else {
            return call();
        };
        let turn = threads.turn(lane, bytes).await;
        let running = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            call()
        });
        match running.await {
            Ok(value) => value,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
