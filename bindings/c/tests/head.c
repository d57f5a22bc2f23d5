// Heads, without the translator: arrays and lists of the program's own memory, and what is refused.
//
//   head DIRECTORY

#include "check.h"

#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

typedef struct Node {
  int value;
  struct Node *next;
} Node;

static const outcrop_field node_fields[] = {
    {"value", OUTCROP_NUMBERS, offsetof(Node, value), 1, sizeof(int), -1, 0, 0, 0, 0, 0},
    {"next", OUTCROP_POINTERS, offsetof(Node, next), 1, 0, 0, 1, 0, 0, 0, 0},
};
static const outcrop_field list_fields[] = {{"first", OUTCROP_POINTERS, 0, 1, 0, 0, 1, 0, 0, 0, 0}};
static const outcrop_type types[] = {
    {"Node", sizeof(Node), node_fields, 2},
    {"Node *", sizeof(Node *), list_fields, 1},
};

static Node *push(Node *next, int value) {
  Node *node = calloc(1, sizeof *node);
  DEMAND(node != NULL);
  *node = (Node){value, next};
  return node;
}

static int drop(Node *list) {
  int length = 0;
  for (; list != NULL; length++) {
    Node *next = list->next;
    free(list);
    list = next;
  }
  return length;
}

static void comes_back(const char *path) {
  outcrop_head *head;
  Node *list = NULL;
  double values[1000] = {0};
  uint64_t version = 7;
  FINE(outcrop_head_open(path, 3, 4096, 0, &head));
  FINE(outcrop_head_array(head, "values", OUTCROP_F64, values, 1000));
  FINE(outcrop_head_linked(head, "list", types, 2, 1, &list, 1));
  FINE(outcrop_head_restore(head, &version));
  DEMAND(version == 0 && list == NULL);
  for (int value = 0; value < 5000; value++) list = push(list, value);
  values[999] = 3;
  FINE(outcrop_head_persist(head, &version));
  DEMAND(version == 1);
  // A list without its first half, and another one in the same memory.
  Node *middle = list;
  for (int nth = 0; nth < 2499; nth++) middle = middle->next;
  Node *rest = middle->next;
  middle->next = NULL;
  DEMAND(drop(list) == 2500);
  list = push(rest, -1);
  values[0] = 4;
  FINE(outcrop_head_persist(head, NULL));
  DEMAND(drop(list) == 2501);
  list = NULL;
  values[0] = values[999] = 0;
  FINE(outcrop_head_restore(head, &version));
  DEMAND(version == 2 && values[0] == 4 && values[999] == 3 && list->value == -1 && list->next->value == 2499);
  FINE(outcrop_head_persist_if_worth_it(head, &version));
  DEMAND(version == 0 || version == 3);
  DEMAND(drop(list) == 2501);
  FINE(outcrop_head_close(head));
}

static void refused(const char *path) {
  outcrop_head *head, *second;
  Node *list = NULL;
  double values[10] = {0};
  FINE(outcrop_head_open(path, 2, 0, 3600, &head));
  REFUSED(OUTCROP_BUSY, "open already", outcrop_head_open(path, 2, 0, 0, &second));
  DEMAND(second == NULL);
  REFUSED(OUTCROP_USAGE, "1 to 31 versions", outcrop_head_open("other.pool", 0, 0, 0, &second));
  REFUSED(OUTCROP_USAGE, "between failures", outcrop_head_open("other.pool", 2, 0, -1, &second));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_head_open(NULL, 2, 0, 0, &second));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_head_array(head, NULL, OUTCROP_F64, values, 10));
  REFUSED(OUTCROP_USAGE, "no outcrop_element", outcrop_head_array(head, "a", 99, values, 10));
  REFUSED(OUTCROP_USAGE, "and not text", outcrop_head_array(head, "a", OUTCROP_TEXT, values, 10));
  REFUSED(OUTCROP_USAGE, "too large", outcrop_head_array(head, "a", OUTCROP_F64, values, SIZE_MAX / 4));
  FINE(outcrop_head_array(head, "values", OUTCROP_F64, values, 10));
  REFUSED(OUTCROP_USAGE, "its length must stay", outcrop_head_array(head, "values", OUTCROP_F64, values, 9));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_head_array(head, "values", OUTCROP_F64, NULL, 10));
  REFUSED(OUTCROP_USAGE, "no types", outcrop_head_linked(head, "list", NULL, 2, 1, &list, 1));
  REFUSED(OUTCROP_USAGE, "no type 2", outcrop_head_linked(head, "list", types, 2, 2, &list, 1));
  REFUSED(OUTCROP_USAGE, "cannot be 0", outcrop_head_linked(head, "list", types, 2, 1, &list, 0));
  REFUSED(OUTCROP_USAGE, "NULL", outcrop_head_linked(head, "list", types, 2, 1, NULL, 1));
  outcrop_field wrong[2] = {node_fields[0], node_fields[1]};
  const outcrop_type wrong_types[] = {{"Node", sizeof(Node), wrong, 2}};
  const struct {
    size_t offset;
    ptrdiff_t type_index;
    size_t length, length_bytes;
    int member;
    const char *words;
  } cases[] = {
      {12, 0, 1, 0, OUTCROP_POINTERS, "does not fit"},  {SIZE_MAX - 3, 0, 1, 0, OUTCROP_POINTERS, "does not fit"},
      {8, 5, 1, 0, OUTCROP_POINTERS, "not there"},      {8, 0, 1, 3, OUTCROP_POINTERS, "no integer"},
      {8, 0, SIZE_MAX, 4, OUTCROP_POINTERS, "no integer"}, {8, -1, 1, 0, OUTCROP_POINTERS, "leads to nothing"},
      {8, -1, 1, 0, OUTCROP_LINKS, "leads to nothing"}, {0, 0, 1, 0, OUTCROP_STRUCTS, "contains itself"},
      {8, -1, 1, 0, OUTCROP_STRUCTS, "has no type"},    {8, 0, 1, 0, 77, "outcrop_member"},
  };
  for (size_t nth = 0; nth < sizeof cases / sizeof *cases; nth++) {
    wrong[1] = (outcrop_field){"next", cases[nth].member, cases[nth].offset, 1, 0, cases[nth].type_index,
                               cases[nth].length, cases[nth].length_bytes, 0, 0, 0};
    REFUSED(OUTCROP_USAGE, cases[nth].words, outcrop_head_linked(head, "list", wrong_types, 1, 0, &list, 1));
  }
  FINE(outcrop_head_close(head));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_head_persist(head, NULL));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_head_restore(head, NULL));
  REFUSED(OUTCROP_USAGE, "not open", outcrop_head_close(head));
}

int main(int argc, char **argv) {
  DEMAND(argc == 2 && chdir(argv[1]) == 0);
  comes_back("a.pool");
  DEMAND(unlink("a.pool") == 0);
  refused("a.pool");
  puts("heads kept what they should");
  return 0;
}
