// Heat spreads in a bar, on ranks of MPI. When a rank dies, the others go on without leaving the job: with fewer ranks, or with a
// spare one in its place. It needs an MPI with fault tolerance (ULFM), such as Open MPI 5:
//
//   mpicc survive.c $(pkg-config --cflags --libs outcrop) -o survive
//   mpirun --with-ft ulfm --mca async_mpi_finalize 1 -n 4 ./survive DIRECTORY STEPS [SPARES [STEP RANK]...]
//
// The last SPARES processes wait until they are needed. For a trial, rank RANK kills itself in step STEP; the next pair counts
// after that.

#include <mpi.h>

#include <mpi-ext.h>

#include <inttypes.h>
#include <outcrop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POINTS = 100000, EVERY = 10, DONE = 1 };

static const char *directory;
static uint64_t steps;
static int spares;
static char **deaths;  // pairs of a step and a rank
static int death_count;
static int life;  // how often the ranks have begun

// The part of the bar that a rank has, with a point of each neighbour around it.
typedef struct {
  MPI_Comm comm;
  int rank, ranks;
  size_t first, length;
  double *points;
  uint64_t step;
} part;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);  // the same for all processes of a machine
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void killed_at_path(char *path, size_t bytes) { snprintf(path, bytes, "%s/killed-at", directory); }

static void die_if_asked(const part *mine) {
  const int nth = 2 * (life - 1);
  if (nth + 1 >= death_count || strtoull(deaths[nth], NULL, 10) != mine->step || atoi(deaths[nth + 1]) != mine->rank) return;
  char path[4200];
  killed_at_path(path, sizeof path);
  FILE *file = fopen(path, "w");
  if (file == NULL) exit(EXIT_FAILURE);
  fprintf(file, "%.6f", seconds());
  fclose(file);
  raise(SIGKILL);
}

// The first step after a death: says how long the job stood still.
static void say_alive_again(const part *mine) {
  char path[4200];
  double then;
  killed_at_path(path, sizeof path);
  FILE *file = mine->rank == 0 ? fopen(path, "r") : NULL;
  if (file == NULL) return;
  if (fscanf(file, "%lf", &then) == 1) printf("from the kill to the first step: %.3f s\n", seconds() - then);
  fclose(file);
  remove(path);
}

// One step. Fails if a rank has died.
static int spread(part *mine) {
  const int left = mine->rank > 0 ? mine->rank - 1 : MPI_PROC_NULL;
  const int right = mine->rank + 1 < mine->ranks ? mine->rank + 1 : MPI_PROC_NULL;
  double *points = mine->points, before, now;
  const size_t last = mine->length;
  if (MPI_Sendrecv(&points[1], 1, MPI_DOUBLE, left, 0, &points[last + 1], 1, MPI_DOUBLE, right, 0, mine->comm, MPI_STATUS_IGNORE) ||
      MPI_Sendrecv(&points[last], 1, MPI_DOUBLE, right, 1, &points[0], 1, MPI_DOUBLE, left, 1, mine->comm, MPI_STATUS_IGNORE))
    return 0;
  before = points[0];
  for (size_t at = 1; at <= last; at++) {
    now = points[at];
    points[at] = now + 0.25 * (before - 2.0 * now + points[at + 1]);
    before = now;
  }
  mine->step += 1;
  return 1;
}

// A number that tells every state from every other one, whoever has which part.
static uint64_t fingerprint(const part *mine) {
  uint64_t sum = 0, bits;
  for (size_t at = 1; at <= mine->length; at++) {
    memcpy(&bits, &mine->points[at], sizeof bits);
    sum += (bits ^ (mine->first + at)) * 0x9e3779b97f4a7c15u;
  }
  return sum;
}

// [begin]
static int fine(outcrop_status status) {
  if (status != OUTCROP_OK) fprintf(stderr, "survive: %s\n", outcrop_error());
  return status == OUTCROP_OK;
}

// Goes on from the newest version that all ranks have, and computes until all is done. Fails if a rank dies.
static int compute(part *mine, outcrop_session *session) {
  const size_t global = POINTS, shape = mine->length, offset = mine->first;
  uint64_t version;
  int found;
  if (!fine(outcrop_session_protect(session, "bar", &mine->points[1], mine->length, OUTCROP_F64)) ||
      !fine(outcrop_session_shape(session, "bar", OUTCROP_ROW_MAJOR, 1, &shape, &global, &offset)) ||
      !fine(outcrop_session_protect(session, "step", &mine->step, 1, OUTCROP_U64)) ||
      !fine(outcrop_session_restore_latest(session, &version, &found)))
    return 0;
  if (mine->rank == 0) printf("%d ranks go on from step %" PRIu64 "\n", mine->ranks, mine->step);
  for (int is_first = life > 1; mine->step < steps; is_first = 0) {
    die_if_asked(mine);
    if (!spread(mine)) return 0;
    if (is_first) say_alive_again(mine);
    if (mine->step % EVERY == 0 && !fine(outcrop_session_save(session, mine->step))) return 0;
  }
  uint64_t mine_is = fingerprint(mine), sum;
  if (MPI_Allreduce(&mine_is, &sum, 1, MPI_UINT64_T, MPI_SUM, mine->comm)) return 0;
  if (mine->rank == 0) printf("the state after %" PRIu64 " steps is %016" PRIx64 "\n", mine->step, sum);
  return 1;
}

// The ranks of a communicator, until all is done or one of them dies. Whatever is open is closed then: another number of ranks
// opens it anew, in the same processes.
static int work(MPI_Comm comm) {
  part mine = {.comm = comm};
  outcrop_store *store = NULL;
  outcrop_session *session = NULL;
  MPI_Comm_rank(comm, &mine.rank);
  MPI_Comm_size(comm, &mine.ranks);
  mine.first = (size_t)POINTS * (size_t)mine.rank / (size_t)mine.ranks;
  mine.length = (size_t)POINTS * (size_t)(mine.rank + 1) / (size_t)mine.ranks - mine.first;
  mine.points = calloc(mine.length + 2, sizeof *mine.points);
  if (mine.points == NULL) exit(EXIT_FAILURE);
  for (size_t at = 1; at <= mine.length; at++) mine.points[at] = (double)((mine.first + at) % 1000);
  char config[4200];
  snprintf(config, sizeof config, "host = '16 MiB'\ndir = '%s'\nkeep_last = 2\nranks = {mpi = %d}", directory, (int)MPI_Comm_c2f(comm));
  const int is_done = fine(outcrop_store_open(config, &store)) && fine(outcrop_store_session(store, "survive", &session)) &&
                      compute(&mine, session);
  // Whoever waits for this rank must not wait for ever.
  if (!is_done) MPIX_Comm_revoke(comm);
  if (session != NULL) fine(outcrop_session_close(session));
  if (store != NULL) fine(outcrop_store_close(store));
  free(mine.points);
  return is_done;
}
// [end]

int main(int count, char **words) {
  if (count < 3) return EXIT_FAILURE;
  directory = words[1];
  steps = strtoull(words[2], NULL, 10);
  spares = count > 3 ? atoi(words[3]) : 0;
  deaths = words + 4;
  death_count = count > 4 ? count - 4 : 0;
  int level, rank, size, is_done = 0;
  MPI_Comm all, workers;
  MPI_Init_thread(&count, &words, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
  MPI_Comm_size(all, &size);
  const int wanted = size - spares;
  for (;;) {
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    const int works = rank < wanted;
    life += 1;
    if (MPI_Comm_split(all, works ? 0 : MPI_UNDEFINED, rank, &workers) == MPI_SUCCESS) {
      if (works) {
        MPI_Comm_set_errhandler(workers, MPI_ERRORS_RETURN);
        is_done = work(workers);
        MPI_Comm_free(&workers);
        for (int spare = wanted; is_done && rank == 0 && spare < size; spare++) MPI_Send(NULL, 0, MPI_INT, spare, DONE, all);
      } else {
        is_done = MPI_Recv(NULL, 0, MPI_INT, 0, DONE, all, MPI_STATUS_IGNORE) == MPI_SUCCESS;
      }
    }
    // Whoever waits for one that has died does so no longer, and then all know the same.
    if (!is_done) MPIX_Comm_revoke(all);
    MPIX_Comm_agree(all, &is_done);
    if (is_done) break;
    MPI_Comm living;
    MPIX_Comm_shrink(all, &living);
    MPI_Comm_free(&all);
    all = living;
    MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
  }
  MPI_Finalize();
  return EXIT_SUCCESS;
}
