//! The same on GlusterFS: three bricks of which any two have everything (disperse 2 + 1), on the
//! loopback of this machine, and two clients that share no cache. Only in `cargo xtask soak`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use outcrop_testing::{amount, covered, skip, until};

use super::rounds_in;

/// The first of three ports.
const PORT: u32 = 28_101;

/// A running volume.
struct Gluster {
    place: tempfile::TempDir,
    bricks: Vec<Child>,
    clients: Vec<(PathBuf, Child)>,
}

impl Gluster {
    /// Starts one; `None` if it is not installed.
    fn start() -> Option<Self> {
        for program in ["glusterfsd", "glusterfs"] {
            if Command::new(program).arg("--version").output().is_err() {
                skip(format_args!("a store on GlusterFS needs {program} (Debian: glusterfs-server)"));
                return None;
            }
        }
        let place = tempfile::tempdir().unwrap();
        let mut gluster = Self { place, bricks: Vec::new(), clients: Vec::new() };
        (0..3).for_each(|brick| gluster.start_brick(brick));
        let remote = |nth: u32| {
            let port = PORT + nth;
            format!(
                "volume c{nth}\ntype protocol/client\noption transport-type tcp\noption remote-host 127.0.0.1\n\
                 option remote-port {port}\noption remote-subvolume threads\nend-volume\n"
            )
        };
        let disperse = "volume all\ntype cluster/disperse\noption redundancy 1\nsubvolumes c0 c1 c2\nend-volume\n";
        let path = gluster.place.path().to_owned();
        fs::write(path.join("client.vol"), (0..3).map(remote).collect::<String>() + disperse).unwrap();
        for name in ["one", "other"] {
            let mount = path.join(name);
            fs::create_dir(&mount).unwrap();
            let client = daemon("glusterfs", &path.join("client.vol"), Some(&mount));
            gluster.clients.push((mount.clone(), client));
            until("the volume is mounted", || fs::write(mount.join(name), name).is_ok());
        }
        Some(gluster)
    }

    fn start_brick(&mut self, nth: u32) {
        let brick = self.place.path().join(format!("brick{nth}"));
        let index = brick.join(".glusterfs/indices");
        fs::create_dir_all(&index).unwrap();
        let (port, directory, index) = (PORT + nth, brick.display(), index.display());
        let volume = format!(
            "volume posix\ntype storage/posix\noption directory {directory}\nend-volume\n\
             volume locks\ntype features/locks\nsubvolumes posix\nend-volume\n\
             volume index\ntype features/index\noption index-base {index}\n\
             option xattrop-dirty-watchlist trusted.ec.dirty\nsubvolumes locks\nend-volume\n\
             volume threads\ntype performance/io-threads\nsubvolumes index\nend-volume\n\
             volume brick\ntype protocol/server\noption transport-type tcp\n\
             option transport.socket.bind-address 127.0.0.1\noption transport.socket.listen-port {port}\n\
             option auth.addr.threads.allow 127.0.0.1\nsubvolumes threads\nend-volume\n"
        );
        let file = self.place.path().join(format!("brick{nth}.vol"));
        fs::write(&file, volume).unwrap();
        self.bricks.push(daemon("glusterfsd", &file, None));
    }

    fn mounts(&self) -> Vec<PathBuf> {
        self.clients.iter().map(|(mount, _)| mount.clone()).collect()
    }
}

/// A process of GlusterFS that stays in the foreground.
fn daemon(program: &str, volume: &Path, mount: Option<&Path>) -> Child {
    let mut command = Command::new(program);
    command.args(["-N", "-f"]).arg(volume).arg("-l").arg(volume.with_extension("log")).args(mount);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

impl Drop for Gluster {
    fn drop(&mut self) {
        for (mount, client) in &mut self.clients {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
            end(client);
        }
        self.bricks.iter_mut().for_each(end);
    }
}

#[test]
fn ranks_on_glusterfs_are_killed_and_so_is_a_brick() {
    if amount(true, false) {
        return;
    }
    let Some(mut gluster) = Gluster::start() else { return };
    let (mounts, logs) = (gluster.mounts(), tempfile::tempdir().unwrap());
    const ROUNDS: u32 = 16;
    let mut between = |round: u32| {
        if round == ROUNDS / 2 {
            end(&mut gluster.bricks[1]);
        }
    };
    let kills = rounds_in(logs.path(), &mounts, (0, 3, ROUNDS), &mut between);
    covered("processes that were killed on GlusterFS, and one brick", format_args!("{kills}, lost: 0"));
}
