//! The client against a scripted server on loopback.

mod calls;
mod server;
