// The node daemon: every call, what is refused, pending writes, threads, forked children, daemons that are killed.
//
//   node DIRECTORY            everything but the next two
//   node DIRECTORY forked     forked children
//   node DIRECTORY TARGET     a target that is full: which write is told

#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCK = 64 << 10, BLOCKS = 200, THREADS = 4, KILLS = 12 };

static const char *directory;

static outcrop_node *a_node(const char *more) {
  char config[8192];
  outcrop_node *node;
  snprintf(config, sizeof config, "directory = '%s/node'\nmemory = '16 MiB'\nidle_seconds = 3\n%s", directory, more);
  FINE(outcrop_node_connect(config, &node));
  return node;
}

static outcrop_node_file *a_file(outcrop_node *node, const char *name) {
  char path[4096];
  outcrop_node_file *file;
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FINE(outcrop_node_open(node, path, &file));
  return file;
}

static void fill(unsigned char *bytes, size_t count, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t at = 0; at < count; at++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes[at] = (unsigned char)(state >> 56);
  }
}

// Whether a file of the file system has these bytes there.
static int has_bytes(const char *name, long offset, const void *bytes, size_t count) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  FILE *file = fopen(path, "rb");
  DEMAND(file != NULL && fseek(file, offset, SEEK_SET) == 0);
  char *found = malloc(count + 1);
  const size_t read = fread(found, 1, count, file);
  const int is_same = read == count && memcmp(found, bytes, count) == 0;
  free(found);
  fclose(file);
  return is_same;
}

static char *status_of(outcrop_node *node) {
  size_t needed, room = 0;
  char *text = NULL;
  do {
    room = needed = room + (1 << 16);
    text = realloc(text, room);
    FINE(outcrop_node_status_json(node, text, room, &needed));
  } while (needed > room);
  DEMAND(strlen(text) + 1 == needed);
  return text;
}

static pid_t daemon_of(outcrop_node *node) {
  char *status = status_of(node);
  const char *place = strstr(status, "\"process\":");
  DEMAND(place != NULL);
  const pid_t daemon = (pid_t)strtol(place + strlen("\"process\":"), NULL, 10);
  free(status);
  return daemon;
}

static void every_call(void) {
  static unsigned char bytes[3 * MIB], back[3 * MIB + 100];
  fill(bytes, sizeof bytes, 1);
  outcrop_node *node = a_node("");
  outcrop_node_file *file = a_file(node, "first");
  outcrop_pending *pending;
  size_t count;
  uint64_t size;
  int is_done;
  FINE(outcrop_node_write(file, 77, bytes, sizeof bytes));
  FINE(outcrop_node_size(file, &size));
  DEMAND(size == 77 + sizeof bytes);
  FINE(outcrop_node_read(file, 0, back, sizeof back, &count));
  DEMAND(count == 77 + sizeof bytes && back[76] == 0 && memcmp(back + 77, bytes, sizeof bytes) == 0);
  FINE(outcrop_node_drain(file));
  DEMAND(has_bytes("first", 77, bytes, sizeof bytes));
  FINE(outcrop_node_resize(file, 100));
  FINE(outcrop_node_read(file, 90, back, sizeof back, &count));
  DEMAND(count == 10);
  FINE(outcrop_node_read(file, UINT64_MAX, back, 1, &count));
  DEMAND(count == 0);

  FINE(outcrop_node_write_async(file, 100, bytes, sizeof bytes, &pending));
  // Other calls come after it.
  FINE(outcrop_node_size(file, &size));
  DEMAND(size == 100 + sizeof bytes);
  FINE(outcrop_pending_test(pending, &is_done));
  DEMAND(is_done == 1);
  memset(bytes, 0, sizeof bytes);
  FINE(outcrop_pending_wait(pending));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_pending_wait(pending));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_pending_test(pending, &is_done));
  fill(bytes, sizeof bytes, 1);
  FINE(outcrop_node_sync(file));
  DEMAND(has_bytes("first", 100, bytes, sizeof bytes));
  FINE(outcrop_node_write(file, 0, NULL, 0));
  FINE(outcrop_node_write_async(file, 5, NULL, 0, &pending));
  // A file may be closed, and the node be left, while writes are pending.
  outcrop_pending *last;
  FINE(outcrop_node_write_async(file, 0, bytes, MIB, &last));
  FINE(outcrop_node_close(file));
  FINE(outcrop_pending_wait(pending));
  FINE(outcrop_pending_wait(last));
  FINE(outcrop_node_drain_all(node));
  DEMAND(has_bytes("first", 0, bytes, MIB));
  char *status = status_of(node);
  DEMAND(strstr(status, "\"limit_bytes\":16777216") != NULL);
  free(status);
  FINE(outcrop_node_disconnect(node));
}

static void refused(void) {
  char config[4096], path[4096], text[4];
  outcrop_node *node = a_node(""), *other;
  outcrop_node_file *file = a_file(node, "refused"), *none;
  outcrop_pending *pending;
  uint64_t size;
  size_t count;
  int is_done;
  REFUSED(OUTCROP_USAGE, "did you mean memory", outcrop_node_connect("memry = 1", &other));
  DEMAND(other == NULL);
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_connect(NULL, &other));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_connect("", NULL));
  REFUSED(OUTCROP_VERSION, "9.9.9", outcrop_node_connect_as(0x090909, "", &other));
  snprintf(config, sizeof config, "directory = '%s/none'\nstart = false", directory);
  REFUSED(OUTCROP_MISSING, "outcrop node start", outcrop_node_connect(config, &other));
  snprintf(config, sizeof config, "directory = '%s/huge'\nmemory = '9999999 GiB'", directory);
  REFUSED(OUTCROP_USAGE, "lower limit", outcrop_node_connect(config, &other));
  snprintf(config, sizeof config, "directory = '%s/refused'", directory);
  REFUSED(OUTCROP_USAGE, "not a directory", outcrop_node_connect(config, &other));
  REFUSED(OUTCROP_MISSING, "no-such-program", outcrop_node_connect("directory = '/tmp/outcrop-none'\nprogram = 'no-such-program'", &other));
  rmdir("/tmp/outcrop-none");

  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_open(node, NULL, &none));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_open(node, "a", NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_open(NULL, "a", &none));
  DEMAND(none == NULL);
  REFUSED(OUTCROP_STORAGE, "irectory", outcrop_node_open(node, directory, &none));
  REFUSED(OUTCROP_USAGE, "regular file", outcrop_node_open(node, "/dev/null", &none));
  // A program that runs cannot be written to, not even by root: the daemon, for instance.
  snprintf(path, sizeof path, "/proc/%d/exe", (int)daemon_of(node));
  const ssize_t length = readlink(path, config, sizeof config - 1);
  DEMAND(length > 0);
  config[length] = 0;
  REFUSED(OUTCROP_STORAGE, config, outcrop_node_open(node, config, &none));
  snprintf(path, sizeof path, "%s/no/such/file", directory);
  REFUSED(OUTCROP_STORAGE, "No such file", outcrop_node_open(node, path, &none));

  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_write(NULL, 0, "a", 1));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_write(file, 0, NULL, 1));
  REFUSED(OUTCROP_USAGE, "more than memory can have", outcrop_node_write(file, 0, text, SIZE_MAX));
  REFUSED(OUTCROP_USAGE, "File too large", outcrop_node_write(file, UINT64_MAX, "a", 1));
  REFUSED(OUTCROP_USAGE, "File too large", outcrop_node_resize(file, UINT64_MAX));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_write_async(file, 0, NULL, 1, &pending));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_write_async(file, 0, "a", 1, NULL));
  REFUSED(OUTCROP_USAGE, "where a file of a node is needed", outcrop_node_write((outcrop_node_file *)node, 0, "a", 1));
  REFUSED(OUTCROP_USAGE, "where a node is needed", outcrop_node_drain_all((outcrop_node *)file));
  FINE(outcrop_node_write_async(file, UINT64_MAX - 5, "abc", 3, &pending));
  REFUSED(OUTCROP_USAGE, "where a file of a node is needed", outcrop_node_sync((outcrop_node_file *)pending));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pending_test(pending, NULL));
  REFUSED(OUTCROP_USAGE, "File too large", outcrop_pending_wait(pending));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pending_test(NULL, &is_done));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_pending_wait(NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_read(file, 0, NULL, 1, &count));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_read(file, 0, text, 1, NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_size(file, NULL));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_node_status_json(node, NULL, 5, &count));
  FINE(outcrop_node_status_json(node, text, sizeof text, &count));
  DEMAND(count > sizeof text);
  FINE(outcrop_node_size(file, &size));
  DEMAND(size == 0);
  FINE(outcrop_node_close(file));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_node_write(file, 0, "a", 1));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_node_close(file));
  FINE(outcrop_node_disconnect(node));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_node_open(node, "a", &none));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_node_disconnect(node));
}

// More writes than may be pending, on several files, waited for in another order; and those of one place, of which the last one counts.
static void many_pending(void) {
  unsigned char *bytes = malloc((size_t)BLOCKS * BLOCK);
  outcrop_pending *pending[BLOCKS];
  outcrop_node_file *files[3];
  outcrop_node *node = a_node("");
  files[0] = a_file(node, "a");
  files[1] = a_file(node, "b");
  files[2] = a_file(node, "c");
  fill(bytes, (size_t)BLOCKS * BLOCK, 3);
  for (int nth = 0; nth < BLOCKS; nth++) {
    FINE(outcrop_node_write_async(files[nth % 3], (uint64_t)nth * BLOCK, bytes + (size_t)nth * BLOCK, BLOCK, &pending[nth]));
  }
  for (int nth = BLOCKS - 1; nth >= 0; nth--) FINE(outcrop_pending_wait(pending[nth]));
  for (int nth = 0; nth < BLOCKS; nth++) FINE(outcrop_node_write_async(files[1], 10, bytes + (size_t)nth * BLOCK, 5000, &pending[nth]));
  FINE(outcrop_node_drain(files[1]));
  DEMAND(has_bytes("b", 10, bytes + (size_t)(BLOCKS - 1) * BLOCK, 5000));
  for (int nth = 0; nth < BLOCKS; nth++) FINE(outcrop_pending_wait(pending[nth]));
  FINE(outcrop_node_drain_all(node));
  for (int nth = 2; nth < BLOCKS; nth++) {
    const char *name = (const char *[]){"a", "b", "c"}[nth % 3];
    DEMAND(has_bytes(name, (long)nth * BLOCK, bytes + (size_t)nth * BLOCK, BLOCK));
  }
  for (int nth = 0; nth < 3; nth++) FINE(outcrop_node_close(files[nth]));
  FINE(outcrop_node_disconnect(node));
  free(bytes);
}

static outcrop_node_file *shared;
static unsigned char *shared_bytes;

static void *write_some(void *nth) {
  const size_t first = (size_t)(intptr_t)nth * (BLOCKS / THREADS);
  for (size_t block = first; block < first + BLOCKS / THREADS; block++) {
    FINE(outcrop_node_write(shared, block * BLOCK, shared_bytes + block * BLOCK, BLOCK));
  }
  return NULL;
}

static void threads(void) {
  pthread_t threads[THREADS];
  outcrop_node *node = a_node("");
  shared = a_file(node, "shared");
  shared_bytes = malloc((size_t)BLOCKS * BLOCK);
  fill(shared_bytes, (size_t)BLOCKS * BLOCK, 4);
  for (intptr_t nth = 0; nth < THREADS; nth++) DEMAND(pthread_create(&threads[nth], NULL, write_some, (void *)nth) == 0);
  for (int nth = 0; nth < THREADS; nth++) DEMAND(pthread_join(threads[nth], NULL) == 0);
  FINE(outcrop_node_sync(shared));
  DEMAND(has_bytes("shared", 0, shared_bytes, (size_t)BLOCKS * BLOCK));
  FINE(outcrop_node_close(shared));
  FINE(outcrop_node_disconnect(node));
  free(shared_bytes);
}

// A forked child is refused what its parent has, and may have its own; the parent goes on.
static void forked(void) {
  outcrop_node *node = a_node("");
  outcrop_node_file *file = a_file(node, "forked");
  outcrop_pending *pending;
  int is_done, end;
  FINE(outcrop_node_write_async(file, 0, "parent", 6, &pending));
  fflush(NULL);
  const pid_t child = fork();
  DEMAND(child >= 0);
  if (child == 0) {
    alarm(100);
    REFUSED(OUTCROP_USAGE, "forked", outcrop_node_write(file, 0, "child!", 6));
    REFUSED(OUTCROP_USAGE, "forked", outcrop_pending_test(pending, &is_done));
    REFUSED(OUTCROP_USAGE, "open it in the child", outcrop_pending_wait(pending));
    REFUSED(OUTCROP_USAGE, "open it in the child", outcrop_node_close(file));
    REFUSED(OUTCROP_USAGE, "open it in the child", outcrop_node_disconnect(node));
    outcrop_node *own = a_node("");
    outcrop_node_file *other = a_file(own, "child");
    FINE(outcrop_node_write(other, 0, "child", 5));
    FINE(outcrop_node_close(other));
    FINE(outcrop_node_disconnect(own));
    _exit(EXIT_SUCCESS);
  }
  DEMAND(waitpid(child, &end, 0) == child && WIFEXITED(end) && WEXITSTATUS(end) == EXIT_SUCCESS);
  FINE(outcrop_pending_wait(pending));
  FINE(outcrop_node_write(file, 6, " goes on", 8));
  FINE(outcrop_node_drain_all(node));
  DEMAND(has_bytes("forked", 0, "parent goes on", 14) && has_bytes("child", 0, "child", 5));
  FINE(outcrop_node_close(file));
  FINE(outcrop_node_disconnect(node));
}

// The daemon is killed while writes are pending: each of them ends, and nothing is lost.
static void killed(void) {
  enum { COUNT = 16, BYTES = 300000 };
  unsigned char *bytes = malloc((size_t)COUNT * BYTES), *back = malloc(BYTES);
  outcrop_pending *pending[COUNT];
  outcrop_node *node = a_node("");
  outcrop_node_file *file = a_file(node, "killed");
  size_t count;
  alarm(600);
  for (int round = 0; round < KILLS; round++) {
    const pid_t daemon = daemon_of(node);
    fill(bytes, (size_t)COUNT * BYTES, 100 + (uint64_t)round);
    for (int nth = 0; nth < COUNT; nth++) {
      FINE(outcrop_node_write_async(file, (uint64_t)nth * BYTES, bytes + (size_t)nth * BYTES, BYTES, &pending[nth]));
      if (nth == round) DEMAND(kill(daemon, SIGKILL) == 0);
    }
    for (int nth = 0; nth < COUNT; nth++) {
      FINE(outcrop_pending_wait(pending[nth]));
      FINE(outcrop_node_read(file, (uint64_t)nth * BYTES, back, BYTES, &count));
      DEMAND(count == BYTES && memcmp(back, bytes + (size_t)nth * BYTES, BYTES) == 0);
    }
    DEMAND(daemon_of(node) != daemon);
  }
  FINE(outcrop_node_sync(file));
  DEMAND(has_bytes("killed", 0, bytes, (size_t)COUNT * BYTES));
  FINE(outcrop_node_close(file));
  FINE(outcrop_node_disconnect(node));
  alarm(0);
  free(bytes);
  free(back);
}

// The write that comes after a failure is told, once. Those before it, after it and of other files are not.
static void full(const char *target) {
  enum { BYTES = 3 * MIB };
  char path[4096];
  unsigned char *bytes = malloc(BYTES), *back = malloc(BYTES);
  outcrop_pending *pending[3], *well;
  outcrop_node_file *file, *other;
  outcrop_node *node = a_node("");
  size_t count;
  snprintf(path, sizeof path, "%s/file", target);
  FINE(outcrop_node_open(node, path, &file));
  other = a_file(node, "other");
  fill(bytes, BYTES, 9);
  FINE(outcrop_node_write_async(file, 0, bytes, BYTES, &pending[0]));
  FINE(outcrop_pending_wait(pending[0]));
  for (;;) {
    char *status = status_of(node);
    const int has_failed = strstr(status, "No space left") != NULL;
    free(status);
    if (has_failed) break;
    nanosleep(&(struct timespec){0, 10000000}, NULL);
  }
  FINE(outcrop_node_write_async(file, 0, bytes, 10, &pending[1]));
  FINE(outcrop_node_write_async(file, 10, bytes + 10, 10, &pending[2]));
  FINE(outcrop_node_write_async(other, 0, bytes, 10, &well));
  FINE(outcrop_pending_wait(well));
  FINE(outcrop_pending_wait(pending[2]));
  REFUSED(OUTCROP_STORAGE, "No space left", outcrop_pending_wait(pending[1]));
  REFUSED(OUTCROP_STORAGE, path, outcrop_node_drain(file));
  FINE(outcrop_node_read(file, 0, back, BYTES, &count));
  DEMAND(count == BYTES && memcmp(back, bytes, BYTES) == 0);
  FINE(outcrop_node_resize(file, 0));
  FINE(outcrop_node_drain_all(node));
  FINE(outcrop_node_close(other));
  FINE(outcrop_node_close(file));
  FINE(outcrop_node_disconnect(node));
  free(bytes);
  free(back);
}

int main(int count, char **words) {
  DEMAND(count == 2 || count == 3);
  directory = words[1];
  if (count == 3 && strcmp(words[2], "forked") == 0) {
    forked();
    puts("no child has used what is not its own");
    return EXIT_SUCCESS;
  }
  if (count == 3) {
    full(words[2]);
    puts("the right write was told");
    return EXIT_SUCCESS;
  }
  every_call();
  refused();
  many_pending();
  threads();
  killed();
  puts("nothing was lost");
  return EXIT_SUCCESS;
}
