#!/bin/sh
# Builds and installs libveloc-client.so and its headers. Usage: install.sh PREFIX
set -eu
prefix=${1:?usage: install.sh PREFIX}
here=$(dirname "$0")
cargo build --release --manifest-path "$here/Cargo.toml"
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$prefix/lib" "$prefix/include"
"$here/link.sh" "$target/release/libveloc_client.a" "$prefix/lib/libveloc-client.so"
cp -r "$here/include/." "$prefix/include/"
echo "installed in $prefix; compile with -I$prefix/include -L$prefix/lib -lveloc-client"
