//! The simulator: the real broker on a simulated disk, clock and entropy.
