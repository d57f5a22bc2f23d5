// LU decomposition of a dense matrix with partial pivoting: PA = LU. Any C compiler makes a program
// of it that writes checkpoint files; with `outcrop cc` it goes on where it was killed.
//
//   lu ORDER OUTPUT

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#pragma nvcp init(array, 2)

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

// As the program did before it had a pool.
static void write_checkpoint(const double *a, const int *pivots, int n, int step) {
  FILE *file = fopen("lu.chk", "wb");
  if (file == NULL) return;
  fwrite(&step, sizeof step, 1, file);
  fwrite(pivots, sizeof *pivots, (size_t)n, file);
  fwrite(a, sizeof *a, (size_t)n * (size_t)n, file);
  fclose(file);
}

int main(int argc, char **argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 256;
  double *a = malloc(sizeof *a * (size_t)n * (size_t)n);
  int *pivots = calloc((size_t)n, sizeof *pivots);
  int step = 0;
  fill(a, n);
#pragma nvcp add_head(a[n * n], pivots[n], step)
#pragma nvcp restore(head)
  if (step > 0) printf("goes on after step %d\n", step);
  while (step * PANEL < n) {
    factorize(a, pivots, n, step * PANEL);
    step++;
    write_checkpoint(a, pivots, n, step);
#pragma nvcp persistent(head, write_checkpoint)
  }
  FILE *output = fopen(argc > 2 ? argv[2] : "lu.out", "wb");
  if (output == NULL) return 1;
  fwrite(pivots, sizeof *pivots, (size_t)n, output);
  fwrite(a, sizeof *a, (size_t)n * (size_t)n, output);
  fclose(output);
  free(a);
  free(pivots);
  return 0;
}
