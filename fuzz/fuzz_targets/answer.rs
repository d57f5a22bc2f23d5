//! The decoder of whether a rank could do its part.

#![no_main]

#[path = "../../crates/format/tests/format/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::answer(bytes);
});
