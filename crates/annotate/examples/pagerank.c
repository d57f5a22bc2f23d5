// PageRank of a random graph in compressed sparse rows. The program has no checkpoints of its own.
//
//   pagerank NODES OUTPUT

#include <stdio.h>
#include <stdlib.h>

#pragma nvcp init(graph, 2) mtbf(21600)

enum { ITERATIONS = 60 };

static unsigned next(unsigned long *random, unsigned limit) {
  *random = *random * 6364136223846793005ul + 1442695040888963407ul;
  return (unsigned)((*random >> 33) % limit);
}

// Few nodes have many links, and most have few.
static void make_links(unsigned nodes, unsigned long *offsets, unsigned **sources) {
  unsigned long random = 7, count = 0;
  *sources = malloc(sizeof **sources * nodes * 32ul);
  if (*sources == NULL) exit(1);
  for (unsigned node = 0; node < nodes; node++) {
    offsets[node] = count;
    const unsigned links = next(&random, 16) == 0 ? 32 : 1 + next(&random, 7);
    for (unsigned nth = 0; nth < links; nth++) {
      const unsigned one = next(&random, nodes), other = next(&random, nodes);
      (*sources)[count++] = one < other ? one : other;
    }
  }
  offsets[nodes] = count;
}

static void iterate(unsigned nodes, const unsigned long *offsets, const unsigned *sources, const unsigned *degrees,
                    const double *ranks, double *next_ranks) {
  for (unsigned node = 0; node < nodes; node++) {
    double sum = 0;
    for (unsigned long at = offsets[node]; at < offsets[node + 1]; at++) {
      sum += ranks[sources[at]] / degrees[sources[at]];
    }
    next_ranks[node] = 0.15 / nodes + 0.85 * sum;
  }
}

int main(int argc, char **argv) {
  const unsigned nodes = argc > 1 ? (unsigned)atoi(argv[1]) : 10000;
  unsigned long *offsets = calloc(nodes + 1ul, sizeof *offsets);
  unsigned *degrees = calloc(nodes, sizeof *degrees), *sources;
  double *ranks = calloc(nodes, sizeof *ranks), *next_ranks = calloc(nodes, sizeof *next_ranks);
  unsigned iteration = 0;
  make_links(nodes, offsets, &sources);
  for (unsigned long at = 0; at < offsets[nodes]; at++) degrees[sources[at]]++;
  for (unsigned node = 0; node < nodes; node++) ranks[node] = 1.0 / nodes;
#pragma nvcp add_head(offsets[nodes + 1ul], sources[offsets[nodes]], ranks[nodes], iteration)
#pragma nvcp restore(head)
  if (iteration > 0) printf("goes on after iteration %u\n", iteration);
#pragma nvcp potential_persistent(head)
  while (iteration < ITERATIONS) {
    iterate(nodes, offsets, sources, degrees, ranks, next_ranks);
    for (unsigned node = 0; node < nodes; node++) ranks[node] = next_ranks[node];
    iteration++;
  }
  FILE *output = fopen(argc > 2 ? argv[2] : "pagerank.out", "wb");
  if (output == NULL) return 1;
  fwrite(ranks, sizeof *ranks, nodes, output);
  fclose(output);
  free(offsets);
  free(degrees);
  free(sources);
  free(ranks);
  free(next_ranks);
  return 0;
}
