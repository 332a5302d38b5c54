//! Tests of the consumer and the garbage collector over real stores with faults, most of them in virtual time.

mod ahead;
mod bottleneck;
mod consumer;
mod dead_letters;
mod division;
mod earlier;
mod gc;
mod gc_needs;
mod gc_swaps;
mod growth;
mod identity;
mod in_flight;
mod late_parts;
mod lease;
mod pages;
mod programs;
mod recognition;
mod repair;
mod resting;
mod routes;
mod sharing;
mod start;
mod support;
mod unique;
mod watch;
mod watch_producer;
