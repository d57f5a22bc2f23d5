// What requests and windows will write, until they have.

#define _GNU_SOURCE
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>

struct spot {
  uintptr_t at, type;
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

enum { SPARES = 64 };

// Those with one spot, which most have, are used again.
static struct outcrop_pending *spares[SPARES];
static size_t spare_count;
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
  size_t room = spots > 1 ? (size_t)spots : 1;
  struct outcrop_pending *pending = NULL;
  if (room == 1) {
    outcrop_enter();
    pending = spare_count ? spares[--spare_count] : NULL;
    outcrop_leave();
  }
  if (!pending)
    pending = or_end(malloc(sizeof *pending + room * sizeof *pending->spots));
  *pending = (struct outcrop_pending){.room = room};
  return pending;
}

void outcrop_pending_add(struct outcrop_pending *pending, const void *at, long long count, MPI_Datatype type) {
  if (count > 0 && pending->count < pending->room)
    pending->spots[pending->count++] = (struct spot){(uintptr_t)at, OUTCROP_BITS(type), count, outcrop_shape_of(type)};
}

// Reports a spot, unless this thread has done so lately.
static void note_spot(const struct spot *spot, long long bytes) {
  struct outcrop_memo *memo = outcrop_memo(spot->at);
  if (outcrop_is_known(memo, spot->at, spot->type, bytes))
    return;
  uint64_t epoch = __atomic_load_n(&outcrop_epoch, __ATOMIC_ACQUIRE);
  outcrop_lock();
  outcrop_shape_note(spot->shape, spot->at, spot->count, bytes);
  outcrop_unlock();
  if (outcrop_make_memos() && bytes >= 0)
    *outcrop_memo(spot->at) = (struct outcrop_memo){spot->at, spot->type, epoch, bytes};
}

static void note(const struct outcrop_pending *pending, const MPI_Status *status) {
  long long bytes = outcrop_status_bytes(status);
  for (size_t nth = 0; nth < pending->count; nth++)
    note_spot(&pending->spots[nth], bytes);
}

void outcrop_received_anew(const void *at, long long count, MPI_Datatype type, long long bytes) {
  if (count <= 0)
    return;
  struct spot spot = {(uintptr_t)at, OUTCROP_BITS(type), count, outcrop_shape_of(type)};
  note_spot(&spot, bytes);
  outcrop_shape_release(spot.shape);
}

static void end(struct outcrop_pending *pending) {
  for (size_t nth = 0; nth < pending->count; nth++)
    outcrop_shape_release(pending->spots[nth].shape);
  if (pending->room == 1) {
    outcrop_enter();
    if (spare_count < SPARES) {
      spares[spare_count++] = pending;
      pending = NULL;
    }
    outcrop_leave();
  }
  free(pending);
}

void outcrop_pending_finish(struct outcrop_pending *pending, const MPI_Status *status) {
  if (!pending)
    return;
  note(pending, status);
  end(pending);
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
  outcrop_enter();
  if (4 * (used + 1) > 3 * slot_count)
    grow();
  struct slot *slot = slot_of(request);
  // The handle may be one that another thread has just completed; that thread ends what was there.
  if (!slot->pending)
    used++;
  if (!slot->pending || slot->pending == &gone)
    live++;
  *slot = (struct slot){request, pending};
  outcrop_leave();
}

int outcrop_has_requests(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED) > 0; }

struct outcrop_pending *outcrop_request_find(MPI_Request request) {
  struct outcrop_pending *pending = NULL;
  outcrop_enter();
  if (live && request != MPI_REQUEST_NULL) {
    pending = slot_of(request)->pending;
    pending = pending == &gone ? NULL : pending;
  }
  outcrop_leave();
  return pending;
}

static void forget(MPI_Request request, const struct outcrop_pending *pending) {
  outcrop_enter();
  struct slot *slot = slot_of(request);
  if (slot->pending == pending) {
    slot->pending = &gone;
    live--;
  }
  outcrop_leave();
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
  outcrop_enter();
  if (kept_count == kept_room) {
    kept_room = kept_room ? 2 * kept_room : 16;
    kept = or_end(realloc(kept, kept_room * sizeof *kept));
  }
  kept[kept_count++] = (struct kept){owner, target, pending};
  outcrop_leave();
}

void outcrop_kept_completed(uintptr_t owner, int target) {
  for (size_t nth = 0;;) {
    struct outcrop_pending *done = NULL;
    outcrop_enter();
    for (; nth < kept_count && !done; nth++)
      if (kept[nth].owner == owner && (target < 0 || kept[nth].target == target)) {
        done = kept[nth].pending;
        kept[nth--] = kept[--kept_count];
      }
    outcrop_leave();
    if (!done)
      return;
    outcrop_pending_finish(done, NULL);
  }
}
