// The adjoint of a nonlinear heat equation: every state of the way out is needed again on the way home, in reverse.
//
//   cc adjoint.c $(pkg-config --cflags --libs outcrop) -lm -o adjoint
//   ./adjoint DIRECTORY [STEPS]
//
// Heat spreads in a rod and is lost by radiation, u' = u + a Lu - b u³. The adjoint of one step is w = w' + a Lw' - 3b u² w', and so needs
// u. The dot product test compares <Jv, w> with <v, J*w>, where Jv comes from a tangent run forwards.

#include <math.h>
#include <outcrop.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 4096 };

static const double SPREAD = 0.2, LOSS = 0.05;

static void check(outcrop_status status) {
  if (status != OUTCROP_OK) {
    fprintf(stderr, "adjoint: %s\n", outcrop_error());
    exit(status);
  }
}

// What flows to a point from its neighbours; there is nothing beyond the ends.
static double flow(const double *rod, size_t at) {
  const double left = at > 0 ? rod[at - 1] : 0.0, right = at + 1 < LENGTH ? rod[at + 1] : 0.0;
  return SPREAD * (left - 2.0 * rod[at] + right);
}

static void step(const double *u, double *next) {
  for (size_t at = 0; at < LENGTH; at++) next[at] = u[at] + flow(u, at) - LOSS * u[at] * u[at] * u[at];
}

// The derivative of a step at u in the direction v. It is symmetric, and so its own adjoint.
static void derivative(const double *u, const double *v, double *next) {
  for (size_t at = 0; at < LENGTH; at++) next[at] = v[at] + flow(v, at) - 3.0 * LOSS * u[at] * u[at] * v[at];
}

static double dot(const double *a, const double *b) {
  double sum = 0.0;
  for (size_t at = 0; at < LENGTH; at++) sum += a[at] * b[at];
  return sum;
}

static void swap(double **a, double **b) {
  double *kept = *a;
  *a = *b;
  *b = kept;
}

int main(int count, char **words) {
  const char *directory = count > 1 ? words[1] : "adjoint-scratch";
  const uint64_t steps = count > 2 ? strtoull(words[2], NULL, 10) : 400;
  double *work = malloc(6 * LENGTH * sizeof *work);
  if (work == NULL) return EXIT_FAILURE;
  double *start = work, *v = start + LENGTH, *w = v + LENGTH, *tangent = w + LENGTH, *adjoint = tangent + LENGTH;
  double *next = adjoint + LENGTH;
  for (size_t at = 0; at < LENGTH; at++) {
    start[at] = 1.0 + sin(0.01 * (double)at);
    v[at] = tangent[at] = cos(0.37 * (double)at);
    w[at] = adjoint[at] = sin(0.11 * (double)at + 1.0);
  }

  // [begin]
  // Memory for 32 states; the rest goes to the directory and comes back.
  char config[4200];
  snprintf(config, sizeof config, "host = '1 MiB'\ndir = '%s'\norder = 'reverse'\n", directory);
  outcrop_tape *tape;
  check(outcrop_tape_open(config, &tape));

  const double *u = start;
  outcrop_past *kept = NULL;
  for (uint64_t key = 0; key < steps; key++) {
    void *slot;
    outcrop_lent *lent;
    check(outcrop_tape_lend(tape, key, LENGTH * sizeof *u, &slot, &lent));
    if (key == 0) {
      for (size_t at = 0; at < LENGTH; at++) ((double *)slot)[at] = start[at];
    } else {
      step(u, slot);  // straight into the slot: nothing is copied
      check(outcrop_past_release(kept));
    }
    check(outcrop_lent_seal_and_keep(lent, &kept));
    u = slot;
    derivative(u, tangent, next);
    swap(&tangent, &next);
  }
  check(outcrop_past_release(kept));

  for (uint64_t key = steps; key-- > 0;) {
    const void *state;
    size_t bytes;
    outcrop_past *past;
    check(outcrop_tape_take(tape, key, &state, &bytes, &past));
    derivative(state, adjoint, next);
    swap(&adjoint, &next);
    check(outcrop_past_release(past));
  }
  // [end]

  outcrop_tape_stats_t stats;
  check(outcrop_tape_stats(tape, &stats, sizeof stats));
  check(outcrop_tape_close(tape));
  const double forwards = dot(tangent, w), backwards = dot(v, adjoint);
  const double difference = fabs(forwards - backwards) / fabs(forwards);
  printf("%llu states saved, %llu read\n", (unsigned long long)stats.saves, (unsigned long long)stats.reads);
  printf("<Jv, w> = %.15e\n<v, J*w> = %.15e\nrelative difference %.1e\n", forwards, backwards, difference);
  free(work);
  return difference < 1e-12 ? EXIT_SUCCESS : EXIT_FAILURE;
}
