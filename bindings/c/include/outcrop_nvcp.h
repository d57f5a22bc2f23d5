/* What `outcrop annotate` makes of #pragma nvcp: docs/annotate.md. Programs do not include it themselves.
 *
 * A call that fails ends the program with the message and the status: it would go on without what its directives promise.
 */

#ifndef OUTCROP_NVCP_H
#define OUTCROP_NVCP_H

#include <outcrop.h>

#include <stdio.h>
#include <stdlib.h>

/* The processes of an MPI program: which one this is, how many there are, and the least of a number that each has. */
typedef struct {
  int (*rank)(void);
  int (*count)(void);
  uint64_t (*least)(uint64_t number);
} nvcp_ranks;

/* What `init` says, and what is open since. `ranks` is NULL in a program of one process. `made` has the number of the version that all
 * ranks have made, and how many ranks there are: numbers of versions differ between pools, once some rank has made one in vain. */
typedef struct {
  outcrop_head *head;
  const char *pool;
  uint64_t versions;
  size_t block_bytes;
  double mtbf_s;
  const nvcp_ranks *ranks;
  uint64_t made[2];
} nvcp_state;

/* Defines what `ranks` says. The program includes <mpi.h> itself. */
#define NVCP_RANKS(communicator)                                                                   \
  static int nvcp_rank(void) {                                                                     \
    int rank;                                                                                      \
    MPI_Comm_rank(communicator, &rank);                                                            \
    return rank;                                                                                   \
  }                                                                                                \
  static int nvcp_count(void) {                                                                    \
    int count;                                                                                     \
    MPI_Comm_size(communicator, &count);                                                           \
    return count;                                                                                  \
  }                                                                                                \
  static uint64_t nvcp_least(uint64_t number) {                                                    \
    uint64_t least;                                                                                \
    MPI_Allreduce(&number, &least, 1, MPI_UINT64_T, MPI_MIN, communicator);                        \
    return least;                                                                                  \
  }                                                                                                \
  static const nvcp_ranks nvcp_ranks_here = {nvcp_rank, nvcp_count, nvcp_least};

/* The one of the program: `init` defines it. */
extern nvcp_state nvcp_head;

/* The outcrop_element of a number, and -1 for everything else. */
#define NVCP_NUMBER(x)                                                                             \
  _Generic((x),                                                                                    \
      char: OUTCROP_U8,                                                                            \
      signed char: OUTCROP_I8,                                                                     \
      unsigned char: OUTCROP_U8,                                                                   \
      _Bool: OUTCROP_U8,                                                                           \
      short: OUTCROP_I16,                                                                          \
      unsigned short: OUTCROP_U16,                                                                 \
      int: OUTCROP_I32,                                                                            \
      unsigned int: OUTCROP_U32,                                                                   \
      long: sizeof(long) == 8 ? OUTCROP_I64 : OUTCROP_I32,                                         \
      unsigned long: sizeof(long) == 8 ? OUTCROP_U64 : OUTCROP_U32,                                \
      long long: OUTCROP_I64,                                                                      \
      unsigned long long: OUTCROP_U64,                                                             \
      float: OUTCROP_F32,                                                                          \
      double: OUTCROP_F64,                                                                         \
      float _Complex: OUTCROP_C64,                                                                 \
      double _Complex: OUTCROP_C128,                                                               \
      default: -1)

/* Keeps `count` elements from `data` on. */
#define NVCP_ADD(name, data, element, count)                                                       \
  do {                                                                                             \
    _Static_assert(NVCP_TYPE(element) >= 0 || NVCP_NUMBER(element) >= 0,                           \
                   "add_head(" name "): these are neither numbers nor annotated structs; for a "   \
                   "pointer, say how many elements it leads to: " name "[COUNT]");                 \
    nvcp_add(name, (void *)(data), NVCP_TYPE(element), NVCP_NUMBER(element), (size_t)(count),      \
             NVCP_TYPES, __FILE__, __LINE__);                                                      \
  } while (0)

/* What is about to change: elements of an array, those of nodes with many edges, and structs by a function. */
#define NVCP_HINT_ELEMENTS(name, first, count)                                                     \
  nvcp_check(outcrop_head_hint_elements(nvcp_open(__FILE__, __LINE__), name, (size_t)(first), (size_t)(count)), __FILE__, __LINE__)
#define NVCP_HINT_DEGREE(name, offsets, degree)                                                    \
  nvcp_check(outcrop_head_hint_degree(nvcp_open(__FILE__, __LINE__), name, offsets, (uint64_t)(degree)), __FILE__, __LINE__)
#define NVCP_HINT_STRUCTS(type, changes)                                                           \
  nvcp_check(outcrop_head_hint_structs(nvcp_open(__FILE__, __LINE__), NVCP_TYPES, type, changes), __FILE__, __LINE__)

#define NVCP_PERSIST() nvcp_persist(__FILE__, __LINE__)
#define NVCP_POTENTIALLY_PERSIST() nvcp_potentially_persist(__FILE__, __LINE__)
#define NVCP_RESTORE() nvcp_restore(__FILE__, __LINE__)

static inline void nvcp_check(outcrop_status status, const char *file, int line) {
  if (status != OUTCROP_OK) {
    fprintf(stderr, "%s:%d: outcrop: %s\n", file, line, outcrop_error());
    exit((int)status);
  }
}

static inline void nvcp_close(void) { outcrop_head_close(nvcp_head.head); }

/* The newest version of this rank that is whole and was made as number `most` or before, and which that is; 0 if there is none. */
static inline uint64_t nvcp_made(outcrop_head *head, uint64_t most, uint64_t *version, const char *file, int line) {
  uint64_t versions[32], made[2];
  size_t count;
  nvcp_check(outcrop_head_versions(head, versions, 32, &count), file, line);
  while (count-- > 0) {
    const outcrop_status status = outcrop_head_read(head, versions[count], "nvcp ranks", made, sizeof made);
    if (status == OUTCROP_DAMAGED) continue;
    nvcp_check(status, file, line);
    if (made[1] != nvcp_head.made[1]) {
      fprintf(stderr, "%s:%d: outcrop: the pool was made by %llu ranks, not %llu; use as many, or remove the pools to begin anew\n", file,
              line, (unsigned long long)made[1], (unsigned long long)nvcp_head.made[1]);
      exit(OUTCROP_USAGE);
    }
    if (made[0] <= most) {
      *version = versions[count];
      return made[0];
    }
  }
  return 0;
}

/* The pool, which OUTCROP_POOL can name. Each rank has its own, and keeps one version more: see nvcp_restore. */
static inline outcrop_head *nvcp_open(const char *file, int line) {
  if (nvcp_head.head == NULL) {
    const nvcp_ranks *ranks = nvcp_head.ranks;
    const char *named = getenv("OUTCROP_POOL");
    if (named == NULL || *named == 0) named = nvcp_head.pool;
    char of_rank[4096];
    if (ranks != NULL && snprintf(of_rank, sizeof of_rank, "%s.%d", named, ranks->rank()) < (int)sizeof of_rank) named = of_rank;
    nvcp_check(outcrop_head_open(named, nvcp_head.versions + (ranks != NULL), nvcp_head.block_bytes, nvcp_head.mtbf_s,
                                 &nvcp_head.head),
               file, line);
    atexit(nvcp_close);
    if (ranks != NULL) {
      uint64_t version;
      nvcp_head.made[1] = (uint64_t)ranks->count();
      nvcp_made(nvcp_head.head, UINT64_MAX, &version, file, line);
      nvcp_check(outcrop_head_array(nvcp_head.head, "nvcp ranks", OUTCROP_U64, nvcp_head.made, 2), file, line);
    }
  }
  return nvcp_head.head;
}

static inline void nvcp_add(const char *name, void *data, int type, int element, size_t count,
                            const outcrop_type *types, size_t type_count, const char *file, int line) {
  outcrop_head *head = nvcp_open(file, line);
  nvcp_check(type >= 0 ? outcrop_head_linked(head, name, types, type_count, (size_t)type, data, count)
                       : outcrop_head_array(head, name, element, data, count),
             file, line);
}

static inline void nvcp_persist(const char *file, int line) {
  outcrop_head *head = nvcp_open(file, line);
  /* No rank makes a version before all have the one before: it would drop one that others still need. */
  if (nvcp_head.ranks != NULL) nvcp_head.made[0] = nvcp_head.ranks->least(nvcp_head.made[0]) + 1;
  nvcp_check(outcrop_head_persist(head, NULL), file, line);
}

static inline void nvcp_potentially_persist(const char *file, int line) {
  outcrop_head *head = nvcp_open(file, line);
  if (nvcp_head.ranks == NULL) {
    nvcp_check(outcrop_head_persist_if_worth_it(head, NULL), file, line);
    return;
  }
  /* The first rank decides for all. */
  uint64_t is_worth_it = 1;
  if (nvcp_head.ranks->rank() == 0) nvcp_check(outcrop_head_is_worth_it(head, &is_worth_it), file, line);
  if (nvcp_head.ranks->least(is_worth_it)) nvcp_persist(file, line);
}

/* All ranks restore the newest version that all of them have. What some rank has made since was in vain, and its number is not used
 * again. So that no rank drops what another one still needs, all make this version anew, and pools keep one version more. */
static inline void nvcp_restore(const char *file, int line) {
  outcrop_head *head = nvcp_open(file, line);
  const nvcp_ranks *ranks = nvcp_head.ranks;
  if (ranks == NULL) {
    nvcp_check(outcrop_head_restore(head, NULL), file, line);
    return;
  }
  uint64_t version = 0, made = nvcp_made(head, UINT64_MAX, &version, file, line);
  const uint64_t most = UINT64_MAX - ranks->least(UINT64_MAX - made);
  uint64_t least = ranks->least(made);
  while (least != UINT64_MAX - ranks->least(UINT64_MAX - made)) {
    made = nvcp_made(head, least, &version, file, line);
    least = ranks->least(made);
  }
  if (made != 0) nvcp_check(outcrop_head_restore_version(head, version), file, line);
  nvcp_head.made[0] = most;
  if (made != 0 && made != most) nvcp_persist(file, line);
}

#endif /* OUTCROP_NVCP_H */
