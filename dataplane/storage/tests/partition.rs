//! One partition's log.

mod chaos;
mod damage;
mod formats;
mod latch;
mod life;
mod promised;
mod retention;
mod support;
mod unreadable;
