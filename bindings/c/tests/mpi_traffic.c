// Random traffic of all kinds into one piece of memory, which liboutcrop-mpi.so must report to the byte: no change is missed, and
// nothing is reported that MPI has not written.
//
//   mpi_traffic DIRECTORY SEED ROUNDS

#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What the library has for Outcrop.
uint64_t outcrop_mpi_watch(uintptr_t begin, uintptr_t end);
void outcrop_mpi_unwatch(uint64_t watch);
void outcrop_mpi_take(uint64_t watch, void (*note)(void *context, uintptr_t begin, uintptr_t end), void *context);

// The last bytes are for what comes to the same place again and again.
enum { ARENA = 1 << 20, SAME = 128 << 10 };

static unsigned char arena[ARENA], before[ARENA], expected[ARENA], allowed[ARENA], reported[ARENA], out[ARENA];
static size_t cursor;
static uint64_t watch;
static uint64_t shared_state, own_state;
static int rank, count, way;
static const char *directory;

static uint64_t next(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

// A choice that all ranks make alike.
static int below(int limit) { return (int)((next(&shared_state) >> 20) % (uint64_t)limit); }

static void shuffle(void *at, size_t bytes) {
  for (size_t nth = 0; nth < bytes; nth++)
    ((unsigned char *)at)[nth] = (unsigned char)(next(&own_state) >> 33);
}

// Datatypes of all makes, each made anew, so that handles are used again.
static MPI_Datatype make_type(int depth) {
  MPI_Datatype basic[] = {MPI_BYTE, MPI_INT, MPI_DOUBLE, MPI_SHORT}, inner = depth ? make_type(depth - 1) : basic[below(4)], made;
  MPI_Aint lower, extent;
  MPI_Type_get_extent(inner, &lower, &extent);
  int kind = below(10);
  if (kind == 0)
    MPI_Type_contiguous(1 + below(4), inner, &made);
  else if (kind == 1)
    MPI_Type_vector(1 + below(4), 1 + below(2), 2 + below(3), inner, &made);
  else if (kind == 2)
    MPI_Type_create_hvector(1 + below(3), 1, 2 * extent + 8 * below(3), inner, &made);
  else if (kind == 3)
    MPI_Type_indexed(3, (int[]){1, 2, 1}, (int[]){5, 1, 7 + below(3)}, inner, &made); // not in ascending order
  else if (kind == 4)
    MPI_Type_create_hindexed(2, (int[]){1, 1}, (MPI_Aint[]){3 * extent, 0}, inner, &made);
  else if (kind == 5)
    MPI_Type_create_indexed_block(3, 1, (int[]){0, 2, 5}, inner, &made);
  else if (kind == 6)
    MPI_Type_create_struct(2, (int[]){2, 1}, (MPI_Aint[]){0, 2 * extent + 16}, (MPI_Datatype[]){inner, MPI_INT}, &made);
  else if (kind == 7)
    MPI_Type_create_subarray(3, (int[]){3, 4, 5}, (int[]){2, 1 + below(2), 3}, (int[]){1, 1, below(3)},
                             below(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, inner, &made);
  else if (kind == 8)
    MPI_Type_create_resized(inner, 0, extent + 8 * below(4), &made);
  else
    MPI_Type_dup(inner, &made);
  MPI_Type_commit(&made);
  if (depth)
    MPI_Type_free(&inner);
  return made;
}

static size_t span(MPI_Datatype type, int elements) {
  MPI_Aint lower, extent, true_lower, true_extent;
  MPI_Type_get_extent(type, &lower, &extent);
  MPI_Type_get_true_extent(type, &true_lower, &true_extent);
  return elements ? (size_t)((elements - 1) * extent + true_lower + true_extent) : 0;
}

// A place for so many bytes, which nothing else of this round uses.
static unsigned char *place(size_t bytes) {
  cursor = (cursor + 8 + (size_t)below(64) + 7) & ~(size_t)7;
  unsigned char *at = arena + cursor;
  cursor += bytes;
  DEMAND(cursor < ARENA - SAME);
  return at;
}

// What MPI itself would write there: it unpacks ones over zeros.
static void write_into(unsigned char *map, const void *at, int elements, MPI_Datatype type) {
  int bytes = 0, position = 0, size = 0;
  size_t length = span(type, elements);
  if (!elements)
    return;
  MPI_Pack_size(elements, type, MPI_COMM_SELF, &bytes);
  MPI_Type_size(type, &size);
  unsigned char *packed = malloc((size_t)bytes + 1), *scratch = calloc(length + 1, 1);
  memset(packed, 255, (size_t)bytes);
  MPI_Unpack(packed, bytes, &position, scratch, elements, type, MPI_COMM_SELF);
  for (size_t nth = 0; nth < length; nth++)
    map[(const unsigned char *)at - arena + nth] |= scratch[nth];
  free(packed);
  free(scratch);
}

static void expect(const void *at, int elements, MPI_Datatype type) {
  write_into(expected, at, elements, type);
  write_into(allowed, at, elements, type);
}

static void note(void *context, uintptr_t begin, uintptr_t end) {
  (void)context;
  DEMAND(begin >= (uintptr_t)arena && end <= (uintptr_t)arena + ARENA && begin < end);
  memset(reported + (begin - (uintptr_t)arena), 255, end - begin);
}

static void complete(int requests, MPI_Request *request) {
  int done = 0, indices[8], some, flag = 0;
  MPI_Status statuses[8];
  switch (below(7)) {
  case 0:
    MPI_Waitall(requests, request, MPI_STATUSES_IGNORE);
    return;
  case 1:
    MPI_Waitall(requests, request, statuses);
    return;
  case 2:
    for (int nth = 0; nth < requests; nth++)
      MPI_Waitany(requests, request, &some, MPI_STATUS_IGNORE);
    return;
  case 3:
    while (done < requests) {
      MPI_Waitsome(requests, request, &some, indices, MPI_STATUSES_IGNORE);
      done += some;
    }
    return;
  case 4:
    while (!flag)
      MPI_Testall(requests, request, &flag, statuses);
    return;
  case 5:
    while (done < requests) {
      MPI_Testsome(requests, request, &some, indices, statuses);
      done += some == MPI_UNDEFINED ? 0 : some;
    }
    return;
  default:
    for (int nth = 0; nth < requests; nth++)
      for (flag = 0; !flag;)
        MPI_Test(&request[nth], &flag, &statuses[0]);
  }
}

static void message(void) {
  MPI_Datatype type = make_type(below(3)), again;
  int capacity = 1 + below(4), sent = below(capacity + 1), to = (rank + 1) % count, from = (rank + count - 1) % count;
  unsigned char *into = place(span(type, capacity));
  MPI_Request requests[2];
  MPI_Message matched;
  MPI_Status status;
  shuffle(out, span(type, capacity));
  switch (way = below(6)) {
  case 0:
    MPI_Isend(out, sent, type, to, 1, MPI_COMM_WORLD, requests);
    MPI_Recv(into, capacity, type, from, 1, MPI_COMM_WORLD, below(2) ? MPI_STATUS_IGNORE : &status);
    MPI_Wait(requests, MPI_STATUS_IGNORE);
    break;
  case 1:
    MPI_Irecv(into, capacity, type, from, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, sent, type, to, 1, MPI_COMM_WORLD, &requests[1]);
    // A datatype may be freed before the message is there.
    MPI_Type_dup(type, &again);
    MPI_Type_free(&type);
    type = again;
    complete(2, requests);
    break;
  case 2:
    MPI_Recv_init(into, capacity, type, from, 1, MPI_COMM_WORLD, &requests[0]);
    for (int nth = 0; nth < 2; nth++) {
      MPI_Start(&requests[0]);
      MPI_Send(out, sent, type, to, 1, MPI_COMM_WORLD);
      MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&requests[0]);
    break;
  case 3:
    MPI_Sendrecv(out, sent, type, to, 1, into, capacity, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    break;
  case 4:
    MPI_Sendrecv_replace(into, sent, type, to, 1, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    break;
  default:
    MPI_Isend(out, sent, type, to, 1, MPI_COMM_WORLD, requests);
    MPI_Mprobe(from, 1, MPI_COMM_WORLD, &matched, &status);
    MPI_Mrecv(into, capacity, type, &matched, MPI_STATUS_IGNORE);
    MPI_Wait(requests, MPI_STATUS_IGNORE);
  }
  expect(into, sent, type);
  MPI_Type_free(&type);
}

// Messages to a place where others have come before, with datatypes that may have the handles of others.
static void again(void) {
  unsigned char *into = arena + ARENA - SAME;
  for (int nth = 0; nth < 3; nth++) {
    MPI_Datatype type = make_type(1);
    MPI_Request request;
    int to = (rank + 1) % count, from = (rank + count - 1) % count;
    DEMAND(span(type, 1) < SAME / 2);
    shuffle(out, span(type, 1));
    MPI_Irecv(into, 1, type, from, 1, MPI_COMM_WORLD, &request);
    MPI_Send(out, 1, type, to, 1, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(into, 1, type);
    MPI_Type_free(&type);
    for (int bytes = 50; bytes; bytes -= 10) {
      MPI_Sendrecv(out, bytes, MPI_BYTE, to, 1, into + SAME / 2, 100, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      expect(into + SAME / 2, bytes, MPI_BYTE);
      // Each time that somebody asks, it is new.
      memset(reported + ARENA - SAME / 2, 0, SAME / 2);
      outcrop_mpi_take(watch, note, NULL);
      DEMAND(reported[ARENA - SAME / 2 + bytes - 1] && !reported[ARENA - SAME / 2 + bytes]);
    }
    memset(reported + ARENA - SAME / 2, 255, 50);
  }
}

static void vectors(int *counts, int *places, int *bytes, MPI_Datatype *types, int each) {
  for (int nth = 0; nth < count; nth++) {
    counts[nth] = each;
    places[nth] = nth * (each + 3);
    bytes[nth] = places[nth] * (int)sizeof(int);
    types[nth] = MPI_INT;
  }
}

// Finishes a collective, and says what it has written.
#define EITHER(name, non_blocking, ...)                  \
  do {                                                   \
    if (below(2))                                        \
      MPI_##name(__VA_ARGS__, MPI_COMM_WORLD);           \
    else {                                               \
      MPI_##non_blocking(__VA_ARGS__, MPI_COMM_WORLD, &request); \
      complete(1, &request);                             \
    }                                                    \
  } while (0)

static void collective(void) {
  int counts[64], places[64], bytes[64], each = 1 + below(200), root = below(count), all = each * count;
  MPI_Datatype types[64];
  MPI_Request request;
  int *into = (int *)place((size_t)(each + 3) * sizeof(int) * (size_t)count);
  vectors(counts, places, bytes, types, each);
  shuffle(out, sizeof arena / 4);
  // What is no number may trap or change when it is added: integers only.
  int *sent = (int *)out;
  switch (way = below(15)) {
  case 0:
    EITHER(Bcast, Ibcast, into, each, MPI_INT, root);
    expect(into, rank == root ? 0 : each, MPI_INT);
    break;
  case 1:
    EITHER(Gather, Igather, sent, each, MPI_INT, into, each, MPI_INT, root);
    expect(into, rank == root ? all : 0, MPI_INT);
    break;
  case 2:
    EITHER(Gatherv, Igatherv, sent, each, MPI_INT, into, counts, places, MPI_INT, root);
    for (int nth = 0; nth < count && rank == root; nth++)
      expect(into + places[nth], each, MPI_INT);
    break;
  case 3:
    EITHER(Scatter, Iscatter, sent, each, MPI_INT, into, each, MPI_INT, root);
    expect(into, each, MPI_INT);
    break;
  case 4:
    EITHER(Scatterv, Iscatterv, sent, counts, places, MPI_INT, into, each, MPI_INT, root);
    expect(into, each, MPI_INT);
    break;
  case 5:
    EITHER(Allgather, Iallgather, sent, each, MPI_INT, into, each, MPI_INT);
    expect(into, all, MPI_INT);
    break;
  case 6:
    EITHER(Allgatherv, Iallgatherv, sent, each, MPI_INT, into, counts, places, MPI_INT);
    for (int nth = 0; nth < count; nth++)
      expect(into + places[nth], each, MPI_INT);
    break;
  case 7:
    EITHER(Alltoall, Ialltoall, sent, each, MPI_INT, into, each, MPI_INT);
    expect(into, all, MPI_INT);
    break;
  case 8:
    EITHER(Alltoallv, Ialltoallv, sent, counts, places, MPI_INT, into, counts, places, MPI_INT);
    for (int nth = 0; nth < count; nth++)
      expect(into + places[nth], each, MPI_INT);
    break;
  case 9:
    EITHER(Alltoallw, Ialltoallw, sent, counts, bytes, types, into, counts, bytes, types);
    for (int nth = 0; nth < count; nth++)
      expect(into + places[nth], each, MPI_INT);
    break;
  case 10:
    EITHER(Reduce, Ireduce, sent, into, each, MPI_INT, MPI_BXOR, root);
    expect(into, rank == root ? each : 0, MPI_INT);
    break;
  case 11:
    EITHER(Allreduce, Iallreduce, sent, into, each, MPI_INT, MPI_BXOR);
    expect(into, each, MPI_INT);
    break;
  case 12:
    EITHER(Scan, Iscan, sent, into, each, MPI_INT, MPI_BXOR);
    expect(into, each, MPI_INT);
    break;
  case 13:
    EITHER(Reduce_scatter_block, Ireduce_scatter_block, sent, into, each, MPI_INT, MPI_BXOR);
    expect(into, each, MPI_INT);
    break;
  default:
    EITHER(Reduce_scatter, Ireduce_scatter, sent, into, counts, MPI_INT, MPI_BXOR);
    expect(into, each, MPI_INT);
  }
}

static void neighbours(void) {
  int each = 1 + below(100), dims[] = {count}, periods[] = {1};
  MPI_Comm ring;
  MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &ring);
  int *into = (int *)place(2 * (size_t)each * sizeof(int));
  shuffle(out, 2 * (size_t)each * sizeof(int));
  if (below(2))
    MPI_Neighbor_allgather(out, each, MPI_INT, into, each, MPI_INT, ring);
  else
    MPI_Neighbor_alltoall(out, each, MPI_INT, into, each, MPI_INT, ring);
  expect(into, 2 * each, MPI_INT);
  MPI_Comm_free(&ring);
}

// A window, of which all counts as long as it is there, and reads from that of another rank.
static void window(void) {
  MPI_Datatype type = make_type(below(2));
  int elements = 1 + below(3), to = (rank + 1) % count;
  way = below(3);
  size_t bytes = span(type, elements);
  unsigned char *own = place(bytes), *into = place(bytes);
  uint32_t *fetched = (uint32_t *)place(sizeof *fetched);
  uint32_t add = 5;
  MPI_Request request;
  MPI_Win win;
  shuffle(out, bytes);
  MPI_Win_create(own, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
  MPI_Win_fence(0, win);
  MPI_Put(out, elements, type, to, 0, elements, type, win);
  MPI_Win_fence(0, win);
  if (way == 0) {
    MPI_Get(into, elements, type, to, 0, elements, type, win);
    MPI_Win_fence(0, win);
  } else {
    MPI_Win_lock(MPI_LOCK_SHARED, to, 0, win);
    if (way == 1)
      MPI_Get(into, elements, type, to, 0, elements, type, win);
    else {
      MPI_Rget(into, elements, type, to, 0, elements, type, win, &request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Win_unlock(to, win);
  }
  // What was read is there from now on, and not only when the window is freed.
  expect(into, elements, type);
  outcrop_mpi_take(watch, note, NULL);
  for (size_t nth = (size_t)(into - arena); nth < (size_t)(into - arena) + bytes; nth++)
    DEMAND(!expected[nth] == !reported[nth]);
  MPI_Barrier(MPI_COMM_WORLD);
  if (bytes >= sizeof add) {
    MPI_Win_lock(MPI_LOCK_SHARED, to, 0, win);
    MPI_Fetch_and_op(&add, fetched, MPI_UINT32_T, to, 0, MPI_SUM, win);
    MPI_Win_unlock(to, win);
    expect(fetched, 1, MPI_UINT32_T);
  }
  MPI_Win_free(&win);
  expect(own, (int)bytes, MPI_BYTE);
  MPI_Type_free(&type);
}

static void file(void) {
  MPI_Datatype type = make_type(below(2));
  int elements = 1 + below(4), size;
  unsigned char *into = place(span(type, elements));
  char name[4096];
  MPI_File opened;
  MPI_Request request;
  MPI_Type_size(type, &size);
  int bytes = elements * size, there = below(bytes + 1);
  snprintf(name, sizeof name, "%s/file-%d", directory, rank);
  shuffle(out, (size_t)bytes);
  MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &opened);
  MPI_File_set_size(opened, 0);
  // Not all that is asked for is there, sometimes.
  there -= there % size;
  MPI_File_write_at(opened, 0, out, there, MPI_BYTE, MPI_STATUS_IGNORE);
  switch (way = below(4)) {
  case 0:
    MPI_File_read_at(opened, 0, into, elements, type, MPI_STATUS_IGNORE);
    break;
  case 1:
    MPI_File_seek(opened, 0, MPI_SEEK_SET);
    MPI_File_read_all(opened, into, elements, type, MPI_STATUS_IGNORE);
    break;
  case 2:
    there = bytes;
    MPI_File_write_at(opened, 0, out, bytes, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_iread_at(opened, 0, into, elements, type, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    break;
  default:
    there = bytes;
    MPI_File_write_at(opened, 0, out, bytes, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_read_at_all_begin(opened, 0, into, elements, type);
    MPI_File_read_at_all_end(opened, into, MPI_STATUS_IGNORE);
  }
  expect(into, there / size, type);
  // Some MPIs say that they have read all, when a file ends before.
  write_into(allowed, into, elements, type);
  MPI_File_close(&opened);
  MPI_Type_free(&type);
}

int main(int argc, char **argv) {
  DEMAND(argc == 4);
  alarm(200);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  directory = argv[1];
  shared_state = strtoull(argv[2], NULL, 10) * 2 + 1;
  own_state = shared_state * 77 + (uint64_t)rank * 1000003 + 5;
  watch = outcrop_mpi_watch((uintptr_t)arena, (uintptr_t)arena + ARENA);
  void (*kinds[])(void) = {message, message, again, collective, collective, neighbours, window, file};
  for (int round = 0, rounds = atoi(argv[3]); round < rounds; round++) {
    cursor = 0;
    memcpy(before, arena, ARENA);
    memset(expected, 0, ARENA);
    memset(allowed, 0, ARENA);
    memset(reported, 0, ARENA);
    int last = 0;
    for (int nth = 0, all = 1 + below(6); nth < all; nth++) {
      last = below(8);
      kinds[last]();
    }
    outcrop_mpi_take(watch, note, NULL);
    for (size_t nth = 0; nth < ARENA; nth++)
      if ((!reported[nth] && (before[nth] != arena[nth] || expected[nth])) || (reported[nth] && !allowed[nth])) {
        fprintf(stderr, "round %d, kind %d, way %d: byte %zu was%s written, and%s reported\n", round, last, way, nth,
                expected[nth] ? "" : " not", reported[nth] ? "" : " not");
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
  }
  outcrop_mpi_unwatch(watch);
  MPI_Finalize();
  return 0;
}
