// Several processes save one series of versions together, and all of them go back to the newest that all have.
//
//   ranks DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, MOST = 4, LENGTH = 5000 };

// One life of a rank: it goes back to a version and saves two more.
static void live(const char *directory, int life, int rank) {
  char config[8192];
  snprintf(config, sizeof config,
           "host = '1 MiB'\npin = false\ndir = '%s/store'\nranks = {dir = '%s/store/talk-%d', rank = %d, count = %d}", directory,
           directory, life, rank, RANKS);
  outcrop_store *store;
  outcrop_session *session;
  uint64_t version;
  int found;
  static int32_t field[LENGTH];
  alarm(200);
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "together", &session));
  FINE(outcrop_session_protect(session, "field", field, LENGTH, OUTCROP_I32));
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == (life > 0));
  DEMAND(life == 0 || (version == 2u * (unsigned)life && field[rank] == 1000 * rank + 2 * life));
  for (int number = 1; number <= 2; number++) {
    field[rank] = 1000 * rank + 2 * life + number;
    FINE(outcrop_session_save(session, (uint64_t)(2 * life + number)));
  }
  FINE(outcrop_session_wait(session, (uint64_t)(2 * life + 2), OUTCROP_ALL));
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
}

// One life of a rank of `count`: it goes back to its part of an array and of a list, whoever has saved them, and saves the next.
static void live_in_boxes(const char *directory, int life, int rank, int count) {
  char config[8192];
  snprintf(config, sizeof config,
           "host = '1 MiB'\npin = false\ndir = '%s/store'\nranks = {dir = '%s/store/boxes-%d', rank = %d, count = %d}", directory,
           directory, life, rank, count);
  outcrop_store *store;
  outcrop_session *session;
  uint64_t version;
  int found;
  static int32_t field[LENGTH], list[LENGTH];
  size_t first = (size_t)(LENGTH * rank / count), shape = (size_t)(LENGTH * (rank + 1) / count) - first;
  size_t global = LENGTH, all = OUTCROP_LIST;
  alarm(200);
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "boxes", &session));
  FINE(outcrop_session_protect(session, "field", field, shape, OUTCROP_I32));
  FINE(outcrop_session_shape(session, "field", OUTCROP_ROW_MAJOR, 1, &shape, &global, &first));
  FINE(outcrop_session_protect(session, "list", list, shape, OUTCROP_I32));
  FINE(outcrop_session_shape(session, "list", OUTCROP_ROW_MAJOR, 1, &shape, &all, &first));
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == (life > 0) && (life == 0 || version == (uint64_t)life));
  for (size_t at = 0; at < shape; at++) {
    DEMAND(life == 0 || (field[at] == (int32_t)(first + at) * life && list[at] == -(int32_t)(first + at) - life));
    field[at] = (int32_t)(first + at) * (life + 1);
    list[at] = -(int32_t)(first + at) - (life + 1);
  }
  FINE(outcrop_session_save(session, (uint64_t)life + 1));
  FINE(outcrop_session_wait(session, (uint64_t)life + 1, OUTCROP_ALL));
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
}

// Starts a process for each rank, and waits for all of them.
static void together(const char *directory, int life, int count, int is_boxed) {
  pid_t ranks[MOST];
  for (int rank = 0; rank < count; rank++) {
    ranks[rank] = fork();
    DEMAND(ranks[rank] >= 0);
    if (ranks[rank] == 0) {
      if (is_boxed) {
        live_in_boxes(directory, life, rank, count);
      } else {
        live(directory, life, rank);
      }
      exit(EXIT_SUCCESS);
    }
  }
  for (int rank = 0; rank < count; rank++) {
    int end;
    DEMAND(waitpid(ranks[rank], &end, 0) == ranks[rank]);
    DEMAND(WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
  }
}

int main(int count, char **words) {
  DEMAND(count == 2);
  for (int life = 0; life < 3; life++) {
    together(words[1], life, RANKS, 0);
  }
  const int counts[] = {4, 3, 1, 2};
  for (int life = 0; life < 4; life++) {
    together(words[1], life, counts[life], 1);
  }
  puts("the ranks came back together");
  return EXIT_SUCCESS;
}
