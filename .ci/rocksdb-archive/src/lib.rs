//! Exists only to let cargo fetch and compile RocksDB's sources.
