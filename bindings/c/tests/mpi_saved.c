// A message into a region of a session. The program then makes the kernel forget that the pages were written, as if hardware had
// written them (RDMA): only liboutcrop-mpi.so knows of the change.
//
//   mpi_saved DIRECTORY

#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 1 << 20 };

// PAGEMAP_SCAN of Linux 6.7, which older headers do not have.
struct scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct found {
  uint64_t start, end, categories;
};

static int forget(void *memory, size_t bytes) {
  struct found found[512];
  struct scan scan = {sizeof scan, 3 /* protect what is found, which must be watched */, (uintptr_t)memory, (uintptr_t)memory + bytes, 0,
                      (uintptr_t)found, 512, 0, 0, 2 /* written */, 0, 2};
  int pagemap = open("/proc/self/pagemap", O_RDONLY), answer = ioctl(pagemap, _IOWR('f', 16, struct scan), &scan);
  close(pagemap);
  return answer;
}

int main(int argc, char **argv) {
  DEMAND(argc == 2);
  alarm(200);
  int rank, level, count;
  char config[4096];
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  unsigned char *field = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  unsigned char *copy = malloc(LENGTH), *sent = malloc(LENGTH);
  outcrop_store *store;
  outcrop_session *session;
  snprintf(config, sizeof config,
           "host = '8 MiB'\npin = false\ndir = '%s/store'\nranks = {mpi = 'world'}\ntracking = 'pages'\nmarks_pinned = true", argv[1]);
  memset(field, 1, LENGTH);
  memset(sent, 10 + rank, LENGTH);
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "run", &session));
  FINE(outcrop_session_protect(session, "field", field, LENGTH, OUTCROP_U8));
  FINE(outcrop_session_save(session, 1));
  MPI_Datatype column;
  MPI_Type_vector(16, 100, 50000, MPI_BYTE, &column);
  MPI_Type_commit(&column);
  MPI_Sendrecv(sent, 1, column, (rank + 1) % count, 0, field + 5000, 1, column, (rank + count - 1) % count, 0, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  int forgotten = forget(field, LENGTH);
  memcpy(copy, field, LENGTH);
  FINE(outcrop_session_save(session, 2));
  FINE(outcrop_session_wait(session, 2, OUTCROP_ALL));
  memset(field, 0, LENGTH);
  FINE(outcrop_session_restore(session, 2));
  printf("%s: %s\n", forgotten > 0 ? "forgotten" : "not forgotten", memcmp(field, copy, LENGTH) ? "missed" : "saved");
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  MPI_Type_free(&column);
  MPI_Finalize();
  return 0;
}
