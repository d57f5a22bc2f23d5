//! The decoder of the packs that a rank has made.

#![no_main]

#[path = "../../crates/format/tests/format/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::shared_packs(bytes);
});
