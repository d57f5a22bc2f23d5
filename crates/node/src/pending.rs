//! Writes that return at once: threads copy the bytes into the reserve while the program goes on.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{cached::Cached, client::ClientFile};

/// How many writes of one client may be pending. Another one waits until there are fewer.
pub const PENDING_MAX: usize = 64;
/// As many files are written at once. One copy fills the bandwidth of memory to a good part.
const THREADS_MAX: usize = 4;

/// A write that was begun.
///
/// Its bytes are in memory of the node, and its buffer was dropped, when it is done. Dropping this
/// does not end the write.
#[derive(Debug, Clone)]
pub struct Pending(Arc<Done>);

#[derive(Debug, Default)]
struct Done {
    outcome: Mutex<Option<Result<(), Failure>>>,
    done: Condvar,
}

/// An error that can be told several times.
#[derive(Debug, Clone)]
struct Failure {
    errno: Option<i32>,
    kind: io::ErrorKind,
    message: String,
}

impl From<&io::Error> for Failure {
    fn from(error: &io::Error) -> Self {
        Self { errno: error.raw_os_error(), kind: error.kind(), message: error.to_string() }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(failure.kind, failure.message),
        }
    }
}

impl Pending {
    /// Whether it is done, well or not.
    pub fn is_done(&self) -> bool {
        self.lock().is_some()
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// Why the bytes were not taken, or why earlier ones of this file could not be drained, as for
    /// a write that returns when it is done.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            if let Some(outcome) = self.wait_for(Duration::from_secs(3600)) {
                return outcome;
            }
        }
    }

    /// As [`wait`](Self::wait), for some time; `None` if it is not done by then.
    pub fn wait_for(&self, patience: Duration) -> Option<io::Result<()>> {
        let outcome = self.lock();
        let (outcome, _) = self
            .0
            .done
            .wait_timeout_while(outcome, patience, |outcome| outcome.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        outcome.clone().map(|outcome| outcome.map_err(Into::into))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<(), Failure>>> {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, outcome: Result<(), Failure>) {
        *self.lock() = Some(outcome);
        self.0.done.notify_all();
    }
}

/// A write that is to be carried out.
struct Job {
    serial: u64,
    file: Arc<ClientFile>,
    offset: u64,
    bytes: Box<dyn AsRef<[u8]> + Send>,
    pending: Pending,
}

/// Which file it is: where it lies in memory, while a job has it.
fn identity(file: &Arc<ClientFile>) -> usize {
    Arc::as_ptr(file).addr()
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The file and the serial number of each write that is being carried out.
    running: Vec<(usize, u64)>,
    serial: u64,
    idle: usize,
    threads: Vec<thread::JoinHandle<()>>,
    is_closed: bool,
}

impl Queue {
    fn count(&self) -> usize {
        self.jobs.len() + self.running.len()
    }

    /// The next write. Those of one file are carried out one after the other, in their order.
    fn next(&mut self) -> Option<Job> {
        let is_free = |job: &Job| self.running.iter().all(|(file, _)| *file != identity(&job.file));
        let position = self.jobs.iter().position(is_free)?;
        let job = self.jobs.remove(position)?;
        self.running.push((identity(&job.file), job.serial));
        Some(job)
    }

    /// Whether writes of a file up to a serial number are pending.
    fn has(&self, file: usize, serial: u64) -> bool {
        let is_of_file = |found: usize, number: u64| found == file && number <= serial;
        self.running.iter().any(|(found, number)| is_of_file(*found, *number))
            || self.jobs.iter().any(|job| is_of_file(identity(&job.file), job.serial))
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes threads.
    work: Condvar,
    /// Wakes who waits for fewer pending writes.
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_so`, for some time. Returns whether it is.
    fn wait_until(&self, patience: Duration, is_so: impl Fn(&Queue) -> bool) -> bool {
        let queue = self.lock();
        let waited = self.ended.wait_timeout_while(queue, patience, |queue| !is_so(queue));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// The threads of a client that carry out its pending writes. They are started as they are needed.
#[derive(Default)]
pub(crate) struct Writers(Arc<Shared>);

impl Writers {
    fn push(&self, file: &Arc<ClientFile>, offset: u64, bytes: Box<dyn AsRef<[u8]> + Send>) -> io::Result<Pending> {
        let mut queue = self.0.lock();
        while queue.count() >= PENDING_MAX {
            queue = self.0.ended.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        // Another write of the same file would have to wait for the one before.
        let is_first = !queue.has(identity(file), u64::MAX);
        if is_first && queue.idle <= queue.jobs.len() && queue.threads.len() < THREADS_MAX {
            let shared = Arc::clone(&self.0);
            match thread::Builder::new().name("outcrop-write".to_owned()).spawn(move || run(&shared)) {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        queue.serial += 1;
        let pending = Pending(Arc::default());
        let job = Job { serial: queue.serial, file: Arc::clone(file), offset, bytes, pending: pending.clone() };
        queue.jobs.push_back(job);
        self.0.work.notify_one();
        Ok(pending)
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        // Nothing is pending: each write has its file, which has the client.
        let mut queue = self.0.lock();
        queue.is_closed = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.0.work.notify_all();
        // One of them may be the one that drops the last file.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    loop {
        let mut queue = shared.lock();
        let job = loop {
            match queue.next() {
                Some(job) => break job,
                None if queue.is_closed => return,
                None => {
                    queue.idle += 1;
                    queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                    queue.idle -= 1;
                }
            }
        };
        drop(queue);
        carry_out(shared, job);
    }
}

fn carry_out(shared: &Shared, job: Job) {
    let Job { serial, file, offset, bytes, pending } = job;
    // Buffers are the program's: nobody may wait for ever because one of them panics.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let outcome = file.write(offset, (*bytes).as_ref());
        drop(bytes);
        outcome
    }));
    let outcome = match outcome {
        Ok(outcome) => outcome.map_err(|error| Failure::from(&error)),
        Err(_) => Err(Failure::from(&io::Error::other("the buffer of a pending write has panicked"))),
    };
    // Whoever has waited has the file alone.
    drop(file);
    shared.lock().running.retain(|(_, running)| *running != serial);
    pending.end(outcome);
    shared.ended.notify_all();
}

impl ClientFile {
    /// Begins to write: returns at once, or when fewer than [`PENDING_MAX`] writes are pending. The
    /// bytes are dropped when they are in memory of the node. Writes of this kind to one file are
    /// carried out in their order; see [`settle`](Self::settle) for other calls.
    ///
    /// ```no_run
    /// # use std::{fs::File, sync::Arc};
    /// # use outcrop_node::{Client, Connect};
    /// # fn main() -> std::io::Result<()> {
    /// let client = Client::connect(&Connect::default())?;
    /// let file = File::options().read(true).write(true).create(true).open("output")?;
    /// let file = Arc::new(client.open(file, "output".as_ref())?);
    /// let state: Arc<[u8]> = Arc::from(vec![7; 1 << 20]);
    /// let pending = file.write_async(0, Arc::clone(&state))?;
    /// // The program computes meanwhile.
    /// pending.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If no thread can be started. What happens to the write is in [`Pending::wait`].
    pub fn write_async(self: &Arc<Self>, offset: u64, bytes: impl AsRef<[u8]> + Send + 'static) -> io::Result<Pending> {
        self.writers().push(self, offset, Box::new(bytes))
    }

    /// Waits until another write can be begun at once. Returns whether it can.
    pub fn wait_for_room(&self, patience: Duration) -> bool {
        self.writers().0.wait_until(patience, |queue| queue.count() < PENDING_MAX)
    }

    /// Waits until all writes of this file that are pending now are done. Returns whether they are.
    /// Other calls do not wait for pending writes by themselves.
    pub fn settle(self: &Arc<Self>, patience: Duration) -> bool {
        let shared = &self.writers().0;
        let (file, serial) = (identity(self), shared.lock().serial);
        shared.wait_until(patience, |queue| !queue.has(file, serial))
    }
}
