// lu.c with its state in a pool, written by hand: arrays are those of the pool.
//
//   lu_by_hand ORDER OUTPUT

#include <outcrop.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PANEL = 16 };

static void fill(double *a, int n) {
  unsigned long random = 1;
  for (int at = 0; at < n * n; at++) {
    random = random * 6364136223846793005ul + 1442695040888963407ul;
    a[at] = (double)(random >> 11) / 9007199254740992.0 - 0.5;
  }
}

// Exchanges rows so that the largest element of a column is the pivot.
static void exchange(double *a, int *pivots, int n, int column) {
  int pivot = column;
  for (int row = column + 1; row < n; row++) {
    if (fabs(a[row * n + column]) > fabs(a[pivot * n + column])) pivot = row;
  }
  pivots[column] = pivot;
  for (int at = 0; at < n && pivot != column; at++) {
    const double upper = a[column * n + at];
    a[column * n + at] = a[pivot * n + at];
    a[pivot * n + at] = upper;
  }
}

// Finishes a few columns, and what they change of the rest.
static void factorize(double *a, int *pivots, int n, int first) {
  const int end = first + PANEL < n ? first + PANEL : n;
  for (int column = first; column < end; column++) {
    exchange(a, pivots, n, column);
    for (int row = column + 1; row < n; row++) {
      const double factor = a[row * n + column] /= a[column * n + column];
      for (int at = column + 1; at < n; at++) a[row * n + at] -= factor * a[column * n + at];
    }
  }
}

static void check(outcrop_status status) {
  if (status == OUTCROP_OK) return;
  fprintf(stderr, "%s\n", outcrop_error());
  exit(1);
}

int main(int argc, char **argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 256;
  outcrop_pool *pool;
  check(outcrop_pool_open("lu_by_hand.pool", 2, &pool));
  const size_t elements = (size_t)n * (size_t)n, rows = (size_t)n, one = 1;
  void *matrix, *exchanges, *number;
  check(outcrop_pool_array(pool, "a", OUTCROP_F64, 1, &elements, &matrix));
  check(outcrop_pool_array(pool, "pivots", OUTCROP_I32, 1, &rows, &exchanges));
  check(outcrop_pool_array(pool, "step", OUTCROP_I32, 1, &one, &number));
  double *a = matrix;
  int *pivots = exchanges, *step = number;
  if (*step == 0) fill(a, n);
  if (*step > 0) printf("goes on after step %d\n", *step);
  while (*step * PANEL < n) {
    factorize(a, pivots, n, *step * PANEL);
    ++*step;
    check(outcrop_pool_persist(pool, NULL));
  }
  FILE *output = fopen(argc > 2 ? argv[2] : "lu.out", "wb");
  if (output == NULL) return 1;
  fwrite(pivots, sizeof *pivots, (size_t)n, output);
  fwrite(a, sizeof *a, (size_t)n * (size_t)n, output);
  fclose(output);
  check(outcrop_pool_close(pool));
  return 0;
}
