mod faults;
mod members;
mod reads;
mod serve;
mod support;
mod writes;
