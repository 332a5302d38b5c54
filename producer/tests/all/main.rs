//! Tests of the producer over stores with faults, most of them in virtual time.

mod clients;
mod clock;
mod crowds;
mod early_close;
mod exactly_once;
mod faults;
mod growth;
mod homes;
mod leader;
mod numbered;
mod pages;
mod producer;
mod routing;
mod scripts;
mod shared_commits;
mod simulation;
mod sources;
mod support;
mod turns;
mod watch;
