// Ranks of MPI that save together, at MPI_THREAD_FUNNELED.
//
//   mpi_ranks DIRECTORY SAVES KILLED     goes back to the newest version, and saves so many more; rank 1 ends itself before it
//                                        waits for version KILLED, if that is above 0
//   mpi_ranks DIRECTORY wrong            what must not be done

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

// What the settings call a communicator.
#if defined(MPI_ABI_VERSION) && !defined(MPICH_VERSION) && !defined(OMPI_MAJOR_VERSION)
#define NUMBER MPI_Comm_toint
#else
#define NUMBER MPI_Comm_c2f
#endif

enum { LENGTH = 6000 };

static const char *directory;

static outcrop_status open_store(const char *mpi, outcrop_store **store) {
  char config[4096];
  snprintf(config, sizeof config, "host = '1 MiB'\npin = false\ndir = '%s/store'\nranks = {mpi = %s}", directory, mpi);
  return outcrop_store_open(config, store);
}

static void *open_elsewhere(void *status) {
  outcrop_store *store;
  *(outcrop_status *)status = open_store("'world'", &store);
  printf("elsewhere: %s\n", outcrop_error());
  return NULL;
}

static void go_wrong(int *argc, char ***argv) {
  outcrop_store *store;
  outcrop_status status;
  pthread_t thread;
  int level, rank;
  char number[64];
  MPI_Comm half, between;
  DEMAND(open_store("'world'", &store) == OUTCROP_USAGE);
  printf("before: %s\n", outcrop_error());
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (level < MPI_THREAD_SERIALIZED) {
    pthread_create(&thread, NULL, open_elsewhere, &status);
    pthread_join(thread, NULL);
    DEMAND(status == OUTCROP_USAGE);
  } else
    printf("elsewhere: open the store on that thread\n");
  DEMAND(open_store("123456789", &store) == OUTCROP_USAGE);
  printf("number: %s\n", outcrop_error());
  MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank, 5, &between);
  snprintf(number, sizeof number, "%d", (int)NUMBER(between));
  DEMAND(open_store(number, &store) == OUTCROP_USAGE);
  printf("between: %s\n", outcrop_error());
  // Only one of them may write where they are to meet.
  snprintf(number, sizeof number, "'world', dir = '%s/file%d/talk'", directory, rank);
  DEMAND(open_store(number, &store) != OUTCROP_OK);
  printf("apart %d: %s\n", rank, outcrop_error());
  MPI_Finalize();
  DEMAND(open_store("'world'", &store) == OUTCROP_USAGE);
  printf("after: %s\n", outcrop_error());
}

static void live(int *argc, char ***argv, int saves, uint64_t killed) {
  outcrop_store *store;
  outcrop_session *session;
  uint64_t version = 0;
  int level, rank, count, found;
  char number[64];
  MPI_Comm reversed;
  static int32_t field[LENGTH];
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  // A communicator of the program's own, with other ranks.
  MPI_Comm_split(MPI_COMM_WORLD, 0, count - rank, &reversed);
  MPI_Comm_rank(reversed, &rank);
  snprintf(number, sizeof number, "%d", (int)NUMBER(reversed));
  FINE(open_store(number, &store));
  FINE(outcrop_store_session(store, "together", &session));
  FINE(outcrop_session_protect(session, "field", field, LENGTH, OUTCROP_I32));
  FINE(outcrop_session_restore_latest(session, &version, &found));
  if (found)
    for (int nth = 0; nth < LENGTH; nth++)
      DEMAND(field[nth] == 1000 * rank + (int32_t)version + nth);
  printf("rank %d of %d goes on from %d\n", rank, count, (int)version);
  for (int nth = 0; nth < saves; nth++) {
    version++;
    for (int at = 0; at < LENGTH; at++)
      field[at] = 1000 * rank + (int32_t)version + at;
    FINE(outcrop_session_save(session, version));
    if (version == killed && rank == 1)
      raise(SIGKILL);
    FINE(outcrop_session_wait(session, version, OUTCROP_ALL));
    // The program's own messages are not disturbed.
    int64_t sum = rank;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT64_T, MPI_SUM, reversed);
    DEMAND(sum == (int64_t)count * (count - 1) / 2);
  }
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  MPI_Comm_free(&reversed);
  MPI_Finalize();
}

int main(int argc, char **argv) {
  DEMAND(argc >= 3);
  directory = argv[1];
  alarm(200);
  if (argc == 3)
    go_wrong(&argc, &argv);
  else
    live(&argc, &argv, atoi(argv[2]), (uint64_t)atoi(argv[3]));
  return 0;
}
