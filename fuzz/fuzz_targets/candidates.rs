//! The decoder of the versions that a rank could restore.

#![no_main]

#[path = "../../crates/format/tests/format/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::candidates(bytes);
});
