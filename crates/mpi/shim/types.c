// Where the bytes of a datatype are. They are found once for each datatype, from how it was made, and forgotten with it.

#define _GNU_SOURCE
#include "layer.h"

#include <stdlib.h>

enum { CACHE = 256, PIECES_MAX = 1 << 16, DEPTH_MAX = 64 };

struct piece {
  ptrdiff_t at;
  size_t bytes;
};

struct outcrop_shape {
  int users;
  long long size;
  ptrdiff_t extent;
  // Whether the pieces are more than what is received: they are noted whole.
  int is_coarse;
  // Whether it is one of MPI's own.
  int is_named;
  size_t count, room;
  struct piece *pieces;
};

struct known {
  MPI_Datatype type;
  struct outcrop_shape *shape;
};

static struct known cache[CACHE];

static struct known *place(MPI_Datatype type) {
  uintptr_t bits = 0;
  __builtin_memcpy(&bits, &type, sizeof type < sizeof bits ? sizeof type : sizeof bits);
  return &cache[(bits ^ bits >> 4 ^ bits >> 12) % CACHE];
}

static void append(struct outcrop_shape *shape, ptrdiff_t at, size_t bytes) {
  struct piece *last = shape->count ? &shape->pieces[shape->count - 1] : NULL;
  if (!bytes || shape->is_coarse)
    return;
  if (last && last->at + (ptrdiff_t)last->bytes == at) {
    last->bytes += bytes;
    return;
  }
  if (shape->count == shape->room) {
    size_t room = shape->room ? 2 * shape->room : 4;
    struct piece *pieces = room > PIECES_MAX ? NULL : realloc(shape->pieces, room * sizeof *pieces);
    if (!pieces) {
      shape->is_coarse = 1;
      return;
    }
    shape->pieces = pieces;
    shape->room = room;
  }
  shape->pieces[shape->count++] = (struct piece){at, bytes};
}

#if MPI_VERSION >= 4
typedef MPI_Count number;
#define EXTENT PMPI_Type_get_extent_c
#define TRUE_EXTENT PMPI_Type_get_true_extent_c
#define SIZE PMPI_Type_size_c
#define ENVELOPE(type, ints, addresses, counts, types, combiner) PMPI_Type_get_envelope_c(type, ints, addresses, counts, types, combiner)
#define CONTENTS(type, n, ints, addresses, counts, types) \
  PMPI_Type_get_contents_c(type, (n)[0], (n)[1], (n)[2], (n)[3], ints, addresses, counts, types)
#else
typedef int number;
#define EXTENT PMPI_Type_get_extent_x
#define TRUE_EXTENT PMPI_Type_get_true_extent_x
#define SIZE PMPI_Type_size_x
#define ENVELOPE(type, ints, addresses, counts, types, combiner) \
  (*(counts) = 0, PMPI_Type_get_envelope(type, ints, addresses, types, combiner))
#define CONTENTS(type, n, ints, addresses, counts, types) \
  ((void)(counts), PMPI_Type_get_contents(type, (n)[0], (n)[1], (n)[3], ints, addresses, types))
#endif

// `count` elements one after the other.
static void repeat(struct outcrop_shape *shape, const struct outcrop_shape *element, ptrdiff_t at, long long count) {
  shape->is_coarse |= element->is_coarse;
  if (element->count == 1 && (ptrdiff_t)element->pieces[0].bytes == element->extent && count > 0) {
    append(shape, at + element->pieces[0].at, (size_t)(count * element->extent));
    return;
  }
  for (long long nth = 0; nth < count && !shape->is_coarse; nth++)
    for (size_t which = 0; which < element->count; which++)
      append(shape, at + (ptrdiff_t)nth * element->extent + element->pieces[which].at, element->pieces[which].bytes);
}

static void subarray(struct outcrop_shape *shape, const struct outcrop_shape *element, const long long *v, int dims, int is_c) {
  const long long *sizes = v, *subsizes = v + dims, *starts = v + 2 * dims;
  long long index[64] = {0}, rows = 1;
  int fast = is_c ? dims - 1 : 0;
  for (int dim = 0; dim < dims; dim++)
    rows *= dim == fast ? 1 : subsizes[dim];
  for (long long row = 0; row < rows && !shape->is_coarse; row++) {
    long long offset = 0;
    for (int nth = 0; nth < dims; nth++) {
      int dim = is_c ? nth : dims - 1 - nth;
      offset = offset * sizes[dim] + starts[dim] + index[dim];
    }
    repeat(shape, element, (ptrdiff_t)offset * element->extent, subsizes[fast]);
    // The next row: the dimension next to the fastest counts first.
    for (int nth = 1; nth < dims; nth++) {
      int dim = is_c ? dims - 1 - nth : nth;
      if (++index[dim] < subsizes[dim])
        break;
      index[dim] = 0;
    }
  }
}

// A datatype that was made of elements: `v` has all numbers, in the order of the arguments.
static void compose(struct outcrop_shape *shape, int combiner, const long long *v, struct outcrop_shape *const *elements, long long order) {
  const struct outcrop_shape *element = elements[0];
  ptrdiff_t extent = element->extent;
  switch (combiner) {
  case MPI_COMBINER_DUP:
  case MPI_COMBINER_RESIZED:
    repeat(shape, element, 0, 1);
    break;
  case MPI_COMBINER_CONTIGUOUS:
    repeat(shape, element, 0, v[0]);
    break;
  case MPI_COMBINER_VECTOR:
  case MPI_COMBINER_HVECTOR:
    for (long long nth = 0; nth < v[0] && !shape->is_coarse; nth++)
      repeat(shape, element, (ptrdiff_t)(nth * v[2]) * (combiner == MPI_COMBINER_VECTOR ? extent : 1), v[1]);
    break;
  case MPI_COMBINER_INDEXED:
  case MPI_COMBINER_HINDEXED:
    for (long long nth = 0; nth < v[0] && !shape->is_coarse; nth++)
      repeat(shape, element, (ptrdiff_t)v[1 + v[0] + nth] * (combiner == MPI_COMBINER_INDEXED ? extent : 1), v[1 + nth]);
    break;
  case MPI_COMBINER_INDEXED_BLOCK:
  case MPI_COMBINER_HINDEXED_BLOCK:
    for (long long nth = 0; nth < v[0] && !shape->is_coarse; nth++)
      repeat(shape, element, (ptrdiff_t)v[2 + nth] * (combiner == MPI_COMBINER_INDEXED_BLOCK ? extent : 1), v[1]);
    break;
  case MPI_COMBINER_STRUCT:
    for (long long nth = 0; nth < v[0] && !shape->is_coarse; nth++)
      repeat(shape, elements[nth], (ptrdiff_t)v[1 + v[0] + nth], v[1 + nth]);
    break;
  case MPI_COMBINER_SUBARRAY:
    if (v[0] > 0 && v[0] <= 64) {
      subarray(shape, element, v + 1, (int)v[0], order == MPI_ORDER_C);
      break;
    }
    // fall through
  default: // distributed arrays, and what a later standard adds
    shape->is_coarse = 1;
  }
}

static struct outcrop_shape *make(MPI_Datatype type, int depth);

static void end(struct outcrop_shape *shape) {
  if (shape)
    free(shape->pieces);
  free(shape);
}

static void *zeroed(size_t count, size_t bytes) {
  void *memory = calloc(count + 1, bytes);
  if (!memory)
    abort();
  return memory;
}

// Takes a datatype apart: `n` is how many numbers and datatypes there are.
static void take_apart(struct outcrop_shape *shape, MPI_Datatype type, const number *n, int combiner, int depth) {
  size_t ints = (size_t)n[0], addresses = (size_t)n[1], counts = (size_t)n[2], types = (size_t)n[3], nth = 0;
  int *int_values = zeroed(ints, sizeof *int_values);
  MPI_Aint *address_values = zeroed(addresses, sizeof *address_values);
  MPI_Count *count_values = zeroed(counts, sizeof *count_values);
  MPI_Datatype *type_values = zeroed(types, sizeof *type_values);
  struct outcrop_shape **elements = zeroed(types, sizeof *elements);
  long long *v = zeroed(ints + addresses + counts, sizeof *v);
  if (CONTENTS(type, n, int_values, address_values, count_values, type_values) == MPI_SUCCESS) {
    // With large counts, the order of a subarray comes before the numbers.
    long long order = ints ? int_values[ints - 1] : 0;
    for (size_t which = 0; which + (combiner == MPI_COMBINER_SUBARRAY) < ints; which++)
      v[nth++] = int_values[which];
    for (size_t which = 0; which < addresses; which++)
      v[nth++] = address_values[which];
    for (size_t which = 0; which < counts; which++)
      v[nth++] = count_values[which];
    for (size_t which = 0; which < types; which++)
      elements[which] = make(type_values[which], depth + 1);
    compose(shape, combiner, v, elements, order);
    for (size_t which = 0; which < types; which++) {
      // What was given here is ours to free, unless it is one of MPI's own.
      if (!elements[which]->is_named)
        ((int (*)(MPI_Datatype *))outcrop_next("PMPI_Type_free"))(&type_values[which]);
      end(elements[which]);
    }
  } else
    shape->is_coarse = 1;
  free(int_values);
  free(address_values);
  free(count_values);
  free(type_values);
  free(elements);
  free(v);
}

static struct outcrop_shape *make(MPI_Datatype type, int depth) {
  struct outcrop_shape *shape = zeroed(1, sizeof *shape);
  MPI_Count lower = 0, extent = 0, true_lower = 0, true_extent = 0, size = 0;
  number n[4] = {0};
  int combiner = MPI_COMBINER_NAMED;
  EXTENT(type, &lower, &extent);
  TRUE_EXTENT(type, &true_lower, &true_extent);
  SIZE(type, &size);
  shape->size = size;
  shape->extent = (ptrdiff_t)extent;
  shape->is_coarse = depth > DEPTH_MAX || ENVELOPE(type, &n[0], &n[1], &n[2], &n[3], &combiner) != MPI_SUCCESS;
  shape->is_named = n[3] == 0;
  if (!shape->is_coarse && n[3])
    take_apart(shape, type, n, combiner, depth);
  else if (size == true_extent)
    append(shape, (ptrdiff_t)true_lower, (size_t)size);
  else
    // Pairs such as MPI_SHORT_INT have a gap.
    shape->is_coarse = 1;
  if (shape->is_coarse) {
    shape->is_coarse = 0;
    shape->count = 0;
    append(shape, (ptrdiff_t)true_lower, (size_t)true_extent);
    shape->is_coarse = 1;
  }
  return shape;
}

struct outcrop_shape *outcrop_shape_of(MPI_Datatype type) {
  struct known *known = place(type);
  outcrop_enter();
  struct outcrop_shape *shape = known->shape && known->type == type ? known->shape : NULL;
  if (shape)
    shape->users++;
  outcrop_leave();
  if (shape)
    return shape;
  shape = make(type, 0);
  shape->users = 2;
  outcrop_enter();
  struct outcrop_shape *former = known->shape;
  *known = (struct known){type, shape};
  outcrop_leave();
  outcrop_shape_release(former);
  return shape;
}

void outcrop_shape_release(struct outcrop_shape *shape) {
  outcrop_enter();
  int is_last = shape && --shape->users == 0;
  outcrop_leave();
  if (is_last)
    end(shape);
}

void outcrop_shape_note(const struct outcrop_shape *shape, uintptr_t at, long long count, long long bytes) {
  if (bytes >= 0 && shape->size > 0 && !shape->is_coarse) {
    long long whole = bytes / shape->size;
    if (whole < count) {
      // A part of an element was received: its first bytes, in their order.
      long long rest = bytes - whole * shape->size;
      uintptr_t last = at + (uintptr_t)(whole * shape->extent);
      for (size_t nth = 0; nth < shape->count && rest > 0; nth++) {
        size_t here = shape->pieces[nth].bytes < (size_t)rest ? shape->pieces[nth].bytes : (size_t)rest;
        outcrop_note(last + (uintptr_t)shape->pieces[nth].at, here);
        rest -= (long long)here;
      }
      count = whole;
    }
  } else if (bytes == 0)
    return;
  if (shape->count == 1 && (ptrdiff_t)shape->pieces[0].bytes == shape->extent && count > 0) {
    outcrop_note(at + (uintptr_t)shape->pieces[0].at, (size_t)(count * shape->extent));
    return;
  }
  for (long long element = 0; element < count; element++)
    for (size_t nth = 0; nth < shape->count; nth++)
      outcrop_note(at + (uintptr_t)(element * shape->extent + shape->pieces[nth].at), shape->pieces[nth].bytes);
}

void outcrop_shape_span(const struct outcrop_shape *shape, uintptr_t at, long long count, uintptr_t *begin, size_t *bytes) {
  ptrdiff_t first = PTRDIFF_MAX, last = PTRDIFF_MIN;
  for (size_t nth = 0; nth < shape->count; nth++) {
    const struct piece *piece = &shape->pieces[nth];
    ptrdiff_t ends[] = {piece->at, piece->at + (ptrdiff_t)(count - 1) * shape->extent};
    for (int end = 0; end < 2; end++) {
      first = ends[end] < first ? ends[end] : first;
      last = ends[end] + (ptrdiff_t)piece->bytes > last ? ends[end] + (ptrdiff_t)piece->bytes : last;
    }
  }
  *begin = first < last ? at + (uintptr_t)first : at;
  *bytes = first < last ? (size_t)(last - first) : 0;
}

// The handle may soon be that of another datatype.
OUTCROP_EXPORT int MPI_Type_free(MPI_Datatype *type) {
  struct outcrop_shape *shape = NULL;
  struct known *known = place(*type);
  outcrop_forget_memos();
  outcrop_enter();
  if (known->shape && known->type == *type) {
    shape = known->shape;
    known->shape = NULL;
  }
  outcrop_leave();
  outcrop_shape_release(shape);
  return ((int (*)(MPI_Datatype *))outcrop_next("PMPI_Type_free"))(type);
}
OUTCROP_EXPORT int PMPI_Type_free(MPI_Datatype *type) __attribute__((alias("MPI_Type_free")));
