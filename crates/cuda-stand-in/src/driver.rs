//! The state of the driver, and what every call has in common.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use cudarc::driver::sys::CUresult;

use crate::{
    kernels::Kernels,
    memory::{HostMemory, Memory},
    streams::Streams,
};

/// More devices than any test has.
pub(crate) const DEVICES_MAX: usize = 16;

/// What a call comes to: nothing, or the code that it answers.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// What the stand-in pretends to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    /// The memory of each device.
    pub(crate) bytes: u64,
    /// Allocations that succeed before all others fail; nothing: all do.
    pub(crate) allocations_left: Option<u64>,
    /// Calls that are answered before the device is lost; nothing: all are.
    pub(crate) calls_left: Option<u64>,
    /// Calls in a context that are answered before the contexts are broken; nothing: all are.
    pub(crate) whole_calls_left: Option<u64>,
}

impl Settings {
    const DEFAULT: Self =
        Self { devices: 1, bytes: 256 << 20, allocations_left: None, calls_left: None, whole_calls_left: None };
}

/// Everything that the driver knows.
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) violations: Violations,
    is_started: bool,
    /// How often the primary context of each device is retained.
    retained: BTreeMap<usize, u64>,
    pub(crate) memory: Memory,
    pub(crate) host: HostMemory,
    pub(crate) streams: Streams,
    pub(crate) kernels: Kernels,
}

/// The rules that were broken.
#[derive(Default)]
pub(crate) struct Violations {
    pub(crate) count: u64,
    pub(crate) first: Option<String>,
}

impl Violations {
    /// Takes note of a broken rule, and gives the code back that tells of it.
    pub(crate) fn add(&mut self, code: CUresult, rule: impl Into<String>) -> CUresult {
        self.count += 1;
        self.first.get_or_insert_with(|| rule.into());
        code
    }
}

static DRIVER: Mutex<Driver> = Mutex::new(Driver::new());

thread_local! {
    /// The devices whose contexts this thread has pushed, the current one last.
    static PUSHED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The driver, for whoever controls it.
pub(crate) fn driver() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a call, unless the device is lost.
pub(crate) fn answer(work: impl FnOnce(&mut Driver) -> Answer) -> CUresult {
    let mut driver = driver();
    if !take_one(&mut driver.settings.calls_left) {
        return CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    match work(&mut driver) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}

/// Answers a call that needs a current context; the work gets its device.
pub(crate) fn answer_current(name: &str, work: impl FnOnce(&mut Driver, usize) -> Answer) -> CUresult {
    answer(|driver| {
        let device = driver.current(name)?;
        if !take_one(&mut driver.settings.whole_calls_left) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        work(driver, device)
    })
}

impl Driver {
    const fn new() -> Self {
        Self {
            settings: Settings::DEFAULT,
            violations: Violations { count: 0, first: None },
            is_started: false,
            retained: BTreeMap::new(),
            memory: Memory::new(),
            host: HostMemory::new(),
            streams: Streams::new(),
            kernels: Kernels::new(),
        }
    }

    /// Forgets everything, but not what other threads have pushed.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
        PUSHED.with_borrow_mut(Vec::clear);
    }

    pub(crate) fn start(&mut self) {
        self.is_started = true;
    }

    /// Whether the driver has been started and has this device.
    pub(crate) fn check_device(&mut self, name: &str, device: i32) -> Answer<usize> {
        self.check_started(name)?;
        let index = usize::try_from(device).ok().filter(|&index| index < self.settings.devices);
        index.ok_or_else(|| {
            self.violations.add(CUresult::CUDA_ERROR_INVALID_DEVICE, format!("{name}: there is no device {device}"))
        })
    }

    pub(crate) fn check_started(&mut self, name: &str) -> Answer {
        if self.is_started {
            return Ok(());
        }
        Err(self.violations.add(CUresult::CUDA_ERROR_NOT_INITIALIZED, format!("{name} was called before cuInit")))
    }

    pub(crate) fn retain(&mut self, device: usize) -> usize {
        *self.retained.entry(device).or_default() += 1;
        context_of(device)
    }

    pub(crate) fn release(&mut self, device: usize) -> Answer {
        let Some(count) = self.retained.get_mut(&device) else {
            let rule = format!("the context of device {device} was released but not retained");
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_CONTEXT, rule));
        };
        *count -= 1;
        if *count > 0 {
            return Ok(());
        }
        self.retained.remove(&device);
        let mut left = self.left_of(device);
        if self.retained.is_empty() {
            left.extend(self.memory.left_addresses());
        }
        // In a broken context nothing can be given back.
        if left.is_empty() || self.settings.whole_calls_left == Some(0) {
            return Ok(());
        }
        let rule = format!("the context of device {device} was released, but there are left: {}", left.join(", "));
        Err(self.violations.add(CUresult::CUDA_ERROR_ILLEGAL_STATE, rule))
    }

    pub(crate) fn push(&mut self, context: usize) -> Answer {
        self.check_started("cuCtxPushCurrent")?;
        let Some(&device) = self.retained.keys().find(|&&device| context_of(device) == context) else {
            let rule = "a context was made current that is not retained";
            return Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_CONTEXT, rule));
        };
        PUSHED.with_borrow_mut(|pushed| pushed.push(device));
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Answer<usize> {
        self.check_started("cuCtxPopCurrent")?;
        let popped = PUSHED.with_borrow_mut(Vec::pop).map(context_of);
        popped.ok_or_else(|| {
            self.violations.add(CUresult::CUDA_ERROR_INVALID_CONTEXT, "a context was popped, but none is current")
        })
    }

    fn current(&mut self, name: &str) -> Answer<usize> {
        self.check_started(name)?;
        let current = PUSHED.with_borrow(|pushed| pushed.last().copied());
        let current = current.filter(|device| self.retained.contains_key(device));
        current.ok_or_else(|| {
            let rule = format!("{name} was called without a current context");
            self.violations.add(CUresult::CUDA_ERROR_INVALID_CONTEXT, rule)
        })
    }

    /// What was not given back, in words.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut left = self.memory.left_addresses();
        left.extend((0..DEVICES_MAX).flat_map(|device| self.left_of(device)));
        left.extend(self.retained.iter().map(|(device, count)| format!("device {device} is retained {count} times")));
        let pushed = PUSHED.with_borrow(Vec::len);
        left.extend((pushed > 0).then(|| format!("{pushed} contexts that this thread has pushed")));
        left
    }

    /// The same of one device, without its context and without addresses.
    fn left_of(&self, device: usize) -> Vec<String> {
        let mut left = self.memory.left(device);
        left.extend(self.host.left(device));
        left.extend(self.streams.left(device));
        left.extend(self.kernels.left(device));
        left
    }
}

/// Takes one of what is left, if anything is.
pub(crate) fn take_one(left: &mut Option<u64>) -> bool {
    match left {
        None => true,
        Some(0) => false,
        Some(left) => {
            *left -= 1;
            true
        }
    }
}

/// What the driver hands out as the primary context of a device. Nobody may look behind it.
fn context_of(device: usize) -> usize {
    0xC0DE_0000 + 16 * device
}
