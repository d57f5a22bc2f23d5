//! The tests of the Python package. It is installed as a wheel would be, with the library that
//! cargo has built for this test: a tool that makes wheels would compile everything again. What the
//! tests need is kept in `target/python-venv`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use outcrop_testing::{ObjectServer, covered, must_run_all, program_in, skip};

/// PyTorch, without what it depends on.
const TORCH: &str = "torch==2.15.0";

/// Where the package is.
const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// An environment of Python's with the package in it.
struct Environment {
    path: PathBuf,
}

impl Environment {
    /// Makes it, unless it is there. An error if there is no Python, or none that can make
    /// environments.
    fn open(path: PathBuf) -> Result<Self, String> {
        let environment = Self { path };
        if environment.python().args(["-m", "pip", "--version"]).output().is_ok_and(|output| output.status.success()) {
            return Ok(environment);
        }
        let python = env::var("OUTCROP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&environment.path))?;
        Ok(environment)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.path.join("bin").join(name));
        command.current_dir(PACKAGE).env("PYTHONDONTWRITEBYTECODE", "1").env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command
    }

    fn python(&self) -> Command {
        self.program("python")
    }

    /// Installs packages. What is large may take several attempts to arrive.
    fn pip(&self, arguments: &[&str]) -> Result<(), String> {
        run(self.python().args(["-m", "pip", "install", "--quiet", "--retries", "10"]).args(arguments))
    }

    /// Does what `name` says once for each text that describes it.
    fn once(&self, name: &str, text: &str, work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let stamp = self.path.join(format!("{name}.done"));
        if fs::read_to_string(&stamp).is_ok_and(|done| done == text) {
            return Ok(());
        }
        work()?;
        fs::write(&stamp, text).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
    }

    /// Installs what a file lists.
    fn install(&self, requirements: &str) -> Result<(), String> {
        let path = Path::new(PACKAGE).join(requirements);
        let listed = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        self.once(requirements, &listed, || self.pip(&["-r", requirements]))
    }

    fn install_torch(&self) -> Result<(), String> {
        self.once("torch", TORCH, || {
            self.pip(&["--no-deps", TORCH])?;
            run(self.python().arg("python/outcrop/_torch_without_cuda.py"))
        })
    }

    /// Puts the package where Python looks for packages, in place of an older one.
    fn install_package(&self) {
        let printed =
            self.python().args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]).output().unwrap();
        let packages = PathBuf::from(String::from_utf8(printed.stdout).unwrap().trim());
        for entry in fs::read_dir(&packages).unwrap().map(|entry| entry.unwrap().path()) {
            let name = entry.file_name().unwrap().to_string_lossy();
            if name == "outcrop" || name.starts_with("outcrop-") {
                fs::remove_dir_all(&entry).unwrap();
            }
        }
        copy_tree(&Path::new(PACKAGE).join("python/outcrop"), &packages.join("outcrop"));
        // Cargo puts it next to the test programs that depend on it.
        let library = env::current_exe().unwrap().with_file_name("lib_outcrop.so");
        fs::copy(&library, packages.join("outcrop/_outcrop.abi3.so")).unwrap();
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Runs a command to its end; an error if that is not a good one.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}: {said}", output.status))
}

/// Serves if the package has started this program as its node daemon; does nothing as a test.
#[test]
fn serves() {
    if let Some(options) = outcrop_node::ServeOptions::from_environment().unwrap() {
        outcrop_node::serve(options).unwrap();
    }
}

#[test]
fn the_package_passes_its_tests() {
    // The library is built as this test is. In other builds, a mistake of ours could pass unseen.
    if !cfg!(debug_assertions) {
        return skip("a build without debug assertions");
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let prepare = || {
        let environment = Environment::open(target.join("python-venv"))?;
        environment.install("requirements-test.txt")?;
        if must_run_all() {
            // More than half a gigabyte to download: not for everybody who runs the tests.
            environment.install("requirements-all.txt")?;
            environment.install_torch()?;
        }
        Ok(environment)
    };
    let environment = match prepare() {
        Ok(environment) => environment,
        Err(reason) => {
            let reason: String = reason;
            return skip(reason);
        }
    };
    environment.install_package();
    let mut python = environment.python();
    // The tests of object stores say why they are skipped if there is none.
    let server = ObjectServer::start(Path::new(env!("CARGO_TARGET_TMPDIR")));
    match &server {
        Ok(server) => {
            server.make_bucket("bucket");
            python.env("OUTCROP_TEST_OBJECT_SERVER", server.address().to_string());
        }
        Err(reason) => skip(reason),
    }
    let output = python
        .args(["-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rsfE"])
        .env("PATH", program_in(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-bin"), "outcrop", "serves"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // A panic's message comes last in what cargo prints, and the names of what failed last in what
    // pytest does: who has only the end of it can read why.
    assert!(output.status.success(), "the tests of the Python package ended with {}:\n{said}", output.status);
    print!("{said}");
    let sweeps: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("COVERED ")?.split_once(": ")).collect();
    assert!(sweeps.len() >= 2, "the random calls do not say how many they were:\n{said}");
    sweeps.iter().for_each(|(what, count)| covered(what, count));
}
