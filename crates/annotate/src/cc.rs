//! A compiler's command line, with annotated sources replaced by what they are translated to.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Refusal, translate};

/// Where the library and its headers are installed.
#[derive(Debug, Clone)]
pub struct Prefix(pub PathBuf);

impl Prefix {
    /// Where a program is installed: `bin` is beside `include` and `lib`.
    pub fn of_program(program: &Path) -> Option<Self> {
        let prefix = program.parent()?.parent()?;
        prefix.join("include/outcrop_nvcp.h").exists().then(|| Self(prefix.to_owned()))
    }
}

/// A call of a compiler.
#[derive(Debug)]
pub struct Compilation {
    /// The arguments, without the compiler itself.
    pub arguments: Vec<OsString>,
    /// What was translated, and to which file.
    pub translated: Vec<(PathBuf, PathBuf)>,
    /// The file that tells `make` what was read, if the compiler writes one.
    depends: Option<PathBuf>,
}

/// Why there is none.
#[derive(Debug)]
pub enum Error {
    /// What directives say cannot be done.
    Refused(Vec<Refusal>),
    /// A file cannot be read or written.
    File(PathBuf, io::Error),
}

/// Options whose value is the next argument.
const WITH_VALUE: &[&str] = &[
    "-o",
    "-I",
    "-L",
    "-D",
    "-U",
    "-MF",
    "-MT",
    "-MQ",
    "-x",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-iprefix",
    "-isysroot",
    "-Xlinker",
    "-Xpreprocessor",
    "-Xassembler",
    "-T",
    "-u",
    "-z",
    "-e",
    "-l",
    "-B",
    "-aux-info",
    "-dumpbase",
    "-dumpdir",
    "--param",
    "--sysroot",
    "-target",
    "-arch",
];

/// With these nothing is linked.
const UNLINKED: &[&str] = &["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only"];

impl Compilation {
    /// Translates the annotated sources that the arguments name to files below `directory`.
    pub fn plan(arguments: &[OsString], prefix: Option<&Prefix>, directory: &Path) -> Result<Self, Error> {
        let is = |word: &str| arguments.iter().any(|argument| argument == word);
        let mut plan = Self { arguments: Vec::new(), translated: Vec::new(), depends: depends(arguments) };
        let (mut quoted, mut has_input, mut is_value) = (Vec::new(), false, false);
        for argument in arguments {
            let path = Path::new(argument);
            let is_input = !is_value && !argument.as_encoded_bytes().starts_with(b"-");
            is_value = !is_value && WITH_VALUE.iter().any(|option| argument == option);
            has_input |= is_input;
            // What only lists headers needs no translation.
            let is_source = is_input && path.extension() == Some(OsStr::new("c")) && !is("-M") && !is("-MM");
            match if is_source { plan.translate(path, directory)? } else { None } {
                Some(made) => {
                    quoted.push(path.parent().filter(|it| *it != Path::new("")).unwrap_or(Path::new(".")).to_owned());
                    plan.arguments.push(made.into());
                }
                None => plan.arguments.push(argument.clone()),
            }
        }
        for directory in quoted {
            plan.arguments.extend(["-iquote".into(), directory.into()]);
        }
        if let Some(Prefix(prefix)) = prefix {
            if !plan.translated.is_empty() {
                // Headers are not translated, and may have directives before structs.
                plan.arguments.extend(["-Wno-unknown-pragmas".into(), "-I".into(), prefix.join("include").into()]);
            }
            if has_input && !UNLINKED.iter().any(|option| is(option)) {
                let lib = prefix.join("lib");
                let mut found = OsString::from("-Wl,-rpath,");
                found.push(&lib);
                // Only programs that call it are linked with it.
                let link = ["-Wl,--push-state,--as-needed", "-loutcrop", "-Wl,--pop-state"];
                plan.arguments.extend(["-L".into(), lib.into(), found]);
                plan.arguments.extend(link.map(OsString::from));
            }
        }
        Ok(plan)
    }

    /// Translates a source if it has directives, and says to which file.
    fn translate(&mut self, path: &Path, directory: &Path) -> Result<Option<PathBuf>, Error> {
        // What cannot be read is for the compiler to say.
        let Ok(text) = fs::read(path) else { return Ok(None) };
        if !crate::source::has_directives(&text) {
            return Ok(None);
        }
        let translation = translate(path, &text).map_err(Error::Refused)?;
        // What a compiler makes without `-o` is named after its input.
        let made = directory.join(self.translated.len().to_string()).join(path.file_name().unwrap_or_default());
        let failed = |error| Error::File(made.clone(), error);
        fs::create_dir_all(made.parent().unwrap_or(directory)).map_err(failed)?;
        fs::write(&made, translation.text).map_err(failed)?;
        self.translated.push((path.to_owned(), made.clone()));
        Ok(Some(made))
    }

    /// Has the list of what was read name the sources, and not what they were translated to.
    pub fn finish(&self) -> Result<(), Error> {
        let Some(depends) = self.depends.as_ref().filter(|_| !self.translated.is_empty()) else { return Ok(()) };
        let failed = |error| Error::File(depends.clone(), error);
        let Ok(mut text) = fs::read_to_string(depends) else { return Ok(()) };
        for (path, made) in &self.translated {
            text = text.replace(&made.display().to_string(), &path.display().to_string());
        }
        fs::write(depends, text).map_err(failed)
    }
}

/// The file that says what was read.
fn depends(arguments: &[OsString]) -> Option<PathBuf> {
    let is = |word: &str| arguments.iter().any(|argument| argument == word);
    let value = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option)?;
        arguments.get(at + 1).map(PathBuf::from)
    };
    let named = value("-MF").or_else(|| {
        let joined = |argument: &OsString| argument.to_str()?.strip_prefix("-MF").map(PathBuf::from);
        arguments.iter().find_map(joined)
    });
    if named.is_some() || !(is("-MD") || is("-MMD")) {
        return named;
    }
    let source = arguments.iter().map(PathBuf::from).find(|path| path.extension() == Some(OsStr::new("c")));
    let source = source.and_then(|path| path.file_name().map(PathBuf::from));
    value("-o").or(source).map(|output| output.with_extension("d"))
}
