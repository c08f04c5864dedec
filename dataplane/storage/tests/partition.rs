//! One partition's log.

mod chaos;
mod copying;
mod damage;
mod formats;
mod latch;
mod life;
mod promised;
mod retention;
mod support;
mod unreadable;
