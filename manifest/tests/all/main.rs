//! Tests of the transitions and the formats of the state files.

mod buffer;
mod claims;
mod clients;
mod cursor;
mod dead_letter;
mod manifest;
mod members;
mod pages;
mod sources;
mod unique;
