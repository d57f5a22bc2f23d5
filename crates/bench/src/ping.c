// Messages to and fro between two ranks, in turns through liboutcrop-mpi.so and past it, in the same processes. Prints lines of
//
//   what seconds-past seconds-through       for one message, the medians of the turns
//
//   ping TURNS

#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t outcrop_mpi_watch(uintptr_t begin, uintptr_t end);
void *outcrop_mpi_library(void);

enum { BYTES_MAX = 1 << 20, TURNS_MAX = 10000 };

struct calls {
  int (*recv)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
  int (*irecv)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
  int (*wait)(MPI_Request *, MPI_Status *);
};

static char buffer[BYTES_MAX];
static int rank;

static void receive(const struct calls *calls, int bytes, int is_blocking) {
  MPI_Request request;
  if (is_blocking) {
    calls->recv(buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return;
  }
  calls->irecv(buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &request);
  calls->wait(&request, MPI_STATUS_IGNORE);
}

static double turn(const struct calls *calls, int bytes, int times, int is_blocking) {
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int nth = 0; nth < times; nth++) {
    if (rank)
      receive(calls, bytes, is_blocking);
    MPI_Send(buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
    if (!rank)
      receive(calls, bytes, is_blocking);
  }
  return (MPI_Wtime() - start) / times / 2;
}

static int by_size(const void *left, const void *right) {
  double one = *(const double *)left, other = *(const double *)right;
  return (one > other) - (one < other);
}

static void compare(const char *what, const struct calls ways[2], int bytes, int times, int is_blocking, int turns) {
  static double seconds[2][TURNS_MAX];
  turn(&ways[0], bytes, times, is_blocking);
  for (int nth = 0; nth < turns; nth++)
    for (int way = 0; way < 2; way++)
      // Who comes first changes, too.
      seconds[(way + nth) % 2][nth] = turn(&ways[(way + nth) % 2], bytes, times, is_blocking);
  for (int way = 0; way < 2; way++)
    qsort(seconds[way], (size_t)turns, sizeof **seconds, by_size);
  if (!rank)
    printf("%s %.10f %.10f\n", what, seconds[0][turns / 2], seconds[1][turns / 2]);
}

int main(int argc, char **argv) {
  int turns = argc > 1 ? atoi(argv[1]) : 500;
  Dl_info library;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (turns < 1 || turns > TURNS_MAX || !dladdr(outcrop_mpi_library(), &library))
    return 1;
  void *mpi = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  struct calls ways[2] = {{0}, {MPI_Recv, MPI_Irecv, MPI_Wait}};
  *(void **)&ways[0].recv = dlsym(mpi, "MPI_Recv");
  *(void **)&ways[0].irecv = dlsym(mpi, "MPI_Irecv");
  *(void **)&ways[0].wait = dlsym(mpi, "MPI_Wait");
  if (!mpi || ways[0].recv == ways[1].recv)
    return 1;
  outcrop_mpi_watch((uintptr_t)buffer, (uintptr_t)buffer + sizeof buffer);
  compare("latency", ways, 8, 200, 1, turns);
  compare("latency_later", ways, 8, 200, 0, turns);
  compare("bandwidth", ways, BYTES_MAX, 4, 1, turns);
  MPI_Finalize();
  return 0;
}
