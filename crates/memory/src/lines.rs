//! Writes cache lines back to persistent memory.
//!
//! A store to persistent memory survives a power cut once its cache line has left the caches. The
//! instruction for that is chosen at run time: `clwb` keeps the line in the cache, `clflushopt`
//! evicts it, and `clflush`, which every processor has, also waits for the previous one. A store
//! fence after the last line orders the write-backs before all later stores.

/// The instruction that writes a cache line back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other processor is supported"))]
pub(crate) enum Instruction {
    Clwb,
    ClflushOpt,
    Clflush,
}

impl Instruction {
    /// With the fence that follows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb and sfence",
            Self::ClflushOpt => "clflushopt and sfence",
            Self::Clflush => "clflush and sfence",
        }
    }
}

/// The length of a cache line on every supported processor.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "no other processor is supported"))]
const LINE: usize = 64;

/// The best instruction of this processor; `None` on other architectures.
pub(crate) fn instruction() -> Option<Instruction> {
    instructions().first().copied()
}

/// All instructions of this processor, best first.
#[cfg(target_arch = "x86_64")]
fn instructions() -> &'static [Instruction] {
    use std::{
        arch::x86_64::{__cpuid_count, __get_cpuid_max},
        sync::OnceLock,
    };
    const CLFLUSHOPT: u32 = 1 << 23;
    const CLWB: u32 = 1 << 24;
    static FOUND: OnceLock<Vec<Instruction>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let features = if __get_cpuid_max(0).0 >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let mut found = Vec::new();
        found.extend((features & CLWB != 0).then_some(Instruction::Clwb));
        found.extend((features & CLFLUSHOPT != 0).then_some(Instruction::ClflushOpt));
        found.push(Instruction::Clflush);
        found
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn instructions() -> &'static [Instruction] {
    &[]
}

/// Begins to write back every cache line of `bytes` from `start`. [`fence`] has to follow.
///
/// # Safety
/// The bytes must be mapped, and the processor must have the instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn write_back(instruction: Instruction, start: *const u8, bytes: usize) {
    use std::arch::{asm, x86_64::_mm_clflush};
    for line in lines(start.addr(), bytes) {
        let line = start.with_addr(line);
        // SAFETY: the line holds a mapped byte, and writing it back changes none; the caller
        // guarantees that the processor has the instruction.
        unsafe {
            match instruction {
                Instruction::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                Instruction::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Instruction::Clflush => _mm_clflush(line),
            }
        }
    }
}

/// Orders all write-backs of this thread before its next store.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence() {
    // SAFETY: every processor of this architecture has SSE.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// The addresses of the cache lines of `bytes` from `start`.
#[cfg(target_arch = "x86_64")]
fn lines(start: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let first = if bytes == 0 { start } else { start / LINE * LINE };
    (first..start + bytes).step_by(LINE)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_touched_line_is_written_back_once(start in 0_usize..10_000, bytes in 0_usize..5000) {
            let found: Vec<_> = lines(start, bytes).map(|line| line / LINE).collect();
            let mut wanted: Vec<_> = (start..start + bytes).map(|byte| byte / LINE).collect();
            wanted.dedup();
            prop_assert_eq!(&found, &wanted);
            prop_assert!(lines(start, bytes).all(|line| line.is_multiple_of(LINE)));
        }
    }

    #[test]
    fn every_instruction_leaves_the_bytes_as_they_are() {
        let mut memory: Vec<u8> = (0..10_000).map(|index| (index % 251) as u8).collect();
        let before = memory.clone();
        assert_eq!(instructions().last(), Some(&Instruction::Clflush), "every processor has it");
        for &instruction in instructions() {
            for (from, bytes) in [(0, 0), (0, 1), (63, 2), (1, 9_999), (5_000, 64)] {
                // SAFETY: the bytes lie in the vector, and the processor has the instruction.
                unsafe { write_back(instruction, memory[from..].as_ptr(), bytes) };
                fence();
            }
            assert_eq!(memory, before, "{instruction:?}");
            memory[77] = memory[77].wrapping_add(1);
            memory[77] = memory[77].wrapping_sub(1);
        }
    }
}
