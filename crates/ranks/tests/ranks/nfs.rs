//! Ranks on real NFS: a virtual machine with a server and two clients that share no cache. Only in
//! `cargo xtask soak`, where it takes some minutes.

use std::{
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use outcrop_ranks::{Ranks, SharedDirectory};
use outcrop_testing::{Guest, amount, child_directory, covered, skip};
use tempfile::tempdir;

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
            /program --exact nfs::child_is_a_rank --nocapture --test-threads=1 > /run/out-$run-$rank 2>&1 &
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
    let server = "nfs-kernel-server";
    let programs = [("rpc.nfsd", server), ("rpc.mountd", server), ("exportfs", server), ("ip", "iproute2")];
    let guest = match Guest::find("fs/nfsd", &programs) {
        Ok(guest) => guest,
        Err(missing) => return skip(format_args!("NFS in a virtual machine needs {missing}")),
    };
    let dir = tempdir().unwrap();
    let archive = dir.path().join("guest.cpio");
    guest.pack(&[("init", INIT), ("client", CLIENT)], &[""], &archive);
    let qemu = guest.command(&archive);
    let mut limited = Command::new("timeout");
    limited.arg(LIMIT).arg(qemu.get_program()).args(qemu.get_args()).args(["-m", "1024"]);
    let output = limited.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.contains("GUEST")) {
        outcrop_testing::say(line.trim_end());
    }
    assert!(text.contains("GUEST WELL"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    covered("exchanges of ranks on NFS", 2 * ROUNDS);
}
