//! The buffer object.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = millpond_fuzz::objects::read::<millpond_manifest::Buffer>(data);
});
