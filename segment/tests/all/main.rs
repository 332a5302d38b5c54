//! Tests of the segment format.

mod damage;
mod golden;
mod round_trip;
mod support;
