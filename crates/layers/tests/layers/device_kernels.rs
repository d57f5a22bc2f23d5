//! The CUDA kernels compile, and match the text that the layer was built with. This needs NVRTC,
//! but no device.

use cudarc::nvrtc::{self, CompileOptions};
use outcrop_testing::{child, child_directory, expect_success, skip};

/// Each source with what it was compiled to, and its kernels.
const KERNELS: [(&str, &str, &[&str]); 2] = [
    (
        include_str!("../../src/device/kernels/checksum.cu"),
        include_str!("../../src/device/kernels/checksum.ptx"),
        &["outcrop_sum_words"],
    ),
    (
        include_str!("../../src/device/kernels/hash.c"),
        include_str!("../../src/device/kernels/hash.ptx"),
        &["outcrop_hash_xxh3", "outcrop_hash_md5"],
    ),
];
/// The environment variable with the directory of `libnvrtc.so.12`, if it is not in a system
/// directory.
const DIRECTORY: &str = "OUTCROP_NVRTC";

fn compile(source: &str) -> Result<String, String> {
    let options = CompileOptions { arch: Some("compute_52"), ..CompileOptions::default() };
    nvrtc::compile_ptx_with_opts(source, options).map(|text| text.to_src()).map_err(|error| error.to_string())
}

/// Only the instructions: without comments, spacing, and the version, which was lowered.
fn instructions(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|line| !line.is_empty() && !line.starts_with(".version")).collect()
}

/// In a child process, because library directories are read when a process starts.
#[test]
fn the_kernels_compile_to_what_is_built_in() {
    if child_directory().is_none() {
        let mut command = child("device_kernels::the_kernels_compile_to_what_is_built_in", &std::env::temp_dir());
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            command.env("LD_LIBRARY_PATH", directory);
        }
        return expect_success(command);
    }
    // SAFETY: loading a library runs its code, and whoever installed it is trusted.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return skip(format_args!("there is no NVRTC (PyPI: nvidia-cuda-nvrtc-cu12; {DIRECTORY} names its directory)"));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library writes to the two numbers.
    let outcome = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    assert_eq!(outcome, nvrtc::sys::nvrtcResult::NVRTC_SUCCESS);
    for (source, built_in, names) in KERNELS {
        let compiled = compile(source).unwrap_or_else(|error| panic!("{error}"));
        for name in names {
            assert!(compiled.contains(&format!(".entry {name}(")), "{compiled}");
        }
        assert!(
            compile(&source.replace("sum +=", "total +=").replace("sum =", "total =")).is_err(),
            "mistakes are found"
        );
        if (major, minor) == (12, 9) {
            assert_eq!(instructions(&compiled), instructions(built_in), "not the text built in for {names:?}");
        } else {
            skip(format_args!("NVRTC is {major}.{minor}; what is built in was made by 12.9 and is not compared"));
        }
    }
}
