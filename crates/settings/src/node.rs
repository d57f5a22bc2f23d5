//! The settings of a client of the node daemon.

use std::{path::PathBuf, time::Duration};

use crate::{Setting, Settings, Size, table::rows, value::Threads};

/// How a program finds the node daemon, and what a daemon is told that is started for it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NodeSettings {
    /// The most memory that the daemon uses. Default: a quarter of the machine's.
    pub memory: Option<Size>,
    /// Where the daemon and its clients meet. Default: a directory of this user.
    pub directory: Option<PathBuf>,
    /// Whether a daemon is started if there is none.
    pub is_started: bool,
    /// The program that is the daemon.
    pub program: PathBuf,
    /// The number of drains at once.
    pub threads: usize,
    /// The cores that drain threads are pinned to.
    pub cores: Vec<usize>,
    /// How long the daemon stays when nobody uses it.
    pub idle: Duration,
    /// A file for the memory.
    pub reserve: Option<PathBuf>,
    /// Whether drained bytes are read back and compared.
    pub is_verified: bool,
    /// A file for a timeline.
    pub trace: Option<PathBuf>,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            memory: None,
            directory: None,
            is_started: true,
            program: PathBuf::from("outcrop"),
            threads: 2,
            cores: Vec::new(),
            idle: Duration::from_secs(10),
            reserve: None,
            is_verified: false,
            trace: None,
        }
    }
}

impl Settings for NodeSettings {
    const OF: &'static str = "a node";
    const PREFIX: &'static str = "OUTCROP_NODE_";

    const TABLE: &'static [Setting<Self>] = rows! {
        directory: PathBuf = "one of this user in `OUTCROP_MEETING_DIR`",
            "Where the daemon and its clients meet.",
            |node, path| node.directory = Some(path);
        start: bool = "true",
            "Whether a daemon is started if there is none; the settings below are for such a daemon.",
            |node, is_started| node.is_started = is_started;
        program: PathBuf = "\"outcrop\"",
            "The program that is started; without a directory it is looked for as the shell does.",
            |node, path| node.program = path;
        memory: Size = "a quarter of the machine's",
            "The most memory that output takes before it is drained.",
            |node, size| node.memory = Some(size);
        threads: Threads = "2", "How many drains are under way at once.", |node, count| node.threads = count.0;
        cores: Vec<usize> = "[]", "Cores that drain threads are pinned to, in turn.", |node, cores| node.cores = cores;
        idle_seconds: Duration = "10",
            "How long the daemon stays when nobody uses it and everything is drained.",
            |node, idle| node.idle = idle;
        reserve: PathBuf = "none",
            "A file for the memory, so that what is in it survives all processes.",
            |node, path| node.reserve = Some(path);
        verify: bool = "false",
            "Whether what was drained is read back and compared.",
            |node, is_verified| node.is_verified = is_verified;
        trace: PathBuf = "none",
            "A file for a timeline, for Perfetto and chrome://tracing.",
            |node, path| node.trace = Some(path);
    };
}
