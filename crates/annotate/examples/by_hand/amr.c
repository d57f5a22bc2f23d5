// amr.c with its state in a pool, written by hand: after each step the cells are written to arrays of
// the pool, one after the other as they are visited, and at a start the tree is made of these.

#include "pool.h"

#define main annotated
#include "../amr.c"
#undef main

enum { CELLS_MAX = 1 << 17 };

typedef struct {
  double *densities;
  unsigned char *has_children;
  int at;
} Cells;

static void put(Cells *cells, const Cell *cell) {
  if (cells->at == CELLS_MAX) exit(1);
  cells->densities[cells->at] = cell->density;
  cells->has_children[cells->at++] = cell->children != NULL;
  for (int nth = 0; nth < 8 && cell->children != NULL; nth++) put(cells, &cell->children->cells[nth]);
}

static void get(Cells *cells, Cell *cell) {
  cell->density = cells->densities[cells->at];
  if (!cells->has_children[cells->at++]) return;
  refine(cell);
  for (int nth = 0; nth < 8; nth++) get(cells, &cell->children->cells[nth]);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  const int steps = atoi(argv[1]);
  outcrop_pool *pool;
  check(outcrop_pool_open("amr.pool", 2, &pool));
  Cells cells = {array(pool, "densities", OUTCROP_F64, CELLS_MAX), array(pool, "children", OUTCROP_U8, CELLS_MAX), 0};
  int *step = array(pool, "step", OUTCROP_I32, 1);
  Cell *root;
  begin(&root);
  if (*step > 0) {
    printf("goes on after step %d\n", *step);
    get(&cells, root);
  }
  while (*step < steps) {
    advance(root, *step);
    ++*step;
    cells.at = 0;
    put(&cells, root);
    check(outcrop_pool_persist(pool, NULL));
  }
  FILE *output = fopen(argv[2], "wb");
  if (output == NULL) return 1;
  write_cells(root, output);
  fclose(output);
  coarsen(root);
  free(root);
  check(outcrop_pool_close(pool));
  return 0;
}
