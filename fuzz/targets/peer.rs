//! Requests and replies between producers: none makes a server take more memory than it has reserved, and what is read is
//! written and read again unchanged.
#![no_main]

use bytes::Bytes;
use millpond_fuzz::memory;
use millpond_peer::foreign::{encode_reply, encode_request, memory_of_request, reply, request};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let body = Bytes::copy_from_slice(data);
    // A server decodes no others.
    if let Some(limit) = memory_of_request(&body)
        && let Some(read) = memory::bounded(limit, || request(body.clone()))
    {
        let written = encode_request(&read);
        let again = request(written.clone()).expect("what is written can be read");
        assert_eq!(encode_request(&again), written);
    }
    if let Some(read) = memory::bounded(memory::of_protobuf(data.len()), || reply(body)) {
        let written = encode_reply(&read);
        let again = reply(written.clone()).expect("what is written can be read");
        assert_eq!(encode_reply(&again), written);
    }
});
