//! `outcrop annotate` and `outcrop cc`: C sources with `#pragma nvcp`.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
};

use anyhow::{Context, Result};
use clap::Args;
use outcrop::{Error, ErrorKind};
use outcrop_annotate::{Compilation, CompilationError, Prefix, Refusal};

/// What to translate.
#[derive(Args)]
pub(crate) struct AnnotateArgs {
    /// The source.
    #[arg(value_name = "FILE.c")]
    source: PathBuf,
    /// Where the translated source goes.
    #[arg(short, long, value_name = "OUT.c")]
    output: PathBuf,
}

/// How to compile.
#[derive(Args)]
pub(crate) struct CcArgs {
    /// Where `cargo xtask install` has put the library; by default where this program is.
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The compiler and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMPILER")]
    command: Vec<OsString>,
}

/// Translates a source.
pub(crate) fn annotate(args: &AnnotateArgs) -> Result<()> {
    let text = fs::read(&args.source).with_context(|| format!("cannot read {}", args.source.display()))?;
    let translation = outcrop_annotate::translate(&args.source, &text).map_err(|refusals| refused(&refusals))?;
    let (output, directives, lines) = (args.output.display(), translation.directives, translation.lines_added);
    fs::write(&args.output, &translation.text).with_context(|| format!("cannot write {output}"))?;
    eprintln!("outcrop: {output}: {directives} directives, {lines} lines added");
    Ok(())
}

/// Compiles, and ends as the compiler does.
pub(crate) fn cc(args: &CcArgs) -> Result<ExitCode> {
    let (compiler, arguments) = args.command.split_first().expect("clap demands one");
    let prefix = match &args.prefix {
        Some(prefix) => Some(Prefix(std::path::absolute(prefix)?)),
        None => std::env::current_exe().ok().as_deref().and_then(Prefix::of_program),
    };
    let directory = tempfile::tempdir().context("cannot make a directory for translated sources")?;
    let plan = Compilation::plan(arguments, prefix.as_ref(), directory.path()).map_err(failed)?;
    let status = Command::new(compiler).args(&plan.arguments).status();
    let status = status.with_context(|| format!("cannot start {}", Path::new(compiler).display()))?;
    plan.finish().map_err(failed)?;
    Ok(as_the_compiler(status))
}

fn as_the_compiler(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn failed(error: CompilationError) -> anyhow::Error {
    match error {
        CompilationError::Refused(refusals) => refused(&refusals),
        CompilationError::File(path, error) => {
            anyhow::Error::new(error).context(format!("cannot use {}", path.display()))
        }
    }
}

/// Says all that cannot be translated.
fn refused(refusals: &[Refusal]) -> anyhow::Error {
    refusals.iter().for_each(|refusal| eprintln!("{refusal}"));
    let count = refusals.len();
    let message = format!("{count} error{} in annotations; nothing was written", if count == 1 { "" } else { "s" });
    Error::new(ErrorKind::Usage, message).into()
}
