//! Every file that the kernel knows about takes a descriptor of this process. Before they run out,
//! the kernel is made to forget files that nobody uses.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, Weak},
    thread,
};

use fuser::INodeNo;
use rustix::{
    fs::Stat,
    process::{Resource, getrlimit},
};

use super::{node::Node, tree::Tree};

/// How many files this process can hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// So many that the kernel knows about, of all kinds.
    known_max: usize,
    /// So many that were closed and are not drained. The daemon has several descriptors of each.
    pub(super) closed_max: usize,
}

impl Limits {
    pub(super) fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.map_or(1 << 20, |most| most as usize);
        Self { known_max: descriptors / 2, closed_max: descriptors / 16 }
    }

    /// A listing with attributes makes all files of a directory known at once.
    pub(super) fn can_list_with_attributes(self) -> bool {
        self.known_max >= 100_000
    }
}

/// Whether there are too many.
#[derive(Default)]
pub(super) struct Crowded {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_crowded: bool,
    is_over: bool,
}

impl Crowded {
    /// Ends the thread.
    pub(super) fn end(&self) {
        self.state.lock().unwrap().is_over = true;
        self.changed.notify_all();
    }

    /// Waits until there are too many. Returns false when it is over.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| !state.is_crowded && !state.is_over).unwrap();
        state.is_crowded = false;
        !state.is_over
    }
}

impl Tree {
    /// A node that the kernel is told of.
    pub(super) fn add_node(&self, descriptor: OwnedFd, stat: &Stat, place: (u64, &std::ffi::OsStr)) -> Arc<Node> {
        let node = self.nodes.add(descriptor, stat, place);
        if self.nodes.count() > self.limits.known_max {
            self.crowded.state.lock().unwrap().is_crowded = true;
            self.crowded.changed.notify_one();
        }
        node
    }

    /// Starts the thread. It has to be one of its own: the kernel holds a directory while it waits
    /// for an answer about it, and needs it to forget.
    pub(super) fn watch_crowd(self: &Arc<Self>) {
        let tree = Arc::downgrade(self);
        thread::spawn(move || while wait_and_forget(&tree) {});
    }

    /// Makes the kernel forget half of the files that nobody uses.
    fn thin_out(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        let files = self.nodes.files();
        let surplus = self.nodes.count().saturating_sub(self.limits.known_max / 2);
        for node in files.iter().filter(|node| node.content().settle()).take(surplus) {
            let (parent, name) = node.place();
            // One that has moved is not found, and stays.
            let _ = notifier.inval_entry(INodeNo(parent), &name);
        }
    }
}

/// Returns false when there is nothing more to do.
fn wait_and_forget(tree: &Weak<Tree>) -> bool {
    let Some(tree) = tree.upgrade() else { return false };
    let goes_on = tree.crowded.wait();
    if goes_on {
        tree.thin_out();
    }
    goes_on
}
