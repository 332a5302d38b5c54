//! The command line of the model and the simulation.

mod search;
mod simulate;

use clap::Parser;
use std::process::ExitCode;

/// Model checks of Millpond's protocols, and a seeded simulation of the real pipeline.
#[derive(Parser)]
enum Command {
    /// Search every state of the protocols within a bound, or until a property is violated.
    Model(search::Search),
    /// Run the real producers, consumers and garbage collectors through seeds, until one breaks a promise.
    Run(simulate::Simulate),
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Model(arguments) => search::run(&arguments),
        Command::Run(arguments) => simulate::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
