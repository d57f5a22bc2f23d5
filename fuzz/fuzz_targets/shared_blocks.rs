//! The decoder of the blocks that a rank is about to write.

#![no_main]

#[path = "../../crates/format/tests/format/decoders.rs"]
mod decoders;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    decoders::shared_blocks(bytes);
});
