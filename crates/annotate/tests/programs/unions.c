// Unions with a tag, built, changed and restored by runs that follow each other.
//
//   unions make | check | change

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef NDEBUG

typedef struct Item Item;

enum Kind { EMPTY, NUMBER, TEXT, CHILD, VALUES, PAIR, LOSS = -2 };

typedef union {
  long whole;
  char *text;
} Short;

#pragma nvcp tag(is_text, either.whole = 0, either.text = 1) text(either.text)
typedef struct {
  unsigned char is_text;
  Short either;
} Inner;

#pragma nvcp tag(kind, value.number = NUMBER, value.number = LOSS, value.text = TEXT, value.child = CHILD) \
  tag(kind, value.values = VALUES, value.pair = PAIR) text(value.text) length(value.values, count) link(previous)
struct Item {
  enum Kind kind;
  short count;
  union {
    double number;
    char *text;
    Item *child;
    float *values;
    struct {
      int first;
      Inner second;
    } pair;
  } value;
  Item *next, *previous;
};

#pragma nvcp init(graph, 2)

static Item *make(enum Kind kind, Item *previous) {
  Item *item = calloc(1, sizeof *item);
  assert(item != NULL);
  item->kind = kind;
  item->previous = previous;
  if (previous != NULL) previous->next = item;
  return item;
}

static char *copy(const char *text) {
  char *made = malloc(strlen(text) + 1);
  assert(made != NULL);
  return strcpy(made, text);
}

static Item *make_all(void) {
  Item *first = make(NUMBER, NULL), *item = first;
  first->value.number = 0.1;
  item = make(LOSS, item);
  item->value.number = -7;
  item = make(TEXT, item);
  item->value.text = copy("a text");
  item = make(CHILD, item);
  item->value.child = make(EMPTY, NULL);
  // An address that means nothing: nobody may follow it.
  memset(&item->value.child->value, 0x41, sizeof item->value.child->value);
  item = make(VALUES, item);
  item->count = 3;
  item->value.values = calloc(3, sizeof(float));
  assert(item->value.values != NULL);
  item->value.values[2] = 5;
  item = make(PAIR, item);
  item->value.pair.first = 11;
  item->value.pair.second.is_text = 1;
  item->value.pair.second.either.text = copy("inside");
  item = make(PAIR, item);
  item->value.pair.second.either.whole = 0x4141414141414141;
  return first;
}

static void check(const Item *item, int is_changed) {
  assert(item->kind == NUMBER && item->value.number == 0.1 && item->previous == NULL);
  item = item->next;
  assert(item->kind == LOSS && item->value.number == -7 && item->previous->next == item);
  item = item->next;
  if (is_changed) assert(item->kind == NUMBER && item->value.number == 2.5);
  if (!is_changed) assert(item->kind == TEXT && strcmp(item->value.text, "a text") == 0);
  item = item->next;
  assert(item->kind == CHILD && item->value.child->kind == EMPTY);
  item = item->next;
  if (is_changed) assert(item->kind == TEXT && strcmp(item->value.text, "where values were") == 0);
  if (!is_changed) assert(item->kind == VALUES && item->count == 3 && item->value.values[2] == 5);
  item = item->next;
  assert(item->kind == PAIR && item->value.pair.first == 11);
  assert(item->value.pair.second.is_text && strcmp(item->value.pair.second.either.text, "inside") == 0);
  item = item->next;
  assert(item->value.pair.second.either.whole == 0x4141414141414141 && item->next == NULL);
}

static void drop(Item *item) {
  while (item != NULL) {
    Item *next = item->next;
    if (item->kind == TEXT) free(item->value.text);
    if (item->kind == VALUES) free(item->value.values);
    if (item->kind == CHILD) drop(item->value.child);
    if (item->kind == PAIR && item->value.pair.second.is_text) free(item->value.pair.second.either.text);
    free(item);
    item = next;
  }
}

int main(int argc, char **argv) {
  assert(argc == 2);
  Item *first = NULL;
  int is_changed = 0;
#pragma nvcp add_head(first, is_changed)
#pragma nvcp restore(head)
  if (strcmp(argv[1], "make") == 0) {
    assert(first == NULL);
    first = make_all();
  }
  check(first, is_changed);
  if (strcmp(argv[1], "change") == 0) {
    Item *text = first->next->next, *values = text->next->next;
    free(text->value.text);
    text->kind = NUMBER;
    text->value.number = 2.5;
    free(values->value.values);
    values->kind = TEXT;
    values->value.text = copy("where values were");
    is_changed = 1;
  }
#pragma nvcp persistent(head)
  check(first, is_changed);
  drop(first);
  puts("unions came back");
  return 0;
}
