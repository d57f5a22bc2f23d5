// crack.c with its state in a pool, written by hand: its atoms lie in an array of bytes. It persists
// every tenth step.

#include "pool.h"

#define main annotated
#include "../crack.c"
#undef main

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const long steps = atol(argv[1]);
  outcrop_pool *pool;
  check(outcrop_pool_open("crack.pool", 2, &pool));
  Atom *atoms = array(pool, "atoms", OUTCROP_U8, sizeof *atoms * ROWS * COLUMNS);
  long *step = array(pool, "step", OUTCROP_I64, 1);
  int *count = array(pool, "count", OUTCROP_I32, 1);
  if (*step > 0) printf("goes on after step %ld\n", *step);
  if (*count == 0) {
    *count = make_atoms(atoms);
    find_forces(atoms, *count);
  }
  while (*step < steps) {
    move(atoms, *count);
    if (++*step % 10 == 0) check(outcrop_pool_persist(pool, NULL));
  }
  check(outcrop_pool_persist(pool, NULL));
  FILE *output = fopen(argv[2], "wb");
  if (output == NULL) return 1;
  for (int at = 0; at < *count; at++) fprintf(output, "%.17g %.17g\n", atoms[at].x, atoms[at].y);
  fclose(output);
  check(outcrop_pool_close(pool));
  return 0;
}
