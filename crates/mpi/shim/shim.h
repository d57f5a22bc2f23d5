// What liboutcrop-mpi.so has for Outcrop. It is compiled for one MPI; its own calls go to the PMPI_ functions, so that nobody who
// intercepts MPI sees them.
#ifndef OUTCROP_MPI_SHIM_H
#define OUTCROP_MPI_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define OUTCROP_EXPORT __attribute__((visibility("default")))

// Of which MPI the compiler was: what identity.c prints.
extern OUTCROP_EXPORT const char outcrop_mpi_built_for[];

// The address of a function of the MPI that this library calls.
OUTCROP_EXPORT void *outcrop_mpi_library(void);

enum outcrop_mpi_state {
  OUTCROP_MPI_READY,
  OUTCROP_MPI_NOT_STARTED,
  OUTCROP_MPI_ENDED,
  OUTCROP_MPI_OTHER_THREAD, // only the main thread may call MPI
};

// Whether this thread may call MPI now.
OUTCROP_EXPORT int outcrop_mpi_state(void);

// A communicator of our own.
struct outcrop_mpi_ranks;

// Opens one with the ranks of a communicator: `number` is what Fortran calls it, unless it is `is_world`. All its ranks call this.
// Returns NULL and writes a message if it fails.
OUTCROP_EXPORT struct outcrop_mpi_ranks *outcrop_mpi_open(int is_world, int number, char *message, size_t message_bytes);

// This rank, how many there are, and how many of them are on this machine.
OUTCROP_EXPORT void outcrop_mpi_count(const struct outcrop_mpi_ranks *ranks, uint32_t *rank, uint32_t *count, uint32_t *local_count);

// Gathers `bytes` bytes of each rank on all. Returns 0, or writes a message.
OUTCROP_EXPORT int outcrop_mpi_gather(struct outcrop_mpi_ranks *ranks, const void *mine, size_t bytes, void *all, char *message,
                                      size_t message_bytes);

// All ranks call this.
OUTCROP_EXPORT void outcrop_mpi_close(struct outcrop_mpi_ranks *ranks);

// Watches memory: from now on, what MPI writes there is recorded. Works only if this library is linked or preloaded.
OUTCROP_EXPORT uint64_t outcrop_mpi_watch(uintptr_t begin, uintptr_t end);

OUTCROP_EXPORT void outcrop_mpi_unwatch(uint64_t watch);

// Passes on what was written since the last call, as ascending ranges with gaps between them. `note` must not call MPI.
OUTCROP_EXPORT void outcrop_mpi_take(uint64_t watch, void (*note)(void *context, uintptr_t begin, uintptr_t end), void *context);

#endif
