//! Nodes that are lost with all they have: what was reported as kept by others can be restored, on
//! nodes that have nothing. A node is a directory, and a rank is a thread or a process.

mod errors;
mod killed;
mod points;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use outcrop::{
    Part, PartMut, Reached, Result, Retention, Session, Store, StoreBuilder,
    layers::files::{DiskFiles, Files},
    store::{Code, Restored, SharedDirectory},
};

use crate::store_ranks::run;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A machine of nodes, with a rank on each.
#[derive(Clone)]
pub(crate) struct Machine {
    root: PathBuf,
    code: Code,
    /// By rank: the name of its node.
    nodes: Vec<String>,
    /// How often a run has begun.
    runs: u32,
}

impl Machine {
    pub(crate) fn new(root: &Path, ranks: u32, (data, lost): (u16, u16)) -> Self {
        let nodes = (0..ranks).map(|rank| format!("node-{rank}")).collect();
        Self { root: root.to_owned(), code: Code::new(data, lost).unwrap(), nodes, runs: 0 }
    }

    fn ranks(&self) -> u32 {
        self.nodes.len() as u32
    }

    fn dir(&self, rank: u32) -> PathBuf {
        self.root.join(&self.nodes[rank as usize])
    }

    /// A copy of all nodes as they are.
    fn copy(&self, root: &Path) -> Self {
        for node in fs::read_dir(&self.root).unwrap() {
            let node = node.unwrap();
            if node.file_name() != "talk" {
                copy_tree(&node.path(), &root.join(node.file_name()));
            }
        }
        Self { root: root.to_owned(), ..self.clone() }
    }

    /// Loses the nodes of these ranks, which go on to others that have nothing.
    fn lose(&mut self, ranks: &[u32]) {
        for rank in ranks {
            drop(fs::remove_dir_all(self.dir(*rank)));
            self.nodes[*rank as usize] += "-spare";
        }
    }

    /// Runs something on all ranks.
    fn run<T: Send>(&mut self, program: impl Fn(u32, StoreBuilder) -> T + Sync) -> Vec<T> {
        self.run_over(|_, files| files, program)
    }

    /// As [`run`](Self::run), with other files in place of those of each rank.
    fn run_over<T: Send>(
        &mut self,
        over: impl Fn(u32, Arc<dyn Files>) -> Arc<dyn Files> + Sync,
        program: impl Fn(u32, StoreBuilder) -> T + Sync,
    ) -> Vec<T> {
        self.runs += 1;
        let talk = self.root.join("talk").join(self.runs.to_string());
        fs::create_dir_all(&talk).unwrap();
        let machine = &*self;
        run(&talk, self.ranks(), |ranks| {
            let rank = outcrop::store::Ranks::rank(&ranks);
            let files = over(rank, Arc::new(DiskFiles::create(&machine.dir(rank)).unwrap()));
            program(rank, machine.builder(rank, ranks).files(files, None))
        })
    }

    fn builder(&self, rank: u32, ranks: SharedDirectory) -> StoreBuilder {
        let keep = Retention { keep_last: Some(2), ..Retention::default() };
        let store = Store::builder().host("4 MiB").pin(false).threads(1).chain_max(2).keep(keep).ranks(ranks);
        store.parity(self.code).parity_domain(&*self.nodes[rank as usize]).parity_network(LOOPBACK)
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// All files below a directory, with their contents.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    found
}

/// What a rank saves as a version: more on some ranks than on others, some of it as before.
pub(crate) fn state(rank: u32, version: u64) -> Vec<u64> {
    let count = 30_000 + 9_000 * u64::from(rank % 3);
    (0..count)
        .map(|index| if index % 700 == version % 700 { version << 8 } else { index * 3 + u64::from(rank) })
        .collect()
}

pub(crate) fn save(session: &mut Session, rank: u32, version: u64) -> Result<()> {
    session.save(version, &[Part::new("state", &state(rank, version))])
}

pub(crate) fn restore(session: &mut Session, rank: u32) -> Result<Option<Restored>> {
    let mut found = vec![0; state(rank, 0).len()];
    let Some(restored) = session.restore_latest(&mut [PartMut::new("state", &mut found)])? else { return Ok(None) };
    assert!(found == state(rank, restored.version), "version {} is not what rank {rank} saved", restored.version);
    Ok(Some(restored))
}

/// Saves these versions, and waits until others keep them.
fn save_all(builder: StoreBuilder, rank: u32, versions: std::ops::RangeInclusive<u64>) {
    let mut session = builder.open().unwrap().session("heat").unwrap();
    restore(&mut session, rank).unwrap();
    for version in versions.clone() {
        save(&mut session, rank, version).unwrap();
    }
    session.wait(*versions.end(), Reached::Parity).unwrap();
    session.finish().unwrap();
}

/// The files with which a rank continues a version, in its own directory.
fn has_version(machine: &Machine, rank: u32, version: u64) -> bool {
    machine.dir(rank).join(format!("heat/rank-{rank:05}/version-{version:020}")).exists()
}

/// All ways to choose so many of the ranks.
fn choices(ranks: u32, count: u32) -> Vec<Vec<u32>> {
    (0..1u32 << ranks)
        .filter(|set| set.count_ones() == count)
        .map(|set| (0..ranks).filter(|at| set >> at & 1 == 1).collect())
        .collect()
}

/// Whichever nodes are lost, as many as parity covers: everything is restored, made again, and
/// protected as before.
fn any_may_be_lost(ranks: u32, code: (u16, u16)) {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = Machine::new(&dir.path().join("whole"), ranks, code);
    whole.run(|rank, builder| save_all(builder, rank, 1..=5));
    for lost in choices(ranks, code.1.into()) {
        let root = dir.path().join(format!("{lost:?}"));
        let mut machine = whole.copy(&root);
        machine.lose(&lost);
        let restored = machine.run(|rank, builder| {
            let mut session = builder.open().unwrap().session("heat").unwrap();
            restore(&mut session, rank).unwrap().unwrap()
        });
        for (rank, restored) in (0..).zip(restored) {
            assert_eq!((restored.version, restored.skipped.len()), (5, 0), "{lost:?}");
            let rebuilt: &[u64] = if lost.contains(&rank) { &[4, 5] } else { &[] };
            assert_eq!(restored.rebuilt, rebuilt, "{lost:?}");
            assert_eq!(restored.to_string().contains("made again"), lost.contains(&rank), "{restored}");
            assert!(has_version(&machine, rank, 4) && has_version(&machine, rank, 5));
        }
        // Protection is as before, also for what was there: others may be lost now.
        let then: Vec<u32> = (0..ranks).filter(|rank| !lost.contains(rank)).take(code.1.into()).collect();
        let mut next = machine.copy(&dir.path().join("then"));
        next.lose(&then);
        let restored = next.run(|rank, builder| {
            let mut session = builder.open().unwrap().session("heat").unwrap();
            let restored = restore(&mut session, rank).unwrap().unwrap();
            save(&mut session, rank, 6).unwrap();
            session.wait(6, Reached::Parity).unwrap();
            session.finish().unwrap();
            restored.version
        });
        assert_eq!(restored, vec![5; ranks as usize], "{lost:?}, then {then:?}");
        fs::remove_dir_all(dir.path().join("then")).unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn a_partner_gives_back_what_a_lost_node_had() {
    any_may_be_lost(2, (1, 1));
}

#[test]
fn any_one_of_three_nodes_may_be_lost() {
    any_may_be_lost(3, (2, 1));
}

#[test]
fn any_two_of_four_nodes_may_be_lost() {
    any_may_be_lost(4, (2, 2));
}

#[test]
fn any_two_nodes_may_be_lost_with_copies_only() {
    any_may_be_lost(3, (1, 2));
}

#[test]
fn a_group_may_have_more_nodes_than_its_code_needs() {
    any_may_be_lost(5, (2, 1));
}

#[test]
fn ranks_that_share_a_node_are_lost_and_made_again_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 6, (2, 1));
    (0..6).for_each(|rank| machine.nodes[rank] = format!("node-{}", rank / 2));
    machine.run(|rank, builder| save_all(builder, rank, 1..=3));
    machine.lose(&[2, 3]);
    let restored = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).unwrap().unwrap()
    });
    for (rank, restored) in (0..).zip(restored) {
        assert_eq!(restored.version, 3);
        assert_eq!(restored.rebuilt.is_empty(), ![2, 3].contains(&rank));
    }
}

#[test]
fn ranks_on_other_nodes_than_before_find_what_is_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 4, (2, 1));
    machine.run(|rank, builder| save_all(builder, rank, 1..=3));
    // A job manager has given out the nodes in another order.
    machine.nodes.rotate_left(1);
    let restored = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        let restored = restore(&mut session, rank).unwrap().unwrap();
        save(&mut session, rank, 4).unwrap();
        session.wait(4, Reached::Parity).unwrap();
        restored.version
    });
    assert_eq!(restored, [3; 4]);
}

#[test]
fn another_code_protects_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 4, (2, 1));
    machine.run(|rank, builder| save_all(builder, rank, 1..=3));
    machine.code = Code::new(1, 2).unwrap();
    machine.run(|rank, builder| drop((rank, builder.open().unwrap().session("heat").unwrap())));
    machine.lose(&[0, 3]);
    let restored = machine.run(|rank, builder| {
        restore(&mut builder.open().unwrap().session("heat").unwrap(), rank).unwrap().unwrap().version
    });
    assert_eq!(restored, [3; 4]);
}

#[test]
fn nothing_is_left_of_what_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 3, (2, 1));
    machine.run(|rank, builder| save_all(builder, rank, 1..=12));
    for rank in 0..3 {
        let shards: Vec<PathBuf> = contents(&machine.dir(rank).join(".shards")).into_keys().collect();
        // Each of three has a shard here of two manifests, a mark, and at most three packs and what
        // was merged of them.
        assert!(shards.len() <= 3 * (2 + 1 + 5), "{shards:#?}");
        let versions = shards.iter().filter(|path| path.to_string_lossy().contains("version-")).count();
        assert_eq!(versions, 6, "{shards:#?}");
        assert!(shards.iter().all(|path| !path.to_string_lossy().ends_with(".draft")), "{shards:#?}");
    }
}

#[test]
fn patience_for_others_is_that_of_the_ranks() {
    // Ranks that end at different times do not cut each other off.
    let dir = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(dir.path(), 2, (1, 1));
    machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        (1..=4).for_each(|version| save(&mut session, rank, version).unwrap());
        std::thread::sleep(Duration::from_millis(300 * u64::from(rank)));
        session.finish().unwrap();
    });
    assert!((0..2).all(|rank| has_version(&machine, rank, 4)));
}
