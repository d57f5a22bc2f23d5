// The cases of the table of hostile calls (docs/testing.md) that no other program has: a function for each, on a tape and in a store.
//
//   hostile DIRECTORY

#define _DEFAULT_SOURCE
#include "check.h"

#include <stdint.h>
#include <sys/mman.h>

enum { COUNT = 40000 };

static const char *directory;
static double u[COUNT], v[COUNT];

static outcrop_session *open_session(const char *name, const char *more) {
  char config[8192];
  outcrop_store *store;
  outcrop_session *session;
  snprintf(config, sizeof config, "host = '4 MiB'\npin = false\nincremental = false\n%s", more);
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, name, &session));
  FINE(outcrop_store_close(store));
  return session;
}

static outcrop_session *usual(const char *name) {
  char more[4096];
  snprintf(more, sizeof more, "dir = '%s/store'", directory);
  return open_session(name, more);
}

static outcrop_tape *a_tape(void) {
  char config[4096];
  outcrop_tape *tape;
  snprintf(config, sizeof config, "host = '1 MiB'\npin = false\ndir = [{path = '%s/tape', limit = '16 MiB'}]", directory);
  FINE(outcrop_tape_open(config, &tape));
  return tape;
}

// Numbers that do not repeat, so that each can be found in a file.
static void fill(double *values, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (int at = 0; at < COUNT; at++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values[at] = (double)(state >> 11) / (double)(1ull << 53);
  }
}

static int is_filled(const double *values, uint64_t seed) {
  static double expected[COUNT];
  fill(expected, seed);
  return memcmp(values, expected, sizeof expected) == 0;
}

static void misaligned(void) {
  static char bytes[8 * 100 + 8];
  double found[100];
  for (size_t at = 0; at < sizeof bytes; at++) bytes[at] = (char)at;
  outcrop_tape *tape = a_tape();
  FINE(outcrop_tape_save(tape, 1, bytes + 1, sizeof found));
  FINE(outcrop_tape_take_into(tape, 1, found, sizeof found));
  DEMAND(memcmp(found, bytes + 1, sizeof found) == 0);
  FINE(outcrop_tape_close(tape));
  outcrop_session *session = usual("misaligned");
  FINE(outcrop_session_protect(session, "u", bytes + 3, 100, OUTCROP_F64));
  FINE(outcrop_session_save(session, 1));
  memcpy(found, bytes + 3, sizeof found);
  memset(bytes, 0, sizeof bytes);
  FINE(outcrop_session_protect(session, "u", bytes + 5, 100, OUTCROP_F64));
  FINE(outcrop_session_restore(session, 1));
  DEMAND(memcmp(found, bytes + 5, sizeof found) == 0 && bytes[4] == 0 && bytes[5 + sizeof found] == 0);
  FINE(outcrop_session_close(session));
}

static void overlapping(void) {
  outcrop_session *session = usual("overlapping");
  fill(u, 1);
  FINE(outcrop_session_protect(session, "u", u, COUNT, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "half", u + COUNT / 2, COUNT / 2, OUTCROP_F64));
  FINE(outcrop_session_save(session, 1));
  fill(u, 2);
  REFUSED(OUTCROP_USAGE, "overlap", outcrop_session_restore(session, 1));
  DEMAND(is_filled(u, 2));
  FINE(outcrop_session_unprotect(session, "half"));
  FINE(outcrop_session_restore(session, 1));
  DEMAND(is_filled(u, 1));
  FINE(outcrop_session_close(session));
}

// A version that has failed, and was reported, may be saved again under its number.
static void full(void) {
  char more[4096];
  snprintf(more, sizeof more, "dir = [{path = '%s/store/full', limit = '512 KiB'}]", directory);
  outcrop_session *session = open_session("full", more);
  fill(u, 1);
  fill(v, 2);
  FINE(outcrop_session_protect(session, "u", u, COUNT, OUTCROP_F64));
  FINE(outcrop_session_save(session, 1));
  FINE(outcrop_session_wait(session, 1, OUTCROP_ALL));
  FINE(outcrop_session_protect(session, "v", v, COUNT, OUTCROP_F64));
  FINE(outcrop_session_save(session, 2));
  REFUSED(OUTCROP_STORAGE, "version 2 of full has not reached", outcrop_session_wait(session, 2, OUTCROP_ALL));
  FINE(outcrop_session_unprotect(session, "v"));
  FINE(outcrop_session_protect(session, "u", u, 100, OUTCROP_F64));
  FINE(outcrop_session_save(session, 2));
  FINE(outcrop_session_wait(session, 2, OUTCROP_ALL));
  REFUSED(OUTCROP_EXISTS, "higher", outcrop_session_save(session, 2));
  FINE(outcrop_session_close(session));
}

static void read_only(void) {
  outcrop_tape *tape;
  outcrop_store *store;
  REFUSED(OUTCROP_STORAGE, "/proc", outcrop_tape_open("host = '1 MiB'\ndir = [{path = '/proc/outcrop', limit = '1 MiB'}]", &tape));
  REFUSED(OUTCROP_STORAGE, "/proc", outcrop_store_open("dir = '/proc/outcrop'", &store));
  const size_t bytes = 1 << 16;
  char *constant = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  DEMAND(constant != MAP_FAILED);
  memset(constant, 7, bytes);
  DEMAND(mprotect(constant, bytes, PROT_READ) == 0);
  tape = a_tape();
  FINE(outcrop_tape_save(tape, 1, constant, bytes));
  FINE(outcrop_tape_close(tape));
  outcrop_session *session = usual("constant");
  FINE(outcrop_session_protect(session, "u", constant, bytes, OUTCROP_U8));
  FINE(outcrop_session_save(session, 1));
  REFUSED(OUTCROP_USAGE, "cannot be written", outcrop_session_restore(session, 1));
  FINE(outcrop_session_close(session));
  DEMAND(munmap(constant, bytes) == 0);
}

// Changes a byte of what was saved of these values, wherever it lies below the store.
static void damage(const double *values) {
  char command[4200], path[4096];
  int count = 0;
  snprintf(command, sizeof command, "find '%s/store/damaged' -name 'pack-*'", directory);
  FILE *paths = popen(command, "r");
  DEMAND(paths != NULL);
  while (fgets(path, sizeof path, paths) != NULL) {
    path[strcspn(path, "\n")] = 0;
    FILE *file = fopen(path, "r+b");
    static char bytes[4 << 20];
    DEMAND(file != NULL);
    const size_t length = fread(bytes, 1, sizeof bytes, file);
    for (size_t at = 0; at + 64 < length; at++) {
      if (memcmp(bytes + at, values, 64) != 0) continue;
      DEMAND(fseek(file, (long)at, SEEK_SET) == 0 && fputc(bytes[at] ^ 1, file) != EOF);
      count++;
      break;
    }
    DEMAND(fclose(file) == 0);
  }
  DEMAND(pclose(paths) == 0 && count > 0);
}

// A restore is all or nothing, also if what is damaged comes last, or is not asked for.
static void damaged(void) {
  outcrop_session *session = usual("damaged");
  uint64_t version;
  int found;
  FINE(outcrop_session_protect(session, "u", u, COUNT, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "v", v, COUNT, OUTCROP_F64));
  for (uint64_t number = 1; number <= 2; number++) {
    fill(u, number);
    fill(v, 10 + number);
    FINE(outcrop_session_save(session, number));
  }
  FINE(outcrop_session_close(session));
  fill(v, 12);
  damage(v + COUNT - 1000);
  session = usual("damaged");
  FINE(outcrop_session_protect(session, "u", u, COUNT, OUTCROP_F64));
  fill(u, 7);
  REFUSED(OUTCROP_DAMAGED, "version 2", outcrop_session_restore(session, 2));
  DEMAND(is_filled(u, 7));
  FINE(outcrop_session_protect(session, "v", v, COUNT, OUTCROP_F64));
  fill(v, 8);
  REFUSED(OUTCROP_DAMAGED, "version 2", outcrop_session_restore(session, 2));
  DEMAND(is_filled(u, 7) && is_filled(v, 8));
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 1 && version == 1 && is_filled(u, 1) && is_filled(v, 11));
  FINE(outcrop_session_close(session));
  damage(v + COUNT - 1000);
  session = usual("damaged");
  FINE(outcrop_session_protect(session, "u", u, COUNT, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "v", v, COUNT, OUTCROP_F64));
  fill(u, 7);
  fill(v, 8);
  REFUSED(OUTCROP_DAMAGED, "version 1", outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 0 && is_filled(u, 7) && is_filled(v, 8));
  FINE(outcrop_session_close(session));
}

int main(int count, char **words) {
  DEMAND(count == 2);
  directory = words[1];
  misaligned();
  overlapping();
  full();
  read_only();
  damaged();
  puts("no hostile call did harm");
  return EXIT_SUCCESS;
}
