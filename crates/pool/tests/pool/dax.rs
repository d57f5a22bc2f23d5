//! Pools on persistent memory: a virtual machine with an NVDIMM, which is killed again and again.
//! Only in `cargo xtask soak`, where it takes some minutes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use fastrand::Rng;
use outcrop_pool::{Block, Options, Pool};
use outcrop_testing::{Guest, amount, child_directory, covered, say, skip};

/// The init script of the guest. A namespace allows DAX in a mode that is set up once; the medium
/// keeps it, and the file system that is made then.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
rm -f /bin/mkfs.ext4
export PATH=/usr/sbin:/bin
mkdir -p /proc /sys /dev /tmp /medium
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
depmod
for module in libnvdimm nfit nd_pmem; do modprobe $module || echo "GUEST has no module $module"; done
# The driver finds it in the background.
appear() { while [ ! -e /dev/pmem0 ]; do sleep 0.1; done; }
appear
cd /sys/bus/nd
if [ "$(cat /sys/block/pmem0/queue/dax)" != 1 ]; then
    echo namespace0.0 > drivers/nd_pmem/unbind
    echo ram > devices/pfn0.0/mode
    echo 7f1b4c0e-1f1c-4a53-9d3c-5d9c6f0a1b2c > devices/pfn0.0/uuid
    echo namespace0.0 > devices/pfn0.0/namespace
    echo pfn0.0 > drivers/nd_pmem/bind
    appear
    mkfs.ext4 -q -b 4096 /dev/pmem0
fi
mount -t ext4 -o dax=always /dev/pmem0 /medium || echo "GUEST has no DAX"
OUTCROP_TEST_DIRECTORY=/medium /program --exact dax::child_persists --nocapture --test-threads=1 2>&1
echo GUEST ended
poweroff -f
"#;

const LEN: usize = 40_000;
const NVDIMM_BYTES: u64 = 128 << 20;
/// A guest that says nothing for so long hangs. It takes seconds.
const PATIENCE: Duration = Duration::from_secs(240);

/// What elements of a version are. Some blocks change with each version.
fn value(version: u64, index: usize) -> u64 {
    let last = version - (version + index as u64 / 512) % 5.min(version);
    last * 1_000_000 + index as u64
}

/// In the guest: checks what there is, and persists until it is killed.
#[test]
fn child_persists() {
    let Some(dir) = child_directory() else { return };
    let pool = Pool::open(dir.join("a.pool"), Options::versions(3)).unwrap();
    println!("GUEST flushes by {}", pool.usage().flush);
    println!("GUEST maps with{} MAP_SYNC", if is_mapped_sync() { "" } else { "out" });
    let versions = pool.versions();
    for &version in &versions {
        let view = pool.view(version).unwrap();
        view.verify().unwrap();
        let array = view.array::<u64>("a").unwrap();
        let wrong = (0..LEN).find(|index| array[*index] != value(version, *index));
        assert_eq!(wrong, None, "version {version}");
    }
    assert_eq!(pool.skipped(), []);
    let mut version = versions.last().copied().unwrap_or(0);
    println!("GUEST found {version}");
    let mut array = pool.array::<u64>("a", LEN, Block::elements(512)).unwrap();
    loop {
        version += 1;
        for index in 0..LEN {
            let new = value(version, index);
            if array[index] != new {
                array[index] = new;
            }
        }
        assert_eq!(pool.persist(&mut [&mut array]).unwrap(), version);
        println!("GUEST persisted {version}");
    }
}

/// Whether the mapping of the pool has the flag of MAP_SYNC, as the kernel sees it.
fn is_mapped_sync() -> bool {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_pool = false;
    maps.lines().any(|line| {
        // The line of a mapping begins with its addresses; lines of its properties follow.
        if let Some(access) = line.split_whitespace().nth(1).filter(|word| word.len() == 4 && word.starts_with('r')) {
            is_pool = access == "rw-s" && line.ends_with("a.pool");
        }
        is_pool && line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "sf"))
    })
}

/// A guest that runs. It is killed when this is dropped.
struct Running {
    process: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { process, lines }
    }

    /// Waits for a line with these words, and returns what follows them.
    fn hear(&self, words: &str) -> String {
        let mut heard = String::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no \"{words}\" from the guest ({error}):\n{heard}"));
            if let Some((_, rest)) = line.split_once(words) {
                return rest.trim().to_owned();
            }
            heard += &line;
            heard.push('\n');
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_pool_on_persistent_memory_outlives_guests_that_are_killed() {
    let rounds = amount(0, 20);
    if rounds == 0 {
        return;
    }
    let guest = match Guest::find("drivers/nvdimm/nd_pmem.ko", &[("mkfs.ext4", "e2fsprogs")]) {
        Ok(guest) => guest,
        Err(missing) => return skip(format_args!("persistent memory in a virtual machine needs {missing}")),
    };
    let dir = tempfile::tempdir().unwrap();
    let (archive, nvdimm) = (dir.path().join("guest.cpio"), dir.path().join("nvdimm"));
    guest.pack(&[("init", INIT)], &["drivers/nvdimm", "drivers/acpi/nfit"], &archive);
    fs::File::create(&nvdimm).unwrap().set_len(NVDIMM_BYTES).unwrap();
    let mut rng = Rng::with_seed(1);
    let mut durable = 0;
    for round in 0..rounds {
        let running = Running::start(with_nvdimm(guest.command(&archive), &nvdimm));
        assert_eq!(running.hear("GUEST flushes by"), "clwb and sfence");
        assert_eq!(running.hear("GUEST maps"), "with MAP_SYNC");
        let found: u64 = running.hear("GUEST found").parse().unwrap();
        // More may have become durable than it could say.
        assert!(found >= durable, "round {round}: {found} after {durable}");
        durable = found;
        for _ in 0..rng.u64(1..6) {
            durable = running.hear("GUEST persisted").parse().unwrap();
        }
        thread::sleep(Duration::from_micros(rng.u64(..60_000)));
        drop(running);
    }
    say(format_args!("{durable} versions on persistent memory, {rounds} guests killed"));
    covered("guests killed with a pool on persistent memory", rounds);
}

fn with_nvdimm(mut qemu: Command, nvdimm: &Path) -> Command {
    qemu.args(["-cpu", "max", "-machine", "pc,nvdimm=on", "-m", "768M,slots=2,maxmem=2G"]);
    let backend = "memory-backend-file,id=memory,share=on,mem-path=";
    qemu.arg("-object").arg(format!("{backend}{},size={NVDIMM_BYTES}", nvdimm.display()));
    qemu.args(["-device", "nvdimm,id=nvdimm,memdev=memory"]);
    qemu
}
