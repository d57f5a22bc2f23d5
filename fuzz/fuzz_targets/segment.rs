//! The decoder of how a segment of shared memory begins, and of its tables.

#![no_main]

#[path = "../../crates/format/tests/format/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::segment(bytes);
});
