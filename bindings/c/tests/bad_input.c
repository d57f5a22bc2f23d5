// Whatever a program gets wrong that the library can see is a status with a sentence that helps, and everything works afterwards.
//
//   bad_input DIRECTORY

#include "check.h"

#include <stdint.h>

static char directory[2048], tape_config[4096], store_config[4096];

static outcrop_tape *a_tape(void) {
  outcrop_tape *tape;
  FINE(outcrop_tape_open(tape_config, &tape));
  return tape;
}

static void configurations(void) {
  outcrop_tape *tape = (outcrop_tape *)tape_config;
  outcrop_store *store;
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_open(NULL, &tape));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_open(tape_config, NULL));
  REFUSED(OUTCROP_USAGE, "needs host memory", outcrop_tape_open("", &tape));
  DEMAND(tape == NULL);
  REFUSED(OUTCROP_USAGE, "not TOML", outcrop_tape_open("host = = 3", &tape));
  REFUSED(OUTCROP_USAGE, "did you mean host", outcrop_tape_open("hots = '1 MiB'", &tape));
  REFUSED(OUTCROP_USAGE, "write a size", outcrop_tape_open("host = 'large'", &tape));
  REFUSED(OUTCROP_USAGE, "host: it is \"99999999999999999999 GiB\"", outcrop_tape_open("host = '99999999999999999999 GiB'", &tape));
  REFUSED(OUTCROP_STORAGE, "set a lower limit (host)", outcrop_tape_open("host = '1000000 TiB'", &tape));
  REFUSED(OUTCROP_USAGE, "limit: it is \"16777216 TiB\"",
          outcrop_tape_open("host = '1 MiB'\ndir = [{path='/tmp', limit='16777216 TiB'}]", &tape));
  REFUSED(OUTCROP_USAGE, "helpers: it is 4000000000; write a whole number from 1 to 4096",
          outcrop_tape_open("host = '1 MiB'\nhelpers = 4000000000", &tape));
  REFUSED(OUTCROP_USAGE, "threads: it is 4000000000", outcrop_store_open("dir = 'x'\nthreads = 4000000000", &store));
  REFUSED(OUTCROP_USAGE, "block: it is \"99999999999999999999 GiB\"",
          outcrop_store_open("dir = 'x'\nblock = '99999999999999999999 GiB'", &store));
  REFUSED(OUTCROP_USAGE, "it can be \"reverse\"", outcrop_tape_open("host = '1 MiB'\norder = 'revrese'", &tape));
  REFUSED(OUTCROP_USAGE, "not UTF-8", outcrop_tape_open("host = '\xff'", &tape));
  REFUSED(OUTCROP_STORAGE, "/dev/null", outcrop_tape_open("host = '1 MiB'\ndir = [{path='/dev/null/x', limit=100000}]", &tape));
  REFUSED(OUTCROP_USAGE, "needs a directory", outcrop_store_open("host = '1 MiB'", &store));
  REFUSED(OUTCROP_USAGE, "did you mean keep_last", outcrop_store_open("keep_lats = 2", &store));
  REFUSED(OUTCROP_STORAGE, "/dev/null", outcrop_store_open("dir = '/dev/null/x'", &store));
}

static void versions(void) {
  outcrop_tape *tape;
  outcrop_store *store;
  char words[64];
  snprintf(words, sizeof words, "%d.%d.0", OUTCROP_VERSION_MAJOR, OUTCROP_VERSION_MINOR + 1);
  const uint32_t other = OUTCROP_HEADER_VERSION + (1 << 8);
  REFUSED(OUTCROP_VERSION, words, outcrop_tape_open_as(other, tape_config, &tape));
  REFUSED(OUTCROP_VERSION, outcrop_version(), outcrop_store_open_as(other, store_config, &store));
  REFUSED(OUTCROP_VERSION, "compile it again", outcrop_tape_open_as(0x7fffffff, tape_config, &tape));
  FINE(outcrop_tape_open_as(OUTCROP_HEADER_VERSION + 5, tape_config, &tape));
  FINE(outcrop_tape_close(tape));
}

static void handles(void) {
  outcrop_tape *tape = a_tape(), *clone;
  outcrop_past *past;
  outcrop_lent *lent;
  const void *data;
  void *slot;
  size_t bytes;
  int number = 7;
  REFUSED(OUTCROP_USAGE, "the tape is NULL", outcrop_tape_save(NULL, 1, "x", 1));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_tape_save((outcrop_tape *)&number, 1, "x", 1));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_tape_save((outcrop_tape *)(intptr_t)-1, 1, "x", 1));
  REFUSED(OUTCROP_USAGE, "this is a tape, where a session is needed", outcrop_session_save((outcrop_session *)tape, 1));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_clone(tape, NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_close(NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_lent_seal(NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_past_release(NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_store_close(NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_close(NULL));

  FINE(outcrop_tape_lend(tape, 1, 100, &slot, &lent));
  memset(slot, 1, 100);
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_lent_seal_and_keep(lent, NULL));
  FINE(outcrop_lent_seal(lent));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_lent_seal(lent));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_lent_abandon(lent));
  FINE(outcrop_tape_take(tape, 1, &data, &bytes, &past));
  FINE(outcrop_past_release(past));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_past_release(past));

  FINE(outcrop_tape_clone(tape, &clone));
  FINE(outcrop_tape_close(tape));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_tape_close(tape));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_tape_save(tape, 1, "x", 1));
  FINE(outcrop_tape_save(clone, 2, "x", 1));
  outcrop_tape *other = a_tape();
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_tape_save(tape, 1, "x", 1));
  FINE(outcrop_tape_close(other));

  // What is in hand outlives the tape.
  FINE(outcrop_tape_get(clone, 2, &data, &bytes, &past));
  FINE(outcrop_tape_lend(clone, 3, 10, &slot, &lent));
  FINE(outcrop_tape_close(clone));
  DEMAND(bytes == 1 && *(const char *)data == 'x');
  memset(slot, 1, 10);
  FINE(outcrop_past_release(past));
  FINE(outcrop_lent_seal(lent));
}

static void snapshots(void) {
  outcrop_tape *tape = a_tape();
  outcrop_past *past;
  outcrop_lent *lent;
  const void *data;
  void *slot;
  size_t bytes, needed;
  char buffer[8], text[4096];
  outcrop_tape_stats_t stats;
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_save(tape, 1, NULL, 4));
  REFUSED(OUTCROP_USAGE, "more than memory can have", outcrop_tape_save(tape, 1, "x", SIZE_MAX));
  FINE(outcrop_tape_save(tape, 0, NULL, 0));
  FINE(outcrop_tape_take_into(tape, 0, NULL, 0));
  FINE(outcrop_tape_save(tape, 1, "four", 4));
  REFUSED(OUTCROP_EXISTS, "1", outcrop_tape_save(tape, 1, "four", 4));
  REFUSED(OUTCROP_TOO_LARGE, "2", outcrop_tape_lend(tape, 2, 1 << 30, &slot, &lent));
  DEMAND(slot == NULL && lent == NULL);
  REFUSED(OUTCROP_TOO_LARGE, "2", outcrop_tape_lend(tape, 2, SIZE_MAX, &slot, &lent));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_lend(tape, 2, 4, NULL, &lent));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_lend(tape, 2, 4, &slot, NULL));
  REFUSED(OUTCROP_MISSING, "9", outcrop_tape_take(tape, 9, &data, &bytes, &past));
  DEMAND(data == NULL && bytes == 0 && past == NULL);
  REFUSED(OUTCROP_MISSING, "9", outcrop_tape_discard(tape, 9));
  REFUSED(OUTCROP_MISSING, "9", outcrop_tape_size(tape, 9, &bytes));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_size(tape, 1, NULL));
  FINE(outcrop_tape_size(tape, 1, &bytes));
  DEMAND(bytes == 4);
  REFUSED(OUTCROP_USAGE, "nothing was taken", outcrop_tape_take_into(tape, 1, buffer, sizeof buffer));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_take_into(tape, 1, NULL, 4));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_take(tape, 1, NULL, &bytes, &past));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_take(tape, 1, &data, NULL, &past));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_take(tape, 1, &data, &bytes, NULL));
  FINE(outcrop_tape_take_into(tape, 1, buffer, 4));
  DEMAND(memcmp(buffer, "four", 4) == 0);
  REFUSED(OUTCROP_USAGE, "sizeof", outcrop_tape_stats(tape, &stats, 8));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_tape_stats(tape, NULL, sizeof stats));
  FINE(outcrop_tape_stats(tape, &stats, sizeof stats));
  DEMAND(stats.saves == 2 && stats.saved_bytes == 4);
  FINE(outcrop_tape_stats_json(tape, NULL, 0, &needed));
  DEMAND(needed > 100 && needed < sizeof text);
  /* What helper threads have done since may take more digits, or fewer. */
  FINE(outcrop_tape_stats_json(tape, text, sizeof text, &needed));
  DEMAND(strlen(text) == needed - 1 && strstr(text, "\"saved_bytes\":4") != NULL);
  REFUSED(OUTCROP_USAGE, "keeps no timeline", outcrop_tape_write_trace(tape, "/dev/null/x"));
  FINE(outcrop_tape_close(tape));
}

static void fullness(void) {
  outcrop_tape *tape;
  outcrop_lent *lent[2];
  void *slot;
  static const char data[1 << 19];
  FINE(outcrop_tape_open("host = '1 MiB'\npin = false\npatience_seconds = 0.01", &tape));
  FINE(outcrop_tape_save(tape, 1, data, sizeof data));
  FINE(outcrop_tape_save(tape, 2, data, sizeof data));
  REFUSED(OUTCROP_FULL, "3", outcrop_tape_save(tape, 3, data, sizeof data));
  FINE(outcrop_tape_discard(tape, 1));
  FINE(outcrop_tape_discard(tape, 2));
  FINE(outcrop_tape_lend(tape, 1, sizeof data, &slot, &lent[0]));
  FINE(outcrop_tape_lend(tape, 2, sizeof data, &slot, &lent[1]));
  REFUSED(OUTCROP_HELD, "3", outcrop_tape_save(tape, 3, data, sizeof data));
  FINE(outcrop_lent_abandon(lent[0]));
  FINE(outcrop_lent_abandon(lent[1]));
  FINE(outcrop_tape_save(tape, 3, data, sizeof data));
  FINE(outcrop_tape_close(tape));
}

// Version 5 has 100 zeros.
static void looks(outcrop_session *session) {
  double values[100];
  uint64_t version;
  int element, is_there;
  size_t count, needed;
  char text[100];
  memset(values, 1, sizeof values);
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_versions(session, NULL, 1, &count));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_versions(session, &version, 1, NULL));
  FINE(outcrop_session_versions(session, NULL, 0, &count));
  DEMAND(count == 1);
  FINE(outcrop_session_versions(session, &version, 1, &count));
  DEMAND(count == 1 && version == 5);
  REFUSED(OUTCROP_MISSING, "7", outcrop_session_region_names(session, 7, text, sizeof text, &needed));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_names(session, 5, text, sizeof text, NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_names(session, 5, NULL, 1, &needed));
  FINE(outcrop_session_region_names(session, 5, text, 3, &needed));
  DEMAND(needed == 6);
  FINE(outcrop_session_region_names(session, 5, text, sizeof text, &needed));
  DEMAND(needed == 6 && memcmp(text, "field", 6) == 0);
  REFUSED(OUTCROP_MISSING, "only field", outcrop_session_region_element(session, 5, "feild", &element));
  FINE(outcrop_session_region_element(session, 5, "field", &element));
  DEMAND(element == OUTCROP_F64);
  REFUSED(OUTCROP_MISSING, "7", outcrop_session_read(session, 7, "field", values, sizeof values));
  REFUSED(OUTCROP_MISSING, "only field", outcrop_session_read(session, 5, "feild", values, sizeof values));
  REFUSED(OUTCROP_USAGE, "has 800 bytes, not 8", outcrop_session_read(session, 5, "field", values, 8));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_read(session, 5, "field", NULL, 800));
  REFUSED(OUTCROP_USAGE, "more than memory", outcrop_session_read(session, 5, "field", values, SIZE_MAX));
  FINE(outcrop_session_read(session, 5, "field", values, sizeof values));
  DEMAND(values[0] == 0 && values[99] == 0);
  REFUSED(OUTCROP_MISSING, "6", outcrop_session_has_reached(session, 6, OUTCROP_ALL, &is_there));
  REFUSED(OUTCROP_USAGE, "no layer 2", outcrop_session_has_reached(session, 5, 2, &is_there));
  REFUSED(OUTCROP_USAGE, "no layer -2", outcrop_session_has_reached(session, 5, -2, &is_there));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_has_reached(session, 5, 1, NULL));
  FINE(outcrop_session_has_reached(session, 5, 1, &is_there));
  DEMAND(is_there == 1);
  REFUSED(OUTCROP_USAGE, "did you mean block", outcrop_session_region_options(session, "field", "blok = 3"));
  REFUSED(OUTCROP_USAGE, "region field", outcrop_session_region_options(session, "field", "compression = 'zip'"));
  REFUSED(OUTCROP_USAGE, "300", outcrop_session_region_options(session, "field", "block = 300"));
  REFUSED(OUTCROP_USAGE, "[first, end]", outcrop_session_region_options(session, "field", "excluded = [[8, 0]]"));
  REFUSED(OUTCROP_USAGE, "has a `/`", outcrop_session_region_options(session, "a/b", ""));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_region_options(session, "field", NULL));
  FINE(outcrop_session_region_options(session, "field", "compression = 'zstd:2'\nexcluded = [[0, 8]]"));
  FINE(outcrop_session_region_options(session, "field", ""));
  FINE(outcrop_session_skipped(session, NULL, 0, &needed));
  DEMAND(needed == 1);
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_skipped(session, text, sizeof text, NULL));
}

static void sessions(void) {
  outcrop_store *store;
  outcrop_session *session, *second;
  double field[100], part[50];
  uint64_t version;
  int found, due;
  size_t bytes;
  memset(field, 0, sizeof field);
  memset(part, 0, sizeof part);
  FINE(outcrop_store_open(store_config, &store));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_store_session(store, NULL, &session));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_store_session(store, "run", NULL));
  REFUSED(OUTCROP_USAGE, "a/b", outcrop_store_session(store, "a/b", &session));
  FINE(outcrop_store_session(store, "run", &session));
  REFUSED(OUTCROP_BUSY, "in use by this process", outcrop_store_session(store, "run", &second));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_store_due(store, NULL));
  FINE(outcrop_store_due(store, &due));
  DEMAND(due == 0);

  REFUSED(OUTCROP_USAGE, "no region is protected", outcrop_session_save(session, 1));
  REFUSED(OUTCROP_USAGE, "no region is protected", outcrop_session_restore(session, 1));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_protect(session, "field", NULL, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_protect(session, NULL, field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "needs a name", outcrop_session_protect(session, "", field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "has a `/`", outcrop_session_protect(session, "a/b", field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "control character", outcrop_session_protect(session, "a\nb", field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "that is a directory", outcrop_session_protect(session, "..", field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "outcrop_element", outcrop_session_protect(session, "field", field, 100, 99));
  REFUSED(OUTCROP_USAGE, "outcrop_element", outcrop_session_protect(session, "field", field, 100, -1));
  REFUSED(OUTCROP_USAGE, "more than memory", outcrop_session_protect(session, "field", field, SIZE_MAX / 4, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "field", field, 100, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "there are: field", outcrop_session_unprotect(session, "feild"));
  REFUSED(OUTCROP_USAGE, "there are: field", outcrop_session_mark_dirty(session, "feild", 0, 1));
  REFUSED(OUTCROP_USAGE, "800 bytes", outcrop_session_mark_dirty(session, "field", 800, 1));
  REFUSED(OUTCROP_USAGE, "800 bytes", outcrop_session_mark_dirty(session, "field", SIZE_MAX, 2));
  FINE(outcrop_session_mark_dirty(session, "field", 0, 800));

  FINE(outcrop_session_latest(session, &version, &found));
  DEMAND(found == 0);
  FINE(outcrop_session_restore_latest(session, &version, &found));
  DEMAND(found == 0);
  FINE(outcrop_session_save(session, 5));
  REFUSED(OUTCROP_EXISTS, "higher", outcrop_session_save(session, 5));
  REFUSED(OUTCROP_EXISTS, "higher", outcrop_session_save(session, 4));
  REFUSED(OUTCROP_MISSING, "6", outcrop_session_wait(session, 6, OUTCROP_ALL));
  REFUSED(OUTCROP_USAGE, "no layer 2", outcrop_session_wait(session, 5, 2));
  REFUSED(OUTCROP_USAGE, "no layer -2", outcrop_session_wait(session, 5, -2));
  FINE(outcrop_session_wait(session, 5, OUTCROP_HOST));
  FINE(outcrop_session_wait(session, 5, 1));
  FINE(outcrop_session_wait(session, 5, OUTCROP_ALL));
  REFUSED(OUTCROP_MISSING, "6", outcrop_session_restore(session, 6));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_latest(session, NULL, &found));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_session_latest(session, &version, NULL));
  FINE(outcrop_session_region_size(session, 5, "field", &bytes));
  DEMAND(bytes == 800);
  REFUSED(OUTCROP_MISSING, "only field", outcrop_session_region_size(session, 5, "feild", &bytes));
  REFUSED(OUTCROP_MISSING, "7", outcrop_session_region_size(session, 7, "field", &bytes));

  looks(session);

  FINE(outcrop_session_protect(session, "field", part, 50, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "nothing was changed", outcrop_session_restore(session, 5));
  FINE(outcrop_session_protect(session, "field", field, 200, OUTCROP_F32));
  REFUSED(OUTCROP_USAGE, "holds f64 and not f32", outcrop_session_restore(session, 5));
  FINE(outcrop_session_protect(session, "field", field, 100, OUTCROP_F64));
  FINE(outcrop_session_protect(session, "half", field + 50, 50, OUTCROP_F64));
  REFUSED(OUTCROP_USAGE, "overlap", outcrop_session_restore(session, 5));
  FINE(outcrop_session_unprotect(session, "half"));
  field[3] = 4.0;
  FINE(outcrop_session_restore(session, 5));
  DEMAND(field[3] == 0.0);

  FINE(outcrop_session_forget_incomplete(session));
  FINE(outcrop_session_rewind_all(session));
  FINE(outcrop_session_latest(session, &version, &found));
  DEMAND(found == 0);
  // The session keeps the store at work.
  FINE(outcrop_store_close(store));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_store_close(store));
  FINE(outcrop_session_save(session, 1));
  FINE(outcrop_session_close(session));
  REFUSED(OUTCROP_USAGE, "closed before", outcrop_session_close(session));

  char timed[4200];
  snprintf(timed, sizeof timed, "%s\ninterval = 0.000001", store_config);
  FINE(outcrop_store_open(timed, &store));
  FINE(outcrop_store_due(store, &due));
  DEMAND(due == 1);
  FINE(outcrop_store_close(store));
}

int main(int count, char **words) {
  DEMAND(count == 2);
  snprintf(directory, sizeof directory, "%s", words[1]);
  snprintf(tape_config, sizeof tape_config, "host = '1 MiB'\ndir = [{path='%s/tape', limit='16 MiB'}]\npin = false", directory);
  snprintf(store_config, sizeof store_config, "host = '1 MiB'\ndir = '%s/store'\npin = false", directory);
  DEMAND(strcmp(outcrop_error(), "") == 0);
  configurations();
  versions();
  handles();
  snapshots();
  fullness();
  sessions();
  puts("all was refused as it should be");
  return EXIT_SUCCESS;
}
