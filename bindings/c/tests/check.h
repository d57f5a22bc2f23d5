// What the test programs have in common: a demand that is not met ends the program, and says where.
#ifndef CHECK_H
#define CHECK_H

#include <outcrop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEMAND(condition)                                                              \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition);        \
      exit(EXIT_FAILURE);                                                              \
    }                                                                                  \
  } while (0)

// The call must succeed.
#define FINE(call)                                                                     \
  do {                                                                                 \
    const outcrop_status status_ = (call);                                             \
    if (status_ != OUTCROP_OK) {                                                       \
      fprintf(stderr, "%s:%d: %s gave %d: %s\n", __FILE__, __LINE__, #call, (int)status_, outcrop_error()); \
      exit(EXIT_FAILURE);                                                              \
    }                                                                                  \
  } while (0)

// The call must fail with this status, and its message must have these words.
#define REFUSED(status, words, call)                                                   \
  do {                                                                                 \
    const outcrop_status status_ = (call);                                             \
    if (status_ != (status) || strstr(outcrop_error(), (words)) == NULL) {             \
      fprintf(stderr, "%s:%d: %s gave %d: %s\n", __FILE__, __LINE__, #call, (int)status_, outcrop_error()); \
      exit(EXIT_FAILURE);                                                              \
    }                                                                                  \
  } while (0)

#endif
