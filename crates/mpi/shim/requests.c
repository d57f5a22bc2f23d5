// What requests and windows will write, until they have.

#define _GNU_SOURCE
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>

struct spot {
  uintptr_t at;
  long long count;
  struct outcrop_shape *shape;
};

struct outcrop_pending {
  int is_receive, is_persistent;
  // Whether it is under way: a persistent one only after it was started.
  int is_active;
  size_t count, room;
  struct spot spots[];
};

// An open hash table: a slot is free if it has no `pending`. What is removed leaves `gone` behind.
struct slot {
  MPI_Request request;
  struct outcrop_pending *pending;
};

struct kept {
  uintptr_t owner;
  int target;
  struct outcrop_pending *pending;
};

static struct outcrop_pending gone;
static struct slot *slots;
static size_t slot_count, used, live;
static struct kept *kept;
static size_t kept_count, kept_room;

static void *or_end(void *memory) {
  if (!memory) {
    fprintf(stderr, "liboutcrop-mpi.so: there is no memory to record what MPI receives\n");
    abort();
  }
  return memory;
}

struct outcrop_pending *outcrop_pending(int spots) {
  size_t room = spots > 0 ? (size_t)spots : 0;
  struct outcrop_pending *pending = or_end(malloc(sizeof *pending + room * sizeof *pending->spots));
  *pending = (struct outcrop_pending){.room = room};
  return pending;
}

void outcrop_pending_add(struct outcrop_pending *pending, const void *at, long long count, MPI_Datatype type) {
  if (count > 0 && pending->count < pending->room)
    pending->spots[pending->count++] = (struct spot){(uintptr_t)at, count, outcrop_shape_of(type)};
}

static long long received_bytes(const MPI_Status *status) {
  int count = 0;
  // It is undefined if there are more than fit in an int; then all counts.
  if (!status || PMPI_Get_count((MPI_Status *)status, MPI_BYTE, &count) != MPI_SUCCESS || count == MPI_UNDEFINED)
    return -1;
  return count;
}

static void note(const struct outcrop_pending *pending, const MPI_Status *status) {
  long long bytes = received_bytes(status);
  outcrop_lock();
  for (size_t nth = 0; nth < pending->count; nth++)
    outcrop_shape_note(pending->spots[nth].shape, pending->spots[nth].at, pending->spots[nth].count, bytes);
  outcrop_unlock();
}

static void end(struct outcrop_pending *pending) {
  for (size_t nth = 0; nth < pending->count; nth++)
    outcrop_shape_release(pending->spots[nth].shape);
  free(pending);
}

void outcrop_pending_finish(struct outcrop_pending *pending, const MPI_Status *status) {
  if (!pending)
    return;
  note(pending, status);
  end(pending);
}

void outcrop_received(const void *at, long long count, MPI_Datatype type, const MPI_Status *status) {
  if (count <= 0)
    return;
  struct outcrop_shape *shape = outcrop_shape_of(type);
  long long bytes = received_bytes(status);
  outcrop_lock();
  outcrop_shape_note(shape, (uintptr_t)at, count, bytes);
  outcrop_unlock();
  outcrop_shape_release(shape);
}

static size_t hash(MPI_Request request) {
  uintptr_t bits = 0;
  __builtin_memcpy(&bits, &request, sizeof request < sizeof bits ? sizeof request : sizeof bits);
  return (bits ^ bits >> 6 ^ bits >> 14) * 0x9e3779b97f4a7c15u >> 20;
}

// The slot of a request, or the one where it would be.
static struct slot *slot_of(MPI_Request request) {
  struct slot *free_slot = NULL;
  for (size_t nth = hash(request);; nth++) {
    struct slot *slot = &slots[nth & (slot_count - 1)];
    if (!slot->pending)
      return free_slot ? free_slot : slot;
    if (slot->pending == &gone)
      free_slot = free_slot ? free_slot : slot;
    else if (slot->request == request)
      return slot;
  }
}

static void grow(void) {
  struct slot *before = slots;
  size_t count = slot_count;
  slot_count = live * 4 > 256 ? slot_count * (live * 2 > slot_count ? 2 : 1) : 256;
  slots = or_end(calloc(slot_count, sizeof *slots));
  used = live;
  for (size_t nth = 0; nth < count; nth++)
    if (before[nth].pending && before[nth].pending != &gone)
      *slot_of(before[nth].request) = before[nth];
  free(before);
}

void outcrop_request(MPI_Request request, struct outcrop_pending *pending, int is_receive, int is_persistent) {
  if (request == MPI_REQUEST_NULL || !pending->count) {
    end(pending);
    return;
  }
  pending->is_receive = is_receive;
  pending->is_persistent = is_persistent;
  pending->is_active = !is_persistent;
  outcrop_lock();
  if (4 * (used + 1) > 3 * slot_count)
    grow();
  struct slot *slot = slot_of(request);
  // The handle may be one that another thread has just completed; that thread ends what was there.
  if (!slot->pending)
    used++;
  if (!slot->pending || slot->pending == &gone)
    live++;
  *slot = (struct slot){request, pending};
  outcrop_unlock();
}

int outcrop_has_requests(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED) > 0; }

struct outcrop_pending *outcrop_request_find(MPI_Request request) {
  struct outcrop_pending *pending = NULL;
  outcrop_lock();
  if (live && request != MPI_REQUEST_NULL) {
    pending = slot_of(request)->pending;
    pending = pending == &gone ? NULL : pending;
  }
  outcrop_unlock();
  return pending;
}

static void forget(MPI_Request request, const struct outcrop_pending *pending) {
  outcrop_lock();
  struct slot *slot = slot_of(request);
  if (slot->pending == pending) {
    slot->pending = &gone;
    live--;
  }
  outcrop_unlock();
}

void outcrop_request_completed(MPI_Request request, struct outcrop_pending *pending, const MPI_Status *status) {
  if (pending->is_active)
    note(pending, pending->is_receive ? status : NULL);
  pending->is_active = 0;
  if (!pending->is_persistent) {
    forget(request, pending);
    end(pending);
  }
}

void outcrop_request_started(MPI_Request request) {
  struct outcrop_pending *pending = outcrop_request_find(request);
  if (pending)
    pending->is_active = 1;
}

void outcrop_request_look(MPI_Request request, const MPI_Status *status) {
  const struct outcrop_pending *pending = outcrop_request_find(request);
  if (pending && pending->is_active)
    note(pending, pending->is_receive ? status : NULL);
}

void outcrop_request_freed(MPI_Request request) {
  struct outcrop_pending *pending = outcrop_request_find(request);
  if (!pending)
    return;
  forget(request, pending);
  if (!pending->is_active)
    end(pending);
  else
    // Nobody will say when it has been written: from now on it counts as changed at any time.
    for (size_t nth = 0; nth < pending->count; nth++) {
      uintptr_t begin;
      size_t bytes;
      outcrop_shape_span(pending->spots[nth].shape, pending->spots[nth].at, pending->spots[nth].count, &begin, &bytes);
      outcrop_expose(MPI_WIN_NULL, (const void *)begin, bytes);
    }
}

void outcrop_keep(uintptr_t owner, int target, struct outcrop_pending *pending) {
  outcrop_lock();
  if (kept_count == kept_room) {
    kept_room = kept_room ? 2 * kept_room : 16;
    kept = or_end(realloc(kept, kept_room * sizeof *kept));
  }
  kept[kept_count++] = (struct kept){owner, target, pending};
  outcrop_unlock();
}

void outcrop_kept_completed(uintptr_t owner, int target) {
  for (size_t nth = 0;;) {
    struct outcrop_pending *done = NULL;
    outcrop_lock();
    for (; nth < kept_count && !done; nth++)
      if (kept[nth].owner == owner && (target < 0 || kept[nth].target == target)) {
        done = kept[nth].pending;
        kept[nth--] = kept[--kept_count];
      }
    outcrop_unlock();
    if (!done)
      return;
    outcrop_pending_finish(done, NULL);
  }
}
