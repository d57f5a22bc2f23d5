//! Modules, and the kernels that Outcrop has. They cannot run here as they are, so that what they
//! do is done in their place.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_void,
};

use cudarc::driver::sys::CUresult;
use outcrop_format::HashKind;

use crate::{
    driver::{Answer, Driver, Violations},
    memory::invalid,
    streams::Work,
};

/// What kernels do, by their names.
const KERNELS: [(&str, Kernel); 3] = [
    ("outcrop_sum_words", Kernel::SumWords),
    ("outcrop_hash_xxh3", Kernel::Hash { kind: HashKind::Xxh3, threads_per_block: 8 }),
    ("outcrop_hash_md5", Kernel::Hash { kind: HashKind::Md5, threads_per_block: 1 }),
];

/// The number of threads in a group of the kernels that hash.
const HASH_GROUP_THREADS: u64 = 64;
const HASH_BYTES: usize = 16;

#[derive(Clone, Copy)]
enum Kernel {
    SumWords,
    Hash { kind: HashKind, threads_per_block: u64 },
}

/// How many threads run a kernel, in groups.
#[derive(Clone, Copy)]
pub(crate) struct Threads {
    pub(crate) groups: u64,
    pub(crate) in_group: u64,
}

/// What is loaded: the modules, and the module and kernel of each function that was asked for.
pub(crate) struct Kernels {
    number_last: usize,
    modules: BTreeMap<usize, Module>,
    functions: BTreeMap<usize, (usize, Kernel)>,
}

/// Where a module is loaded, and the names of its kernels.
struct Module {
    device: usize,
    names: BTreeSet<String>,
}

/// A kernel that was started.
pub(crate) struct SumWords {
    at: u64,
    bytes: u64,
    first_word: u64,
    sums: u64,
    threads: u64,
}

/// The same, of one that hashes blocks.
pub(crate) struct HashBlocks {
    kind: HashKind,
    at: u64,
    bytes: usize,
    block_bytes: usize,
    hashes: u64,
}

impl Kernels {
    pub(crate) const fn new() -> Self {
        Self { number_last: 0, modules: BTreeMap::new(), functions: BTreeMap::new() }
    }

    /// Takes a text in the language of the driver, of which only the names of kernels are looked
    /// at.
    pub(crate) fn load(&mut self, violations: &mut Violations, device: usize, text: &str) -> Answer<usize> {
        let entries = text.split(".entry").skip(1).filter_map(|rest| rest.split('(').next());
        let names: BTreeSet<_> = entries.map(|name| name.trim().to_owned()).collect();
        if names.is_empty() || !text.contains(".version") || !text.contains(".target") {
            return Err(violations.add(CUresult::CUDA_ERROR_INVALID_PTX, "cuModuleLoadData of what is no kernel"));
        }
        self.number_last += 1;
        self.modules.insert(self.number_last, Module { device, names });
        Ok(self.number_last)
    }

    pub(crate) fn unload(&mut self, violations: &mut Violations, module: usize) -> Answer {
        if self.modules.remove(&module).is_none() {
            let rule = "cuModuleUnload of what is not, or no longer, loaded";
            return Err(violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        }
        self.functions.retain(|_, (of, _)| *of != module);
        Ok(())
    }

    pub(crate) fn function(&mut self, violations: &mut Violations, module: usize, name: &str) -> Answer<usize> {
        let has_it = self.modules.get(&module).is_some_and(|module| module.names.contains(name));
        let Some((_, kernel)) = KERNELS.iter().find(|(known, _)| has_it && *known == name) else {
            return Err(violations.add(CUresult::CUDA_ERROR_NOT_FOUND, format!("there is no kernel {name}")));
        };
        self.number_last += 1;
        self.functions.insert(self.number_last, (module, *kernel));
        Ok(self.number_last)
    }

    pub(crate) fn left(&self, device: usize) -> Option<String> {
        let modules = self.modules.values().filter(|module| module.device == device).count();
        (modules > 0).then(|| format!("{modules} modules"))
    }
}

impl Driver {
    /// Puts a kernel into a stream.
    ///
    /// # Safety
    ///
    /// The parameters must be null or pointers to what the kernel takes: addresses and numbers of
    /// eight bytes.
    pub(crate) unsafe fn launch(
        &mut self,
        device: usize,
        function: usize,
        threads: Threads,
        stream: usize,
        parameters: *mut *mut c_void,
    ) -> Answer {
        let found = self.kernels.functions.get(&function).copied();
        let module = found.and_then(|(module, kernel)| Some((self.kernels.modules.get(&module)?.device, kernel)));
        let Some((loaded_on, kernel)) = module else {
            let rule = "cuLaunchKernel of what is not, or no longer, loaded";
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        };
        if [loaded_on, self.streams.device_of(&mut self.violations, device, stream)?] != [device; 2] {
            let rule = "cuLaunchKernel of a kernel, or in a stream, of another device than the current context's";
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        }
        if parameters.is_null() || threads.groups * threads.in_group == 0 {
            return invalid(&mut self.violations, "cuLaunchKernel without parameters or threads");
        }
        // SAFETY: the caller vouches for the parameters.
        let parameter = |index| unsafe { parameters.add(index).read().cast::<u64>().read_unaligned() };
        let work = match kernel {
            Kernel::SumWords => self.sum_words(device, threads, std::array::from_fn(parameter))?,
            Kernel::Hash { kind, threads_per_block } => {
                let [memory, offset, bytes, block_bytes, hashes] = std::array::from_fn(parameter);
                let blocks = bytes.checked_div(block_bytes).map_or(0, |_| bytes.div_ceil(block_bytes));
                let threads_wanted = (blocks * threads_per_block).next_multiple_of(HASH_GROUP_THREADS);
                if blocks == 0
                    || (threads.groups * HASH_GROUP_THREADS, threads.in_group) != (threads_wanted, HASH_GROUP_THREADS)
                {
                    return invalid(&mut self.violations, "a kernel that hashes, with too few or too many threads");
                }
                let work = HashBlocks {
                    kind,
                    at: memory + offset,
                    bytes: bytes as usize,
                    block_bytes: block_bytes as usize,
                    hashes,
                };
                self.memory.check_access(&mut self.violations, device, work.at, work.bytes)?;
                self.memory.check_access(&mut self.violations, device, hashes, blocks as usize * HASH_BYTES)?;
                Work::Hash(work)
            }
        };
        self.enqueue(device, stream, work)
    }

    /// Checks the parameters of the kernel that sums words.
    fn sum_words(&mut self, device: usize, threads: Threads, [at, bytes, first_word, sums]: [u64; 4]) -> Answer<Work> {
        let threads = threads.groups * threads.in_group;
        if !at.is_multiple_of(8) {
            return Err(self.violations.add(CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "words at no multiple of eight"));
        }
        self.memory.check_access(&mut self.violations, device, at, bytes as usize)?;
        self.memory.check_access(&mut self.violations, device, sums, 8 * threads as usize)?;
        Ok(Work::Sum(SumWords { at, bytes, first_word, sums, threads }))
    }

    /// Does what a kernel would that hashes blocks.
    pub(crate) fn hash(&mut self, work: &HashBlocks) -> Answer {
        let bytes = self.memory.read(&mut self.violations, work.at, work.bytes)?;
        let hashes: Vec<u8> = bytes.chunks(work.block_bytes).flat_map(|block| work.kind.hash(block)).collect();
        self.memory.write(&mut self.violations, work.hashes, &hashes)
    }

    /// Does what the kernel would: each thread sums its share of the mixed words.
    pub(crate) fn sum(&mut self, work: &SumWords) -> Answer {
        let bytes = self.memory.read(&mut self.violations, work.at, work.bytes as usize)?;
        let mut sums = vec![0_u64; work.threads as usize];
        for (index, word) in (0..).zip(bytes.chunks(8)) {
            // The first thread has the last word, if that is not whole.
            let thread = if word.len() == 8 { index % work.threads } else { 0 };
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            let sum = &mut sums[thread as usize];
            *sum = sum.wrapping_add(mix(u64::from_le_bytes(whole), work.first_word + index));
        }
        let sums: Vec<u8> = sums.into_iter().flat_map(u64::to_le_bytes).collect();
        self.memory.write(&mut self.violations, work.sums, &sums)
    }
}

/// As in the kernel.
fn mix(value: u64, index: u64) -> u64 {
    let mixed = value ^ index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed ^ mixed >> 32).wrapping_mul(0x94D0_49BB_1331_11EB)
}
