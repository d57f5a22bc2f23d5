// lu.c with its state in a pool, written by hand: its arrays are those of the pool.

#include "pool.h"

#define main annotated
#include "../lu.c"
#undef main

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const int n = atoi(argv[1]);
  outcrop_pool *pool;
  check(outcrop_pool_open("lu.pool", 2, &pool));
  double *a = array(pool, "a", OUTCROP_F64, (size_t)n * (size_t)n);
  int *pivots = array(pool, "pivots", OUTCROP_I32, (size_t)n);
  int *step = array(pool, "step", OUTCROP_I32, 1);
  if (*step == 0) fill(a, n);
  if (*step > 0) printf("goes on after step %d\n", *step);
  while (*step * PANEL < n) {
    factorize(a, pivots, n, *step * PANEL);
    ++*step;
    check(outcrop_pool_persist(pool, NULL));
  }
  write_result(argv[2], pivots, sizeof *pivots * (size_t)n, "wb");
  write_result(argv[2], a, sizeof *a * (size_t)n * (size_t)n, "ab");
  check(outcrop_pool_close(pool));
  return 0;
}
