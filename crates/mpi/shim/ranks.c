// The ranks of a communicator. It is used only while a store is opened, from the thread that opens it.

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

struct outcrop_mpi_ranks {
  MPI_Comm comm;
  int rank, count, local_count;
};

void *outcrop_mpi_library(void) {
  int (*function)(char *, int *) = PMPI_Get_library_version;
  void *address;
  __builtin_memcpy(&address, &function, sizeof address);
  return address;
}

int outcrop_mpi_state(void) {
  int is_started = 0, has_ended = 0, level = 0, is_main = 0;
  PMPI_Initialized(&is_started);
  PMPI_Finalized(&has_ended);
  if (has_ended)
    return OUTCROP_MPI_ENDED;
  if (!is_started)
    return OUTCROP_MPI_NOT_STARTED;
  PMPI_Query_thread(&level);
  PMPI_Is_thread_main(&is_main);
  return level >= MPI_THREAD_SERIALIZED || is_main ? OUTCROP_MPI_READY : OUTCROP_MPI_OTHER_THREAD;
}

static int say(int code, const char *attempt, char *message, size_t message_bytes) {
  char reason[MPI_MAX_ERROR_STRING + 1] = "";
  int length;
  if (code == MPI_SUCCESS)
    return 0;
  PMPI_Error_string(code, reason, &length);
  snprintf(message, message_bytes, "%s: %s", attempt, reason);
  return 1;
}

static MPI_Comm communicator(int number) {
#if defined(MPI_ABI_VERSION) && !defined(MPICH_VERSION) && !defined(OMPI_MAJOR_VERSION)
  return PMPI_Comm_fromint(number);
#else
  return PMPI_Comm_f2c((MPI_Fint)number);
#endif
}

static int local_count(struct outcrop_mpi_ranks *ranks) {
  MPI_Comm local;
  int code = PMPI_Comm_split_type(ranks->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
  if (code == MPI_SUCCESS)
    code = PMPI_Comm_size(local, &ranks->local_count);
  if (code == MPI_SUCCESS)
    code = PMPI_Comm_free(&local);
  return code;
}

struct outcrop_mpi_ranks *outcrop_mpi_open(int is_world, int number, char *message, size_t message_bytes) {
  MPI_Comm comm = is_world ? MPI_COMM_WORLD : communicator(number);
  int is_inter = 0, code;
  MPI_Errhandler before;
  struct outcrop_mpi_ranks *ranks;
  if (comm == MPI_COMM_NULL) {
    snprintf(message, message_bytes, "%d is no communicator; give what MPI_Comm_c2f returns", number);
    return NULL;
  }
  // A wrong handle is reported to the handler of the world, which by default ends the program.
  PMPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  PMPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  code = PMPI_Comm_test_inter(comm, &is_inter);
  PMPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
  PMPI_Errhandler_free(&before);
  if (say(code, "this is no communicator; give what MPI_Comm_c2f returns", message, message_bytes))
    return NULL;
  if (is_inter) {
    snprintf(message, message_bytes, "this is an inter-communicator; merge it first (MPI_Intercomm_merge)");
    return NULL;
  }
  ranks = calloc(1, sizeof *ranks);
  if (!ranks || say(PMPI_Comm_dup(comm, &ranks->comm), "MPI_Comm_dup", message, message_bytes)) {
    free(ranks);
    return NULL;
  }
  PMPI_Comm_set_errhandler(ranks->comm, MPI_ERRORS_RETURN);
  PMPI_Comm_rank(ranks->comm, &ranks->rank);
  PMPI_Comm_size(ranks->comm, &ranks->count);
  if (say(local_count(ranks), "MPI_Comm_split_type", message, message_bytes)) {
    outcrop_mpi_close(ranks);
    return NULL;
  }
  return ranks;
}

void outcrop_mpi_count(const struct outcrop_mpi_ranks *ranks, uint32_t *rank, uint32_t *count, uint32_t *local_count) {
  *rank = (uint32_t)ranks->rank;
  *count = (uint32_t)ranks->count;
  *local_count = (uint32_t)ranks->local_count;
}

// When a rank has died, an MPI with fault tolerance (ULFM) tells only some of the others. This ends the calls of all.
static void revoke(MPI_Comm comm) {
  int (*revoke)(MPI_Comm);
  void *address = dlsym(RTLD_DEFAULT, "PMPIX_Comm_revoke");
  if (!address)
    return;
  __builtin_memcpy(&revoke, &address, sizeof revoke);
  revoke(comm);
}

int outcrop_mpi_gather(struct outcrop_mpi_ranks *ranks, const void *mine, size_t bytes, void *all, char *message, size_t message_bytes) {
  int code = bytes > INT_MAX ? MPI_ERR_COUNT : PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, ranks->comm);
  if (code != MPI_SUCCESS)
    revoke(ranks->comm);
  return say(code, "MPI_Allgather", message, message_bytes);
}

void outcrop_mpi_close(struct outcrop_mpi_ranks *ranks) {
  PMPI_Comm_free(&ranks->comm);
  free(ranks);
}
