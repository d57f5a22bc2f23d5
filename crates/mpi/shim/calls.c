// The calls of MPI that write to memory of the program.
//
// Each is defined under both of its names, MPI_ and PMPI_: Fortran's calls of some MPIs go to the second one.

#define _GNU_SOURCE
#include "layer.h"

#include <stdlib.h>

// What MPI-4 has, and Open MPI 5 in part, which says that it is MPI-3.
#define HAS_LARGE_COUNTS (MPI_VERSION >= 4)
#if MPI_VERSION >= 4
#define HAS_PERSISTENT_COLLECTIVES 1
#elif defined(OMPI_MAJOR_VERSION)
#define HAS_PERSISTENT_COLLECTIVES (OMPI_MAJOR_VERSION >= 5)
#else
#define HAS_PERSISTENT_COLLECTIVES 0
#endif

#define UNWRAP(...) __VA_ARGS__
#define JOIN_(left, right) left##right
#define JOIN(left, right) JOIN_(left, right)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

// Defines a call under both names.
#define CALL(name, parameters)                                                                                                   \
  OUTCROP_EXPORT int JOIN(PMPI_, name) parameters __attribute__((alias(TEXT(JOIN(MPI_, name)))));                                \
  OUTCROP_EXPORT int JOIN(MPI_, name) parameters

// The call of MPI itself.
#define REAL(name)                                                                                                               \
  ({                                                                                                                             \
    static __typeof__(&JOIN(MPI_, name)) found_;                                                                                 \
    __typeof__(&JOIN(MPI_, name)) real_ = __atomic_load_n(&found_, __ATOMIC_RELAXED);                                            \
    if (__builtin_expect(!real_, 0)) {                                                                                           \
      real_ = (__typeof__(&JOIN(MPI_, name)))outcrop_next(TEXT(JOIN(PMPI_, name)));                                              \
      __atomic_store_n(&found_, real_, __ATOMIC_RELAXED);                                                                        \
    }                                                                                                                            \
    real_;                                                                                                                       \
  })

// A status of our own if the program wants none.
#define WITH_STATUS(status)                                                                                                      \
  MPI_Status own_;                                                                                                               \
  if (status == MPI_STATUS_IGNORE)                                                                                               \
  status = &own_

// How much of it counts: after an error, all may have been written.
#define IF_FINE(code, status) ((code) == MPI_SUCCESS ? (status) : NULL)

static struct outcrop_pending *one(const void *at, long long count, MPI_Datatype type) {
  struct outcrop_pending *pending = outcrop_pending(1);
  outcrop_pending_add(pending, at, count, type);
  return pending;
}

#define OWNER(handle) OUTCROP_BITS(handle)

// Groups, as a collective sees them.

static int is_inter(MPI_Comm comm) {
  int answer = 0;
  PMPI_Comm_test_inter(comm, &answer);
  return answer;
}

static int rank_of(MPI_Comm comm) {
  int rank = 0;
  PMPI_Comm_rank(comm, &rank);
  return rank;
}

// How many a rank receives from.
static int senders(MPI_Comm comm) {
  int count = 0;
  if (is_inter(comm))
    PMPI_Comm_remote_size(comm, &count);
  else
    PMPI_Comm_size(comm, &count);
  return count;
}

static int is_root(MPI_Comm comm, int root) { return is_inter(comm) ? root == MPI_ROOT : root == rank_of(comm); }

// Whether something comes from the root to this rank.
static int hears_root(MPI_Comm comm, int root) { return is_inter(comm) ? root >= 0 : 1; }

static int neighbours(MPI_Comm comm) {
  int topology = MPI_UNDEFINED, count = 0, other, is_weighted;
  PMPI_Topo_test(comm, &topology);
  if (topology == MPI_DIST_GRAPH)
    PMPI_Dist_graph_neighbors_count(comm, &count, &other, &is_weighted);
  else if (topology == MPI_CART) {
    PMPI_Cartdim_get(comm, &count);
    count *= 2;
  } else if (topology == MPI_GRAPH)
    PMPI_Graph_neighbors_count(comm, rank_of(comm), &count);
  return count;
}

#define NAME(name) name
#define COUNT int
#define DISPLACEMENT int
#define UNIT int
#include "counted.inc"
#undef NAME
#undef COUNT
#undef DISPLACEMENT
#undef UNIT

#if HAS_LARGE_COUNTS
#define NAME(name) name##_c
#define COUNT MPI_Count
#define DISPLACEMENT MPI_Aint
#define UNIT MPI_Aint
#include "counted.inc"
#endif

#if HAS_PERSISTENT_COLLECTIVES
CALL(Precv_init, (void *buffer, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Info info,
                  MPI_Request *request)) {
  int code = REAL(Precv_init)(buffer, partitions, count, type, source, tag, comm, info, request);
  if (code == MPI_SUCCESS)
    outcrop_request(*request, one(buffer, partitions * (long long)count, type), 0, 1);
  return code;
}
#endif

CALL(Start, (MPI_Request * request)) {
  outcrop_request_started(*request);
  return REAL(Start)(request);
}

CALL(Startall, (int count, MPI_Request requests[])) {
  for (int nth = 0; nth < count; nth++)
    outcrop_request_started(requests[nth]);
  return REAL(Startall)(count, requests);
}

// Completion.

CALL(Wait, (MPI_Request * request, MPI_Status *status)) {
  MPI_Request before = *request;
  struct outcrop_pending *pending = outcrop_has_requests() ? outcrop_request_find(before) : NULL;
  if (!pending)
    return REAL(Wait)(request, status);
  WITH_STATUS(status);
  int code = REAL(Wait)(request, status);
  outcrop_request_completed(before, pending, IF_FINE(code, status));
  return code;
}

CALL(Test, (MPI_Request * request, int *flag, MPI_Status *status)) {
  MPI_Request before = *request;
  struct outcrop_pending *pending = outcrop_has_requests() ? outcrop_request_find(before) : NULL;
  if (!pending)
    return REAL(Test)(request, flag, status);
  WITH_STATUS(status);
  int code = REAL(Test)(request, flag, status);
  if (code != MPI_SUCCESS || *flag)
    outcrop_request_completed(before, pending, IF_FINE(code, status));
  return code;
}

CALL(Request_get_status, (MPI_Request request, int *flag, MPI_Status *status)) {
  WITH_STATUS(status);
  int code = REAL(Request_get_status)(request, flag, status);
  if (code == MPI_SUCCESS && *flag && outcrop_has_requests())
    outcrop_request_look(request, status);
  return code;
}

CALL(Request_free, (MPI_Request * request)) {
  outcrop_request_freed(*request);
  return REAL(Request_free)(request);
}

// Several requests, as they were before a call.
struct several {
  int count;
  MPI_Request *requests;
  struct outcrop_pending **pending;
  MPI_Status *statuses;
};

// Remembers them; `is_in_use` is 0 if none of them writes anything. The program's statuses are replaced if it wants none.
static struct several remember(int count, const MPI_Request *requests, MPI_Status *statuses, int status_count) {
  struct several several = {0, NULL, NULL, statuses};
  if (count <= 0 || !outcrop_has_requests())
    return several;
  several.count = count;
  several.requests = malloc((size_t)count * sizeof *several.requests);
  several.pending = malloc((size_t)count * sizeof *several.pending);
  if (statuses == MPI_STATUSES_IGNORE)
    several.statuses = malloc((size_t)status_count * sizeof *several.statuses);
  if (!several.requests || !several.pending || (status_count > 0 && !several.statuses))
    abort();
  for (int nth = 0; nth < count; nth++) {
    several.requests[nth] = requests[nth];
    several.pending[nth] = outcrop_request_find(requests[nth]);
  }
  return several;
}

static void completed(struct several *several, int nth, const MPI_Status *status) {
  if (several->count > nth && nth >= 0 && several->pending[nth])
    outcrop_request_completed(several->requests[nth], several->pending[nth], status);
}

static void forget(struct several *several, const MPI_Status *statuses) {
  free(several->requests);
  free(several->pending);
  if (several->count && several->statuses != statuses)
    free(several->statuses);
}

// After an error, those that are gone have been completed in some way, and the others may have been written to.
static void all_failed(struct several *several, const MPI_Request *requests) {
  for (int nth = 0; nth < several->count; nth++)
    if (requests[nth] != several->requests[nth])
      completed(several, nth, NULL);
    else if (several->pending[nth])
      outcrop_request_look(requests[nth], NULL);
}

CALL(Waitall, (int count, MPI_Request requests[], MPI_Status *statuses)) {
  struct several several = remember(count, requests, statuses, count);
  int code = REAL(Waitall)(count, requests, several.statuses);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else
    for (int nth = 0; nth < several.count; nth++)
      completed(&several, nth, &several.statuses[nth]);
  forget(&several, statuses);
  return code;
}

CALL(Testall, (int count, MPI_Request requests[], int *flag, MPI_Status *statuses)) {
  struct several several = remember(count, requests, statuses, count);
  int code = REAL(Testall)(count, requests, flag, several.statuses);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else if (*flag)
    for (int nth = 0; nth < several.count; nth++)
      completed(&several, nth, &several.statuses[nth]);
  forget(&several, statuses);
  return code;
}

CALL(Waitany, (int count, MPI_Request requests[], int *index, MPI_Status *status)) {
  struct several several = remember(count, requests, NULL, 0);
  WITH_STATUS(status);
  int code = REAL(Waitany)(count, requests, index, status);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else if (*index != MPI_UNDEFINED)
    completed(&several, *index, status);
  forget(&several, NULL);
  return code;
}

CALL(Testany, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)) {
  struct several several = remember(count, requests, NULL, 0);
  WITH_STATUS(status);
  int code = REAL(Testany)(count, requests, index, flag, status);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else if (*flag && *index != MPI_UNDEFINED)
    completed(&several, *index, status);
  forget(&several, NULL);
  return code;
}

CALL(Waitsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status *statuses)) {
  struct several several = remember(count, requests, statuses, count);
  int code = REAL(Waitsome)(count, requests, done, indices, several.statuses);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else if (*done != MPI_UNDEFINED)
    for (int nth = 0; nth < *done && several.count; nth++)
      completed(&several, indices[nth], &several.statuses[nth]);
  forget(&several, statuses);
  return code;
}

CALL(Testsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status *statuses)) {
  struct several several = remember(count, requests, statuses, count);
  int code = REAL(Testsome)(count, requests, done, indices, several.statuses);
  if (code != MPI_SUCCESS)
    all_failed(&several, requests);
  else if (*done != MPI_UNDEFINED)
    for (int nth = 0; nth < *done && several.count; nth++)
      completed(&several, indices[nth], &several.statuses[nth]);
  forget(&several, statuses);
  return code;
}

// Windows. Other ranks may write to this one's at any time, and nobody here is told.

CALL(Win_attach, (MPI_Win win, void *base, MPI_Aint size)) {
  int code = REAL(Win_attach)(win, base, size);
  if (code == MPI_SUCCESS)
    outcrop_expose(win, base, (size_t)size);
  return code;
}

CALL(Win_detach, (MPI_Win win, const void *base)) {
  int code = REAL(Win_detach)(win, base);
  outcrop_hide(win, base);
  return code;
}

CALL(Win_free, (MPI_Win * win)) {
  MPI_Win before = *win;
  int code = REAL(Win_free)(win);
  outcrop_kept_completed(OWNER(before), -1);
  outcrop_hide(before, NULL);
  return code;
}

CALL(Fetch_and_op, (const void *origin, void *result, MPI_Datatype type, int target, MPI_Aint at, MPI_Op op, MPI_Win win)) {
  int code = REAL(Fetch_and_op)(origin, result, type, target, at, op, win);
  outcrop_keep(OWNER(win), target, one(result, 1, type));
  return code;
}

CALL(Compare_and_swap,
     (const void *origin, const void *compare, void *result, MPI_Datatype type, int target, MPI_Aint at, MPI_Win win)) {
  int code = REAL(Compare_and_swap)(origin, compare, result, type, target, at, win);
  outcrop_keep(OWNER(win), target, one(result, 1, type));
  return code;
}

// What has been read from others is complete after one of these.
#define SYNCHRONISES(name, target, parameters, arguments)                                                                        \
  CALL(name, parameters) {                                                                                                       \
    int code = REAL(name) arguments;                                                                                             \
    outcrop_kept_completed(OWNER(win), target);                                                                                  \
    return code;                                                                                                                 \
  }

SYNCHRONISES(Win_fence, -1, (int assertion, MPI_Win win), (assertion, win))
SYNCHRONISES(Win_complete, -1, (MPI_Win win), (win))
SYNCHRONISES(Win_unlock, rank, (int rank, MPI_Win win), (rank, win))
SYNCHRONISES(Win_unlock_all, -1, (MPI_Win win), (win))
SYNCHRONISES(Win_flush, rank, (int rank, MPI_Win win), (rank, win))
SYNCHRONISES(Win_flush_all, -1, (MPI_Win win), (win))
SYNCHRONISES(Win_flush_local, rank, (int rank, MPI_Win win), (rank, win))
SYNCHRONISES(Win_flush_local_all, -1, (MPI_Win win), (win))

// Files: the second part of a call in two parts.
#define READ_ENDS(name)                                                                                                          \
  CALL(name, (MPI_File file, void *buffer, MPI_Status *status)) {                                                                \
    int code = REAL(name)(file, buffer, status);                                                                                 \
    outcrop_kept_completed(OWNER(file), -1);                                                                                     \
    return code;                                                                                                                 \
  }

READ_ENDS(File_read_all_end)
READ_ENDS(File_read_at_all_end)
READ_ENDS(File_read_ordered_end)
