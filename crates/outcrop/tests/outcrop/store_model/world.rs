//! The real store: ranks in threads, each with its own store and session, on real directories.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use outcrop::{
    Error, Reached, Result, Session, Size, Store,
    layers::files::{DiskFiles, Files},
    store::SharedDirectory,
};
use outcrop_crash::{Failing, Fault};

use super::{
    Checked, SESSION,
    case::{Case, FaultPlan, Settings, Wait},
    disks::{Disks, FileId},
    memory::Memory,
    model::Model,
};
use crate::common::trees::below;

/// The timeout between ranks: longer than anything takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One rank: its memory, and what it has opened.
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) memory: Memory,
    opened: Option<(Session, Store)>,
}

impl Member {
    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.opened.as_mut().expect("it is open").0
    }

    /// Its session and its memory.
    pub(super) fn parts(&mut self) -> (&mut Session, &mut Memory) {
        (&mut self.opened.as_mut().expect("it is open").0, &mut self.memory)
    }
}

/// A session that is open on all ranks.
pub(super) struct Running {
    pub(super) settings: Settings,
    /// By rank: a wrapper around all its directories.
    whole: Vec<Failing>,
    /// By layer and rank: a wrapper around one directory.
    parts: Vec<Vec<Failing>>,
    /// Directories that were made to fail, including those that may still fail.
    pub(super) faulty: BTreeSet<(usize, u32)>,
    pub(super) armed: BTreeSet<(usize, u32)>,
    pub(super) is_killed: bool,
    /// Whether a call has failed.
    pub(super) has_failed: bool,
    /// Attempts that no call has reported as failed, in order.
    pub(super) saved: Vec<u64>,
    /// Files that are missing or have another length, and the first attempt that began after that.
    pub(super) lost: Vec<(FileId, u64)>,
    /// Layers on which that happened while it was open.
    pub(super) cut: BTreeSet<usize>,
    /// The version of the last save.
    pub(super) tried: Option<u64>,
}

/// A store, its ranks, and the model of what must be in it.
pub(super) struct World {
    pub(super) root: PathBuf,
    pub(super) case: Case,
    pub(super) members: Vec<Member>,
    pub(super) model: Model,
    pub(super) disks: Disks,
    pub(super) running: Option<Running>,
    pub(super) next_stamp: u64,
    /// Layers whose directories were moved, or whose manifests were damaged.
    pub(super) disturbed: BTreeSet<usize>,
    /// Those among them whose directories were moved.
    pub(super) moved: BTreeSet<usize>,
    /// Whether nothing has been done yet that could leave files behind.
    pub(super) is_calm: bool,
    /// Whether ranks have shared blocks. Then a pack that its rank does not need may stay, because
    /// another rank needed it at the last look.
    pub(super) has_shared: bool,
}

impl World {
    pub(super) fn new(root: &Path, case: &Case) -> Self {
        let model = Model::new(case.ranks, case.layers);
        let member = |rank| Member { rank, memory: Memory::new(rank), opened: None };
        Self {
            root: root.to_owned(),
            disks: Disks::new(root, case.is_local, &model),
            case: case.clone(),
            members: (0..case.ranks).map(member).collect(),
            model,
            running: None,
            next_stamp: 1,
            disturbed: BTreeSet::new(),
            moved: BTreeSet::new(),
            is_calm: true,
            has_shared: false,
        }
    }

    /// All ranks do the same at the same time.
    pub(super) fn all<T: Send>(&mut self, work: impl Fn(&mut Member) -> T + Sync) -> Vec<T> {
        if let [member] = &mut self.members[..] {
            return vec![work(member)];
        }
        let work = &work;
        thread::scope(|scope| {
            let ranks: Vec<_> = self.members.iter_mut().map(|member| scope.spawn(move || work(member))).collect();
            let join = |rank: thread::ScopedJoinHandle<'_, T>| {
                rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            ranks.into_iter().map(join).collect()
        })
    }

    /// Opens the session on all ranks, or on none if it fails on one.
    pub(super) fn open(&mut self, settings: &Settings) -> Vec<Result<()>> {
        let (ranks, layers) = (self.case.ranks, self.case.layers);
        let whole = |_| Failing::new(Arc::new(DiskFiles::create(&self.root).unwrap()));
        let whole: Vec<Failing> = (0..ranks).map(whole).collect();
        let part = |layer: usize, rank: u32| {
            let name = self.disks.name(layer, rank);
            let all: Arc<dyn Files> = Arc::new(whole[rank as usize].clone());
            all.make_dir(name).unwrap();
            Failing::new(below(&all, name))
        };
        let parts: Vec<Vec<Failing>> =
            (0..layers).map(|layer| (0..ranks).map(|rank| part(layer, rank)).collect()).collect();
        let mut running = Running {
            settings: settings.clone(),
            whole,
            parts,
            faulty: BTreeSet::new(),
            armed: BTreeSet::new(),
            is_killed: false,
            has_failed: false,
            saved: Vec::new(),
            lost: Vec::new(),
            cut: BTreeSet::new(),
            tried: None,
        };
        if let Some((layer, rank, fault)) = settings.fault {
            running.fail(layer, rank, fault);
        }
        let dirs = |rank| (0..layers).map(|layer| self.disks.layer(layer, rank)).collect::<Vec<_>>();
        let dirs: Vec<Vec<PathBuf>> = (0..ranks).map(dirs).collect();
        let (talk, parts) = (self.root.join("talk"), running.parts.clone());
        let opened = self.all(|member| {
            let rank = member.rank;
            let files: Vec<Arc<dyn Files>> =
                parts.iter().map(|layer| Arc::new(layer[rank as usize].clone()) as Arc<dyn Files>).collect();
            let (store, session) = open_rank(settings, &talk, (rank, ranks), &dirs[rank as usize], files)?;
            member.opened = Some((session, store));
            let (session, memory) = member.parts();
            for (name, options) in &memory.options {
                session.region(name, options.clone());
            }
            Ok(())
        });
        self.running = Some(running);
        if opened.iter().any(Result::is_err) {
            self.drop_all();
        }
        opened
    }

    /// Drops the sessions of all ranks.
    pub(super) fn drop_all(&mut self) {
        // The store is dropped with the session, so that other ranks notice.
        self.all(|member| drop(member.opened.take()));
        self.running = None;
    }

    /// Ends the sessions of all ranks.
    pub(super) fn finish_all(&mut self) -> Vec<Result<()>> {
        let ended = self.all(|member| {
            let (session, store) = member.opened.take().expect("it is open");
            let ended = session.finish();
            drop(store);
            ended
        });
        self.running = None;
        ended
    }

    /// Whether ranks share blocks.
    pub(super) fn shares(&self, settings: &Settings) -> bool {
        settings.dedup == outcrop::store::Dedup::Ranks && self.case.ranks > 1
    }

    /// Whether a failure on a layer, or on any layer, may have a cause that the test has given.
    pub(super) fn is_excused(&self, layer: Option<usize>) -> bool {
        let Some(running) = &self.running else { return true };
        let settings = &running.settings;
        let shares = self.shares(settings);
        let may_fail = |layer: usize| {
            let is_faulty = running.faulty.iter().any(|(faulty, _)| *faulty == layer);
            let is_disturbed = self.case.ranks > 1 && self.disturbed.contains(&layer);
            is_faulty || is_disturbed || settings.limit_kib[layer].is_some() || running.cut.contains(&layer)
        };
        match layer.filter(|_| !shares) {
            Some(layer) => running.is_killed || may_fail(layer),
            None => running.is_killed || (0..self.case.layers).any(may_fail),
        }
    }

    /// Checks that errors have a cause that the test has given, and have a message.
    pub(super) fn check_errors<'a>(
        &mut self,
        what: &str,
        layer: Option<usize>,
        errors: impl IntoIterator<Item = &'a Error>,
    ) -> Checked {
        for error in errors {
            let text = error.to_string();
            if text.contains("panicked") || text.contains(" is a bug") || text.is_empty() {
                return Err(format!("{what}: {text:?}"));
            }
            if !self.is_excused(layer) {
                return Err(format!("{what} fails for no reason: {text}"));
            }
            if let Some(running) = &mut self.running {
                running.has_failed = true;
            }
        }
        Ok(())
    }
}

impl Running {
    /// Makes a directory of a rank fail.
    pub(super) fn fail(&mut self, layer: usize, rank: u32, fault: FaultPlan) {
        if !self.settings.is_direct {
            let rank = rank % self.whole.len() as u32;
            self.parts[layer][rank as usize].inject(fault.fault());
            self.faulty.insert((layer, rank));
            self.armed.insert((layer, rank));
        }
    }

    /// Makes every file operation of every rank fail from some moment on.
    pub(super) fn kill(&mut self, after: u64, leaves_half: bool) {
        for failing in &self.whole {
            failing.inject(Fault { after, is_lasting: true, leaves_half, ..Fault::new(outcrop_crash::Errno::IO) });
        }
        self.is_killed = true;
    }

    pub(super) fn heal(&mut self) {
        self.parts.iter().flatten().for_each(Failing::heal);
        self.armed.clear();
    }
}

fn open_rank(
    settings: &Settings,
    talk: &Path,
    (rank, ranks): (u32, u32),
    dirs: &[PathBuf],
    files: Vec<Arc<dyn Files>>,
) -> Result<(Store, Session)> {
    let mut builder = Store::builder()
        .host(Size::from(settings.host_kib << 10))
        .block(settings.block)
        .hash(settings.hash)
        .certain(settings.is_certain)
        .incremental(settings.is_incremental)
        .tracking(settings.tracking)
        .compression(settings.compression)
        .dedup(settings.dedup)
        .in_flight(settings.in_flight)
        .chain_max(settings.chain_max)
        .threads(1)
        .pin(false);
    if settings.is_live {
        builder = builder.live("4 MiB");
    }
    for (layer, (dir, files)) in dirs.iter().zip(files).enumerate() {
        let limit = settings.limit_kib[layer].map(|kib| format!("{kib} KiB"));
        builder = match settings.is_direct {
            true => builder.dir(dir, limit.as_deref()),
            false => builder.files(files, limit.as_deref()),
        };
        builder = builder.keep_on(layer + 1, settings.keep[layer]);
    }
    if ranks > 1 {
        builder = builder.ranks(SharedDirectory::open_with(talk, rank, ranks, PATIENCE)?);
    }
    let store = builder.open()?;
    let session = store.session(SESSION)?;
    Ok((store, session))
}

impl Wait {
    /// The argument of the store's call, and the layers that are reached then.
    pub(super) fn reached(self, layers: usize) -> Option<(Reached, Vec<usize>)> {
        match self {
            Self::Nothing => None,
            Self::Host => Some((Reached::Host, Vec::new())),
            Self::Here(layer) => Some((Reached::Here(layer % layers + 1), vec![layer % layers])),
            Self::Layer(layer) => Some((Reached::Layer(layer % layers + 1), vec![layer % layers])),
            Self::All => Some((Reached::All, (0..layers).collect())),
        }
    }
}
