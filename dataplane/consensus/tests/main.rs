//! Several members in one process, over a network that can be cut, slowed and listened to.

mod cluster;
