// Adaptive mesh refinement on an octree, with cells from malloc and links to parents, in Gerris'
// manner: a droplet moves, cells at its surface are refined and others are coarsened.
//
//   amr STEPS OUTPUT

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Oct Oct;

#pragma nvcp link(parent)
typedef struct Cell {
  double density;
  Oct *parent, *children;
} Cell;

// Eight cells, and the cell that they are the children of.
#pragma nvcp link(parent)
struct Oct {
  unsigned level;
  double corner[3];
  Cell *parent;
  Cell cells[8];
};

#pragma nvcp init(octree, 2)

enum { LEVEL_MAX = 5 };

static double size_of_level(unsigned level) { return ldexp(1.0, -(int)level); }

static unsigned level_of(const Cell *cell) { return cell->parent == NULL ? 0 : cell->parent->level; }

static void corner_of(const Cell *cell, double corner[3]) {
  const Oct *oct = cell->parent;
  for (int axis = 0; axis < 3; axis++) {
    const long nth = oct == NULL ? 0 : cell - oct->cells;
    corner[axis] = oct == NULL ? 0 : oct->corner[axis] + (double)(nth >> axis & 1) * size_of_level(oct->level);
  }
}

static void refine(Cell *cell) {
  Oct *oct = calloc(1, sizeof *oct);
  if (oct == NULL) exit(1);
  oct->level = level_of(cell) + 1;
  oct->parent = cell;
  corner_of(cell, oct->corner);
  for (int nth = 0; nth < 8; nth++) {
    oct->cells[nth].parent = oct;
    oct->cells[nth].density = cell->density;
  }
  cell->children = oct;
}

static void coarsen(Cell *cell) {
  if (cell->children == NULL) return;
  double sum = 0;
  for (int nth = 0; nth < 8; nth++) {
    coarsen(&cell->children->cells[nth]);
    sum += cell->children->cells[nth].density;
  }
  cell->density = sum / 8;
  free(cell->children);
  cell->children = NULL;
}

// How far a cell is from the surface of the droplet, at most.
static double distance(const Cell *cell, int step, double *farthest) {
  double corner[3], nearest = 0, most = 0;
  corner_of(cell, corner);
  const double size = size_of_level(level_of(cell));
  const double centre[3] = {0.5 + 0.2 * cos(0.1 * step), 0.5 + 0.2 * sin(0.1 * step), 0.5};
  for (int axis = 0; axis < 3; axis++) {
    const double low = corner[axis] - centre[axis], high = low + size;
    const double near = low > 0 ? low : high < 0 ? -high : 0;
    const double far = fabs(low) > fabs(high) ? fabs(low) : fabs(high);
    nearest += near * near;
    most += far * far;
  }
  *farthest = sqrt(most) - 0.2;
  return sqrt(nearest) - 0.2;
}

static void advance(Cell *cell, int step) {
  double farthest;
  const double nearest = distance(cell, step, &farthest);
  const int is_at_surface = nearest <= 0 && farthest >= 0;
  if (is_at_surface && cell->children == NULL && level_of(cell) < LEVEL_MAX) refine(cell);
  if (!is_at_surface && cell->children != NULL) coarsen(cell);
  if (cell->children == NULL) {
    const double inside = farthest <= 0 ? 1 : nearest >= 0 ? 0 : 0.5;
    cell->density += 0.3 * (inside - cell->density);
    return;
  }
  double sum = 0;
  for (int nth = 0; nth < 8; nth++) {
    advance(&cell->children->cells[nth], step);
    sum += cell->children->cells[nth].density;
  }
  cell->density = sum / 8;
}

static void write_cells(const Cell *cell, FILE *file) {
  const unsigned level = level_of(cell);
  fwrite(&level, sizeof level, 1, file);
  fwrite(&cell->density, sizeof cell->density, 1, file);
  for (int nth = 0; nth < 8 && cell->children != NULL; nth++) write_cells(&cell->children->cells[nth], file);
}

static void write_snapshot(const Cell *root, const char *name) {
  FILE *file = fopen(name, "wb");
  if (file == NULL) exit(1);
  write_cells(root, file);
  fclose(file);
}

// The program has no reader for its snapshots: it begins anew.
static void begin(Cell **root) {
  *root = calloc(1, sizeof **root);
  if (*root == NULL) exit(1);
}

int main(int argc, char **argv) {
  const int steps = argc > 1 ? atoi(argv[1]) : 100;
  Cell *root = NULL;
  int step = 0;
#pragma nvcp add_head(root, step)
#pragma nvcp restore(head)
  if (root == NULL) begin(&root);
  if (step > 0) printf("goes on after step %d\n", step);
  while (step < steps) {
    advance(root, step);
    step++;
    write_snapshot(root, "amr.snapshot");
#pragma nvcp persistent(head, write_snapshot)
  }
  write_snapshot(root, argc > 2 ? argv[2] : "amr.out");
  coarsen(root);
  free(root);
  return 0;
}
