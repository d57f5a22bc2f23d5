#!/bin/sh
# Makes libveloc-client.so out of what cargo has built. Usage: link.sh LIBRARY.a OUT.so
# With MPI where mpicxx is found (or what MPICXX says), else without VELOC_Init.
set -eu
here=$(dirname "$0")
compiler=${MPICXX:-mpicxx}
mpi=
if ! command -v "$compiler" >/dev/null; then
  compiler=${CXX:-c++}
  mpi=-DVELOC_NO_MPI
  echo "link.sh: no MPI was found: libveloc-client.so has VELOC_Init_single and no VELOC_Init" >&2
fi
exec "$compiler" $mpi -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -std=c++17 -O2 -g -fPIC -Wall -Wextra -shared -I"$here/include" "$here/cpp/veloc.cpp" \
  "$1" -Wl,-soname,libveloc-client.so -Wl,--version-script="$here/cpp/exports.map" -Wl,--gc-sections -Wl,-z,defs \
  -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc -o "$2"
