// Pools: every call, what is refused, and that a version comes back after the process was killed.
//
//   pool DIRECTORY

#include "check.h"

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 100, COLUMNS = 2000 };
static const size_t shape[] = {ROWS, COLUMNS};

static double *field_of(outcrop_pool *pool) {
  void *data;
  FINE(outcrop_pool_array(pool, "field", OUTCROP_F64, 2, shape, &data));
  return data;
}

static void every_call(const char *path) {
  outcrop_pool *pool;
  FINE(outcrop_pool_open(path, 3, &pool));
  double *field = field_of(pool);
  for (int at = 0; at < ROWS * COLUMNS; at++) DEMAND(field[at] == 0);
  for (int at = 0; at < ROWS * COLUMNS; at++) field[at] = at;
  uint64_t first, versions[2];
  FINE(outcrop_pool_persist(pool, &first));
  field[7 * COLUMNS + 3] = -1;
  FINE(outcrop_pool_persist(pool, NULL));
  size_t count;
  FINE(outcrop_pool_versions(pool, versions, 2, &count));
  DEMAND(count == 2 && versions[0] == first && versions[1] == first + 1);
  double *old = malloc(sizeof *old * ROWS * COLUMNS);
  FINE(outcrop_pool_read(pool, first, "field", old, sizeof *old * ROWS * COLUMNS));
  for (int at = 0; at < ROWS * COLUMNS; at++) DEMAND(old[at] == at);
  FINE(outcrop_pool_restore(pool, first));
  DEMAND(field[7 * COLUMNS + 3] == 7 * COLUMNS + 3);

  void *data;
  REFUSED(OUTCROP_MISSING, "no version 9", outcrop_pool_restore(pool, 9));
  REFUSED(OUTCROP_USAGE, "open already", outcrop_pool_array(pool, "field", OUTCROP_F64, 2, shape, &data));
  DEMAND(data == NULL);
  REFUSED(OUTCROP_USAGE, "and not text", outcrop_pool_array(pool, "text", OUTCROP_TEXT, 2, shape, &data));
  REFUSED(OUTCROP_USAGE, "no outcrop_element", outcrop_pool_array(pool, "a", 99, 2, shape, &data));
  REFUSED(OUTCROP_USAGE, "4 dimensions", outcrop_pool_array(pool, "a", OUTCROP_F64, 4, shape, &data));
  REFUSED(OUTCROP_USAGE, "0 dimensions", outcrop_pool_array(pool, "a", OUTCROP_F64, 0, shape, &data));
  REFUSED(OUTCROP_USAGE, "shape is NULL", outcrop_pool_array(pool, "a", OUTCROP_F64, 1, NULL, &data));
  const size_t huge[] = {SIZE_MAX, 2};
  REFUSED(OUTCROP_USAGE, "too large", outcrop_pool_array(pool, "a", OUTCROP_F64, 2, huge, &data));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pool_array(pool, NULL, OUTCROP_F64, 2, shape, &data));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pool_array(pool, "a", OUTCROP_F64, 2, shape, NULL));
  REFUSED(OUTCROP_USAGE, "not 8", outcrop_pool_read(pool, first, "field", old, 8));
  REFUSED(OUTCROP_USAGE, "has no \"other\"", outcrop_pool_read(pool, first, "other", old, 8));
  REFUSED(OUTCROP_USAGE, "address is NULL", outcrop_pool_versions(pool, NULL, 2, &count));
  outcrop_pool *second;
  REFUSED(OUTCROP_BUSY, "open already", outcrop_pool_open(path, 3, &second));
  DEMAND(second == NULL);
  REFUSED(OUTCROP_USAGE, "1 to 31 versions", outcrop_pool_open("other.pool", 32, &second));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pool_open(NULL, 2, &second));
  FINE(outcrop_pool_close(pool));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_pool_persist(pool, NULL));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_pool_close(pool));
  free(old);
}

static void killed(const char *path) {
  const pid_t child = fork();
  DEMAND(child >= 0);
  if (child == 0) {
    outcrop_pool *pool;
    FINE(outcrop_pool_open(path, 3, &pool));
    double *field = field_of(pool);
    for (int at = 0; at < ROWS * COLUMNS; at++) field[at] = sqrt(at);
    FINE(outcrop_pool_persist(pool, NULL));
    for (int at = 0; at < ROWS * COLUMNS; at++) field[at] = 0;
    kill(getpid(), SIGKILL);
  }
  int status;
  DEMAND(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  outcrop_pool *pool;
  FINE(outcrop_pool_open(path, 3, &pool));
  const double *field = field_of(pool);
  for (int at = 0; at < ROWS * COLUMNS; at++) DEMAND(field[at] == sqrt(at));
  FINE(outcrop_pool_close(pool));
}

// Changes a byte of what was persisted: reading a version says so, and copies nothing.
static void damaged(const char *path) {
  FILE *file = fopen(path, "r+b");
  DEMAND(file != NULL && fseek(file, 0, SEEK_END) == 0);
  const long bytes = ftell(file);
  const double wanted = sqrt(777);
  long changed = 0;
  for (long at = 0; at < bytes; at += 8) {
    double found;
    DEMAND(fseek(file, at, SEEK_SET) == 0 && fread(&found, sizeof found, 1, file) == 1);
    if (found == wanted) {
      found = -wanted;
      DEMAND(fseek(file, at, SEEK_SET) == 0 && fwrite(&found, sizeof found, 1, file) == 1);
      changed++;
    }
  }
  DEMAND(fclose(file) == 0 && changed > 0);
  outcrop_pool *pool;
  FINE(outcrop_pool_open(path, 3, &pool));
  uint64_t versions[3];
  size_t count;
  FINE(outcrop_pool_versions(pool, versions, 3, &count));
  double *copy = calloc(ROWS * COLUMNS, sizeof *copy);
  const size_t size = sizeof *copy * ROWS * COLUMNS;
  REFUSED(OUTCROP_DAMAGED, "damaged", outcrop_pool_read(pool, versions[count - 1], "field", copy, size));
  DEMAND(copy[5] == 0);
  free(copy);
  FINE(outcrop_pool_close(pool));
}

int main(int argc, char **argv) {
  DEMAND(argc == 2 && chdir(argv[1]) == 0);
  every_call("a.pool");
  killed("a.pool");
  damaged("a.pool");
  puts("pools kept what they should");
  return 0;
}
