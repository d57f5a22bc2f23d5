// pagerank.c with its state in a pool, written by hand: its arrays are those of the pool.

#include "pool.h"

#define main annotated
#include "../pagerank.c"
#undef main

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const unsigned nodes = (unsigned)atoi(argv[1]);
  outcrop_pool *pool;
  check(outcrop_pool_open("pagerank.pool", 2, &pool));
  unsigned long *offsets = array(pool, "offsets", OUTCROP_U64, nodes + 1ul);
  unsigned *made, *sources = array(pool, "sources", OUTCROP_U32, nodes * 32ul);
  double *ranks = array(pool, "ranks", OUTCROP_F64, nodes);
  unsigned *iteration = array(pool, "iteration", OUTCROP_U32, 1);
  if (*iteration == 0) {
    make_links(nodes, offsets, &made);
    for (unsigned long at = 0; at < offsets[nodes]; at++) sources[at] = made[at];
    for (unsigned node = 0; node < nodes; node++) ranks[node] = 1.0 / nodes;
    free(made);
  }
  if (*iteration > 0) printf("goes on after iteration %u\n", *iteration);
  unsigned *degrees = calloc(nodes, sizeof *degrees);
  double *next_ranks = calloc(nodes, sizeof *next_ranks);
  for (unsigned long at = 0; at < offsets[nodes]; at++) degrees[sources[at]]++;
  while (*iteration < ITERATIONS) {
    iterate(nodes, offsets, sources, degrees, ranks, next_ranks);
    for (unsigned node = 0; node < nodes; node++) ranks[node] = next_ranks[node];
    ++*iteration;
    check(outcrop_pool_persist(pool, NULL));
  }
  write_result(argv[2], ranks, sizeof *ranks * nodes, "wb");
  free(degrees);
  free(next_ranks);
  check(outcrop_pool_close(pool));
  return 0;
}
