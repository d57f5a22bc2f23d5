//! Virtual machines with another kernel, which run this test program.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The root of an unpacked package with a kernel, if none that will do is installed.
const KERNEL: &str = "OUTCROP_GUEST_KERNEL";

/// What a virtual machine needs.
pub struct Guest {
    image: PathBuf,
    modules: PathBuf,
    programs: Vec<PathBuf>,
}

impl Guest {
    /// Finds a kernel that has a module, given by its path below `kernel`, and programs with the
    /// packages that have them. busybox is always there. An error names what is missing.
    pub fn find(module: &str, programs: &[(&str, &str)]) -> Result<Self, String> {
        let which = |name: &str| {
            let places = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|place| Path::new(place).join(name));
            places.into_iter().find(|path| path.exists())
        };
        let need = |(name, package): &(&str, &str)| which(name).ok_or_else(|| format!("{name} (package {package})"));
        need(&("qemu-system-x86_64", "qemu-system-x86"))?;
        let programs = [("busybox", "busybox-static")].iter().chain(programs).map(need);
        let programs = programs.collect::<Result<_, _>>()?;
        let root = PathBuf::from(env::var_os(KERNEL).unwrap_or_else(|| "/".into()));
        let kernels = fs::read_dir(root.join("boot")).into_iter().flatten().flatten();
        let releases =
            kernels.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned));
        let found = releases.map(|release| (root.join("boot").join(format!("vmlinuz-{release}")), release)).find_map(
            |(image, release)| {
                let modules = root.join("lib/modules").join(release);
                modules.join("kernel").join(module).exists().then_some((image, modules))
            },
        );
        let missing =
            || format!("a kernel with {module} (package linux-image-cloud-amd64, or {KERNEL}: where it is unpacked)");
        let (image, modules) = found.ok_or_else(missing)?;
        Ok(Self { image, modules, programs })
    }

    /// Makes the first file system of the guest: the programs, this test program as `/program`, and
    /// these scripts, of which `init` is the first to run. It has the modules of these folders
    /// below `kernel`; an empty name stands for all. `archive` is its file.
    pub fn pack(&self, scripts: &[(&str, &str)], folders: &[&str], archive: &Path) {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for folder in ["bin", "usr/sbin", "lib/modules"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        symlink("lib", root.join("lib64")).unwrap();
        let copy = |from: &Path, to: &str| {
            let to = root.join(to);
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let this = env::current_exe().unwrap();
        copy(&this, "program");
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
        let modules = root.join("lib/modules").join(self.modules.file_name().unwrap());
        for folder in folders {
            let to = modules.join("kernel").join(folder);
            fs::create_dir_all(&to).unwrap();
            let copied = Command::new("cp").arg("-aT").arg(self.modules.join("kernel").join(folder)).arg(to).status();
            assert!(copied.unwrap().success());
        }
        for (name, text) in scripts {
            fs::write(root.join(name), text).unwrap();
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let pack = format!("find . | busybox cpio -o -H newc > '{}' 2> /dev/null", archive.display());
        assert!(Command::new("sh").args(["-c", &pack]).current_dir(root).status().unwrap().success());
    }

    /// The command that starts a virtual machine with that file system. It prints its console.
    pub fn command(&self, archive: &Path) -> Command {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(["-accel", "tcg", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none"]);
        // On a busy machine, timers come too late for the check of the kernel.
        qemu.args(["-append", "console=ttyS0 panic=-1 quiet no_timer_check"]);
        qemu.arg("-kernel").arg(&self.image).arg("-initrd").arg(archive);
        qemu.stdin(Stdio::null());
        qemu
    }
}
