// What the parts of the layer share. The layer sees what MPI writes to memory of the program, and tells Outcrop which bytes.
#ifndef OUTCROP_MPI_LAYER_H
#define OUTCROP_MPI_LAYER_H

#include "shim.h"

#include <mpi.h>

#define OUTCROP_HIDDEN __attribute__((visibility("hidden")))

// Two locks, which are never held while MPI is called. One guards what is reported, which any thread may ask for.
OUTCROP_HIDDEN void outcrop_lock(void);
OUTCROP_HIDDEN void outcrop_unlock(void);
// The other guards datatypes and requests, which only threads that call MPI use. It costs nothing if only one does at a time.
OUTCROP_HIDDEN void outcrop_enter(void);
OUTCROP_HIDDEN void outcrop_leave(void);

// Bytes that have changed. The lock is held.
OUTCROP_HIDDEN void outcrop_note(uintptr_t begin, size_t bytes);

// What this thread has reported lately, so that it need not do so again: the first `bytes` bytes of a message of this datatype at
// this address, in an epoch. An epoch ends when what was reported is passed on, and when the meaning of a datatype may change.
struct outcrop_memo {
  uintptr_t at, type;
  uint64_t epoch;
  long long bytes;
};
enum { OUTCROP_MEMOS = 128 };
extern OUTCROP_HIDDEN __thread struct outcrop_memo *outcrop_memos __attribute__((tls_model("initial-exec")));
extern OUTCROP_HIDDEN uint64_t outcrop_epoch;
OUTCROP_HIDDEN void outcrop_forget_memos(void);
// Makes room for those of this thread.
OUTCROP_HIDDEN struct outcrop_memo *outcrop_make_memos(void);

static inline uintptr_t outcrop_bits(const void *handle, size_t bytes) {
  uintptr_t bits = 0;
  __builtin_memcpy(&bits, handle, bytes < sizeof bits ? bytes : sizeof bits);
  return bits;
}
#define OUTCROP_BITS(handle) outcrop_bits(&(handle), sizeof(handle))

static inline struct outcrop_memo *outcrop_memo(uintptr_t at) {
  struct outcrop_memo *memos = outcrop_memos;
  return memos ? &memos[(at >> 3 ^ at >> 10) % OUTCROP_MEMOS] : NULL;
}

static inline int outcrop_is_known(const struct outcrop_memo *memo, uintptr_t at, uintptr_t type, long long bytes) {
  return memo && memo->at == at && memo->type == type && bytes >= 0 && bytes <= memo->bytes &&
         memo->epoch == __atomic_load_n(&outcrop_epoch, __ATOMIC_ACQUIRE);
}

// How many bytes a status says have come; negative if that cannot be said. Each MPI has its own place for it.
static inline long long outcrop_status_bytes(const MPI_Status *status) {
  if (!status)
    return -1;
#if defined(OMPI_MAJOR_VERSION)
  return (long long)status->_ucount;
#elif defined(MPICH_NUMVERSION)
  return ((long long)(status->count_hi_and_cancelled >> 1) << 32) + (unsigned)status->count_lo;
#else
  int count = 0;
  if (PMPI_Get_count((MPI_Status *)status, MPI_BYTE, &count) != MPI_SUCCESS || count == MPI_UNDEFINED)
    return -1;
  return count;
#endif
}

// Memory that others may write to at any time, until it is hidden again; all of the window if `base` is NULL.
OUTCROP_HIDDEN void outcrop_expose(MPI_Win win, const void *base, size_t bytes);
OUTCROP_HIDDEN void outcrop_hide(MPI_Win win, const void *base);

// Where the bytes of a datatype are, in the order in which they are received.
struct outcrop_shape;
// That of a datatype. The lock is not held. It lives until it is released.
OUTCROP_HIDDEN struct outcrop_shape *outcrop_shape_of(MPI_Datatype type);
OUTCROP_HIDDEN void outcrop_shape_release(struct outcrop_shape *shape);
// Notes the first `bytes` bytes of `count` elements; all of them if `bytes` is negative. The lock is held.
OUTCROP_HIDDEN void outcrop_shape_note(const struct outcrop_shape *shape, uintptr_t at, long long count, long long bytes);

// The memory between the first and the last byte of `count` elements.
OUTCROP_HIDDEN void outcrop_shape_span(const struct outcrop_shape *shape, uintptr_t at, long long count, uintptr_t *begin, size_t *bytes);

// Memory that a call will write to: some spots, of which each has elements of one datatype.
struct outcrop_pending;
// Makes one with room for some spots.
OUTCROP_HIDDEN struct outcrop_pending *outcrop_pending(int spots);
OUTCROP_HIDDEN void outcrop_pending_add(struct outcrop_pending *pending, const void *at, long long count, MPI_Datatype type);
// It has been written, all of it or as much as `status` says, and is not needed any more.
OUTCROP_HIDDEN void outcrop_pending_finish(struct outcrop_pending *pending, const MPI_Status *status);
// The request that writes it. `is_receive` says whether the status tells how much.
OUTCROP_HIDDEN void outcrop_request(MPI_Request request, struct outcrop_pending *pending, int is_receive, int is_persistent);
// A persistent request was started.
OUTCROP_HIDDEN void outcrop_request_started(MPI_Request request);
// What was remembered of a request; NULL if it writes nothing.
OUTCROP_HIDDEN struct outcrop_pending *outcrop_request_find(MPI_Request request);
// A request was completed, with this status if it succeeded, else NULL.
OUTCROP_HIDDEN void outcrop_request_completed(MPI_Request request, struct outcrop_pending *pending, const MPI_Status *status);
// The same, but the request was not completed by it: its status was only looked at, or a call has failed.
OUTCROP_HIDDEN void outcrop_request_look(MPI_Request request, const MPI_Status *status);
// A request was freed, and may still be under way.
OUTCROP_HIDDEN void outcrop_request_freed(MPI_Request request);
// Whether any request writes something.
OUTCROP_HIDDEN int outcrop_has_requests(void);

// What is read from another window, or by a call in two parts, until it is complete.
OUTCROP_HIDDEN void outcrop_keep(uintptr_t owner, int target, struct outcrop_pending *pending);
// What an owner reads from `target`, or from all if it is negative, has been written.
OUTCROP_HIDDEN void outcrop_kept_completed(uintptr_t owner, int target);

// A received message: `count` elements, of which `bytes` bytes have come; all if that is negative.
OUTCROP_HIDDEN void outcrop_received_anew(const void *at, long long count, MPI_Datatype type, long long bytes);

static inline void outcrop_received(const void *at, long long count, MPI_Datatype type, const MPI_Status *status) {
  long long bytes = outcrop_status_bytes(status);
  if (!outcrop_is_known(outcrop_memo((uintptr_t)at), (uintptr_t)at, OUTCROP_BITS(type), bytes))
    outcrop_received_anew(at, count, type, bytes);
}

// The function of MPI itself.
OUTCROP_HIDDEN void *outcrop_next(const char *name);

#endif
