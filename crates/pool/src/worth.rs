//! Persisting when it is worth it: what a pool tells the cost model, and what time it is.

use std::{
    fs::File,
    io::Read,
    path::Path,
    time::{Duration, Instant},
};

use outcrop_cost::{Model, Verdict, Worth};
use outcrop_plan::Timestamp;

use crate::{Error, Features, Options, Part, Pool, Result, Structure};

/// The mean time between failures if a program says nothing.
pub(crate) const MTBF: Duration = Duration::from_secs(24 * 60 * 60);

/// What became of [`Pool::persist_if_worth_it`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// This version is durable.
    Persisted(u64),
    /// It is not worth it yet.
    Skipped {
        /// What persisting would take.
        predicted: Duration,
        /// The work since the last durable version, which a failure would cost.
        at_risk: Duration,
    },
}

impl Pool {
    /// Makes a version of all structures durable, as [`persist`](Self::persist) does, if that is
    /// worth it: if the work since the last version is worth more than what persisting takes. Call
    /// it at the end of each iteration; a call that skips takes about a microsecond.
    ///
    /// What persisting takes is predicted from what has changed (see [`Options::model`]), and
    /// corrected by what earlier calls took. [`Options::rule`] and [`Options::mtbf`] say how much
    /// work is worth that.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("sim.pool");
    /// use outcrop_pool::{Block, Options, Outcome, Pool};
    /// use std::time::Duration;
    ///
    /// let pool = Pool::open(&path, Options::versions(2).mtbf(Duration::from_secs(6 * 3600)))?;
    /// let mut heat = pool.array::<f64>("heat", 100_000, Block::default())?;
    /// for step in 0..100 {
    ///     heat[step] += 1.0;
    ///     match pool.persist_if_worth_it(&mut [&mut heat])? {
    ///         Outcome::Persisted(version) => println!("version {version}"),
    ///         Outcome::Skipped { predicted, at_risk } => assert!(at_risk > Duration::ZERO || predicted > at_risk),
    ///     }
    /// }
    /// let last = pool.persist(&mut [&mut heat])?; // the result, whatever it costs
    /// # assert!(last <= 101);
    /// # Ok::<(), outcrop_pool::Error>(())
    /// ```
    ///
    /// An existing loop calls it by two attributes:
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("sim.pool");
    /// use outcrop_pool::{Array, Block, Options, Pool, Result, persistent};
    ///
    /// #[persistent(pool, heat, step)]
    /// fn solve(pool: &Pool, heat: &mut Array<f64>, step: &mut Array<u64>) -> Result<()> {
    ///     #[persist]
    ///     while step[0] < 1000 {
    ///         step[0] += 1;
    ///         if step[0] % 2 == 0 {
    ///             continue; // ends the iteration, which persists
    ///         }
    ///         heat[7] += 0.5;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let pool = Pool::open(&path, Options::versions(2))?;
    /// let mut heat = pool.array("heat", 100_000, Block::default())?;
    /// let mut step = pool.array("step", 1, Block::default())?;
    /// solve(&pool, &mut heat, &mut step)?; // a later run continues with the newest version
    /// assert_eq!(heat[7], 250.0);
    /// # Ok::<(), outcrop_pool::Error>(())
    /// ```
    pub fn persist_if_worth_it(&self, structures: &mut [&mut dyn Structure]) -> Result<Outcome> {
        // A mistake shows in the first call, and not only in the first that persists.
        let parts: Vec<&mut Part> = structures.iter_mut().flat_map(|structure| structure.parts().0).collect();
        let mut state = self.0.owned_state()?;
        self.check_all(&state, &parts)?;
        drop(parts);
        if state.file.is_poisoned {
            return Err(Error::Poisoned { location: state.file.location.clone() });
        }
        let now = state.judge.now();
        let verdict = state.judge.worth.judge(now, || features(structures));
        drop(state);
        match verdict {
            Verdict::Persist => self.persist(structures).map(Outcome::Persisted),
            Verdict::Skip { predicted_ns, at_risk_ns } => Ok(Outcome::Skipped {
                predicted: Duration::from_nanos(predicted_ns as u64),
                at_risk: Duration::from_nanos(at_risk_ns),
            }),
        }
    }

    /// Whether persisting is worth it by now, for structures that find out only at some cost what
    /// has changed: that is asked only if it could matter. This pool must not be used meanwhile.
    #[doc(hidden)]
    pub fn is_worth_it(&self, features: impl FnOnce() -> Features) -> Result<bool> {
        let shared = &self.0;
        let judge = &mut shared.owned_state()?.judge;
        Ok(judge.worth.judge(judge.now(), features) == Verdict::Persist)
    }

    /// What the cost model is told of structures: how large they are, and what has changed.
    pub fn features(&self, structures: &mut [&mut dyn Structure]) -> Features {
        features(structures)
    }
}

/// What `#[persistent]` refuses. A function that cannot fail:
///
/// ```compile_fail
/// #[outcrop_pool::persistent(pool, heat)]
/// fn solve(pool: &outcrop_pool::Pool, heat: &mut outcrop_pool::Array<f64>) {
///     #[persist]
///     for step in 0..10 { heat[step] += 1.0; }
/// }
/// ```
///
/// No mark, and a mark on something else:
///
/// ```compile_fail
/// #[outcrop_pool::persistent(pool, heat)]
/// fn solve(pool: &outcrop_pool::Pool, heat: &mut outcrop_pool::Array<f64>) -> outcrop_pool::Result<()> {
///     for step in 0..10 { heat[step] += 1.0; }
///     Ok(())
/// }
/// ```
///
/// ```compile_fail
/// #[outcrop_pool::persistent(pool, heat)]
/// fn solve(pool: &outcrop_pool::Pool, heat: &mut outcrop_pool::Array<f64>) -> outcrop_pool::Result<()> {
///     #[persist]
///     if true { heat[0] += 1.0; }
///     Ok(())
/// }
/// ```
///
/// An element that is borrowed across the call:
///
/// ```compile_fail
/// #[outcrop_pool::persistent(pool, heat)]
/// fn solve(pool: &outcrop_pool::Pool, heat: &mut outcrop_pool::Array<f64>) -> outcrop_pool::Result<()> {
///     let first = &mut heat[0];
///     #[persist]
///     for step in 0..10 { *first += 1.0; }
///     Ok(())
/// }
/// ```
///
/// The same without that:
///
/// ```
/// #[outcrop_pool::persistent(pool, heat)]
/// fn solve(pool: &outcrop_pool::Pool, heat: &mut outcrop_pool::Array<f64>) -> outcrop_pool::Result<()> {
///     #[persist]
///     for step in 0..10 { heat[0] += 1.0; }
///     Ok(())
/// }
/// ```
#[cfg(doctest)]
struct Refused;

/// What structures are to the cost model.
pub(crate) fn features(structures: &mut [&mut dyn Structure]) -> Features {
    Features::together(structures.iter_mut().map(|structure| {
        let kind = structure.kind();
        let parts = structure.parts().0;
        // A structure of several arrays is one, and its elements are those of the first: cells or
        // nodes, and not links or edges.
        let first = parts.iter().find(|part| part.described.kind().is_none_or(|(_, part)| part == 0));
        let element_bytes = first.map_or(0, |part| u64::from(part.described.element_bytes));
        let parts = Features::together(parts.into_iter().map(|part| part.features(kind)));
        Features { kind, structures: 1, element_bytes, ..parts }
    }))
}

/// What decides, and a clock for it.
pub(crate) struct Judge {
    worth: Worth,
    start: Instant,
}

impl Judge {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let model = options.model.as_deref().map_or_else(|| Ok(Model::built_in()), read_model)?;
        let mtbf_ns = u64::try_from(options.mtbf.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { worth: Worth::new(options.rule, mtbf_ns, model, Timestamp(0)), start: Instant::now() })
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A call that began at `start` has made a version durable, after so much time that finding
    /// out what has changed took.
    pub(crate) fn persisted(&mut self, start: Timestamp, before: Duration, features: &Features) {
        let now = self.now();
        let before_ns = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
        self.worth.persisted(now, features, (now.0 - start.0).saturating_add(before_ns));
    }

    /// The structures are what is durable.
    pub(crate) fn restored(&mut self) {
        self.worth.restored(self.now());
    }
}

fn read_model(path: &Path) -> Result<Model> {
    let wrong = |problem: String| Error::Model { path: path.display().to_string(), problem };
    let mut text = String::new();
    // One byte more than a model may have says that it is none.
    let read = File::open(path).and_then(|file| file.take(Model::BYTES_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| wrong(error.to_string()))?;
    Model::from_text(&text).map_err(|error| wrong(error.to_string()))
}
