// What the programs that were written by hand share: how they use a pool, and how they end.

#include <outcrop.h>

#include <stdio.h>
#include <stdlib.h>

static void check(outcrop_status status) {
  if (status == OUTCROP_OK) return;
  fprintf(stderr, "%s\n", outcrop_error());
  exit(1);
}

static void *array(outcrop_pool *pool, const char *name, int element, size_t count) {
  void *data;
  check(outcrop_pool_array(pool, name, element, 1, &count, &data));
  return data;
}

static inline void write_result(const char *name, const void *data, size_t bytes, const char *mode) {
  FILE *file = fopen(name, mode);
  if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) exit(1);
}
