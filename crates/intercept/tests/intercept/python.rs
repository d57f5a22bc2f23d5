//! Calls that shells do not make, and packages of Python that write files.

use std::{process::Command, sync::OnceLock};

use outcrop_testing::{amount, does_not_apply, skip};

use crate::scene::{compare, compare_with, has};

/// Runs the same lines of Python natively and through a mount.
#[track_caller]
fn compare_python(lines: &str) {
    compare_python_with(usize::MAX, lines);
}

#[track_caller]
fn compare_python_with(count: usize, lines: &str) {
    if has(&["python3"]) {
        let script = format!("python3 - <<'END'\nimport os, fcntl, mmap, sys, time, struct\n{lines}\nEND");
        compare_with(count, "", &script);
    }
}

#[test]
fn mapped_files_are_written() {
    compare_python(
        r#"
f = os.open("m", os.O_CREAT | os.O_RDWR)
os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20)
m[5:10] = b"hello"; m[500000:500003] = b"end"
print(os.pread(f, 5, 5))
os.pwrite(f, b"J", 5)
print(m[5:10])
m.flush(); m.close(); os.close(f)
r = open("m", "rb"); p = mmap.mmap(r.fileno(), 0, prot=mmap.PROT_READ); print(p[5:10], p[500000:500003])
f = os.open("m", os.O_RDWR); c = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE); c[0:1] = b"x"; print(os.pread(f, 1, 0))
"#,
    );
}

#[test]
fn processes_lock_each_other_out() {
    compare_python(
        r#"
f = os.open("l", os.O_CREAT | os.O_RDWR); os.write(f, b"0" * 100)
fcntl.flock(f, fcntl.LOCK_EX)
r, w = os.pipe()
if os.fork() == 0:
    g = os.open("l", os.O_RDWR)
    try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: os.write(w, b"flock ")
    fcntl.lockf(g, fcntl.LOCK_EX, 10, 50)
    os.write(w, b"locked"); time.sleep(0.3); os._exit(0)
time.sleep(0.15)
print(os.read(r, 100))
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 52)
except (BlockingIOError, PermissionError): print("range is locked")
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0); os.wait()
fcntl.lockf(f, fcntl.LOCK_EX, 5, 52); print("free")
"#,
    );
}

#[test]
fn calls_on_descriptors_do_what_they_do() {
    compare_python(
        r#"
f = os.open("a", os.O_CREAT | os.O_RDWR | os.O_APPEND)
for i in range(5): os.write(f, b"line %d\n" % i)
os.pwrite(f, b"appended", 0); print(os.fstat(f).st_size)
g = os.dup(f); os.lseek(g, 0, os.SEEK_SET); print(os.read(g, 6)); os.close(g)
o = os.open("b", os.O_CREAT | os.O_RDWR); c = os.open("c", os.O_CREAT | os.O_RDWR); os.write(c, b"copied" * 10)
print(os.sendfile(o, f, 0, 1000), os.copy_file_range(c, o, 10, 3, 60))
os.posix_fallocate(o, 0, 200); print(os.fstat(o).st_size, os.preadv(o, [bytearray(3)], 60))
os.ftruncate(o, 1 << 20); os.pwritev(o, [b"a" * 4096], 1 << 19)
print(os.lseek(o, 4096, os.SEEK_DATA) , os.lseek(o, 1 << 19, os.SEEK_HOLE) > (1 << 19), os.lseek(o, 0, os.SEEK_END))
os.unlink("b"); os.pwrite(o, b"still here", 0); print(os.pread(o, 10, 0), os.fstat(o).st_nlink)
p = os.open("/proc/self/fd/%d" % o, os.O_RDONLY); print(os.read(p, 5))
try: os.open("a", os.O_CREAT | os.O_EXCL)
except FileExistsError: print("exists")
try: os.open("a/b", os.O_RDONLY)
except NotADirectoryError: print("not a directory")
try: os.open(".", os.O_WRONLY)
except IsADirectoryError: print("directory")
try: os.open("x" * 256, os.O_CREAT)
except OSError as e: print(e.errno)
os.utime("a", ns=(1_000_000_001, 2_000_000_003)); s = os.stat("a"); print(s.st_atime_ns, s.st_mtime_ns)
os.write(f, b"z"); print(os.stat("a").st_mtime_ns > 10**18); os.utime("a", ns=(5, 7)); os.close(f); print(os.stat("a").st_mtime_ns)
w = os.open("ro", os.O_CREAT | os.O_RDWR, 0o400); os.write(w, b"read-only"); os.close(w); print(open("ro").read())
d = os.open(".", os.O_RDONLY); os.mkdir("s", dir_fd=d); os.rename("ro", "s/ro", src_dir_fd=d, dst_dir_fd=d); os.fsync(d)
print(sorted(os.listdir("s")), os.statvfs(".").f_namemax, os.readlink("/proc/self/cwd") == os.getcwd())
"#,
    );
}

#[test]
fn many_small_files_arrive() {
    let script = format!(
        r#"
n = {}
for i in range(n):
    if i % 1000 == 0: os.mkdir("d%d" % (i // 1000))
    with open("d%d/f%d" % (i // 1000, i), "w") as f: f.write("content %d" % i)
print(sum(len(os.listdir(d)) for d in os.listdir(".")), all(open("d%d/f%d" % (i // 1000, i)).read() == "content %d" % i for i in range(0, n, 7)))
"#,
        amount(20_000, 100_000)
    );
    compare_python_with(amount(1, 9), &script);
}

/// A Python with packages that write files, which is made once.
fn packages() -> Option<&'static str> {
    const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/intercept-venv/bin/python");
    static MADE: OnceLock<Result<(), String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let is_there = || has_modules(PYTHON, "numpy, h5py, safetensors, netCDF4");
        let make = "cd \"$(dirname \"$0\")/../..\" && python3 -m venv --clear intercept-venv \
                    && intercept-venv/bin/python -m pip install --quiet numpy h5py safetensors netCDF4";
        let make = || Command::new("sh").args(["-c", make, PYTHON]).output();
        if is_there() || make().is_ok_and(|_| is_there()) { Ok(()) } else { Err(format!("{:?}", make())) }
    });
    match made {
        Ok(()) => Some(PYTHON),
        Err(output) => {
            skip(format_args!("numpy, h5py, safetensors and netCDF4 cannot be installed: {output}"));
            None
        }
    }
}

fn has_modules(python: &str, modules: &str) -> bool {
    let tried = Command::new(python).args(["-c", &format!("import {modules}")]).output();
    tried.is_ok_and(|output| output.status.success())
}

/// Runs the same lines of some Python natively and through all ways.
#[track_caller]
fn compare_in(python: &str, lines: &str) {
    compare("", &format!("PYTHONDONTWRITEBYTECODE=1 {python} - <<'END'\n{lines}\nEND"));
}

#[test]
fn torch_saves_tensors_in_place() {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/python-venv/bin/python");
    if !has_modules(python, "torch") {
        return does_not_apply("the tests of the Python package, which install torch, have not run yet");
    }
    compare_in(
        python,
        r#"
import torch
for step in range(3):
    torch.save({"a": torch.arange(300000.) + step, "b": torch.ones(100, 100)}, "model.pt")
print(torch.load("model.pt")["a"].sum().item())
"#,
    );
}

#[test]
fn safetensors_renames_before_it_closes() {
    let Some(python) = packages() else { return };
    compare_in(
        python,
        r#"
import numpy as np
from safetensors.numpy import load_file, save_file
for step in range(3):
    t = {"a": np.arange(300000.) + step, "b": np.ones((100, 100))}
    save_file(t, "model.safetensors"); save_file(t, f"step-{step}.safetensors")
print(load_file("model.safetensors")["a"].sum())
"#,
    );
}

#[test]
fn numpy_and_h5py_write_their_files() {
    let Some(python) = packages() else { return };
    compare_in(
        python,
        r#"
import numpy as np, h5py, os
a = np.arange(300000, dtype=np.float64).reshape(300, 1000)
np.save("a.npy", a); np.savez("b.npz", x=a[:10], y=a[:, :5]); print(np.load("a.npy").sum())
m = np.lib.format.open_memmap("m.npy", mode="w+", dtype=np.float32, shape=(500, 700))
m[:] = 3; m[7, :] = np.arange(700); m.flush(); del m
print(np.load("m.npy", mmap_mode="r")[7, 699], np.load("b.npz")["y"].shape)
a.tofile("raw"); print(np.memmap("raw", dtype=np.float64, mode="r+", shape=a.shape)[299, 999])
with h5py.File("c.h5", "w", track_order=False) as f:
    d = f.create_dataset("g/d", data=a, chunks=(30, 100), compression="gzip"); f.flush(); d[0, :] = -1
with h5py.File("c.h5", "r+") as f:
    f["g/d"][5, 5] = 42; print(f["g/d"][5, 5], f["g/d"][0, 0]); f.create_dataset("z", (1000, 1000), dtype="f4")
with h5py.File("c.h5") as f: print(f["g/d"][:].sum(), f["z"].shape)
os.unlink("b.npz")
"#,
    );
}

#[test]
fn netcdf_writes_both_of_its_formats() {
    let Some(python) = packages() else { return };
    compare_in(
        python,
        r#"
import numpy as np, netCDF4
for kind in ["NETCDF3_64BIT_OFFSET", "NETCDF4"]:
    with netCDF4.Dataset(kind + ".nc", "w", format=kind) as d:
        d.createDimension("t", None); d.createDimension("x", 5000)
        v = d.createVariable("v", "f8", ("t", "x")); v.unit = "m"
        for t in range(20): v[t, :] = np.arange(5000) + t; d.sync()
    with netCDF4.Dataset(kind + ".nc", "a") as d: d["v"][3, 7] = -1; d.title = "changed"
    with netCDF4.Dataset(kind + ".nc") as d: print(kind, d["v"].shape, float(d["v"][:].sum()), d.title)
"#,
    );
}
