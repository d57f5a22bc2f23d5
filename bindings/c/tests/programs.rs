//! Programs in C, C++ and Fortran against the library as it is installed: the examples, what bad
//! input gives, many threads; all of them also under valgrind, and built in each of the ways that
//! users build.

// The very code that `cargo xtask install` runs; these tests need a part of it.
#[allow(dead_code)]
#[path = "../../../xtask/src/install.rs"]
mod install;

use std::{
    fs,
    os::unix::{fs::symlink, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use outcrop::catalog::Catalog;
use outcrop_testing::{amount, covered, mount_memory, program_in, skip, with_own_mounts};
use tempfile::TempDir;

/// What is found with every compiler's help.
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-O2"];

/// The directory of the project.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Where the library is installed for these tests.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        // Tests end without dropping what is static: it lies where the next run overwrites it.
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prefix");
        install::put_library(root(), built(), &prefix).unwrap();
        prefix
    })
}

/// Where cargo has put the library: next to the test programs that depend on it.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::current_exe().unwrap().parent().unwrap().to_owned())
}

/// A directory with the library as it was built, with its symbols: what is installed has none, and
/// valgrind needs them.
fn with_symbols() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols");
        fs::create_dir_all(&directory).unwrap();
        let major = env!("CARGO_PKG_VERSION").split('.').next().unwrap();
        let library = directory.join(format!("liboutcrop.so.{major}"));
        let _ = fs::remove_file(&library);
        symlink(built().join("liboutcrop_c.so"), library).unwrap();
        directory
    })
}

/// Whether a tool is there. If not, the test is skipped; a failure where all of them must be
/// carried out.
fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        skip(format_args!("there is no {tool}"));
    }
    is_there
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// What a command says. It must succeed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, text(&output));
    text(&output)
}

/// A program that has been compiled, in a directory of its own.
struct Program {
    path: PathBuf,
    directory: TempDir,
}

impl Program {
    /// Compiles sources, with the language's own compiler; nothing if there is none.
    fn compile(sources: &[&str]) -> Option<Self> {
        Self::compile_with(sources, &[])
    }

    fn compile_with(sources: &[&str], flags: &[&str]) -> Option<Self> {
        let last = *sources.last().unwrap();
        let (compiler, standard) = match Path::new(last).extension().and_then(|extension| extension.to_str()) {
            Some("c") => ("gcc", "-std=c11"),
            Some("cpp") => ("g++", "-std=c++17"),
            _ => ("gfortran", "-std=f2018"),
        };
        if !has(compiler) {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("program");
        let lib = prefix().join("lib");
        let mut command = Command::new(compiler);
        command.current_dir(directory.path()).arg(standard).args(WARNINGS).args(flags);
        if compiler == "gfortran" {
            // That numbers come back to the last bit is what is tested.
            command.arg("-Wno-compare-reals");
        }
        command.args(sources.iter().map(|source| root().join("bindings").join(source)));
        command.arg("-o").arg(&path).arg("-I").arg(prefix().join("include")).arg("-L").arg(&lib);
        command.args(["-pthread", "-loutcrop", "-lm"]).arg(format!("-Wl,-rpath,{}", lib.display()));
        run(&mut command);
        Some(Self { path, directory })
    }

    /// What interrupts the calls of a program that it is linked with.
    fn interrupting() -> Option<PathBuf> {
        let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interrupted.o");
        let source = root().join("bindings/c/tests/interrupted.c");
        has("gcc").then(|| run(Command::new("gcc").args(WARNINGS).arg("-c").arg(source).arg("-o").arg(&object)))?;
        Some(object)
    }

    /// A directory for it to work in.
    fn place(&self, name: &str) -> PathBuf {
        let place = self.directory.path().join(name);
        fs::create_dir_all(&place).unwrap();
        place
    }

    fn command(&self) -> Command {
        let mut command = quiet(Command::new(&self.path));
        command.current_dir(self.directory.path());
        command
    }

    /// The program under valgrind, which must find neither an error nor a leak.
    fn checked(&self) -> Command {
        self.checked_for("--leak-check=full")
    }

    fn checked_for(&self, leaks: &str) -> Command {
        let mut command = quiet(Command::new("valgrind"));
        let suppressions = prefix().join("share/outcrop/valgrind.supp");
        command.args(["--quiet", "--error-exitcode=99", leaks]).env("LD_LIBRARY_PATH", with_symbols());
        command.arg(format!("--suppressions={}", suppressions.display())).arg(&self.path);
        command
    }
}

/// What is set for the tests themselves is not for the programs.
fn quiet(mut command: Command) -> Command {
    command.env_remove("OUTCROP_LOG").env_remove("RUST_BACKTRACE");
    command
}

/// A heat equation is killed and goes on, to the same end, as one that was never interrupted.
fn goes_on(sources: &[&str]) {
    let Some(program) = Program::compile(sources) else { return };
    let whole = run(program.command().arg(program.place("whole")).arg("300"));
    let end = whole.lines().last().unwrap();
    assert!(end.starts_with("the state after 300 steps is "), "{whole}");
    let broken = program.place("broken");
    for step in ["90", "200"] {
        let killed = program.command().arg(&broken).args(["300", step]).output().unwrap();
        assert_eq!(killed.status.signal(), Some(9), "{}", text(&killed));
    }
    let resumed = run(program.command().arg(&broken).arg("300"));
    assert!(resumed.starts_with("goes on after step "), "{resumed}");
    assert_eq!(resumed.lines().last().unwrap(), end);
    if has("valgrind") {
        run(program.checked().arg(program.place("checked")).arg("60"));
        run(program.checked().arg(program.place("checked")).arg("80"));
    }
}

/// A program that tests something by itself, by itself and under valgrind. Says what it has said.
fn tests_itself(sources: &[&str], words: &str) -> Option<String> {
    let program = Program::compile(sources)?;
    let said = run(program.command().arg(program.place("plain")));
    assert!(said.contains(words), "{said}");
    let left: Vec<_> = fs::read_dir(program.place("plain")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "store" || name == "a.pool"), "a tape has left something behind: {left:?}");
    if has("valgrind") {
        run(program.checked().arg(program.place("checked")));
    }
    Some(said)
}

/// The programs that test something by themselves, and what they say when all was well.
const BY_THEMSELVES: [(&[&str], &str); 9] = [
    (&["c/tests/bad_input.c"], "all was refused as it should be"),
    (&["c/tests/ranks.c"], "the ranks came back together"),
    (&["c/tests/threads.c"], "all threads had their own"),
    (&["c/tests/hostile.c"], HARMLESS),
    (&["c/tests/hostile.cpp"], HARMLESS),
    (&["c/tests/calls.cpp"], "every call did what it should"),
    (&["c/tests/shapes.c"], "shapes came back"),
    (&["fortran/outcrop.f90", "fortran/tests/calls.f90"], "every call did what it should"),
    (&["fortran/outcrop.f90", "fortran/tests/hostile.f90"], HARMLESS),
];

const HARMLESS: &str = "no hostile call did harm";

/// With the sanitizers of addresses and undefined behaviour, which find no leak either. Nothing is
/// suppressed.
#[test]
fn sanitizers_find_nothing() {
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"];
    for (sources, words) in BY_THEMSELVES {
        // To read numbers from where they are not aligned is what it does.
        let Some(program) = Program::compile_with(sources, &flags) else { return };
        let said = run(program.command().arg(program.place("plain")));
        assert!(said.contains(words), "{said}");
    }
    let examples: [&[&str]; 4] = [
        &["c/examples/heat.c"],
        &["c/examples/heat.cpp"],
        &["c/examples/adjoint.c"],
        &["fortran/outcrop.f90", "fortran/examples/heat.f90"],
    ];
    for sources in examples {
        let Some(program) = Program::compile_with(sources, &flags) else { return };
        run(program.command().arg(program.place("plain")).arg("60"));
        run(program.command().arg(program.place("plain")).arg("80"));
    }
}

#[test]
fn signals_disturb_no_program() {
    let languages = ["c/tests/threads.c", "c/tests/bad_input.c", "c/tests/calls.cpp", "fortran/tests/calls.f90"];
    for (sources, words) in BY_THEMSELVES {
        if !languages.contains(sources.last().unwrap()) {
            continue;
        }
        let mut sources = sources.to_vec();
        let Some(interrupted) = Program::interrupting() else { return };
        let interrupted = interrupted.to_str().unwrap().to_owned();
        let last = sources.pop().unwrap();
        sources.extend([interrupted.as_str(), last]);
        let Some(program) = Program::compile(&sources) else { return };
        let said = run(program.command().arg(program.place("plain")));
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn no_hostile_call_from_c_does_harm() {
    tests_itself(&["c/tests/hostile.c"], HARMLESS);
}

#[test]
fn no_hostile_call_from_cpp_does_harm() {
    tests_itself(&["c/tests/hostile.cpp"], HARMLESS);
}

#[test]
fn no_hostile_call_from_fortran_does_harm() {
    tests_itself(&["fortran/outcrop.f90", "fortran/tests/hostile.f90"], HARMLESS);
}

#[test]
fn random_calls_do_what_a_model_says() {
    let Some(program) = Program::compile(&["c/tests/model.c"]) else { return };
    let (seeds, lives) = (amount(3, 500), amount(4, 12));
    let first: u64 = std::env::var("OUTCROP_MODEL_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        for ranks in [1, 2, 4, 7] {
            let place = program.place("model");
            let arguments = [seed.to_string(), ranks.to_string(), lives.to_string()];
            let output = program.command().arg(&place).args(&arguments).output().unwrap();
            let said = text(&output);
            assert!(
                output.status.success() && said.contains("all was as the model says"),
                "OUTCROP_MODEL_SEED={seed}, {ranks} ranks: {}\n{said}",
                output.status
            );
            fs::remove_dir_all(place).unwrap();
        }
    }
    covered("random programs in C with 1 to 7 ranks", seeds * 4);
}

#[test]
fn what_is_installed_is_stripped() {
    if !has("strip") || !has("readelf") {
        return;
    }
    let sections = |file: &str| run(Command::new("readelf").args(["-SW"]).arg(prefix().join("lib").join(file)));
    let library = sections("liboutcrop.so");
    assert!(library.contains(".dynsym"), "{library}");
    assert!(!library.contains(".symtab") && !library.contains(".debug_"), "{library}");
    let archive = sections("liboutcrop.a");
    // Programs are linked by its symbols.
    // A function may have such a word in its name; a section begins with it.
    assert!(archive.contains(".symtab") && !archive.contains("] .debug_") && !archive.contains("] .llvmbc"));
}

#[test]
fn heat_in_c_goes_on() {
    goes_on(&["c/examples/heat.c"]);
}

#[test]
fn heat_in_cpp_goes_on() {
    goes_on(&["c/examples/heat.cpp"]);
}

#[test]
fn heat_in_fortran_goes_on() {
    goes_on(&["fortran/outcrop.f90", "fortran/examples/heat.f90"]);
}

#[test]
fn an_adjoint_in_c_passes_the_dot_product_test() {
    let Some(program) = Program::compile(&["c/examples/adjoint.c"]) else { return };
    let said = run(program.command().arg(program.place("plain")).arg("400"));
    assert!(said.contains("400 states saved, 400 read") && said.contains("relative difference"), "{said}");
    if has("valgrind") {
        run(program.checked().arg(program.place("checked")).arg("80"));
    }
}

#[test]
fn bad_input_is_refused() {
    tests_itself(&["c/tests/bad_input.c"], "all was refused as it should be");
}

#[test]
fn a_forked_child_is_refused() {
    let Some(program) = Program::compile(&["c/tests/forked.c"]) else { return };
    let said = run(program.command().arg(program.place("plain")));
    assert!(said.contains("no child has used what is not its own"), "{said}");
    if has("valgrind") {
        // What its parent has open is lost to a child, and must be.
        run(program.checked_for("--leak-check=no").arg(program.place("checked")));
    }
}

#[test]
fn memory_may_be_freed_when_it_is_not_protected_any_more() {
    // Under valgrind memory cannot be frozen, and is copied.
    let Some(program) = Program::compile(&["c/tests/freed.c"]) else { return };
    let said = run(program.command().arg(program.place("plain")));
    assert!(said.contains("what was freed had been saved"), "{said}");
}

#[test]
fn pools_keep_what_they_should() {
    tests_itself(&["c/tests/pool.c"], "pools kept what they should");
    tests_itself(&["c/tests/pool.cpp"], "pools kept what they should");
}

/// Serves if a program has started this one as its node daemon; does nothing as a test.
#[test]
fn serves() {
    if let Some(options) = outcrop_node::ServeOptions::from_environment().unwrap() {
        outcrop_node::serve(options).unwrap();
    }
}

/// The value of `PATH` by which a program finds this one as its node daemon.
fn with_daemon(program: &Program) -> String {
    program_in(&program.place("bin"), "outcrop", "serves")
}

#[test]
fn output_goes_to_memory_of_the_node_first() {
    for source in ["c/tests/node.c", "c/tests/node.cpp"] {
        let Some(program) = Program::compile(&[source]) else { return };
        let path = with_daemon(&program);
        let said = run(program.command().arg(program.place("plain")).env("PATH", &path));
        assert!(said.contains("nothing was lost"), "{said}");
        if has("valgrind") {
            run(program.checked().arg(program.place("checked")).env("PATH", &path));
        }
        let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"];
        let Some(program) = Program::compile_with(&[source], &flags) else { return };
        let path = with_daemon(&program);
        run(program.command().arg(program.place("plain")).env("PATH", &path));
    }
}

#[test]
fn a_forked_child_does_not_use_the_node_of_its_parent() {
    let Some(program) = Program::compile(&["c/tests/node.c"]) else { return };
    let path = with_daemon(&program);
    let said = run(program.command().arg(program.place("plain")).arg("forked").env("PATH", &path));
    assert!(said.contains("no child has used what is not its own"), "{said}");
    if has("valgrind") {
        // What its parent has open is lost to a child, and must be.
        let mut checked = program.checked_for("--leak-check=no");
        run(checked.arg(program.place("checked")).arg("forked").env("PATH", &path));
    }
}

#[test]
fn a_full_target_is_said_of_the_write_that_finds_it_so() {
    let Some(program) = Program::compile(&["c/tests/node.c"]) else { return };
    let path = with_daemon(&program);
    with_own_mounts(|directory| {
        let target = directory.join("target");
        fs::create_dir(&target).unwrap();
        mount_memory(&target, c"size=1m");
        let said = run(program.command().arg(directory).arg(&target).env("PATH", &path));
        assert!(said.contains("the right write was told"), "{said}");
    });
}

#[test]
fn a_missing_daemon_is_said_with_the_remedy() {
    let Some(program) = Program::compile(&["c/tests/node.cpp"]) else { return };
    let place = program.place("plain");
    let output = program.command().arg(&place).env("PATH", "/nowhere").output().unwrap();
    let said = text(&output);
    assert!(!output.status.success() && said.contains("start the node daemon outcrop (it has to be in PATH"), "{said}");
}

#[test]
fn heads_keep_what_they_should() {
    tests_itself(&["c/tests/head.c"], "heads kept what they should");
    tests_itself(&["c/tests/head.cpp"], "heads kept what they should");
}

#[test]
fn ranks_save_together() {
    tests_itself(&["c/tests/ranks.c"], "the ranks came back together");
}

#[test]
fn a_missing_or_damaged_directory_of_a_rank_costs_nothing() {
    let Some(program) = Program::compile(&["c/tests/missing.c"]) else { return };
    let said = run(program.command().arg(program.place("plain")));
    assert!(said.contains("nothing was lost"), "{said}");
}

#[test]
fn many_threads_work_at_once() {
    tests_itself(&["c/tests/threads.c"], "all threads had their own");
}

#[test]
fn every_call_works_from_cpp() {
    let said = tests_itself(&["c/tests/calls.cpp"], "every call did what it should");
    assert!(
        said.is_none_or(|said| said.contains("outcrop: not closed, and failed: version 1 of dropped has not reached"))
    );
}

#[test]
fn every_call_works_from_fortran() {
    tests_itself(&["fortran/outcrop.f90", "fortran/tests/calls.f90"], "every call did what it should");
}

/// The programs that test shapes and boxes, by the name of the session that each saves.
const SHAPES: [(&str, &[&str]); 3] = [
    ("c", &["c/tests/shapes.c"]),
    ("cpp", &["c/tests/shapes.cpp"]),
    ("fortran", &["fortran/outcrop.f90", "fortran/tests/shapes.f90"]),
];

#[test]
fn shapes_and_boxes_come_back_in_each_language() {
    for (_, sources) in SHAPES {
        tests_itself(sources, "shapes came back");
    }
}

#[test]
fn what_one_language_saves_with_a_shape_another_restores_with_it() {
    let directory = TempDir::new().unwrap();
    let mut programs = Vec::new();
    for (session, sources) in SHAPES {
        let Some(program) = Program::compile(sources) else { return };
        run(program.command().arg(directory.path()).arg("save"));
        programs.push((session, program));
    }
    let catalog = Catalog::open(&directory.path().join("store")).unwrap();
    let tile = "tile: i32, 2 x 3 at (1, 2) of 4 x 8, column-major";
    for (session, _) in SHAPES {
        let field = match session {
            // Its indices are those of the others in reverse, in the same memory.
            "fortran" => "field: f64, 4 x 3 at (0, 6) of 4 x 9, column-major",
            _ => "field: f64, 3 x 4 at (6, 0) of 9 x 4",
        };
        let version = catalog.version(session, Some(1)).unwrap();
        let regions = version.manifests[&0].regions.iter();
        let regions: Vec<_> =
            regions.map(|region| format!("{}: {}, {}", region.name, region.element, region.shape)).collect();
        assert_eq!(regions, [field, tile, "step: i64, scalar"], "{session}");
        for (_, program) in &programs {
            run(program.command().arg(directory.path()).args(["restore", session]));
        }
    }
}

#[test]
fn a_failure_without_status_ends_a_fortran_program_with_the_message() {
    let Some(program) = Program::compile(&["fortran/outcrop.f90", "fortran/examples/heat.f90"]) else { return };
    let output = program.command().arg("/dev/null/x").output().unwrap();
    assert!(!output.status.success() && text(&output).contains("outcrop: cannot create a store"), "{}", text(&output));
}

#[test]
fn the_log_is_silent_unless_it_is_asked_for() {
    let Some(program) = Program::compile(&["c/examples/adjoint.c"]) else { return };
    let said = |log: Option<&str>| {
        let mut command = program.command();
        // A log of all events that cannot be written is a warning.
        command.arg(program.place("log")).arg("500").env("OUTCROP_LOG_FILE", "/dev/full");
        command.envs(log.map(|level| ("OUTCROP_LOG", level)));
        text(&command.output().unwrap())
    };
    let warned = said(Some("warn"));
    assert!(!said(None).contains("WARN") && warned.contains("WARN"), "{warned}");
    assert!(!warned.contains('\x1b'), "colours are for terminals: {warned:?}");
}

#[test]
fn a_misspelt_variable_is_said() {
    let Some(program) = Program::compile(&["c/examples/adjoint.c"]) else { return };
    let said = run(program.command().arg(program.place("plain")).arg("20").env("OUTCROP_HOSTT", "1 MiB"));
    assert_eq!(
        said.matches("OUTCROP_HOSTT is not known and has no effect; did you mean OUTCROP_HOST?").count(),
        1,
        "{said}"
    );
}

/// A command that finds the library by pkg-config.
fn flags(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("outcrop").env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    run(&mut command).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn pkg_config_finds_both_libraries() {
    if !has("pkg-config") || !has("gcc") {
        return;
    }
    assert_eq!(flags(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let directory = TempDir::new().unwrap();
    let source = root().join("bindings/c/examples/heat.c");
    let program = directory.path().join("shared");
    run(Command::new("gcc").arg(&source).arg("-o").arg(&program).args(flags(&["--cflags", "--libs"])));
    let said =
        run(quiet(Command::new(&program)).env("LD_LIBRARY_PATH", prefix().join("lib")).arg(directory.path()).arg("20"));
    assert!(said.contains("the state after 20 steps"), "{said}");

    let program = directory.path().join("static");
    let private = flags(&["--static", "--cflags", "--libs"]);
    let private = private.iter().map(|flag| if flag == "-loutcrop" { "-l:liboutcrop.a" } else { flag });
    run(Command::new("gcc").arg(&source).arg("-o").arg(&program).args(private));
    let said = run(quiet(Command::new(&program)).arg(directory.path()).arg("40"));
    assert!(said.starts_with("goes on after step 20"), "{said}");

    // A program without any shared library: compilers know which of their own it needs.
    for (compiler, source) in [("gcc", "heat.c"), ("g++", "heat.cpp")] {
        let source = root().join("bindings/c/examples").join(source);
        let program = directory.path().join(compiler);
        let private = flags(&["--static", "--cflags", "--libs"]);
        run(Command::new(compiler).arg("-static").arg(&source).arg("-o").arg(&program).args(private));
        let said = run(quiet(Command::new(&program)).arg(directory.path()).arg("60"));
        assert!(said.contains("the state after 60 steps"), "{said}");
    }
}

#[test]
fn cmake_finds_the_package() {
    if !has("cmake") || !has("gfortran") || !has("g++") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let examples = root().join("bindings/c/examples");
    let fortran = root().join("bindings/fortran/examples/heat.f90");
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)
project(Heat C CXX Fortran)
find_package(Outcrop {major}.{minor} CONFIG REQUIRED)
find_package(Outcrop {major}.{next} CONFIG QUIET)
if(Outcrop_FOUND)
  message(FATAL_ERROR \"another interface was accepted\")
endif()
find_package(Outcrop CONFIG REQUIRED)
add_executable(heat_c {examples}/heat.c)
target_link_libraries(heat_c Outcrop::outcrop)
add_executable(heat_static {examples}/heat.c)
target_link_libraries(heat_static Outcrop::outcrop_static)
add_executable(heat_cpp {examples}/heat.cpp)
target_link_libraries(heat_cpp Outcrop::outcrop)
target_compile_features(heat_cpp PRIVATE cxx_std_17)
add_executable(heat_fortran {fortran} ${{Outcrop_FORTRAN_SOURCE}})
target_link_libraries(heat_fortran Outcrop::outcrop)
",
        examples = examples.display(),
        fortran = fortran.display(),
        major = env!("CARGO_PKG_VERSION_MAJOR"),
        minor = env!("CARGO_PKG_VERSION_MINOR"),
        next = env!("CARGO_PKG_VERSION_MINOR").parse::<u32>().unwrap() + 1,
    );
    fs::write(directory.path().join("CMakeLists.txt"), project).unwrap();
    let build = directory.path().join("build");
    let found = format!("-DCMAKE_PREFIX_PATH={}", prefix().display());
    run(Command::new("cmake").arg("-S").arg(directory.path()).arg("-B").arg(&build).arg(found));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["heat_c", "heat_static", "heat_cpp", "heat_fortran"] {
        let said = run(quiet(Command::new(build.join(program))).arg(directory.path().join(program)).arg("20"));
        assert!(said.contains("the state after 20 steps"), "{program}: {said}");
    }
}

#[test]
fn the_guide_shows_what_is_compiled() {
    let guide = fs::read_to_string(root().join("docs/c.md")).unwrap();
    let sources = ["c/examples/heat.c", "c/examples/adjoint.c", "c/examples/heat.cpp", "fortran/examples/heat.f90"];
    for source in sources {
        let text = fs::read_to_string(root().join("bindings").join(source)).unwrap();
        let shown = text.split_once("[begin]\n").and_then(|(_, rest)| rest.split_once("[end]")).unwrap().0;
        let lines: Vec<_> = shown.trim_end_matches(['/', '!', ' ']).lines().collect();
        let shown: String = lines.iter().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect();
        assert!(guide.contains(&shown), "docs/c.md does not have this part of {source}:\n{shown}");
    }
}
