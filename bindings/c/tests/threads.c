// Many threads at once: with handles of their own, with one handle for all, and while handles are closed under their feet.
//
//   threads DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <dirent.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6, STATES = 60, LENGTH = 2000 };

static outcrop_tape *tape;
static outcrop_session *session;
static double field[LENGTH];

static void fill(double *state, size_t thread, size_t number) {
  for (size_t at = 0; at < LENGTH; at++) state[at] = (double)(thread * 1000000 + number * 1000 + at);
}

static void everywhere(void *(*work)(void *)) {
  pthread_t threads[THREADS];
  for (size_t thread = 0; thread < THREADS; thread++) DEMAND(pthread_create(&threads[thread], NULL, work, (void *)thread) == 0);
  for (size_t thread = 0; thread < THREADS; thread++) DEMAND(pthread_join(threads[thread], NULL) == 0);
}

// Saves and takes states of its own on a tape.
static void save_and_take(outcrop_tape *mine, size_t thread) {
  double state[LENGTH], expected[LENGTH];
  for (size_t number = 0; number < STATES; number++) {
    fill(state, thread, number);
    FINE(outcrop_tape_save(mine, thread * STATES + number, state, sizeof state));
  }
  for (size_t number = STATES; number-- > 0;) {
    const void *past_state;
    size_t bytes;
    outcrop_past *past;
    FINE(outcrop_tape_take(mine, thread * STATES + number, &past_state, &bytes, &past));
    fill(expected, thread, number);
    DEMAND(bytes == sizeof expected && memcmp(past_state, expected, bytes) == 0);
    FINE(outcrop_past_release(past));
  }
}

static void *with_own_handle(void *thread) {
  outcrop_tape *mine;
  FINE(outcrop_tape_clone(tape, &mine));
  save_and_take(mine, (size_t)thread);
  FINE(outcrop_tape_close(mine));
  return NULL;
}

static void *with_one_for_all(void *thread) {
  save_and_take(tape, (size_t)thread);
  return NULL;
}

// One message for each thread.
static void *with_mistakes(void *thread) {
  char words[32];
  const size_t key = 5000 + (size_t)thread;
  snprintf(words, sizeof words, "%zu", key);
  for (int times = 0; times < 200; times++) REFUSED(OUTCROP_MISSING, words, outcrop_tape_discard(tape, key));
  return NULL;
}

// Goes on until somebody closes it.
static void *until_closed(void *thread) {
  const double state[LENGTH] = {0};
  outcrop_status status = OUTCROP_OK;
  for (size_t number = 0; status == OUTCROP_OK; number++) {
    const size_t key = (size_t)thread << 32 | number;
    status = outcrop_tape_save(tape, key, state, sizeof state);
    if (status == OUTCROP_OK) status = outcrop_tape_discard(tape, key);
  }
  DEMAND(status == OUTCROP_USAGE && strstr(outcrop_error(), "closed") != NULL);
  return NULL;
}

// Versions come from any thread; who is late with a number is told so.
static void *with_versions(void *thread) {
  for (uint64_t number = 1; number <= 20; number++) {
    const outcrop_status status = outcrop_session_save(session, number * THREADS + (uint64_t)thread);
    DEMAND(status == OUTCROP_OK || status == OUTCROP_EXISTS);
    uint64_t version;
    int found;
    FINE(outcrop_session_latest(session, &version, &found));
    DEMAND(found == 1);
  }
  return NULL;
}

// How many threads this process has.
static int threads_now(void) {
  DIR *tasks = opendir("/proc/self/task");
  DEMAND(tasks != NULL);
  int count = 0;
  for (struct dirent *task; (task = readdir(tasks)) != NULL;) count += task->d_name[0] != '.';
  closedir(tasks);
  return count;
}

int main(int count, char **words) {
  DEMAND(count == 2);
  alarm(300);
  char config[4096];
  // Room for a tenth of the states in memory.
  snprintf(config, sizeof config, "host = '600 KiB'\ndir = [{path='%s/tape', limit='32 MiB'}]\npin = false\norder = 'unknown'", words[1]);
  FINE(outcrop_tape_open(config, &tape));
  everywhere(with_own_handle);
  everywhere(with_one_for_all);
  everywhere(with_mistakes);
  outcrop_tape_stats_t stats;
  FINE(outcrop_tape_stats(tape, &stats, sizeof stats));
  DEMAND(stats.saves == 2 * THREADS * STATES && stats.reads == stats.saves);

  pthread_t threads[THREADS];
  for (size_t thread = 0; thread < THREADS; thread++) DEMAND(pthread_create(&threads[thread], NULL, until_closed, (void *)thread) == 0);
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  FINE(outcrop_tape_close(tape));
  for (size_t thread = 0; thread < THREADS; thread++) DEMAND(pthread_join(threads[thread], NULL) == 0);

  outcrop_store *store;
  snprintf(config, sizeof config, "host = '1 MiB'\ndir = '%s/store'\npin = false\nkeep_last = 2", words[1]);
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "threads", &session));
  FINE(outcrop_session_protect(session, "field", field, LENGTH, OUTCROP_F64));
  everywhere(with_versions);
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  // All threads of the library end, or the alarm does it.
  while (threads_now() > 1) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  puts("all threads had their own");
  return EXIT_SUCCESS;
}
