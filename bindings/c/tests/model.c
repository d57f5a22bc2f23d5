// Random calls on a tape and in a store, beside a model of what they must do. Several ranks live several lives; in some of them one
// rank is killed, and between them files are damaged. What was reported durable must be there, and nothing but what was saved.
//
//   model DIRECTORY SEED RANKS LIVES

#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 8, STEPS = 12, STAMPS = 4096, COUNT = 3000, KEYS = 6, BYTES_MAX = 90000, GAVE_UP = 3 };

static const char *directory;
static uint64_t seed;
static int ranks, life;

// What all processes know.
static struct {
  atomic_uint_fast64_t sure;             // the newest version that was reported durable everywhere, and is to be kept; and since when
  atomic_uint_fast64_t tried;            // the highest number that was ever used
  atomic_uint_fast64_t versions[STAMPS]; // the number that each attempt was saved under
  atomic_uint_fast64_t restored[RANKS_MAX];
  atomic_int opened;
  atomic_int has_died;
  atomic_int is_damaged;
} *shared;

static uint64_t random_state;

static uint64_t next(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

static void raise_to(atomic_uint_fast64_t *number, uint64_t value) {
  uint_fast64_t known = *number;
  while (known < value && !atomic_compare_exchange_weak(number, &known, value)) {
  }
}

// When this rank has gone back last. What was sure before does not count any more, also if another rank says so later.
static uint64_t since;

static uint64_t newest_sure(void) { return shared->sure & 0xffffffffu; }

static void is_sure(uint64_t version) { raise_to(&shared->sure, since << 32 | version); }

static int below(int end) { return (int)(next(&random_state) % (uint64_t)end); }

static int is_in(uint64_t *state, int chance) { return next(state) % (uint64_t)chance == 0; }

// How the store of this seed is set up.
static struct {
  int layers, keeps, is_full, is_live, is_compressed;
} setup;

static void choose_setup(void) {
  uint64_t state = seed * 31 + 7;
  setup.layers = is_in(&state, 2) ? 1 : 2;
  setup.keeps = is_in(&state, 2);
  setup.is_full = is_in(&state, 3);
  setup.is_live = is_in(&state, 4);
  setup.is_compressed = is_in(&state, 3);
}

// The state of a rank after a step is given by the stamp of the step. Most of it is as before.
static double field[COUNT];
static uint64_t stamp;

static double expected(uint64_t of, int rank, int at) {
  const double base = rank * 1e6 + at;
  return (uint64_t)(at / 64) % 5 == of % 5 ? base + (double)of * 1e8 : base;
}

static void fill(int rank, uint64_t with) {
  stamp = with;
  for (int at = 0; at < COUNT; at++) field[at] = expected(with, rank, at);
}

static int is_whole(int rank, const double *values, uint64_t with) {
  for (int at = 0; at < COUNT; at++)
    if (values[at] != expected(with, rank, at)) return 0;
  return 1;
}

// Ends this life of a rank, if another one has died; else it is a failure.
static void give_up(const char *what, outcrop_status status) {
  char message[1000];
  snprintf(message, sizeof message, "%s", outcrop_error());
  for (int wait = 0; wait < 100 && !shared->has_died; wait++) usleep(10000);
  if (!shared->has_died) {
    fprintf(stderr, "life %d: %s gave %d: %s\n", life, what, (int)status, message);
    exit(EXIT_FAILURE);
  }
  _exit(GAVE_UP);
}

#define WELL(call)                                   \
  do {                                               \
    const outcrop_status status_ = (call);           \
    if (status_ != OUTCROP_OK) give_up(#call, status_); \
  } while (0)

// --- a tape

static struct {
  int is_there;
  size_t bytes;
  unsigned char with;
} keys[KEYS];

static int is_of(const unsigned char *bytes, size_t count, unsigned char with) {
  for (size_t at = 0; at < count; at++)
    if (bytes[at] != (unsigned char)(with + at % 251)) return 0;
  return 1;
}

static void fill_bytes(unsigned char *bytes, size_t count, unsigned char with) {
  for (size_t at = 0; at < count; at++) bytes[at] = (unsigned char)(with + at % 251);
}

static void write_key(outcrop_tape *tape, int key) {
  static unsigned char bytes[BYTES_MAX];
  static const size_t sizes[] = {0, 1, 100, 5000, 40000, BYTES_MAX};
  const size_t count = sizes[below(6)];
  const unsigned char with = (unsigned char)below(256);
  const int way = below(4);
  outcrop_lent *lent;
  outcrop_past *past;
  void *slot;
  fill_bytes(bytes, count, with);
  if (keys[key].is_there) {
    REFUSED(OUTCROP_EXISTS, "exists", outcrop_tape_save(tape, (uint64_t)key, bytes, count));
    return;
  }
  if (way == 0) {
    FINE(outcrop_tape_save(tape, (uint64_t)key, bytes, count));
  } else {
    FINE(outcrop_tape_lend(tape, (uint64_t)key, count, &slot, &lent));
    if (count > 0) memcpy(slot, bytes, count);
    if (way == 1) {
      FINE(outcrop_lent_abandon(lent));
      return;
    }
    if (way == 2) {
      FINE(outcrop_lent_seal(lent));
    } else {
      FINE(outcrop_lent_seal_and_keep(lent, &past));
      FINE(outcrop_past_release(past));
    }
  }
  memset(bytes, 0xee, count);
  keys[key].is_there = 1;
  keys[key].bytes = count;
  keys[key].with = with;
}

static void read_key(outcrop_tape *tape, int key) {
  static unsigned char bytes[BYTES_MAX];
  const void *data;
  size_t count;
  outcrop_past *past;
  const int way = below(4);
  if (!keys[key].is_there) {
    REFUSED(OUTCROP_MISSING, "", outcrop_tape_take(tape, (uint64_t)key, &data, &count, &past));
    REFUSED(OUTCROP_MISSING, "", outcrop_tape_discard(tape, (uint64_t)key));
    return;
  }
  FINE(outcrop_tape_size(tape, (uint64_t)key, &count));
  DEMAND(count == keys[key].bytes);
  if (way == 0) {
    FINE(outcrop_tape_discard(tape, (uint64_t)key));
  } else if (way == 1) {
    FINE(outcrop_tape_take_into(tape, (uint64_t)key, bytes, count));
    DEMAND(is_of(bytes, count, keys[key].with));
  } else {
    FINE((way == 2 ? outcrop_tape_take : outcrop_tape_get)(tape, (uint64_t)key, &data, &count, &past));
    DEMAND(count == keys[key].bytes && is_of(data, count, keys[key].with));
    FINE(outcrop_past_release(past));
  }
  keys[key].is_there = way == 3;
}

static outcrop_tape *open_tape(int rank) {
  char config[4096];
  outcrop_tape *tape;
  snprintf(config, sizeof config, "host = '256 KiB'\npin = false\ndir = [{path = '%s/tape-%d', limit = '4 MiB'}]\norder = '%s'", directory,
           rank, below(2) ? "reverse" : "unknown");
  FINE(outcrop_tape_open(config, &tape));
  memset(keys, 0, sizeof keys);
  return tape;
}

// --- a store

static outcrop_session *open_session(int rank) {
  char config[16384];
  int at = snprintf(config, sizeof config, "host = '2 MiB'\npin = false\ndir = [{path = '%s/store/one'%s}", directory,
                    setup.is_full ? ", limit = '128 KiB'" : "");
  if (setup.layers == 2) at += snprintf(config + at, sizeof config - (size_t)at, ", {path = '%s/store/two'}", directory);
  at += snprintf(config + at, sizeof config - (size_t)at, "]\n%s%s%s", setup.keeps || setup.is_full ? "keep_last = 2\n" : "",
                 setup.is_live ? "live = '4 MiB'\n" : "", setup.is_compressed ? "compression = 'lz4'\n" : "");
  if (ranks > 1)
    snprintf(config + at, sizeof config - (size_t)at, "ranks = {dir = '%s/talk-%d', rank = %d, count = %d}\n", directory, life, rank, ranks);
  outcrop_store *store;
  outcrop_session *session;
  FINE(outcrop_store_open(config, &store));
  WELL(outcrop_store_session(store, "run", &session));
  FINE(outcrop_store_close(store));
  FINE(outcrop_session_protect(session, "field", field, COUNT, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "stamp", &stamp, 1, OUTCROP_U64));
  return session;
}

// What was restored, or read, is one attempt to save this version.
static void check_restored(int rank, uint64_t version) {
  DEMAND(stamp < STAMPS && shared->versions[stamp] == version);
  DEMAND(is_whole(rank, field, stamp));
}

static uint64_t restore_newest(outcrop_session *session, int rank) {
  uint64_t version;
  int found;
  const uint64_t sure = newest_sure();
  fill(rank, STAMPS + 7);
  const outcrop_status status = outcrop_session_restore_latest(session, &version, &found);
  // What was damaged may be all that there was, if nothing is sure.
  if (status != OUTCROP_OK && !(status == OUTCROP_DAMAGED && shared->is_damaged && sure == 0)) give_up("restore_latest", status);
  if (found == 0) {
    DEMAND(sure == 0 && is_whole(rank, field, STAMPS + 7));
    fill(rank, 0);
    stamp = 0;
  } else {
    if (version < sure) fprintf(stderr, "life %d: version %" PRIu64 " was restored, and %" PRIu64 " was sure\n", life, version, sure);
    DEMAND(version >= sure);
    check_restored(rank, version);
  }
  shared->restored[rank] = found == 0 ? 0 : stamp;
  return found == 0 ? 0 : version;
}

// A failure of earlier versions is reported first.
static void save(outcrop_session *session, int rank, uint64_t version, uint64_t with) {
  outcrop_status status = OUTCROP_OK;
  fill(rank, with);
  shared->versions[with] = version;
  for (int tries = 0; tries < 20; tries++) {
    status = outcrop_session_save(session, version);
    if (status != OUTCROP_STORAGE || !setup.is_full) break;
  }
  if (status != OUTCROP_OK) give_up("save", status);
  raise_to(&shared->tried, version);
}

// Whether a version became durable everywhere. It may not, where there is little room.
static int waits(outcrop_session *session, uint64_t version) {
  const outcrop_status status = outcrop_session_wait(session, version, OUTCROP_ALL);
  if (status == OUTCROP_STORAGE && setup.is_full && !shared->has_died && strstr(outcrop_error(), "/store/one") != NULL) return 0;
  if (status == OUTCROP_MISSING && (setup.keeps || setup.is_full)) return 0;
  if (status != OUTCROP_OK) give_up("wait", status);
  is_sure(version);
  return 1;
}

static void read_any(outcrop_session *session, int rank) {
  uint64_t versions[100], with;
  size_t count;
  static double values[COUNT];
  FINE(outcrop_session_versions(session, versions, 100, &count));
  DEMAND(count <= 100);
  if (count == 0) return;
  const uint64_t version = versions[(size_t)below(1000) % count];
  outcrop_status status = outcrop_session_read(session, version, "stamp", &with, sizeof with);
  if (status == OUTCROP_OK) status = outcrop_session_read(session, version, "field", values, sizeof values);
  // Versions that are not kept, or did not get there, may go at any moment.
  if (status == OUTCROP_MISSING || (status != OUTCROP_OK && setup.is_full)) return;
  // One that not all directories have may be damaged where it is.
  if (status == OUTCROP_DAMAGED && shared->is_damaged && version != newest_sure()) return;
  if (status != OUTCROP_OK) give_up("read", status);
  DEMAND(with < STAMPS && shared->versions[with] == version && is_whole(rank, values, with));
}

// Goes back to an earlier version, and from there on in another way.
static uint64_t go_back(outcrop_session *session, int rank, uint64_t version, int by_rewind) {
  const uint64_t before = stamp;
  if (by_rewind) {
    since++;
    // It may not be kept any more.
    is_sure(setup.keeps || setup.is_full ? 0 : version);
  }
  outcrop_status status = by_rewind ? outcrop_session_rewind(session, version) : outcrop_session_restore(session, version);
  if (by_rewind) {
    // Failures of versions are reported first.
    if (status == OUTCROP_STORAGE && setup.is_full && strstr(outcrop_error(), "has not reached") != NULL)
      status = outcrop_session_rewind(session, version);
    if (status != OUTCROP_OK) give_up("rewind", status);
    return version;
  }
  if (status == OUTCROP_MISSING && (setup.keeps || setup.is_full)) {
    DEMAND(is_whole(rank, field, before));
    return 0;
  }
  if (status != OUTCROP_OK) give_up("restore", status);
  check_restored(rank, version);
  // The next save removes what is above.
  since++;
  is_sure(version);
  return version;
}

static void live(int rank, int dies_at) {
  // Choices of all ranks are the same, and those on a tape are not.
  uint64_t together = seed * 1000 + (uint64_t)life;
  random_state = together * 64 + (uint64_t)rank;
  since = (uint64_t)life * 100;
  alarm(300);
  outcrop_tape *tape = open_tape(rank);
  // Before all have come, nobody saves.
  const uint64_t tried = shared->tried;
  outcrop_session *session = open_session(rank);
  shared->opened++;
  uint64_t newest = restore_newest(session, rank), known[STEPS];
  int known_count = 0;
  if (tried > newest) newest = tried;
  for (int step = 0; step < STEPS; step++) {
    if (step == dies_at) kill(getpid(), SIGKILL);
    for (int call = 0; call < 8; call++) (below(2) ? write_key : read_key)(tape, below(KEYS));
    const int choice = (int)(next(&together) % 10), which = (int)(next(&together) % 100), by_rewind = (int)(next(&together) % 2);
    if (choice < 6) {
      const uint64_t version = newest + 1 + (uint64_t)(which % 3);
      save(session, rank, version, (uint64_t)(life * 100 + step + 1));
      newest = version;
      if (choice < 3 && waits(session, version)) known[known_count++] = version;
      // Alone, it may be saved again under its number, unless it has reached one directory.
      else if (choice < 3 && setup.layers == 1 && ranks == 1 && setup.is_full) newest = version - 1;
    } else if (choice < 8) {
      read_any(session, rank);
    } else if (known_count > 0) {
      const int place = which % known_count;
      const uint64_t version = go_back(session, rank, known[place], by_rewind);
      if (version != 0) {
        newest = version;
        known_count = place + 1;
      }
    }
  }
  for (outcrop_status status = OUTCROP_STORAGE; status != OUTCROP_OK;) {
    status = outcrop_session_flush(session);
    if (status != OUTCROP_OK && !(status == OUTCROP_STORAGE && setup.is_full)) give_up("flush", status);
    if (shared->has_died) give_up("flush", status);
  }
  WELL(outcrop_session_close(session));
  FINE(outcrop_tape_close(tape));
}

// --- all ranks

// Damages a file of the first directory: a byte is another one, or the end is missing.
static void damage(uint64_t *state) {
  char paths[1000][600];
  int count = 0;
  char command[4200];
  snprintf(command, sizeof command, "find '%s/store/one' -name 'pack-*' -o -name 'version-*' | sort", directory);
  FILE *list = popen(command, "r");
  DEMAND(list != NULL);
  while (count < 1000 && fgets(paths[count], sizeof paths[count], list) != NULL) paths[count][strcspn(paths[count], "\n")] = 0, count++;
  DEMAND(pclose(list) == 0);
  struct stat found;
  if (count == 0) return;
  shared->is_damaged = 1;
  const char *path = paths[next(state) % (uint64_t)count];
  if (stat(path, &found) != 0 || found.st_size == 0) return;
  const long at = (long)(next(state) % (uint64_t)found.st_size);
  if (is_in(state, 3)) {
    DEMAND(truncate(path, at) == 0);
    return;
  }
  FILE *file = fopen(path, "r+b");
  DEMAND(file != NULL && fseek(file, at, SEEK_SET) == 0);
  const int byte = fgetc(file);
  DEMAND(byte != EOF && fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 0x40, file) != EOF && fclose(file) == 0);
}

// One life of all ranks, in which one may be killed: at a step, or at any moment.
static void all_live(uint64_t *state, int may_die) {
  pid_t children[RANKS_MAX];
  const int dies = may_die && !is_in(state, 3);
  const int victim = (int)(next(state) % (uint64_t)ranks);
  const int dies_at = dies && is_in(state, 2) ? (int)(next(state) % STEPS) : -1;
  const useconds_t moment = (useconds_t)(next(state) % 60000);
  int opened = 0;
  shared->opened = 0;
  shared->has_died = 0;
  for (int rank = 0; rank < ranks; rank++) {
    children[rank] = fork();
    DEMAND(children[rank] >= 0);
    if (children[rank] == 0) {
      live(rank, rank == victim ? dies_at : -1);
      exit(EXIT_SUCCESS);
    }
  }
  if (dies && dies_at < 0) {
    // One that has not come yet would be waited for.
    for (int wait = 0; wait < 20000 && (opened = shared->opened) < ranks; wait++) usleep(1000);
    usleep(moment);
    kill(children[victim], SIGKILL);
  }
  int end, is_dead = 0;
  if (dies) {
    DEMAND(waitpid(children[victim], &end, 0) == children[victim]);
    is_dead = WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL;
    DEMAND(is_dead || (WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS));
    shared->has_died = is_dead;
  }
  for (int rank = 0; rank < ranks; rank++) {
    if (dies && rank == victim) continue;
    DEMAND(waitpid(children[rank], &end, 0) == children[rank]);
    DEMAND(WIFEXITED(end) && (WEXITSTATUS(end) == EXIT_SUCCESS || (is_dead && WEXITSTATUS(end) == GAVE_UP)));
  }
  for (int rank = 1; rank < ranks && !is_dead; rank++) DEMAND(shared->restored[rank] == shared->restored[0]);
}

int main(int count, char **words) {
  DEMAND(count == 5);
  directory = words[1];
  seed = strtoull(words[2], NULL, 10);
  ranks = atoi(words[3]);
  const int lives = atoi(words[4]);
  DEMAND(ranks >= 1 && ranks <= RANKS_MAX && lives * 100 < STAMPS);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  DEMAND((void *)shared != MAP_FAILED);
  choose_setup();
  uint64_t state = seed * 7919 + (uint64_t)ranks;
  for (life = 0; life < lives; life++) {
    all_live(&state, life + 1 < lives);
    // The second directory still has everything.
    if (setup.layers == 2 && is_in(&state, 2)) damage(&state);
  }
  printf("%" PRIu64 " is sure\n", newest_sure());
  puts("all was as the model says");
  return EXIT_SUCCESS;
}
