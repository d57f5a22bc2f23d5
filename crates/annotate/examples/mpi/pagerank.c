// PageRank of a random graph in compressed sparse rows, by MPI ranks of which each has some nodes.
//
//   mpirun -n RANKS pagerank NODES OUTPUT

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#pragma nvcp init(graph, 2) mtbf(21600) ranks(MPI_COMM_WORLD)

enum { ITERATIONS = 60 };

static unsigned next(unsigned long *random, unsigned limit) {
  *random = *random * 6364136223846793005ul + 1442695040888963407ul;
  return (unsigned)((*random >> 33) % limit);
}

// The links of all nodes: few nodes have many, and most have few.
static unsigned *make_links(unsigned nodes, unsigned long *offsets, unsigned *degrees) {
  unsigned long random = 7, count = 0;
  unsigned *sources = malloc(sizeof *sources * nodes * 32ul);
  if (sources == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (unsigned node = 0; node < nodes; node++) {
    offsets[node] = count;
    const unsigned links = next(&random, 16) == 0 ? 32 : 1 + next(&random, 7);
    for (unsigned nth = 0; nth < links; nth++) {
      const unsigned one = next(&random, nodes), other = next(&random, nodes);
      sources[count] = one < other ? one : other;
      degrees[sources[count++]]++;
    }
  }
  offsets[nodes] = count;
  return sources;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const unsigned nodes = argc > 1 ? (unsigned)atoi(argv[1]) : 10000;
  unsigned long *offsets = calloc(nodes + 1ul, sizeof *offsets);
  unsigned *degrees = calloc(nodes, sizeof *degrees);
  double *all = calloc(nodes, sizeof *all);
  int *firsts = calloc((size_t)ranks, sizeof *firsts), *counts = calloc((size_t)ranks, sizeof *counts);
  if (offsets == NULL || degrees == NULL || all == NULL || firsts == NULL || counts == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  unsigned *sources = make_links(nodes, offsets, degrees);
  for (int of = 0; of < ranks; of++) {
    firsts[of] = (int)((unsigned long)nodes * (unsigned long)of / (unsigned long)ranks);
    counts[of] = (int)((unsigned long)nodes * (unsigned long)(of + 1) / (unsigned long)ranks) - firsts[of];
  }
  const unsigned first = (unsigned)firsts[rank], count = (unsigned)counts[rank];
  double *own = calloc(count + 1ul, sizeof *own);
  if (own == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (unsigned node = 0; node < count; node++) own[node] = 1.0 / nodes;
  unsigned iteration = 0;
#pragma nvcp add_head(own[count], iteration)
#pragma nvcp restore(head)
  if (iteration > 0 && rank == 0) printf("goes on after iteration %u\n", iteration);
#pragma nvcp potential_persistent(head)
  for (; iteration < ITERATIONS; iteration++) {
    MPI_Allgatherv(own, (int)count, MPI_DOUBLE, all, counts, firsts, MPI_DOUBLE, MPI_COMM_WORLD);
    for (unsigned node = 0; node < count; node++) {
      double sum = 0;
      for (unsigned long at = offsets[first + node]; at < offsets[first + node + 1]; at++) {
        sum += all[sources[at]] / degrees[sources[at]];
      }
      own[node] = 0.15 / nodes + 0.85 * sum;
    }
  }
  MPI_Allgatherv(own, (int)count, MPI_DOUBLE, all, counts, firsts, MPI_DOUBLE, MPI_COMM_WORLD);
  FILE *output = rank == 0 ? fopen(argc > 2 ? argv[2] : "pagerank.out", "wb") : NULL;
  if (rank == 0 && output == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0) {
    fwrite(all, sizeof *all, nodes, output);
    fclose(output);
  }
  free(offsets);
  free(degrees);
  free(sources);
  free(all);
  free(own);
  free(firsts);
  free(counts);
  MPI_Finalize();
  return 0;
}
