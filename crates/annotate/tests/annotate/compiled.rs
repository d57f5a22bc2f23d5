//! Programs that were translated and compiled, for the other tests.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use outcrop_testing::skip;
use tempfile::TempDir;

/// A directory with the library as it was built, with its symbols: what is installed has none, and
/// valgrind needs them.
fn with_symbols() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("annotate-symbols");
        fs::create_dir_all(&directory).unwrap();
        let major = env!("CARGO_PKG_VERSION").split('.').next().unwrap();
        let library = directory.join(format!("liboutcrop.so.{major}"));
        let _ = fs::remove_file(&library);
        let built = std::env::current_exe().unwrap().parent().unwrap().join("liboutcrop_c.so");
        symlink(built, library).unwrap();
        directory
    })
}

/// What is found with every compiler's help.
pub(crate) const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-O2"];

/// The directory of the project.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// An example.
pub(crate) fn example(name: &str) -> PathBuf {
    root().join("crates/annotate/examples").join(name)
}

/// Where the library is installed for these tests.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        // Tests end without dropping what is static: it lies where the next run overwrites it.
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("annotate-prefix");
        let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        crate::install::put_library(root(), &built, &prefix).unwrap();
        prefix
    })
}

pub(crate) fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip(format_args!("there is no {tool}"));
    }
    is_there
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a command says. It must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, text(&output));
    text(&output)
}

/// A compiled program, and a directory for it to work in.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) directory: TempDir,
}

impl Program {
    /// Translates and compiles a source; nothing if there is no compiler.
    pub(crate) fn translated(source: &Path, flags: &[&str]) -> Option<Self> {
        Self::translated_with(source, flags, |text| text)
    }

    /// The same of a source that is changed before.
    pub(crate) fn translated_with(
        source: &Path,
        flags: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        Self::translated_by("gcc", source, flags, change)
    }

    /// The same by another compiler.
    pub(crate) fn translated_by(
        compiler: &str,
        source: &Path,
        flags: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let read = change(fs::read_to_string(source).unwrap());
        let translation = outcrop_annotate::translate(source, read.as_bytes()).unwrap_or_else(|refusals| {
            panic!("{}", refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        });
        let made = directory.path().join(source.file_name().unwrap());
        fs::write(&made, translation.text).unwrap();
        Self::compiled(compiler, directory, &made, source, flags)
    }

    /// Compiles a source as it is.
    pub(crate) fn plain(source: &Path, flags: &[&str]) -> Option<Self> {
        Self::compiled("gcc", TempDir::new().unwrap(), source, source, flags)
    }

    fn compiled(compiler: &str, directory: TempDir, source: &Path, original: &Path, flags: &[&str]) -> Option<Self> {
        if !has(compiler) {
            return None;
        }
        let path = directory.path().join("program");
        let lib = prefix().join("lib");
        let mut command = Command::new(compiler);
        command.arg("-std=c11").args(WARNINGS).args(flags).arg(source).arg("-o").arg(&path);
        command.arg("-iquote").arg(original.parent().unwrap()).arg("-I").arg(prefix().join("include"));
        command.arg("-L").arg(&lib).args(["-loutcrop", "-lm"]).arg(format!("-Wl,-rpath,{}", lib.display()));
        run(&mut command);
        Some(Self { path, directory })
    }

    /// A directory for it to work in.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        let place = self.directory.path().join(name);
        fs::create_dir_all(&place).unwrap();
        place
    }

    /// The program in a directory. What is set for the tests themselves is not for it.
    pub(crate) fn command(&self, place: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(place).env_remove("OUTCROP_LOG").env_remove("RUST_BACKTRACE");
        command
    }

    /// The program under valgrind, which must find neither an error nor a leak.
    pub(crate) fn checked(&self, place: &Path) -> Command {
        let mut command = Command::new("valgrind");
        let suppressions = prefix().join("share/outcrop/valgrind.supp");
        command.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]).current_dir(place);
        command.env("LD_LIBRARY_PATH", with_symbols());
        command.arg(format!("--suppressions={}", suppressions.display())).arg(&self.path);
        command
    }
}
