//! Streams and events. What is put into a stream is carried out when somebody waits for it, not
//! before.

use std::collections::{BTreeMap, VecDeque};

use cudarc::driver::sys::CUresult;

use crate::{
    driver::{Answer, Driver, Violations},
    kernels::{HashBlocks, SumWords},
    memory::invalid,
};

/// The one flag of a stream, and those of events.
const NON_BLOCKING: u32 = 1;
const EVENT_FLAGS: u32 = 7;
const INTERPROCESS: u32 = 4;
const INTERPROCESS_AND_NO_TIMING: u32 = 4 | 2;

/// The stream that every context has.
pub(crate) const DEFAULT: usize = 0;

/// All streams and events, by the numbers that stand for them.
pub(crate) struct Streams {
    number_last: usize,
    /// What the default stream of each device has to do.
    defaults: BTreeMap<usize, VecDeque<Work>>,
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
}

/// A stream that a program has made.
struct Stream {
    device: usize,
    /// Whether it and the default stream wait for each other.
    is_blocking: bool,
    work: VecDeque<Work>,
}

struct Event {
    device: usize,
    /// The device and the stream in which it is still to come.
    awaited: Option<(usize, usize)>,
}

/// What a stream has to do.
pub(crate) enum Work {
    Copy { from: Source, to: Target, bytes: usize },
    Sum(SumWords),
    Hash(HashBlocks),
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
        Self { number_last: DEFAULT, defaults: BTreeMap::new(), streams: BTreeMap::new(), events: BTreeMap::new() }
    }

    pub(crate) fn create(&mut self, violations: &mut Violations, device: usize, flags: u32) -> Answer<usize> {
        if flags > NON_BLOCKING {
            return invalid(violations, "cuStreamCreate with flags that there are none of");
        }
        self.number_last += 1;
        let stream = Stream { device, is_blocking: flags != NON_BLOCKING, work: VecDeque::new() };
        self.streams.insert(self.number_last, stream);
        Ok(self.number_last)
    }

    pub(crate) fn create_event(&mut self, violations: &mut Violations, device: usize, flags: u32) -> Answer<usize> {
        if flags > EVENT_FLAGS || flags & INTERPROCESS_AND_NO_TIMING == INTERPROCESS {
            return invalid(violations, "cuEventCreate with flags that there are none of, or that exclude each other");
        }
        self.number_last += 1;
        self.events.insert(self.number_last, Event { device, awaited: None });
        Ok(self.number_last)
    }

    pub(crate) fn destroy_event(&mut self, violations: &mut Violations, event: usize) -> Answer {
        self.check_event(violations, event)?;
        self.events.remove(&event);
        Ok(())
    }

    /// Puts a mark into a stream, and forgets an earlier one of the event.
    pub(crate) fn record(&mut self, violations: &mut Violations, device: usize, event: usize, stream: usize) -> Answer {
        self.check_event(violations, event)?;
        let device = self.device_of(violations, device, stream)?;
        if self.events[&event].device != device {
            let rule = "cuEventRecord in a stream of another device than the event's";
            return Err(violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, rule));
        }
        self.push(violations, device, stream, Work::Mark(event))?;
        self.events.insert(event, Event { device, awaited: Some((device, stream)) });
        Ok(())
    }

    fn push(&mut self, violations: &mut Violations, device: usize, stream: usize, work: Work) -> Answer {
        self.queue(violations, device, stream)?.push_back(work);
        Ok(())
    }

    /// The device on which a stream does its work.
    pub(crate) fn device_of(&self, violations: &mut Violations, device: usize, stream: usize) -> Answer<usize> {
        if stream == DEFAULT {
            return Ok(device);
        }
        self.streams.get(&stream).map(|stream| stream.device).ok_or_else(|| no_stream(violations))
    }

    /// The device and the stream in which an event is still to come, if any.
    pub(crate) fn awaited(&self, violations: &mut Violations, event: usize) -> Answer<Option<(usize, usize)>> {
        self.check_event(violations, event)?;
        Ok(self.events[&event].awaited)
    }

    /// What streams and events of a device there are, and what its default stream has not done.
    pub(crate) fn left(&self, device: usize) -> Vec<String> {
        let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let streams = self.streams.values().filter(|stream| stream.device == device).count();
        let events = self.events.values().filter(|event| event.device == device).count();
        let copies = self.defaults.get(&device).map_or(0, VecDeque::len);
        let left = [count(streams, "streams"), count(events, "events"), count(copies, "copies not waited for")];
        left.into_iter().flatten().collect()
    }

    fn check_event(&self, violations: &mut Violations, event: usize) -> Answer {
        if self.events.contains_key(&event) {
            return Ok(());
        }
        Err(violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, "use of an event that is not, or no longer, there"))
    }

    fn queue(&mut self, violations: &mut Violations, device: usize, stream: usize) -> Answer<&mut VecDeque<Work>> {
        if stream == DEFAULT {
            return Ok(self.defaults.entry(device).or_default());
        }
        self.streams.get_mut(&stream).map(|stream| &mut stream.work).ok_or_else(|| no_stream(violations))
    }

    /// The streams that come to their end before this one goes on: the default one waits for
    /// blocking ones, and they for it.
    fn before(&self, device: usize, stream: usize) -> Vec<usize> {
        if stream == DEFAULT {
            let blocking = |(_, stream): &(&usize, &Stream)| stream.is_blocking && stream.device == device;
            return self.streams.iter().filter(blocking).map(|(&number, _)| number).collect();
        }
        self.streams.get(&stream).filter(|stream| stream.is_blocking).map(|_| DEFAULT).into_iter().collect()
    }
}

fn no_stream(violations: &mut Violations) -> CUresult {
    violations.add(CUresult::CUDA_ERROR_INVALID_HANDLE, "use of a stream that is not, or no longer, there")
}

impl Driver {
    /// Puts work into a stream, after what it has to wait for; `device` is that of the current
    /// context.
    pub(crate) fn enqueue(&mut self, device: usize, stream: usize, work: Work) -> Answer {
        let device = self.streams.device_of(&mut self.violations, device, stream)?;
        self.run_before(device, stream)?;
        self.streams.push(&mut self.violations, device, stream, work)
    }

    fn run_before(&mut self, device: usize, stream: usize) -> Answer {
        for before in self.streams.before(device, stream) {
            self.run_alone(device, before, None)?;
        }
        Ok(())
    }

    /// Carries out what a stream has to do; all of it, or as far as a mark. `device` is that of the
    /// current context.
    pub(crate) fn run(&mut self, device: usize, stream: usize, until: Option<usize>) -> Answer {
        let device = self.streams.device_of(&mut self.violations, device, stream)?;
        self.run_before(device, stream)?;
        self.run_alone(device, stream, until)
    }

    fn run_alone(&mut self, device: usize, stream: usize, until: Option<usize>) -> Answer {
        while let Some(work) = self.streams.queue(&mut self.violations, device, stream)?.pop_front() {
            match work {
                Work::Copy { from, to, bytes } => self.copy(from, &to, bytes)?,
                Work::Sum(work) => self.sum(&work)?,
                Work::Hash(work) => self.hash(&work)?,
                Work::Mark(event) => {
                    let here = Some((device, stream));
                    let mark = self.streams.events.get_mut(&event).filter(|mark| mark.awaited == here);
                    mark.into_iter().for_each(|mark| mark.awaited = None);
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
        match self.streams.awaited(&mut self.violations, event)? {
            Some((device, stream)) => self.run(device, stream, Some(event)),
            None => Ok(()),
        }
    }

    /// A stream ends what it has to do before it goes.
    pub(crate) fn destroy_stream(&mut self, device: usize, stream: usize) -> Answer {
        self.run(device, stream, None)?;
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
                // SAFETY: the memory is registered, and whoever registered it keeps it mapped until
                // it is not.
                unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }.to_vec()
            }
        };
        match *to {
            Target::Device(at) => self.memory.write(&mut self.violations, at, &copy),
            Target::Host(address) => {
                self.check_registered(address, bytes)?;
                // SAFETY: as above; and who began the copy lets nobody else use the memory before
                // it has ended.
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
