// Heat spreads in a plate. End it when you like, with Ctrl-C or kill -9, and start it again: it goes on where it was.
//
//   cc heat.c $(pkg-config --cflags --libs outcrop) -o heat
//   ./heat DIRECTORY [STEPS [STEP AT WHICH IT KILLS ITSELF]]
//
// With SIGUSR2 it saves; with SIGUSR1 it saves and ends with status 75, so that a job script knows that there is more to do.

#include <inttypes.h>
#include <outcrop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 256, EVERY = 20, TO_BE_CONTINUED = 75 };

static volatile sig_atomic_t is_asked_to_save, is_asked_to_end;

static void hear(int signal) { *(signal == SIGUSR1 ? &is_asked_to_end : &is_asked_to_save) = 1; }

static void check(outcrop_status status) {
  if (status != OUTCROP_OK) {
    fprintf(stderr, "heat: %s\n", outcrop_error());
    exit(status);
  }
}

// One step: every point comes nearer to the mean of its neighbours.
static void spread(double *plate) {
  static double before[SIDE * SIDE];
  memcpy(before, plate, sizeof before);
  for (size_t row = 1; row + 1 < SIDE; row++) {
    for (size_t at = row * SIDE + 1; at < row * SIDE + SIDE - 1; at++) {
      const double around = before[at - 1] + before[at + 1] + before[at - SIDE] + before[at + SIDE];
      plate[at] = before[at] + 0.2 * (around - 4.0 * before[at]);
    }
  }
}

// A number that tells every state from every other one, to the last bit.
static uint64_t fingerprint(const double *plate) {
  uint64_t hash = 14695981039346656037u;
  const unsigned char *bytes = (const unsigned char *)plate;
  for (size_t at = 0; at < SIDE * SIDE * sizeof *plate; at++) hash = (hash ^ bytes[at]) * 1099511628211u;
  return hash;
}

int main(int count, char **words) {
  signal(SIGUSR1, hear);
  signal(SIGUSR2, hear);
  const char *directory = count > 1 ? words[1] : "heat-checkpoints";
  const uint64_t steps = count > 2 ? strtoull(words[2], NULL, 10) : 1000;
  const uint64_t last = count > 3 ? strtoull(words[3], NULL, 10) : UINT64_MAX;
  double *plate = calloc(SIDE * SIDE, sizeof *plate);
  if (plate == NULL) return EXIT_FAILURE;
  plate[SIDE / 2 * SIDE + SIDE / 2] = 1e6;
  uint64_t step = 0;

  // [begin]
  char config[4200];
  snprintf(config, sizeof config, "host = '16 MiB'\ndir = '%s'\nkeep_last = 3\n", directory);
  outcrop_store *store;
  check(outcrop_store_open(config, &store));
  outcrop_session *session;
  check(outcrop_store_session(store, "heat", &session));
  check(outcrop_session_protect(session, "plate", plate, SIDE * SIDE, OUTCROP_F64));
  check(outcrop_session_protect(session, "step", &step, 1, OUTCROP_U64));

  uint64_t version;
  int found;
  check(outcrop_session_restore_latest(session, &version, &found));
  printf(found ? "goes on after step %" PRIu64 "\n" : "begins\n", step);
  // [end]

  int ends = 0;
  while (step < steps && !ends) {
    spread(plate);
    step += 1;
    ends = is_asked_to_end;
    if (step % EVERY == 0 || ends || is_asked_to_save) {
      is_asked_to_save = 0;
      check(outcrop_session_save(session, step));  // returns when the plate may change again
    }
    if (step == last) raise(SIGKILL);
  }
  check(outcrop_session_close(session));  // waits until all is durable
  check(outcrop_store_close(store));
  if (step < steps) {
    printf("ends after step %" PRIu64 "\n", step);
    free(plate);
    return TO_BE_CONTINUED;
  }
  printf("the state after %" PRIu64 " steps is %016" PRIx64 "\n", step, fingerprint(plate));
  free(plate);
  return EXIT_SUCCESS;
}
