//! OTLP/JSON from the network: no input makes the converter take more than its memory limit, and the protobuf of
//! accepted input passes the gateway's validation.
#![no_main]

use millpond_fuzz::memory;
use millpond_otlp::{JsonError, Signal, protobuf_of_json, validate};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for signal in Signal::ALL {
        let small = data.len() / 2;
        match memory::bounded(small + REFUSAL, || protobuf_of_json(signal, data, small)) {
            Err(JsonError::Malformed(malformed)) => assert!(malformed.offset <= data.len()),
            Err(JsonError::MoreRoom) | Ok(_) => {}
        }
        let room = 5 * data.len();
        match memory::bounded(room + REFUSAL, || protobuf_of_json(signal, data, room)) {
            Ok(protobuf) => {
                validate(signal, &protobuf).expect("what is written is OTLP");
            }
            Err(JsonError::Malformed(malformed)) => {
                assert!(malformed.offset <= data.len());
                assert!(!malformed.field.is_empty());
            }
            Err(JsonError::MoreRoom) => panic!("five times as long"),
        }
    }
});

/// The path to a fault: a step and its text for each open message.
const REFUSAL: usize = 64 << 10;
