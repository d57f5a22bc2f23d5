//! Puts what was built where programs in other languages look for it. Tests of the bindings use it
//! too.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// What has to be built before.
pub(crate) const PACKAGES: &[&str] = &["outcrop-cli", "outcrop-c", "outcrop-veloc"];

/// The version of everything.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The Fortran module and what it includes.
const FORTRAN: [&str; 6] = [
    "outcrop.f90",
    "outcrop_calls.inc",
    "outcrop_elements.inc",
    "outcrop_final.inc",
    "outcrop_int32.inc",
    "outcrop_look.inc",
];

/// Puts everything below `prefix`: what was built is in `built`, the rest below `root`.
pub(crate) fn put(root: &Path, built: &Path, prefix: &Path) -> Result<()> {
    put_program(&built.join("outcrop"), prefix)?;
    put_veloc(root, &built.join("libveloc_client.a"), prefix)?;
    put_library(root, built, prefix)
}

/// Puts the program below `prefix`, and has it write its manual pages.
pub(crate) fn put_program(program: &Path, prefix: &Path) -> Result<()> {
    put_object(program, &prefix.join("bin/outcrop"))?;
    let status = Command::new(program).arg("man").arg(prefix.join("share/man/man1")).status();
    let status = status.with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(status.success(), "{} man ended with {status}", program.display());
    Ok(())
}

/// Puts VELOC's interface below `prefix`, out of an archive that cargo has built.
pub(crate) fn put_veloc(root: &Path, archive: &Path, prefix: &Path) -> Result<()> {
    let veloc = root.join("bindings/veloc");
    let library = prefix.join("lib/libveloc-client.so");
    put_with(&library, |new| {
        let status = Command::new(veloc.join("link.sh")).arg(archive).arg(new).status()?;
        status.success().then_some(()).ok_or_else(|| io::Error::other(format!("link.sh ended with {status}")))?;
        strip(new)
    })?;
    put_tree(&veloc.join("include"), &prefix.join("include"))?;
    let has_mpi = fs::read(&library)?.windows(12).any(|bytes| bytes == b"\0VELOC_Init\0");
    let package = veloc.join("package");
    for name in ["velocConfig.cmake", "velocConfigVersion.cmake"] {
        let replaced = [("@HAS_MPI@", if has_mpi { "TRUE" } else { "FALSE" })];
        put_text(&package.join(name), &prefix.join("share/veloc/cmake").join(name), &replaced)?;
    }
    Ok(())
}

/// Puts the library for C, C++ and Fortran below `prefix`, with what is needed to compile for it.
pub(crate) fn put_library(root: &Path, built: &Path, prefix: &Path) -> Result<()> {
    let lib = prefix.join("lib");
    let major = VERSION.split('.').next().unwrap_or_default();
    let (full, named) = (format!("liboutcrop.so.{VERSION}"), format!("liboutcrop.so.{major}"));
    put_object(&built.join("liboutcrop_c.so"), &lib.join(&full))?;
    put_link(&full, &lib.join(&named))?;
    put_link(&named, &lib.join("liboutcrop.so"))?;
    put_object(&built.join("liboutcrop_c.a"), &lib.join("liboutcrop.a"))?;
    put_tree(&root.join("bindings/c/include"), &prefix.join("include"))?;
    for name in FORTRAN {
        put_file(&root.join("bindings/fortran").join(name), &prefix.join("share/outcrop/fortran").join(name))?;
    }
    let package = root.join("bindings/c/package");
    put_file(&package.join("valgrind.supp"), &prefix.join("share/outcrop/valgrind.supp"))?;
    let version = [("@VERSION@", VERSION)];
    put_text(&package.join("outcrop.pc"), &lib.join("pkgconfig/outcrop.pc"), &version)?;
    for name in ["OutcropConfig.cmake", "OutcropConfigVersion.cmake"] {
        put_text(&package.join(name), &lib.join("cmake/Outcrop").join(name), &version)?;
    }
    Ok(())
}

/// Copies a text in which some words are replaced.
fn put_text(from: &Path, to: &Path, replaced: &[(&str, &str)]) -> Result<()> {
    let text = fs::read_to_string(from).with_context(|| format!("cannot read {}", from.display()))?;
    let text = replaced.iter().fold(text, |text, (word, by)| text.replace(word, by));
    put_with(to, |new| fs::write(new, text))
}

/// Copies what is below a directory.
fn put_tree(from: &Path, to: &Path) -> Result<()> {
    let list = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for entry in list {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() { put_tree(&from, &to)? } else { put_file(&from, &to)? }
    }
    Ok(())
}

fn put_file(from: &Path, to: &Path) -> Result<()> {
    put_with(to, |new| fs::copy(from, new).map(drop)).with_context(|| format!("cannot copy {}", from.display()))
}

/// Copies a program or library without what only debuggers read.
fn put_object(from: &Path, to: &Path) -> Result<()> {
    let copy = |new: &Path| fs::copy(from, new).map(drop).and_then(|()| strip(new));
    put_with(to, copy).with_context(|| format!("cannot copy {}", from.display()))
}

/// Removes symbols and debug information, of the standard library too: the linker does so for
/// programs, but an archive is not linked. Where there is no `strip`, it stays as it is.
fn strip(object: &Path) -> io::Result<()> {
    // In an archive, symbols are what programs are linked by. Half of it is code for the compiler's
    // own linker, which has done its work.
    let is_archive = fs::read(object)?.starts_with(b"!<arch>");
    let what: &[&str] = match is_archive {
        true => &["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"],
        false => &["--strip-unneeded"],
    };
    match Command::new("strip").args(what).arg(object).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// What was installed and how large it is: programs and libraries, without links.
pub(crate) fn sizes(prefix: &Path) -> Result<Vec<(String, u64)>> {
    let mut sizes = Vec::new();
    for directory in ["bin", "lib"] {
        for entry in fs::read_dir(prefix.join(directory))? {
            let (entry, name) = entry.map(|entry| (entry.metadata(), entry.file_name()))?;
            let entry = entry?;
            if entry.is_file() {
                sizes.push((format!("{directory}/{}", name.display()), entry.len()));
            }
        }
    }
    sizes.sort();
    Ok(sizes)
}

fn put_link(target: &str, at: &Path) -> Result<()> {
    put_with(at, |new| symlink(target, new))
}

/// Makes a file beside its place and moves it there, so that a program which runs with the one
/// before goes on with that one.
fn put_with(to: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    let cannot = || format!("cannot write {}", to.display());
    let directory = to.parent().with_context(cannot)?;
    fs::create_dir_all(directory).with_context(cannot)?;
    let new: PathBuf = directory.join(format!(".{}.new", to.file_name().unwrap_or_default().display()));
    // One that an interrupted attempt has left.
    let _ = fs::remove_file(&new);
    make(&new).and_then(|()| fs::rename(&new, to)).with_context(cannot)
}
