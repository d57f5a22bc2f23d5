//! Gives the shared library the name that programs look for when they start. A program that was
//! compiled for another minor version is told so by the call that opens something.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboutcrop.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
