/* What `outcrop annotate` makes of #pragma nvcp: docs/annotate.md. Programs do not include it themselves.
 *
 * A call that fails ends the program with the message and the status: it would go on without what its directives promise.
 */

#ifndef OUTCROP_NVCP_H
#define OUTCROP_NVCP_H

#include <outcrop.h>

#include <stdio.h>
#include <stdlib.h>

/* What `init` says, and what is open since. */
typedef struct {
  outcrop_head *head;
  const char *pool;
  uint64_t versions;
  size_t block_bytes;
  double mtbf_s;
} nvcp_state;

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

/* The pool, which OUTCROP_POOL can name. */
static inline outcrop_head *nvcp_open(const char *file, int line) {
  if (nvcp_head.head == NULL) {
    const char *named = getenv("OUTCROP_POOL");
    nvcp_check(outcrop_head_open(named != NULL && *named != 0 ? named : nvcp_head.pool, nvcp_head.versions,
                                 nvcp_head.block_bytes, nvcp_head.mtbf_s, &nvcp_head.head),
               file, line);
    atexit(nvcp_close);
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
  nvcp_check(outcrop_head_persist(nvcp_open(file, line), NULL), file, line);
}

static inline void nvcp_potentially_persist(const char *file, int line) {
  nvcp_check(outcrop_head_persist_if_worth_it(nvcp_open(file, line), NULL), file, line);
}

static inline void nvcp_restore(const char *file, int line) {
  nvcp_check(outcrop_head_restore(nvcp_open(file, line), NULL), file, line);
}

#endif /* OUTCROP_NVCP_H */
