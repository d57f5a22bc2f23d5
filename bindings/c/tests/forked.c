// A forked child has its parent's handles but not the threads behind them. It is refused, and never waits for a lock that one of these
// threads held; and it can have handles of its own.
//
//   forked DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 12 };

static outcrop_tape *tape;
static outcrop_past *past;
static outcrop_lent *lent;
static outcrop_store *store;
static outcrop_session *session;
static atomic_bool is_over;
static char tape_config[4096], store_config[4096];

// Keeps the library's locks busy while children are forked.
static void *work(void *unused) {
  (void)unused;
  for (uint64_t key = 1000; !is_over; key++) {
    FINE(outcrop_tape_save(tape, key, "state", 5));
    FINE(outcrop_tape_discard(tape, key));
  }
  return NULL;
}

static void be_a_child(void) {
  const void *data;
  size_t bytes;
  outcrop_past *other;
  outcrop_tape *own;
  outcrop_store *own_store;
  outcrop_session *own_session;
  uint64_t version;
  int found;
  alarm(100);
  REFUSED(OUTCROP_USAGE, "forked", outcrop_tape_take(tape, 1, &data, &bytes, &other));
  REFUSED(OUTCROP_USAGE, "forked", outcrop_past_release(past));
  REFUSED(OUTCROP_USAGE, "forked", outcrop_lent_seal(lent));
  REFUSED(OUTCROP_USAGE, "forked", outcrop_store_due(store, &found));
  REFUSED(OUTCROP_USAGE, "forked", outcrop_session_latest(session, &version, &found));
  REFUSED(OUTCROP_USAGE, "open it in the child", outcrop_session_close(session));
  REFUSED(OUTCROP_USAGE, "open it in the child", outcrop_tape_close(tape));
  FINE(outcrop_tape_open(tape_config, &own));
  FINE(outcrop_tape_save(own, 1, "five!", 5));
  REFUSED(OUTCROP_USAGE, "forked", outcrop_tape_save(tape, 2, "x", 1));
  FINE(outcrop_tape_take(own, 1, &data, &bytes, &other));
  DEMAND(bytes == 5 && memcmp(data, "five!", 5) == 0);
  FINE(outcrop_past_release(other));
  FINE(outcrop_tape_close(own));
  FINE(outcrop_store_open(store_config, &own_store));
  REFUSED(OUTCROP_BUSY, "in use by another process", outcrop_store_session(own_store, "run", &own_session));
  FINE(outcrop_store_session(own_store, "child", &own_session));
  REFUSED(OUTCROP_BUSY, "in use by this process", outcrop_store_session(own_store, "child", &own_session));
  _exit(EXIT_SUCCESS);
}

int main(int count, char **words) {
  DEMAND(count == 2);
  snprintf(tape_config, sizeof tape_config, "host = '1 MiB'\ndir = [{path='%s/tape', limit='16 MiB'}]\npin = false", words[1]);
  snprintf(store_config, sizeof store_config, "host = '1 MiB'\ndir = '%s/store'\npin = false", words[1]);
  const void *data;
  void *slot;
  size_t bytes;
  double field[10] = {0};
  FINE(outcrop_tape_open(tape_config, &tape));
  FINE(outcrop_tape_save(tape, 1, "four", 4));
  FINE(outcrop_tape_get(tape, 1, &data, &bytes, &past));
  FINE(outcrop_tape_lend(tape, 2, 4, &slot, &lent));
  FINE(outcrop_store_open(store_config, &store));
  FINE(outcrop_store_session(store, "run", &session));
  FINE(outcrop_session_protect(session, "field", field, 10, OUTCROP_F64));
  FINE(outcrop_session_save(session, 1));

  pthread_t thread;
  DEMAND(pthread_create(&thread, NULL, work, NULL) == 0);
  for (int number = 0; number < CHILDREN; number++) {
    const pid_t child = fork();
    if (child == 0) be_a_child();
    int end;
    DEMAND(waitpid(child, &end, 0) == child);
    DEMAND(WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
  }
  is_over = 1;
  DEMAND(pthread_join(thread, NULL) == 0);

  // Nothing of the parent's has been touched.
  FINE(outcrop_past_release(past));
  FINE(outcrop_lent_abandon(lent));
  FINE(outcrop_tape_take(tape, 1, &data, &bytes, &past));
  DEMAND(bytes == 4 && memcmp(data, "four", 4) == 0);
  FINE(outcrop_past_release(past));
  FINE(outcrop_tape_close(tape));
  FINE(outcrop_session_wait(session, 1, OUTCROP_ALL));
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  puts("no child has used what is not its own");
  return EXIT_SUCCESS;
}
