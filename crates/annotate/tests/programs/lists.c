// A list of items with unions and payloads that changes in every way, and goes on after a crash.
//
//   lists OUTPUT

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

#pragma nvcp tag(is_text, text = 1, number = 0) text(text) length(values, count)
typedef struct Item {
  int is_text, count;
  union {
    char *text;
    double number;
  };
  float *values;
  struct Item *next;
} Item;

#pragma nvcp init(graph, 2)

static void drop(Item *item) {
  if (item->is_text) free(item->text);
  free(item->values);
  free(item);
}

// Each step adds an item; other steps remove the second, change what the union has, or have more values.
static Item *change(Item *first, int step) {
  Item *item = calloc(1, sizeof *item);
  if (item == NULL) exit(1);
  item->next = first;
  item->number = step;
  if (step % 2 == 1) {
    item->is_text = 1;
    item->text = malloc(32);
    if (item->text == NULL) exit(1);
    snprintf(item->text, 32, "text of step %d", step);
  }
  item->count = 200 * step;
  item->values = calloc((size_t)item->count + 1, sizeof *item->values);
  if (item->values == NULL) exit(1);
  for (int at = 0; at < item->count; at++) item->values[at] = (float)(at * step);
  if (step % 3 == 2 && first != NULL) {
    item->next = first->next;
    drop(first);
  } else if (first != NULL && first->is_text) {
    free(first->text);
    first->is_text = 0;
    first->number = 0.5;
  }
  return item;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  Item *first = NULL;
  int step = 0;
#pragma nvcp add_head(first, step)
#pragma nvcp restore(head)
  if (step > 0) printf("goes on after step %d\n", step);
  while (step < STEPS) {
    first = change(first, step);
    step++;
#pragma nvcp persistent(head)
  }
  FILE *output = fopen(argv[1], "w");
  if (output == NULL) return 1;
  while (first != NULL) {
    Item *next = first->next;
    if (first->is_text) fprintf(output, "%s", first->text);
    else fprintf(output, "%g", first->number);
    for (int at = 0; at < first->count; at++) fprintf(output, " %g", first->values[at]);
    fprintf(output, "\n");
    drop(first);
    first = next;
  }
  fclose(output);
  return 0;
}
