/* All that members can be. */
#include "cell.h"
#include <stddef.h>
#include <stdint.h>

typedef double real;
typedef struct _Cell Cell;
struct foreign;

#pragma nvcp length(values, n) length(neighbours, count) length(raw, raw_bytes) link(parent) text(name) \
  skip(compare, cache) length(eight, 8)
struct _Cell {
  Cell *parent;            // a link
  struct _Cell *children[8];
  Cell **neighbours;
  int32_t count;
  real *values, mean, weights[2][3];
  unsigned long n;
  Vector centre, corners[4];
  struct { float a, b; struct { int c; } inner; } parts;
  union { int whole; float real; } either;
  enum Phase phase;
  char *name;
  void *raw;
  size_t raw_bytes;
  int (*compare)(const Cell *, const Cell *);
  struct foreign *cache;
  Vector *eight;
};

#ifdef __GNUC__
#pragma nvcp init(octree, 2)
#endif

int main(void) {
  Cell *root = 0;
  Vector wind[3] = {{0, 0}, {0, 0}, {0, 0}};
  Cell fixed = {0};
#pragma nvcp add_head(root, wind, fixed)
  return 0;
}
