// A directory of one rank is missing, or damaged: to ask changes nothing, and all ranks are told the same.
//
//   missing DIRECTORY

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LENGTH = 5000 };

static const char *directory;
static int32_t field[LENGTH];
static int life;

static outcrop_session *open_session(int rank) {
  char config[8192];
  snprintf(config, sizeof config,
           "host = '1 MiB'\npin = false\ndir = '%s/store'\nranks = {dir = '%s/store/talk-%d', rank = %d, count = %d}", directory,
           directory, life, rank, RANKS);
  outcrop_store *store;
  outcrop_session *session;
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "together", &session));
  FINE(outcrop_store_close(store));
  FINE(outcrop_session_protect(session, "field", field, LENGTH, OUTCROP_I32));
  return session;
}

static void saves(outcrop_session *session, int rank) {
  for (int number = 1; number <= 2; number++) {
    field[rank] = 1000 * rank + number;
    FINE(outcrop_session_save(session, (uint64_t)number));
  }
  FINE(outcrop_session_wait(session, 2, OUTCROP_ALL));
}

static void asks(outcrop_session *session, int rank) {
  uint64_t version;
  int found;
  (void)rank;
  FINE(outcrop_session_latest(session, &version, &found));
  DEMAND(found == 0);
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 0);
  // Its number is not free: it may come back.
  REFUSED(OUTCROP_STORAGE, "seems to be missing", outcrop_session_save(session, 2));
}

static void goes_on(outcrop_session *session, int rank) {
  uint64_t version;
  int found;
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 1 && version == 2 && field[rank] == 1000 * rank + 2);
}

static void is_told(outcrop_session *session, int rank) {
  uint64_t version;
  int found;
  char words[32];
  snprintf(words, sizeof words, rank == 1 ? "version 2" : "rank 1 cannot read");
  REFUSED(OUTCROP_DAMAGED, words, outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 0);
}

// One life of all ranks.
static void all_do(void (*what)(outcrop_session *, int)) {
  pid_t ranks[RANKS];
  for (int rank = 0; rank < RANKS; rank++) {
    ranks[rank] = fork();
    DEMAND(ranks[rank] >= 0);
    if (ranks[rank] == 0) {
      alarm(200);
      outcrop_session *session = open_session(rank);
      what(session, rank);
      FINE(outcrop_session_close(session));
      exit(EXIT_SUCCESS);
    }
  }
  for (int rank = 0; rank < RANKS; rank++) {
    int end;
    DEMAND(waitpid(ranks[rank], &end, 0) == ranks[rank]);
    DEMAND(WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
  }
  life++;
}

static void flip(int version) {
  char path[4096];
  snprintf(path, sizeof path, "%s/store/together/rank-00001/version-%020d", directory, version);
  FILE *file = fopen(path, "r+b");
  DEMAND(file != NULL && fseek(file, 20, SEEK_SET) == 0);
  const int byte = fgetc(file);
  DEMAND(byte != EOF && fseek(file, 20, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
}

int main(int count, char **words) {
  DEMAND(count == 2);
  directory = words[1];
  char there[4096], away[4096], empty[4200];
  snprintf(there, sizeof there, "%s/store/together/rank-00001", directory);
  snprintf(away, sizeof away, "%s/store/away", directory);
  all_do(saves);
  DEMAND(rename(there, away) == 0);
  all_do(asks);
  snprintf(empty, sizeof empty, "rm -r '%s'", there);
  DEMAND(system(empty) == 0 && rename(away, there) == 0);
  all_do(goes_on);
  flip(1);
  flip(2);
  all_do(is_told);
  flip(1);
  flip(2);
  all_do(goes_on);
  puts("nothing was lost");
  return EXIT_SUCCESS;
}
