// LU decomposition with partial pivoting by MPI ranks, which have the rows in turn: PA = LU.
//
//   mpirun -n RANKS lu ORDER OUTPUT

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma nvcp init(array, 2) ranks(MPI_COMM_WORLD)

enum { PANEL = 16 };

static int rank, ranks;

// Where a row of this rank is.
static double *row_of(double *a, int n, int row) { return a + (size_t)(row / ranks) * (size_t)n; }

static void fill(double *a, int n) {
  for (int row = rank; row < n; row += ranks) {
    unsigned long random = (unsigned long)row + 1;
    for (int at = 0; at < n; at++) {
      random = random * 6364136223846793005ul + 1442695040888963407ul;
      row_of(a, n, row)[at] = (double)(random >> 11) / 9007199254740992.0 - 0.5;
    }
  }
}

// Exchanges rows so that the largest element of a column is the pivot.
static int exchange(double *a, double *other, int n, int column) {
  struct {
    double size;
    int row;
  } mine = {-1, n}, largest;
  for (int row = rank; row < n; row += ranks) {
    if (row >= column && fabs(row_of(a, n, row)[column]) > mine.size) {
      mine.size = fabs(row_of(a, n, row)[column]);
      mine.row = row;
    }
  }
  MPI_Allreduce(&mine, &largest, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
  const int pivot = largest.row, one = column % ranks, two = pivot % ranks;
  if (pivot != column && one == two && rank == one) {
    memcpy(other, row_of(a, n, column), sizeof *a * (size_t)n);
    memcpy(row_of(a, n, column), row_of(a, n, pivot), sizeof *a * (size_t)n);
    memcpy(row_of(a, n, pivot), other, sizeof *a * (size_t)n);
  } else if (one != two && (rank == one || rank == two)) {
    double *own = row_of(a, n, rank == one ? column : pivot);
    MPI_Sendrecv_replace(own, n, MPI_DOUBLE, rank == one ? two : one, 0, rank == one ? two : one, 0, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
  }
  return pivot;
}

// Finishes a few columns, and what they change of the rest.
static void factorize(double *a, double *upper, int *pivots, int n, int first) {
  const int end = first + PANEL < n ? first + PANEL : n;
  for (int column = first; column < end; column++) {
    pivots[column] = exchange(a, upper, n, column);
    if (rank == column % ranks) memcpy(upper, row_of(a, n, column), sizeof *a * (size_t)n);
    MPI_Bcast(upper, n, MPI_DOUBLE, column % ranks, MPI_COMM_WORLD);
    for (int row = rank; row < n; row += ranks) {
      if (row <= column) continue;
      double *lower = row_of(a, n, row);
      const double factor = lower[column] /= upper[column];
      for (int at = column + 1; at < n; at++) lower[at] -= factor * upper[at];
    }
  }
}

// The first rank writes all rows.
static void write_result(double *a, double *row_of_all, const int *pivots, int n, const char *name) {
  FILE *file = rank == 0 ? fopen(name, "wb") : NULL;
  if (rank == 0 && file == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0) fwrite(pivots, sizeof *pivots, (size_t)n, file);
  for (int row = 0; row < n; row++) {
    const int owner = row % ranks;
    double *own = rank == owner ? row_of(a, n, row) : row_of_all;
    if (owner != 0 && rank == owner) MPI_Send(own, n, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD);
    if (owner != 0 && rank == 0) MPI_Recv(own, n, MPI_DOUBLE, owner, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0) fwrite(own, sizeof *own, (size_t)n, file);
  }
  if (rank == 0) fclose(file);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int n = argc > 1 ? atoi(argv[1]) : 256;
  const size_t own = (size_t)(n / ranks + 1) * (size_t)n;
  double *a = calloc(own, sizeof *a), *upper = calloc((size_t)n, sizeof *upper);
  int *pivots = calloc((size_t)n, sizeof *pivots);
  int step = 0;
  if (a == NULL || upper == NULL || pivots == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  fill(a, n);
#pragma nvcp add_head(a[own], pivots[n], step)
#pragma nvcp restore(head)
  if (step > 0 && rank == 0) printf("goes on after step %d\n", step);
  while (step * PANEL < n) {
    factorize(a, upper, pivots, n, step * PANEL);
    step++;
#pragma nvcp persistent(head)
  }
  write_result(a, upper, pivots, n, argc > 2 ? argv[2] : "lu.out");
  free(a);
  free(upper);
  free(pivots);
  MPI_Finalize();
  return 0;
}
