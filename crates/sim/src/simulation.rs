//! Runs an experiment: programs compute, save and take until all of them have finished.

use crate::{
    Error,
    baseline::{NoBuffering, OnDemand},
    error::Result,
    experiment::{Activity, Approach, Experiment, Outcome, ProcessOutcome, Workload},
    path::Path,
    planned::Planned,
    store::{Step, Store},
    world::{Task, Wake, World},
};

/// Runs an experiment to its end. The same experiment always has the same outcome.
///
/// # Errors
/// If the experiment is inconsistent, or its layers are too small.
pub fn simulate(experiment: &Experiment) -> Result<Outcome> {
    experiment.check()?;
    let mut world = World::new(&experiment.machine, &experiment.groups, experiment.has_timeline);
    let mut processes = Vec::new();
    for (node, group) in experiment.groups.iter().enumerate() {
        for (local, workload) in group.workloads.iter().enumerate() {
            let has_small_pages = experiment.approach == Approach::IncrementalMemset;
            let path = Path::new(&experiment.machine, processes.len(), node, local, has_small_pages);
            processes.push(Process::new(experiment, workload, path)?);
        }
    }
    processes.iter_mut().for_each(|process| process.begin(&mut world));
    while let Some(Wake { process, task }) = world.next() {
        processes[process].wake(&mut world, task)?;
    }
    if let Some(process) = processes.iter().position(|process| !process.is_through()) {
        let steps = processes[process].step;
        return Err(Error::Stuck { process, seconds: world.now_ns as f64 / 1e9, steps });
    }
    let processes: Vec<_> = processes.into_iter().map(Process::outcome).collect();
    let ends = processes.iter().zip(experiment.groups.iter().flat_map(|group| &group.workloads));
    let wall_ns = ends.map(|(process, workload)| workload.start_ns + process.wall_ns).max().unwrap_or(0);
    Ok(Outcome { wall_ns, processes, timeline: world.timeline.unwrap_or_default() })
}

/// A program and its store.
struct Process {
    number: usize,
    workload: Workload,
    store: Box<dyn Store>,
    /// How many saves and takes are done. All saves come before all takes.
    step: usize,
    /// Since when it computes or waits.
    since_ns: u64,
    is_waiting: bool,
    outcome: ProcessOutcome,
}

impl Process {
    fn new(experiment: &Experiment, workload: &Workload, path: Path) -> Result<Self> {
        let number = path.process();
        let store: Box<dyn Store> = match experiment.approach {
            Approach::OnDemand => Box::new(OnDemand::new(experiment, path)),
            Approach::NoBuffering => Box::new(NoBuffering::new(experiment, path)?),
            _ => Box::new(Planned::new(experiment, path, workload.is_copied_back)?),
        };
        let outcome = ProcessOutcome { saved_bytes: workload.sizes.iter().sum(), ..ProcessOutcome::default() };
        Ok(Self { number, workload: workload.clone(), store, step: 0, since_ns: 0, is_waiting: false, outcome })
    }

    fn saves(&self) -> usize {
        self.workload.sizes.len()
    }

    fn is_through(&self) -> bool {
        self.step == 2 * self.saves()
    }

    fn is_forward(&self) -> bool {
        self.step < self.saves()
    }

    /// The key of the snapshot that a backward step takes.
    fn taken_key(&self, step: usize) -> u64 {
        (2 * self.saves() - 1 - step) as u64
    }

    fn begin(&mut self, world: &mut World) {
        self.since_ns = self.workload.start_ns;
        if self.saves() > 0 {
            world.wake_at(self.workload.start_ns, self.number, Task::Begin);
        }
    }

    fn wake(&mut self, world: &mut World, task: Task) -> Result<()> {
        if task == Task::Begin {
            world.wake_at(world.now_ns + self.workload.forward_gap_ns, self.number, Task::Computed);
            return self.store.begin(world);
        }
        if task == Task::Computed {
            return self.computed(world);
        }
        match self.store.wake(world, task)? {
            Step::Done => self.served(world),
            Step::Pending => Ok(()),
        }
    }

    /// The program has computed, and saves or takes next.
    fn computed(&mut self, world: &mut World) -> Result<()> {
        let is_last = self.is_through();
        let activity = if self.is_forward() { Activity::Forward } else { Activity::Backward };
        world.record(self.number, activity, self.since_ns);
        // A snapshot that was taken is held while the program computes.
        if self.step > self.saves() {
            self.store.give_back(world, self.taken_key(self.step - 1))?;
        }
        if is_last {
            self.outcome.wall_ns = world.now_ns - self.workload.start_ns;
            return Ok(());
        }
        self.request(world)
    }

    fn request(&mut self, world: &mut World) -> Result<()> {
        self.since_ns = world.now_ns;
        self.is_waiting = true;
        let step = if self.is_forward() {
            self.store.save(world, self.step as u64, self.workload.sizes[self.step])?
        } else {
            self.store.take(world, self.taken_key(self.step))?
        };
        match step {
            Step::Done => self.served(world),
            Step::Pending => Ok(()),
        }
    }

    /// The save or take is done, and the program continues.
    fn served(&mut self, world: &mut World) -> Result<()> {
        debug_assert!(self.is_waiting, "a store answers only who asks");
        self.is_waiting = false;
        let waited_ns = world.now_ns - self.since_ns;
        if self.is_forward() {
            self.outcome.save_blocked_ns += waited_ns;
            world.record(self.number, Activity::Save, self.since_ns);
        } else {
            self.outcome.take_blocked_ns += waited_ns;
            world.record(self.number, Activity::Take, self.since_ns);
        }
        self.step += 1;
        self.since_ns = world.now_ns;
        if self.step == self.saves() {
            self.outcome.forward_ns = world.now_ns - self.workload.start_ns;
            self.outcome.strategy = self.store.strategy();
            // The backward pass begins with the last snapshot of the forward pass.
            return self.request(world);
        }
        let gap_ns = if self.is_forward() { self.workload.forward_gap_ns } else { self.workload.backward_gap_ns };
        world.wake_at(world.now_ns + gap_ns, self.number, Task::Computed);
        Ok(())
    }

    fn outcome(mut self) -> ProcessOutcome {
        self.outcome.lane_bytes = self.store.lane_bytes();
        self.outcome
    }
}
