//! Compiles liboutcrop-mpi.so with the compiler of an MPI, once: it stays in a directory for what
//! can be made again.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use twox_hash::XxHash3_64;

use crate::{
    Error, Result,
    process::{Loaded, title},
};

/// Which compiler to use.
const COMPILER: &str = "OUTCROP_MPICC";
/// Where compiled libraries are.
const DIRECTORY: &str = "OUTCROP_MPI_DIR";
/// The name of the library.
const LIBRARY: &str = "liboutcrop-mpi.so";

/// The program that says which MPI a compiler is for.
const IDENTITY: &str = include_str!("../shim/identity.c");

/// The sources of the library.
const SOURCES: &[(&str, &str)] = &[
    ("shim.h", include_str!("../shim/shim.h")),
    ("layer.h", include_str!("../shim/layer.h")),
    ("ranks.c", include_str!("../shim/ranks.c")),
    ("log.c", include_str!("../shim/log.c")),
    ("types.c", include_str!("../shim/types.c")),
    ("requests.c", include_str!("../shim/requests.c")),
    ("calls.c", include_str!("../shim/calls.c")),
    ("counted.inc", include_str!("../shim/counted.inc")),
];

/// A compiled library.
#[derive(Debug)]
pub struct Built {
    /// The library.
    pub path: PathBuf,
    /// The MPI that it is for.
    pub mpi: String,
    /// Whether it was there already.
    pub was_there: bool,
}

/// Compiles the library with an MPI compiler, unless that was done before, and keeps it in a
/// directory. Default: the values of `OUTCROP_MPICC` and `OUTCROP_MPI_DIR`, or `mpicc` and
/// `~/.cache/outcrop/mpi`.
pub fn build(compiler: Option<&Path>, directory: Option<&Path>) -> Result<Built> {
    let named = compiler.map(Path::to_owned).or_else(named_compiler);
    let compiler = named.unwrap_or_else(|| "mpicc".into());
    let identity = identity_of(&compiler)?;
    let path = place(&identity, directory)?;
    let was_there = path.exists();
    if !was_there {
        compile(&compiler, &identity, &path)?;
    }
    Ok(Built { path, mpi: title(&identity), was_there })
}

/// The library for the MPI of this process, compiled now if it is not there.
pub(crate) fn library_for(mpi: &Loaded) -> Result<PathBuf> {
    let path = place(&mpi.identity, None)?;
    if path.exists() {
        return Ok(path);
    }
    let mut others = Vec::new();
    for compiler in compilers_of(mpi) {
        match identity_of(&compiler) {
            Ok(identity) if identity == mpi.identity => return compile(&compiler, &identity, &path).map(|()| path),
            Ok(identity) => others.push(format!("{} is for {}", compiler.display(), title(&identity))),
            Err(error) => others.push(error.to_string()),
        }
    }
    Err(Error::Library(format!(
        "this process runs with {}, and no compiler of it was found ({}); set OUTCROP_MPICC to its mpicc, or run \
         `outcrop mpi build --mpicc PATH` once where it is installed",
        title(&mpi.identity),
        others.join("; ")
    )))
}

fn named_compiler() -> Option<PathBuf> {
    env::var_os(COMPILER).filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// Compilers that may be the one of this MPI, likeliest first: the one that the user names, one
/// that is installed with the library, one in the path.
fn compilers_of(mpi: &Loaded) -> Vec<PathBuf> {
    if let Some(named) = named_compiler() {
        return vec![named];
    }
    let file = mpi.path.file_name().unwrap_or_default().to_string_lossy();
    let name = if file.starts_with("libmpi_abi") { "mpicc_abi" } else { "mpicc" };
    let prefixes = mpi.path.ancestors().skip(2).take(3);
    let installed = prefixes.map(|prefix| prefix.join("bin").join(name)).filter(|path| path.exists());
    installed.take(1).chain([name.into()]).collect()
}

/// Which MPI a compiler is for, in the words of [`Loaded::identity`].
fn identity_of(compiler: &Path) -> Result<String> {
    let scratch = scratch()?;
    let (source, program) = (scratch.path().join("identity.c"), scratch.path().join("identity"));
    fs::write(&source, IDENTITY).map_err(|error| cannot("write", &source, &error))?;
    run(Command::new(compiler).arg(&source).arg("-o").arg(&program).arg("-ldl"))?;
    run(&mut Command::new(&program))
}

fn compile(compiler: &Path, identity: &str, path: &Path) -> Result<()> {
    let scratch = scratch()?;
    let literal: String = identity.bytes().map(|byte| format!("\\{byte:03o}")).collect();
    let built_for = format!("#include \"shim.h\"\nconst char outcrop_mpi_built_for[] = \"{literal}\";\n");
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra"]);
    for (name, text) in SOURCES.iter().copied().chain([("built_for.c", &*built_for)]) {
        let file = scratch.path().join(name);
        fs::write(&file, text).map_err(|error| cannot("write", &file, &error))?;
        if name.ends_with(".c") {
            command.arg(file);
        }
    }
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(|error| cannot("make", directory, &error))?;
    // Other ranks may do the same at the same time: the last one wins, and all have made the same.
    let draft = tempfile::Builder::new().prefix(".draft-").suffix(".so").tempfile_in(directory);
    let draft = draft.map_err(|error| cannot("write in", directory, &error))?.into_temp_path();
    run(command.arg("-o").arg(&draft).arg("-ldl"))?;
    draft.persist(path).map_err(|error| cannot("write", path, &error.error))
}

/// Where the library for an MPI is: its name depends on the MPI and on the sources.
fn place(identity: &str, directory: Option<&Path>) -> Result<PathBuf> {
    let of_user = |variable: &str, below: &str| {
        env::var_os(variable).filter(|path| !path.is_empty()).map(|path| PathBuf::from(path).join(below))
    };
    let directory = directory
        .map(Path::to_owned)
        .or_else(|| of_user(DIRECTORY, ""))
        .or_else(|| of_user("XDG_CACHE_HOME", "outcrop/mpi"))
        .or_else(|| of_user("HOME", ".cache/outcrop/mpi"));
    let directory = directory.ok_or_else(|| {
        Error::Library(format!("there is no home directory for it; set {DIRECTORY} to a directory that all ranks see"))
    })?;
    let sources = SOURCES.iter().flat_map(|(_, text)| text.bytes()).chain(identity.bytes()).collect::<Vec<_>>();
    let is_plain = |symbol: char| symbol.is_ascii_alphanumeric() || ".-".contains(symbol);
    let name: String = title(identity).chars().map(|symbol| if is_plain(symbol) { symbol } else { '-' }).collect();
    let directory = directory.join(format!("{}{:016x}", name.replace("--", "-"), XxHash3_64::oneshot(&sources)));
    Ok(std::path::absolute(&directory).unwrap_or(directory).join(LIBRARY))
}

/// Runs a command, and returns what it prints.
fn run(command: &mut Command) -> Result<String> {
    // A preloaded library is for the program, not for compilers.
    let output = command.env_remove("LD_PRELOAD").output().map_err(|error| {
        let program = Path::new(command.get_program()).display();
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "; install MPI with its compiler, or set OUTCROP_MPICC to its mpicc",
            _ => "",
        };
        Error::Library(format!("cannot run {program}: {error}{remedy}"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<OsString> = command.get_args().map(OsString::from).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    let program = Path::new(command.get_program()).display();
    Err(Error::Library(format!("{program} {} has failed: {}", words.join(" ".as_ref()).display(), said.trim())))
}

fn scratch() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| cannot("write in", &env::temp_dir(), &error))
}

fn cannot(attempt: &str, path: &Path, error: &io::Error) -> Error {
    Error::Library(format!(
        "cannot {attempt} {}: {error}; set {DIRECTORY} to a directory that all ranks see",
        path.display()
    ))
}
