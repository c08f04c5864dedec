//! How many password hashes are computed at once, whoever asks: each takes 19 MiB and a core. And of that core what others leave.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use veena_contract::limits;

use crate::password::Memory;

/// Why nothing was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotComputed {
    /// Too many wait already, or its turn did not come in time.
    #[error("too many passwords are being checked")]
    Busy,
    /// The runtime is shutting down, or the computation crashed.
    #[error("passwords cannot be checked")]
    Unavailable,
}

/// A place in the line, bounded by [`limits::PASSWORD_CHECKS_MAX`].
pub(crate) struct Place {
    _held: OwnedSemaphorePermit,
}

/// What was made for computations and is not in use. As many as have run at once; a node to which nobody signs in has none.
#[derive(Default)]
struct Memories {
    free: Mutex<Vec<Memory>>,
    #[cfg(test)]
    made: std::sync::atomic::AtomicUsize,
}

impl Memories {
    /// Only with a permit: there are never more than permits.
    fn lend(self: &Arc<Self>) -> Lent {
        let free = self.free.lock().pop();
        let memory = free.unwrap_or_else(|| {
            #[cfg(test)]
            self.made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Memory::new()
        });
        Lent { memory: Some(memory), to: Arc::clone(self) }
    }
}

/// Memory for one computation. It goes back, also when that crashes.
struct Lent {
    memory: Option<Memory>,
    to: Arc<Memories>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.to.free.lock().extend(self.memory.take());
    }
}

/// Lets at most [`limits::PASSWORD_COMPUTATIONS_MAX`] computations run at once, on the runtime's threads for blocking work.
pub(crate) struct Permits {
    running: Arc<Semaphore>,
    line: Arc<Semaphore>,
    memories: Arc<Memories>,
    #[cfg(test)]
    computed: std::sync::atomic::AtomicUsize,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            running: Arc::new(Semaphore::new(limits::PASSWORD_COMPUTATIONS_MAX)),
            line: Arc::new(Semaphore::new(limits::PASSWORD_CHECKS_MAX)),
            memories: Arc::default(),
            #[cfg(test)]
            computed: std::sync::atomic::AtomicUsize::new(0),
        }
    }
}

impl Permits {
    /// Joins the line. Does not wait.
    ///
    /// # Errors
    /// [`NotComputed::Busy`]: it is full.
    pub(crate) fn try_join(&self) -> Result<Place, NotComputed> {
        Arc::clone(&self.line).try_acquire_owned().map(|held| Place { _held: held }).map_err(|_| NotComputed::Busy)
    }

    /// Waits for its turn and computes. Dropped before its turn, nothing is computed; dropped later, the computation ends all the same, and
    /// keeps its permit until then: a caller that goes away makes no room for another.
    ///
    /// # Errors
    /// [`NotComputed`].
    pub(crate) async fn compute<R: Send + 'static>(
        &self,
        place: Place,
        work: impl FnOnce(&mut Memory) -> R + Send + 'static,
    ) -> Result<R, NotComputed> {
        let turn = Arc::clone(&self.running).acquire_owned();
        let turn = tokio::time::timeout(Duration::from_millis(limits::PASSWORD_WAIT_MS_MAX), turn).await;
        let permit = turn.map_err(|_| NotComputed::Busy)?.map_err(|_| NotComputed::Unavailable)?;
        #[cfg(test)]
        self.computed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let memories = Arc::clone(&self.memories);
        let computed = tokio::task::spawn_blocking(move || {
            // Dropped in reverse order, whatever happens: the memory is back before anybody else's turn comes.
            let _held = (permit, place);
            let mut lent = memories.lend();
            let memory = lent.memory.as_mut().expect("invariant: taken only when it goes back");
            // In a thread of its own, which ends with it: a thread that has stepped back may not come forward again. To start one takes less than
            // a hundredth of the computation.
            let runtime = tokio::runtime::Handle::current();
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("password".to_owned()).spawn_scoped(scope, || {
                    step_back();
                    // Its clock is the runtime's, which tests pause.
                    let _entered = runtime.enter();
                    work(memory)
                });
                thread.ok().and_then(|thread| thread.join().ok()).ok_or(NotComputed::Unavailable)
            })
        });
        computed.await.map_err(|_| NotComputed::Unavailable)?
    }
}

/// Leaves the cores to whoever needs them at the moment: those who sign in do not hold up those who have. What is left to this thread beside one
/// that does nothing but compute is a tenth.
fn step_back() {
    const NICER_BY: i32 = 10;
    // Where it is not allowed, it goes on as it is.
    let _now = rustix::process::nice(NICER_BY);
}

#[cfg(test)]
impl Permits {
    /// How many computations were begun.
    pub(crate) fn computed(&self) -> usize {
        self.computed.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Every turn there is, once nothing is computed.
    pub(crate) async fn all_turns(&self) -> OwnedSemaphorePermit {
        let all = u32::try_from(limits::PASSWORD_COMPUTATIONS_MAX).expect("small");
        Arc::clone(&self.running).acquire_many_owned(all).await.expect("never closed")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn whoever_computes_steps_back_and_takes_no_other_thread_with_it() {
        let nice = || rustix::process::getpriority_process(None).expect("known");
        let (permits, before) = (Permits::default(), nice());
        // The system knows nothing nicer than 19.
        let nicer = (before + 10).min(19);
        for _ in 0..2 {
            let place = permits.try_join().expect("room");
            assert_eq!(permits.compute(place, move |_| nice()).await, Ok(nicer));
            assert_eq!(tokio::task::spawn_blocking(nice).await.expect("it ends"), before);
        }
        assert_eq!(nice(), before);
        let place = permits.try_join().expect("room");
        let crashed = permits.compute(place, move |_| if before < 100 { panic!("a crash") } else { 0 }).await;
        assert_eq!(crashed, Err(NotComputed::Unavailable));
        assert_eq!(permits.memories.made.load(Ordering::SeqCst), 1, "its memory is back");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_than_the_permits_run_at_once_also_when_callers_go_away() {
        let permits = Arc::new(Permits::default());
        let (running, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut callers = tokio::task::JoinSet::new();
        for at in 0..200 {
            let (permits, running, peak) = (Arc::clone(&permits), Arc::clone(&running), Arc::clone(&peak));
            let work = move |_: &mut Memory| {
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                for _ in 0..1_000 {
                    std::thread::yield_now();
                }
                running.fetch_sub(1, Ordering::SeqCst);
            };
            let handle = callers.spawn(async move {
                let place = permits.try_join().expect("the line is longer");
                permits.compute(place, work).await.expect("its turn comes");
            });
            if at % 3 == 0 {
                handle.abort();
            }
        }
        while callers.join_next().await.is_some() {}
        assert!((1..=limits::PASSWORD_COMPUTATIONS_MAX).contains(&peak.load(Ordering::SeqCst)), "{peak:?}");
        let _all = permits.all_turns().await;
        let (made, free) = (permits.memories.made.load(Ordering::SeqCst), permits.memories.free.lock().len());
        assert!((1..=limits::PASSWORD_COMPUTATIONS_MAX).contains(&made) && free == made, "{made} made, {free} free");
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_does_not_free_its_permit_before_the_work_is_done() {
        let permits = Permits::default();
        let (begun, has_begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let place = permits.try_join().expect("free");
        let work = move |_: &mut Memory| {
            begun.send(()).expect("the test waits");
            ended.recv().expect("the test ends it");
        };
        let mut caller = Box::pin(permits.compute(place, work));
        assert!(caller.as_mut().now_or_never().is_none());
        tokio::task::spawn_blocking(move || has_begun.recv()).await.expect("no panic").expect("it begins");
        drop(caller);
        let free = || (permits.running.available_permits(), permits.line.available_permits());
        assert_eq!(free(), (limits::PASSWORD_COMPUTATIONS_MAX - 1, limits::PASSWORD_CHECKS_MAX - 1));
        end.send(()).expect("the work waits");
        let _all = permits.all_turns().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_turn_in_time_is_told_to_come_back() {
        let permits = Permits::default();
        let _taken = permits.all_turns().await;
        let place = permits.try_join().expect("free");
        assert_eq!(permits.compute(place, |_| ()).await, Err(NotComputed::Busy));
        assert_eq!(permits.line.available_permits(), limits::PASSWORD_CHECKS_MAX);
    }

    #[tokio::test]
    async fn a_computation_that_crashes_leaves_its_memory_and_its_permit() {
        let permits = Permits::default();
        for _ in 0..3 {
            let crash = |_: &mut Memory| panic!("a crash for this test");
            let place = permits.try_join().expect("free");
            assert_eq!(permits.compute::<()>(place, crash).await, Err(NotComputed::Unavailable));
        }
        let _all = permits.all_turns().await;
        assert_eq!((permits.memories.made.load(Ordering::SeqCst), permits.memories.free.lock().len()), (1, 1));
    }

    #[test]
    fn a_full_line_takes_nobody() {
        let permits = Permits::default();
        let places: Vec<Place> = (0..limits::PASSWORD_CHECKS_MAX).map(|_| permits.try_join().expect("free")).collect();
        assert!(permits.try_join().is_err_and(|error| error == NotComputed::Busy));
        drop(places);
        assert!(permits.try_join().is_ok());
    }
}
