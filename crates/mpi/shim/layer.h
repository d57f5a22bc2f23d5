// What the parts of the layer share. The layer sees what MPI writes to memory of the program, and tells Outcrop which bytes.
#ifndef OUTCROP_MPI_LAYER_H
#define OUTCROP_MPI_LAYER_H

#include "shim.h"

#include <mpi.h>

#define OUTCROP_HIDDEN __attribute__((visibility("hidden")))

// Everything below is guarded by one lock, which is never held while MPI is called.
OUTCROP_HIDDEN void outcrop_lock(void);
OUTCROP_HIDDEN void outcrop_unlock(void);

// Bytes that have changed. The lock is held.
OUTCROP_HIDDEN void outcrop_note(uintptr_t begin, size_t bytes);

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

// A received message: `count` elements, of which `status` says how much came; all if it is NULL.
OUTCROP_HIDDEN void outcrop_received(const void *at, long long count, MPI_Datatype type, const MPI_Status *status);

// The function of MPI itself.
OUTCROP_HIDDEN void *outcrop_next(const char *name);

#endif
