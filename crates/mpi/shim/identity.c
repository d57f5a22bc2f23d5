// Prints which MPI programs of this compiler run with: the file of its library, then what it says of itself.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING + 1];
  int length = 0;
  Dl_info found;
  if (PMPI_Get_library_version(version, &length) != MPI_SUCCESS || !dladdr(dlsym(RTLD_DEFAULT, "PMPI_Get_library_version"), &found))
    return 1;
  char *path = realpath(found.dli_fname, NULL);
  const char *slash = path ? strrchr(path, '/') : NULL;
  printf("%s\n%s", slash ? slash + 1 : found.dli_fname, version);
  return 0;
}
