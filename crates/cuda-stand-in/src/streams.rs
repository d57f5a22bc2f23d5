//! Streams and events. What is put into a stream is carried out when somebody waits for it, not before.

use std::collections::{BTreeMap, VecDeque};

use cudarc::driver::sys::CUresult;

use crate::{
    driver::{Answer, Driver, Violations},
    kernels::SumWords,
};

/// The stream that is always there.
pub(crate) const DEFAULT: usize = 0;

/// All streams and events, by the numbers that stand for them.
pub(crate) struct Streams {
    number_last: usize,
    default: VecDeque<Work>,
    streams: BTreeMap<usize, VecDeque<Work>>,
    /// The stream in which an event is still to come.
    events: BTreeMap<usize, Option<usize>>,
}

/// What a stream has to do.
pub(crate) enum Work {
    Copy { from: Source, to: Target, bytes: usize },
    Sum(SumWords),
    Mark(usize),
}

/// Where bytes come from.
pub(crate) enum Source {
    Device(u64),
    /// Registered host memory, looked at when the copy is carried out.
    Host(usize),
    /// Pageable host memory, which the driver has taken a copy of.
    Staged(Vec<u8>),
}

/// Where bytes go.
pub(crate) enum Target {
    Device(u64),
    /// Registered host memory.
    Host(usize),
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self { number_last: DEFAULT, default: VecDeque::new(), streams: BTreeMap::new(), events: BTreeMap::new() }
    }

    pub(crate) fn create(&mut self) -> usize {
        self.number_last += 1;
        self.streams.insert(self.number_last, VecDeque::new());
        self.number_last
    }

    pub(crate) fn create_event(&mut self) -> usize {
        self.number_last += 1;
        self.events.insert(self.number_last, None);
        self.number_last
    }

    pub(crate) fn destroy_event(&mut self, violations: &mut Violations, event: usize) -> Answer {
        self.check_event(violations, event)?;
        self.events.remove(&event);
        Ok(())
    }

    /// Puts a mark into a stream, and forgets an earlier one of the event.
    pub(crate) fn record(&mut self, violations: &mut Violations, event: usize, stream: usize) -> Answer {
        self.check_event(violations, event)?;
        self.push(violations, stream, Work::Mark(event))?;
        self.events.insert(event, Some(stream));
        Ok(())
    }

    pub(crate) fn push(&mut self, violations: &mut Violations, stream: usize, work: Work) -> Answer {
        self.queue(violations, stream)?.push_back(work);
        Ok(())
    }

    /// The stream in which an event is still to come, if any.
    pub(crate) fn stream_of(&self, violations: &mut Violations, event: usize) -> Answer<Option<usize>> {
        self.check_event(violations, event)?;
        Ok(self.events[&event])
    }

    pub(crate) fn left(&self) -> Vec<String> {
        let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        [count(self.streams.len(), "streams"), count(self.events.len(), "events")].into_iter().flatten().collect()
    }

    fn check_event(&self, violations: &mut Violations, event: usize) -> Answer {
        if self.events.contains_key(&event) {
            return Ok(());
        }
        Err(violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, "use of an event that is not, or no longer, there"))
    }

    fn queue(&mut self, violations: &mut Violations, stream: usize) -> Answer<&mut VecDeque<Work>> {
        if stream == DEFAULT {
            return Ok(&mut self.default);
        }
        self.streams.get_mut(&stream).ok_or_else(|| {
            violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, "use of a stream that is not, or no longer, there")
        })
    }
}

impl Driver {
    /// Carries out what a stream has to do; all of it, or as far as a mark.
    pub(crate) fn run(&mut self, stream: usize, until: Option<usize>) -> Answer {
        while let Some(work) = self.streams.queue(&mut self.violations, stream)?.pop_front() {
            match work {
                Work::Copy { from, to, bytes } => self.copy(from, &to, bytes)?,
                Work::Sum(work) => self.sum(&work)?,
                Work::Mark(event) => {
                    let mark = self.streams.events.get_mut(&event).filter(|mark| **mark == Some(stream));
                    mark.into_iter().for_each(|mark| *mark = None);
                    if until == Some(event) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for an event.
    pub(crate) fn run_to_event(&mut self, event: usize) -> Answer {
        match self.streams.stream_of(&mut self.violations, event)? {
            Some(stream) => self.run(stream, Some(event)),
            None => Ok(()),
        }
    }

    /// A stream ends what it has to do before it goes.
    pub(crate) fn destroy_stream(&mut self, stream: usize) -> Answer {
        self.run(stream, None)?;
        self.streams.streams.remove(&stream);
        Ok(())
    }

    /// Carries a copy out, and checks once more that both ends may be used.
    fn copy(&mut self, from: Source, to: &Target, bytes: usize) -> Answer {
        let copy = match from {
            Source::Device(at) => self.memory.read(&mut self.violations, at, bytes)?,
            Source::Staged(copy) => copy,
            Source::Host(address) => {
                self.check_registered(address, bytes)?;
                // SAFETY: the memory is registered, and whoever registered it keeps it mapped until it is not.
                unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
            }
        };
        match *to {
            Target::Device(at) => self.memory.write(&mut self.violations, at, &copy),
            Target::Host(address) => {
                self.check_registered(address, bytes)?;
                // SAFETY: as above; and who began the copy lets nobody else use the memory before it has ended.
                unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), address as *mut u8, bytes) };
                Ok(())
            }
        }
    }

    /// Whether host memory may be copied from or to while the program goes on.
    pub(crate) fn check_registered(&mut self, address: usize, bytes: usize) -> Answer {
        if self.host.holds(address, bytes) {
            return Ok(());
        }
        let rule = "an asynchronous copy from or to host memory that is not, or no longer, registered";
        Err(self.violations.add(CUresult::CUDA_ERROR_INVALID_VALUE, rule))
    }
}
