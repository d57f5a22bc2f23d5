// With `live`, a save returns before its memory was read. What is not protected any more may be freed nevertheless.
#include "check.h"

// So large that the allocator gives it back to the system when it is freed.
enum { BYTES = 48 << 20 };

static unsigned char *memory(int value) {
  unsigned char *bytes = malloc(BYTES);
  DEMAND(bytes != NULL);
  memset(bytes, value, BYTES);
  return bytes;
}

int main(int count, char **words) {
  DEMAND(count == 2);
  char config[4096];
  // The state is larger than the extra memory, so that no forked child keeps a copy of it.
  snprintf(config, sizeof config, "host = '16 MiB'\ndir = '%s/store'\npin = false\nlive = '1 MiB'", words[1]);
  outcrop_store *store;
  outcrop_session *session;
  FINE(outcrop_store_open(config, &store));
  FINE(outcrop_store_session(store, "run", &session));

  unsigned char *first = memory(1), *second = memory(2);
  FINE(outcrop_session_protect(session, "state", first, BYTES, OUTCROP_U8));
  FINE(outcrop_session_save(session, 1));
  FINE(outcrop_session_protect(session, "state", second, BYTES, OUTCROP_U8));
  free(first);
  FINE(outcrop_session_wait(session, 1, OUTCROP_ALL));
  FINE(outcrop_session_save(session, 2));
  FINE(outcrop_session_unprotect(session, "state"));
  free(second);
  FINE(outcrop_session_wait(session, 2, OUTCROP_ALL));

  unsigned char *restored = memory(0);
  FINE(outcrop_session_protect(session, "state", restored, BYTES, OUTCROP_U8));
  for (int version = 1; version <= 2; version++) {
    FINE(outcrop_session_restore(session, (uint64_t)version));
    for (size_t at = 0; at < BYTES; at++) DEMAND(restored[at] == version);
  }
  FINE(outcrop_session_close(session));
  FINE(outcrop_store_close(store));
  free(restored);
  puts("what was freed had been saved");
  return EXIT_SUCCESS;
}
