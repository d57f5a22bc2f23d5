//! Ranks on real NFS: a virtual machine with a server and two clients that share no cache. Only in
//! `cargo xtask soak`, where it takes some minutes.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use outcrop_ranks::{Ranks, SharedDirectory};
use outcrop_testing::{amount, child_directory, covered, skip};
use tempfile::tempdir;

/// The root of an unpacked package with a kernel that supports NFS, if none is installed.
const KERNEL: &str = "OUTCROP_GUEST_KERNEL";
/// Set in the guest: the rank of a process.
const RANK: &str = "OUTCROP_GUEST_RANK";

const RANKS: u32 = 4;
const ROUNDS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(120);
/// The time limit of the guest, in seconds.
const LIMIT: &str = "900";

/// The init script of the guest. Rank 3 dies at the end of each run, and the next run finds the
/// files of the one before.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/bin
mkdir -p /proc /sys /dev /run /tmp /export /a /b /var/lib/nfs/v4recovery /etc
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /run
mount -t tmpfs export /export
depmod
for module in sunrpc nfsd nfs nfsv4 veth; do modprobe $module || echo "no module $module"; done
echo '/export *(rw,no_root_squash,fsid=0,insecure,no_subtree_check,sync)' > /etc/exports
echo 'root:x:0:0::/:/bin/sh' > /etc/passwd
echo 'nfs 2049/tcp' > /etc/services
echo 'tcp tpi_cots_ord v inet tcp - -' > /etc/netconfig
/usr/sbin/ip link set lo up
mount -t nfsd nfsd /proc/fs/nfsd
echo 10 > /proc/fs/nfsd/nfsv4gracetime
exportfs -ra
rpc.mountd -N 2 -N 3
rpc.nfsd -N 3 -V 4.2 8 || echo "no server"
echo Y > /proc/fs/nfsd/v4_end_grace
# A client is a network and a host name of its own.
client() {
    /usr/sbin/ip link add v$1 type veth peer name w$1
    /usr/sbin/ip addr add 10.0.$2.1/24 dev v$1
    /usr/sbin/ip link set v$1 up
    unshare -n -u -m /bin/sh /client $1 $2 &
    echo $! > /run/client-$1
    while [ ! -e /run/made-$1 ]; do sleep 0.1; done
    /usr/sbin/ip link set w$1 netns $(cat /run/client-$1)
    touch /run/linked-$1
}
client a 1
client b 2
wait $(cat /run/client-a) && wait $(cat /run/client-b) && echo GUEST WELL
poweroff -f
"#;

const CLIENT: &str = r#"touch /run/made-$1
while [ ! -e /run/linked-$1 ]; do sleep 0.1; done
hostname client-$1
/usr/sbin/ip link set lo up
/usr/sbin/ip addr add 10.0.$2.2/24 dev w$1
/usr/sbin/ip link set w$1 up
mount -t nfs4 -o vers=4.2,addr=10.0.$2.1,clientaddr=10.0.$2.2 10.0.$2.1:/ /$1 || exit 1
case $1 in a) ranks="0 2";; *) ranks="1 3";; esac
for run in 1 2; do
    touch /run/run-$run-$1
    while [ ! -e /run/run-$run-a ] || [ ! -e /run/run-$run-b ]; do sleep 0.1; done
    for rank in $ranks; do
        OUTCROP_GUEST_RANK=$rank OUTCROP_TEST_DIRECTORY=/$1/talk \
            /ranks --exact nfs::child_is_a_rank --nocapture --test-threads=1 > /run/out-$run-$rank 2>&1 &
        eval process_$rank=$!
    done
    for rank in $ranks; do
        eval wait \$process_$rank
        status=$?
        grep GUEST /run/out-$run-$rank
        # Rank 3 ends itself.
        if [ $rank != 3 ] && [ $status != 0 ]; then cat /run/out-$run-$rank; exit 1; fi
    done
done
"#;

/// In the guest: one rank.
#[test]
fn child_is_a_rank() {
    let (Some(dir), Ok(rank)) = (child_directory(), env::var(RANK)) else { return };
    let rank: u32 = rank.parse().unwrap();
    let start = Instant::now();
    let ranks = SharedDirectory::open_with(dir, rank, RANKS, PATIENCE).unwrap();
    println!("GUEST rank {rank} has joined after {:?}", start.elapsed());
    let said =
        |rank: u32, round: u64| format!("{rank} {round} ").repeat(if round.is_multiple_of(10) { 40_000 } else { 1 });
    let start = Instant::now();
    let mut heard = vec![Vec::new(); RANKS as usize];
    for round in 0..ROUNDS {
        ranks.announce(said(rank, round).as_bytes()).unwrap();
        let gathered = ranks.gather("a", said(rank, round).as_bytes()).unwrap();
        let expected: Vec<_> = (0..RANKS).map(|rank| said(rank, round).into_bytes()).collect();
        assert!(gathered == expected, "rank {rank}, round {round}");
        for (from, message) in ranks.heard().unwrap() {
            heard[from as usize].push(message);
        }
    }
    println!("GUEST rank {rank}: {:?} for an exchange", start.elapsed() / ROUNDS as u32);
    // All messages were sent before the contribution to the last exchange.
    for (from, messages) in heard.iter().enumerate().filter(|(from, _)| *from != rank as usize) {
        let expected: Vec<_> = (0..ROUNDS).map(|round| said(from as u32, round).into_bytes()).collect();
        assert!(*messages == expected, "rank {rank} heard {} of rank {from}", messages.len());
    }
    if rank == RANKS - 1 {
        std::process::abort();
    }
    let start = Instant::now();
    let error = ranks.gather("a", b"more").unwrap_err().to_string();
    assert!(error.contains("rank 3 is gone"), "{error}");
    println!("GUEST rank {rank} has found out after {:?}", start.elapsed());
}

#[test]
fn ranks_talk_through_nfs() {
    if amount(true, false) {
        return;
    }
    let root = tempdir().unwrap();
    let guest = match Guest::find() {
        Ok(guest) => guest,
        Err(missing) => return skip(format_args!("NFS in a virtual machine needs {missing}")),
    };
    guest.fill(root.path());
    let archive = root.path().with_extension("cpio");
    let pack = format!("find . | busybox cpio -o -H newc > '{}' 2> /dev/null", archive.display());
    assert!(Command::new("sh").args(["-c", &pack]).current_dir(root.path()).status().unwrap().success());
    let mut qemu = Command::new("timeout");
    qemu.args([LIMIT, "qemu-system-x86_64", "-accel", "tcg", "-m", "1024", "-smp", "2", "-nographic", "-no-reboot"]);
    qemu.args(["-nic", "none", "-append", "console=ttyS0 panic=-1 quiet"]);
    qemu.arg("-kernel").arg(&guest.image).arg("-initrd").arg(&archive);
    let output = qemu.stdin(Stdio::null()).output().unwrap();
    fs::remove_file(&archive).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.contains("GUEST")) {
        outcrop_testing::say(line.trim_end());
    }
    assert!(text.contains("GUEST WELL"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    covered("exchanges of ranks on NFS", 2 * ROUNDS);
}

/// What the virtual machine needs.
struct Guest {
    image: PathBuf,
    modules: PathBuf,
    programs: Vec<PathBuf>,
}

impl Guest {
    /// Finds it on this machine; an error names what is missing.
    fn find() -> Result<Self, String> {
        let which = |name: &str| {
            let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|place| Path::new(place).join(name));
            places.into_iter().find(|path| path.exists())
        };
        let need = |name: &str, package: &str| which(name).ok_or_else(|| format!("{name} (package {package})"));
        need("qemu-system-x86_64", "qemu-system-x86")?;
        let programs = [
            need("busybox", "busybox-static")?,
            need("rpc.nfsd", "nfs-kernel-server")?,
            need("rpc.mountd", "nfs-kernel-server")?,
            need("exportfs", "nfs-kernel-server")?,
            need("ip", "iproute2")?,
        ];
        let root = PathBuf::from(env::var_os(KERNEL).unwrap_or_else(|| "/".into()));
        let kernels = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let releases =
            kernels.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned));
        let found = releases.map(|release| (root.join("boot").join(format!("vmlinuz-{release}")), release)).find_map(
            |(image, release)| {
                let modules = root.join("lib/modules").join(release);
                modules.join("kernel/fs/nfsd").exists().then_some((image, modules))
            },
        );
        let missing =
            || format!("a kernel with NFS (package linux-image-cloud-amd64, or {KERNEL}: where it is unpacked)");
        let (image, modules) = found.ok_or_else(missing)?;
        Ok(Self { image, modules, programs: programs.into() })
    }

    /// Makes the root file system of the guest.
    fn fill(&self, root: &Path) {
        for folder in ["bin", "usr/sbin", "lib/modules"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        symlink("lib", root.join("lib64")).unwrap();
        let copy = |from: &Path, to: &str| {
            let to = root.join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let this = env::current_exe().unwrap();
        copy(&this, "ranks");
        let mut libraries: Vec<String> = Vec::new();
        for program in self.programs.iter().chain([&this]) {
            let place = if program.ends_with("busybox") { "bin" } else { "usr/sbin" };
            let name = program.file_name().unwrap().to_str().unwrap();
            if *program != this {
                copy(program, &format!("{place}/{name}"));
            }
            // A statically linked program has no libraries to list.
            let listed = Command::new("ldd").arg(program).output().unwrap();
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            libraries.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
        }
        libraries.sort();
        libraries.dedup();
        for library in &libraries {
            copy(Path::new(library), &format!("lib/{}", Path::new(library).file_name().unwrap().to_str().unwrap()));
        }
        let copied = Command::new("cp").arg("-a").arg(&self.modules).arg(root.join("lib/modules")).status();
        assert!(copied.unwrap().success());
        for (name, text) in [("init", INIT), ("client", CLIENT)] {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}
