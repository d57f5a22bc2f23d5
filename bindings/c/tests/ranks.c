// Several processes save one series of versions together, and all of them go back to the newest that all have.
//
//   ranks DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LENGTH = 5000 };

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

int main(int count, char **words) {
  DEMAND(count == 2);
  for (int life = 0; life < 3; life++) {
    pid_t ranks[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
      ranks[rank] = fork();
      DEMAND(ranks[rank] >= 0);
      if (ranks[rank] == 0) {
        live(words[1], life, rank);
        exit(EXIT_SUCCESS);
      }
    }
    for (int rank = 0; rank < RANKS; rank++) {
      int end;
      DEMAND(waitpid(ranks[rank], &end, 0) == ranks[rank]);
      DEMAND(WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
    }
  }
  puts("the ranks came back together");
  return EXIT_SUCCESS;
}
