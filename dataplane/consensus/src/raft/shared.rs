//! One question under way, shared by all who wait for its answer.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// Asks one question at a time. Whoever comes while one is under way waits for the next, since that one may have been answered from before
/// the caller came; all who wait by then share its answer.
pub(super) struct Shared<T> {
    arrivals: AtomicU64,
    last: Mutex<Option<Round<T>>>,
}

struct Round<T> {
    /// How many had come when it began.
    covers: u64,
    outcome: T,
}

impl<T: Clone> Shared<T> {
    pub(super) fn new() -> Self {
        Self { arrivals: AtomicU64::new(0), last: Mutex::new(None) }
    }

    /// The answer to a question that was asked after this call began. Cancel-safe: if whoever asks is dropped, the next one asks.
    pub(super) async fn ask<F: Future<Output = T>>(&self, question: impl FnOnce() -> F) -> T {
        let ticket = self.arrivals.fetch_add(1, Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(round) = last.as_ref().filter(|round| round.covers > ticket) {
            return round.outcome.clone();
        }
        let covers = self.arrivals.load(Ordering::SeqCst);
        let outcome = question().await;
        *last = Some(Round { covers, outcome: outcome.clone() });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use tokio::sync::Semaphore;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn whoever_comes_while_one_is_asked_gets_the_answer_of_the_next() {
        let shared = Arc::new(Shared::<u64>::new());
        let (asked, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
        let mut callers = JoinSet::new();
        let mut come = |who: u64| {
            let (shared, asked, gate) = (shared.clone(), asked.clone(), gate.clone());
            callers.spawn(async move {
                let question = || async move {
                    let answer = asked.fetch_add(1, Ordering::SeqCst) + 1;
                    gate.acquire().await.expect("open").forget();
                    answer
                };
                (who, shared.ask(question).await)
            });
        };
        come(0);
        while asked.load(Ordering::SeqCst) == 0 {
            yield_now().await;
        }
        for who in 1..10 {
            come(who);
        }
        while shared.arrivals.load(Ordering::SeqCst) < 10 {
            yield_now().await;
        }
        gate.add_permits(10);
        for (who, answer) in callers.join_all().await {
            assert_eq!(answer, if who == 0 { 1 } else { 2 }, "caller {who}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn when_whoever_asks_leaves_the_next_one_asks() {
        let shared = Shared::<u64>::new();
        let left = tokio::time::timeout(std::time::Duration::from_millis(1), shared.ask(std::future::pending)).await;
        assert!(left.is_err());
        assert_eq!(shared.ask(|| async { 7 }).await, 7);
    }
}
