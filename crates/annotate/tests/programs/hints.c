// Says what DRAM has copies of, with hints and without: an array of 64 blocks, rows of a grid,
// structs of a list, elements of an array of structs, and nodes of a graph. Everything changes.
//
//   hints array | grid | list | structs | graph

#include <assert.h>
#include <outcrop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef NDEBUG

enum { NUMBERS = 32768, ROW = 512, ROWS = 64, NODES = 1024, ITEMS = 2000 };

#pragma nvcp
typedef struct Item {
  int is_busy;
  double values[63];
  struct Item *next;
} Item;

#pragma nvcp init(array, 2, 4096)

// Items that are busy come first: what is kept is as they come.
static Item *make(int count) {
  Item *first = NULL;
  for (int nth = 0; nth < count; nth++) {
    Item *item = calloc(1, sizeof *item);
    assert(item != NULL);
    item->is_busy = nth >= count - 80;
    item->next = first;
    first = item;
  }
  return first;
}

static int is_busy(const Item *item) { return item->is_busy; }

int main(int argc, char **argv) {
  assert(argc == 2);
  const char *what = argv[1];
  static double numbers[NUMBERS], grid[ROWS][ROW], ranks[NODES * 512];
  static Item items[64];
  static unsigned offsets[NODES + 1];
  Item *first = strcmp(what, "list") == 0 ? make(ITEMS) : NULL;
  // Every 64th node has 10 edges, and the others have one.
  for (int node = 0; node < NODES; node++) offsets[node + 1] = offsets[node] + (node % 64 == 0 ? 10 : 1);
#pragma nvcp add_head(numbers, grid, ranks, items, offsets, first)
  for (int step = 1; step <= 2; step++) {
    for (int at = 0; at < NUMBERS && strcmp(what, "array") == 0; at++) numbers[at] = step;
    for (int at = 0; at < ROWS * ROW && strcmp(what, "grid") == 0; at++) grid[at / ROW][at % ROW] = step;
    for (int at = 0; at < NODES * 512 && strcmp(what, "graph") == 0; at++) ranks[at] = step;
    for (int at = 0; at < 64 && strcmp(what, "structs") == 0; at++) items[at].values[0] = step;
    for (Item *item = first; item != NULL; item = item->next) item->values[7] = step;
#pragma nvcp persistent(head, 0, numbers[1024 : 2 * 1024], grid[8 : (step > 0 ? 3 : 0)], is_busy, items[8 : 16], \
                        degree(ranks, offsets, 10))
  }
  uint64_t dram_bytes, copied_bytes;
  assert(outcrop_head_usage(nvcp_head.head, &dram_bytes, &copied_bytes) == OUTCROP_OK);
  printf("%lu %lu\n", (unsigned long)(dram_bytes / 4096), (unsigned long)(copied_bytes / 4096));
  while (first != NULL) {
    Item *next = first->next;
    free(first);
    first = next;
  }
  return 0;
}
