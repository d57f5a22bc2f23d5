//! Modules, and the one kernel that Outcrop has. It cannot run here as it is, so that what it does
//! is done in its place.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_void,
};

use cudarc::driver::sys::CUresult;

use crate::{
    driver::{Answer, Driver, Violations},
    memory::invalid,
    streams::Work,
};

/// The name of the kernel that sums words.
const SUM_WORDS: &str = "outcrop_sum_words";

/// What is loaded: the modules, and the module of each function that was asked for.
pub(crate) struct Kernels {
    number_last: usize,
    modules: BTreeMap<usize, Module>,
    functions: BTreeMap<usize, usize>,
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
        self.functions.retain(|_, of| *of != module);
        Ok(())
    }

    pub(crate) fn function(&mut self, violations: &mut Violations, module: usize, name: &str) -> Answer<usize> {
        let has_it = self.modules.get(&module).is_some_and(|module| module.names.contains(name));
        if !has_it || name != SUM_WORDS {
            return Err(violations.add(CUresult::CUDA_ERROR_NOT_FOUND, format!("there is no kernel {name}")));
        }
        self.number_last += 1;
        self.functions.insert(self.number_last, module);
        Ok(self.number_last)
    }

    pub(crate) fn left(&self, device: usize) -> Option<String> {
        let modules = self.modules.values().filter(|module| module.device == device).count();
        (modules > 0).then(|| format!("{modules} modules"))
    }
}

impl Driver {
    /// Puts the kernel into a stream.
    ///
    /// # Safety
    ///
    /// The parameters must be null or pointers to what the kernel takes: an address, two numbers,
    /// and an address.
    pub(crate) unsafe fn launch(
        &mut self,
        device: usize,
        function: usize,
        threads: u64,
        stream: usize,
        parameters: *mut *mut c_void,
    ) -> Answer {
        let module = self.kernels.functions.get(&function).and_then(|module| self.kernels.modules.get(module));
        let Some(loaded_on) = module.map(|module| module.device) else {
            let rule = "cuLaunchKernel of what is not, or no longer, loaded";
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        };
        if [loaded_on, self.streams.device_of(&mut self.violations, device, stream)?] != [device; 2] {
            let rule = "cuLaunchKernel of a kernel, or in a stream, of another device than the current context's";
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        }
        if parameters.is_null() || threads == 0 {
            return invalid(&mut self.violations, "cuLaunchKernel without parameters or threads");
        }
        // SAFETY: the caller vouches for four parameters of eight bytes each.
        let [at, bytes, first_word, sums] =
            std::array::from_fn(|index| unsafe { parameters.add(index).read().cast::<u64>().read_unaligned() });
        if !at.is_multiple_of(8) {
            return Err(self.violations.add(CUresult::CUDA_ERROR_MISALIGNED_ADDRESS, "words at no multiple of eight"));
        }
        self.memory.check_access(&mut self.violations, device, at, bytes as usize)?;
        self.memory.check_access(&mut self.violations, device, sums, 8 * threads as usize)?;
        let work = Work::Sum(SumWords { at, bytes, first_word, sums, threads });
        self.enqueue(device, stream, work)
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
