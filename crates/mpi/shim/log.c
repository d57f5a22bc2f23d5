// Which bytes have changed, for those who watch memory.
//
// Received ranges go to a log. When it is full, or when somebody asks, they are distributed to the watches that they touch. A
// program that receives into the same buffers again and again leaves one entry for each.

#define _GNU_SOURCE
#include "layer.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LOG = 4096, KNOWN = 1024, RANGES_MAX = 1 << 16 };

struct range {
  uintptr_t begin, end;
};

// Memory that somebody watches, and what has changed there.
struct watch {
  uint64_t id;
  struct range memory;
  struct range *ranges;
  size_t count, room;
};

struct window {
  MPI_Win win;
  struct range memory;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, calls = PTHREAD_MUTEX_INITIALIZER;
static struct range logged[LOG], known[KNOWN];
static size_t logged_count;
static struct watch *watches;
static size_t watch_count, watch_room;
static uint64_t next_id = 1;
static struct window *windows;
static size_t window_count, window_room;

void outcrop_lock(void) { pthread_mutex_lock(&mutex); }

void outcrop_unlock(void) { pthread_mutex_unlock(&mutex); }

// Whether threads may call MPI at the same time; negative if that is not known yet.
static int is_multiple = -1;

static int may_be_several(void) {
  int is_started = 0, level = 0;
  PMPI_Initialized(&is_started);
  if (!is_started)
    return 1;
  PMPI_Query_thread(&level);
  is_multiple = level >= MPI_THREAD_MULTIPLE;
  return is_multiple;
}

// Whether this call locks does not change between two calls: MPI is called only once it has started.
void outcrop_enter(void) {
  if (is_multiple > 0 || (is_multiple < 0 && may_be_several()))
    pthread_mutex_lock(&calls);
}

void outcrop_leave(void) {
  if (is_multiple != 0)
    pthread_mutex_unlock(&calls);
}

uint64_t outcrop_epoch = 1;
__thread struct outcrop_memo *outcrop_memos __attribute__((tls_model("initial-exec")));
static pthread_key_t memos_key;
static pthread_once_t memos_once = PTHREAD_ONCE_INIT;

static void make_key(void) { pthread_key_create(&memos_key, free); }

struct outcrop_memo *outcrop_make_memos(void) {
  if (!outcrop_memos) {
    pthread_once(&memos_once, make_key);
    outcrop_memos = calloc(OUTCROP_MEMOS, sizeof *outcrop_memos);
    pthread_setspecific(memos_key, outcrop_memos);
  }
  return outcrop_memos;
}

void outcrop_forget_memos(void) { __atomic_add_fetch(&outcrop_epoch, 1, __ATOMIC_ACQ_REL); }

void *outcrop_next(const char *name) {
  void *address = dlsym(RTLD_NEXT, name);
  if (!address) {
    fprintf(stderr, "liboutcrop-mpi.so: this MPI has no %s; build it again with `outcrop mpi build`\n", name);
    abort();
  }
  return address;
}

// Makes room for one more; the program cannot go on without: a change would be missed.
static void *with_room(void *items, size_t count, size_t *room, size_t bytes) {
  if (count < *room)
    return items;
  *room = *room ? 2 * *room : 16;
  items = realloc(items, *room * bytes);
  if (!items) {
    fprintf(stderr, "liboutcrop-mpi.so: there is no memory to record what MPI receives\n");
    abort();
  }
  return items;
}

static int by_begin(const void *left, const void *right) {
  uintptr_t one = ((const struct range *)left)->begin, other = ((const struct range *)right)->begin;
  return (one > other) - (one < other);
}

// Sorts ranges and joins those that touch. Returns how many are left.
static size_t tidy(struct range *ranges, size_t count) {
  size_t kept = 0;
  qsort(ranges, count, sizeof *ranges, by_begin);
  for (size_t nth = 0; nth < count; nth++)
    if (kept && ranges[nth].begin <= ranges[kept - 1].end) {
      if (ranges[nth].end > ranges[kept - 1].end)
        ranges[kept - 1].end = ranges[nth].end;
    } else
      ranges[kept++] = ranges[nth];
  return kept;
}

static void add(struct watch *watch, struct range range) {
  if (range.begin < watch->memory.begin)
    range.begin = watch->memory.begin;
  if (range.end > watch->memory.end)
    range.end = watch->memory.end;
  if (range.begin >= range.end)
    return;
  watch->ranges = with_room(watch->ranges, watch->count, &watch->room, sizeof *watch->ranges);
  watch->ranges[watch->count++] = range;
  if (watch->count < watch->room)
    return;
  watch->count = tidy(watch->ranges, watch->count);
  if (watch->count > RANGES_MAX) {
    // So many small pieces that all between them may be looked at as well.
    watch->ranges[0].end = watch->ranges[watch->count - 1].end;
    watch->count = 1;
  }
}

static void distribute(void) {
  outcrop_forget_memos();
  size_t count = tidy(logged, logged_count);
  for (size_t nth = 0; nth < count; nth++)
    for (size_t which = 0; which < watch_count; which++)
      add(&watches[which], logged[nth]);
  logged_count = 0;
  __builtin_memset(known, 0, sizeof known);
}

void outcrop_note(uintptr_t begin, size_t bytes) {
  struct range range = {begin, begin + bytes};
  struct range *same = &known[(begin >> 3 ^ begin >> 13) % KNOWN];
  if (!watch_count || !bytes || (same->begin <= range.begin && range.end <= same->end))
    return;
  *same = range;
  logged[logged_count++] = range;
  if (logged_count == LOG)
    distribute();
}

void outcrop_expose(MPI_Win win, const void *base, size_t bytes) {
  uintptr_t begin = (uintptr_t)base;
  outcrop_lock();
  windows = with_room(windows, window_count, &window_room, sizeof *windows);
  windows[window_count++] = (struct window){win, {begin, begin + bytes}};
  outcrop_unlock();
}

void outcrop_hide(MPI_Win win, const void *base) {
  size_t kept = 0;
  outcrop_lock();
  for (size_t nth = 0; nth < window_count; nth++)
    if (windows[nth].win == win && (!base || windows[nth].memory.begin == (uintptr_t)base))
      outcrop_note(windows[nth].memory.begin, windows[nth].memory.end - windows[nth].memory.begin);
    else
      windows[kept++] = windows[nth];
  window_count = kept;
  outcrop_unlock();
}

uint64_t outcrop_mpi_watch(uintptr_t begin, uintptr_t end) {
  outcrop_lock();
  // What was received before is none of its business.
  distribute();
  watches = with_room(watches, watch_count, &watch_room, sizeof *watches);
  watches[watch_count++] = (struct watch){next_id, {begin, end}, NULL, 0, 0};
  uint64_t id = next_id++;
  outcrop_unlock();
  return id;
}

void outcrop_mpi_unwatch(uint64_t id) {
  outcrop_lock();
  for (size_t nth = 0; nth < watch_count; nth++)
    if (watches[nth].id == id) {
      free(watches[nth].ranges);
      watches[nth] = watches[--watch_count];
      break;
    }
  outcrop_unlock();
}

void outcrop_mpi_take(uint64_t id, void (*note)(void *, uintptr_t, uintptr_t), void *context) {
  outcrop_lock();
  distribute();
  for (size_t nth = 0; nth < watch_count; nth++) {
    struct watch *watch = &watches[nth];
    if (watch->id != id)
      continue;
    for (size_t which = 0; which < window_count; which++)
      add(watch, windows[which].memory);
    watch->count = tidy(watch->ranges, watch->count);
    for (size_t which = 0; which < watch->count; which++)
      note(context, watch->ranges[which].begin, watch->ranges[which].end);
    watch->count = 0;
  }
  outcrop_unlock();
}
