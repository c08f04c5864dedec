//! The simulator repeats itself, and the fixed seeds hold.

mod seeds;
