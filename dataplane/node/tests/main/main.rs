//! A whole node in this process: real disk, real HTTP, the metadata log in memory.

mod life;
mod node;
