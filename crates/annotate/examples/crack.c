// A crack in two dimensions: a crystal of atoms with a Lennard-Jones potential and a notch, pulled
// apart. The program has no checkpoints of its own.
//
//   crack STEPS OUTPUT

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#pragma nvcp
typedef struct {
  double x, y, vx, vy, fx, fy;
  int is_held;
} Atom;

#pragma nvcp init(array, 2) mtbf(21600)

enum { COLUMNS = 24, ROWS = 20, CELLS = 64, IN_CELL = 16 };

static const double STEP = 0.004, PULL = 0.05, CUTOFF = 2.5, DISTANCE = 1.1225;

static int make_atoms(Atom *atoms) {
  int count = 0;
  for (int row = 0; row < ROWS; row++) {
    for (int column = 0; column < COLUMNS; column++) {
      // The notch.
      if (row == ROWS / 2 && column < COLUMNS / 4) continue;
      Atom *atom = &atoms[count++];
      *atom = (Atom){0};
      atom->x = 20 + DISTANCE * (column + 0.5 * (row & 1));
      atom->y = 20 + DISTANCE * row * sqrt(0.75);
      atom->is_held = row < 2 ? -1 : row >= ROWS - 2 ? 1 : 0;
      atom->vy = PULL * (2.0 * row / (ROWS - 1) - 1);
    }
  }
  return count;
}

static void push(Atom *one, Atom *other) {
  const double x = one->x - other->x, y = one->y - other->y, square = x * x + y * y;
  if (square >= CUTOFF * CUTOFF) return;
  const double inverse = 1 / square, sixth = inverse * inverse * inverse;
  const double force = 24 * inverse * sixth * (2 * sixth - 1);
  one->fx += force * x;
  one->fy += force * y;
  other->fx -= force * x;
  other->fy -= force * y;
}

static void find_forces(Atom *atoms, int count) {
  static int cells[CELLS][CELLS][IN_CELL], filled[CELLS][CELLS];
  for (int y = 0; y < CELLS; y++) {
    for (int x = 0; x < CELLS; x++) filled[y][x] = 0;
  }
  for (int at = 0; at < count; at++) {
    atoms[at].fx = atoms[at].fy = 0;
    const int x = (int)(atoms[at].x / CUTOFF) & (CELLS - 1), y = (int)(atoms[at].y / CUTOFF) & (CELLS - 1);
    // Atoms come in the same order each time, so that sums are the same.
    for (int dy = -1; dy <= 1; dy++) {
      for (int dx = -1; dx <= 1; dx++) {
        const int cy = (y + dy) & (CELLS - 1), cx = (x + dx) & (CELLS - 1);
        for (int nth = 0; nth < filled[cy][cx]; nth++) push(&atoms[at], &atoms[cells[cy][cx][nth]]);
      }
    }
    if (filled[y][x] < IN_CELL) cells[y][x][filled[y][x]++] = at;
  }
}

static void move(Atom *atoms, int count) {
  for (int at = 0; at < count; at++) {
    Atom *atom = &atoms[at];
    if (atom->is_held == 0) {
      atom->vx += 0.5 * STEP * atom->fx;
      atom->vy += 0.5 * STEP * atom->fy;
    }
    atom->x += STEP * (atom->is_held == 0 ? atom->vx : 0);
    atom->y += STEP * (atom->is_held == 0 ? atom->vy : PULL * atom->is_held);
  }
  find_forces(atoms, count);
  for (int at = 0; at < count; at++) {
    if (atoms[at].is_held != 0) continue;
    atoms[at].vx += 0.5 * STEP * atoms[at].fx;
    atoms[at].vy += 0.5 * STEP * atoms[at].fy;
  }
}

int main(int argc, char **argv) {
  const long steps = argc > 1 ? atol(argv[1]) : 2000;
  Atom *atoms = malloc(sizeof *atoms * ROWS * COLUMNS);
  if (atoms == NULL) return 1;
  const int count = make_atoms(atoms);
  long step = 0;
  find_forces(atoms, count);
#pragma nvcp add_head(atoms[count], step)
#pragma nvcp restore(head)
  if (step > 0) printf("goes on after step %ld\n", step);
#pragma nvcp potential_persistent(head)
  for (; step < steps; step++) move(atoms, count);
  FILE *output = fopen(argc > 2 ? argv[2] : "crack.out", "wb");
  if (output == NULL) return 1;
  for (int at = 0; at < count; at++) fprintf(output, "%.17g %.17g\n", atoms[at].x, atoms[at].y);
  fclose(output);
  free(atoms);
  return 0;
}
