//! When turns begin. Open loop: turns are due at fixed times, and a timer of the kernel wakes the one thread that also drives the
//! connections. A thread of its own would cost a wake-up across threads for every turn, and the runtime's timers are a millisecond coarse.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use super::as_f64;

/// When turns begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// As soon as the one before has ended.
    Closed,
    /// At fixed times, so many a second over all connections. Latency counts from when a turn was due, not from when a connection was free.
    Open(f64),
}

/// Turns due within this time are given out together: waking up for each alone would cost more than the requests.
const TICK: Duration = Duration::from_micros(200);

/// An end that comes between turns is noticed after this time.
const TICK_MAX: Duration = Duration::from_millis(50);

/// A turn, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// At once.
    Now,
    /// It counts from then.
    Due(Instant),
    /// There are no more.
    None,
}

/// Gives out turns, in the order in which they are due.
pub(super) struct Pacer {
    turns: Option<Semaphore>,
    rate: f64,
    time: Duration,
    started: Cell<Instant>,
    taken: Cell<u64>,
}

impl Pacer {
    /// Turns at `pace` for `time`; open-loop turns come once [`Pacer::give`] runs.
    pub(super) fn new(pace: Pace, time: Duration) -> Self {
        let (turns, rate) = match pace {
            Pace::Closed => (None, 0.0),
            Pace::Open(rate) => (Some(Semaphore::new(0)), rate.max(1.0)),
        };
        Self { turns, rate, time, started: Cell::new(Instant::now()), taken: Cell::new(0) }
    }

    fn due(&self, turn: u64) -> Instant {
        self.started.get() + Duration::from_secs_f64(as_f64(turn) / self.rate)
    }

    /// Gives out open-loop turns until the time is over.
    ///
    /// # Errors
    /// The system has no timer; there are no turns then.
    pub(super) async fn give(self: Rc<Self>) -> anyhow::Result<()> {
        let Some(turns) = &self.turns else { return Ok(()) };
        self.started.set(Instant::now());
        let given = self.give_to(turns).await;
        turns.close();
        given.context("the pacer has no timer")
    }

    async fn give_to(&self, turns: &Semaphore) -> io::Result<()> {
        let timer = watched(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?)?;
        let mut turn = 0;
        while self.started.get().elapsed() < self.time && !turns.is_closed() {
            let now = Instant::now();
            let first = turn;
            while self.due(turn) <= now {
                turn += 1;
            }
            turns.add_permits(usize::try_from(turn - first).unwrap_or(usize::MAX));
            arm(timer.get_ref(), self.due(turn).saturating_duration_since(now).clamp(TICK, TICK_MAX))?;
            // Arming it again is all the reading that it needs.
            timer.readable().await?.clear_ready();
        }
        Ok(())
    }

    /// Waits for a turn.
    pub(super) async fn turn(&self) -> Turn {
        let Some(turns) = &self.turns else { return Turn::Now };
        let Ok(permit) = turns.acquire().await else { return Turn::None };
        permit.forget();
        let turn = self.taken.get();
        self.taken.set(turn + 1);
        Turn::Due(self.due(turn))
    }

    /// No more turns.
    pub(super) fn end(&self) {
        if let Some(turns) = &self.turns {
            turns.close();
        }
    }
}

#[allow(deprecated, reason = "the watcher owns an open file and nothing closes it behind its back; the other constructor is not safe code")]
fn watched(timer: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(timer)
}

/// Makes the timer readable once, after `time`.
fn arm(timer: &OwnedFd, time: Duration) -> io::Result<()> {
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let once = Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: never, it_value: once })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_the_order_in_which_they_are_due_and_none_too_early() {
        let set = tokio::task::LocalSet::new();
        let pacer = Rc::new(Pacer::new(Pace::Open(2_000.0), Duration::from_secs(60)));
        let giving = set.spawn_local(Rc::clone(&pacer).give());
        set.run_until(async {
            let mut last = None;
            for number in 0..100 {
                let Turn::Due(due) = pacer.turn().await else { panic!("turn {number} did not come") };
                assert!(due <= Instant::now() && last < Some(due));
                last = Some(due);
            }
            assert_eq!(last, Some(pacer.due(99)));
            pacer.end();
            assert_eq!(pacer.turn().await, Turn::None);
            giving.await.expect("it ends").expect("the system has timers");
        })
        .await;
    }
}
