// All that members of structs can be, built, changed and restored by runs that follow each other.
//
//   structures make | change | check | foreign | overlap | negative

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef NDEBUG

#pragma nvcp
typedef struct {
  float x, y;
} Point;

typedef struct Node Node;

#pragma nvcp length(values, count) length(neighbours, degree) length(points, 3) length(raw, raw_bytes) text(name) \
  link(parent, middle) skip(work, cache)
struct Node {
  char letter; // and padding
  Node *parent;
  Node *children[2];
  Node **neighbours;
  short degree;
  double *values;
  unsigned char count;
  Point *points, origin, corners[2];
  Point *middle;
  struct {
    int a;
    union {
      int whole;
      float real;
    } either;
  } parts;
  char *name;
  void *raw;
  unsigned long raw_bytes;
  double (*work)(double);
  FILE *cache;
};

#pragma nvcp init(graph, 3)

static Node *make_node(char letter, Node *parent) {
  Node *node = calloc(1, sizeof *node);
  assert(node != NULL);
  node->letter = letter;
  node->parent = parent;
  node->origin = (Point){(float)letter, -1};
  node->parts.a = letter * 2;
  node->parts.either.whole = letter * 3;
  return node;
}

static Node *make(void) {
  Node *root = make_node('r', NULL);
  for (int nth = 0; nth < 2; nth++) root->children[nth] = make_node((char)('a' + nth), root);
  Node *a = root->children[0], *b = root->children[1];
  a->values = malloc(5 * sizeof *a->values);
  a->count = 5;
  for (int at = 0; at < 5; at++) a->values[at] = 0.1 * at;
  b->values = a->values; // shared
  b->count = 5;
  b->degree = 3;
  b->neighbours = calloc(3, sizeof *b->neighbours);
  b->neighbours[0] = a;
  b->neighbours[2] = b;
  a->points = calloc(3, sizeof *a->points);
  a->points[1].x = 7;
  b->middle = &a->points[1];
  a->middle = &root->corners[1];
  root->corners[1].y = 8;
  root->name = malloc(6);
  strcpy(root->name, "hello");
  root->raw = malloc(100000);
  memset(root->raw, 3, 100000);
  root->raw_bytes = 100000;
  root->cache = stdout;
  return root;
}

static void check(const Node *root, int is_changed) {
  const Node *a = root->children[0], *b = root->children[1];
  assert(root->letter == 'r' && root->parent == NULL && a->letter == 'a' && b->letter == 'b');
  assert(a->parent == root && b->parent == root && a->origin.x == 'a' && a->origin.y == -1);
  assert(a->parts.a == 'a' * 2 && b->parts.either.whole == 'b' * 3);
  assert(a->count == 5 && a->values == b->values && a->values[4] == 0.1 * 4);
  assert(b->neighbours[0] == a && b->neighbours[1] == NULL && b->neighbours[2] == b);
  assert(b->middle == &a->points[1] && b->middle->x == 7 && a->middle == &root->corners[1] && a->middle->y == 8);
  const unsigned char *raw = root->raw;
  assert(raw[0] == 3 && raw[99999] == (is_changed ? 4 : 3) && raw[root->raw_bytes - 1] == raw[99999]);
  assert(strcmp(root->name, is_changed ? "a longer name" : "hello") == 0);
  assert((a->children[0] != NULL) == is_changed && a->children[1] == NULL);
  if (is_changed) assert(a->children[0]->parent == a && a->children[0]->letter == 'n');
}

static void change(Node *root) {
  ((unsigned char *)root->raw)[99999] = 4;
  free(root->name);
  root->name = malloc(20);
  strcpy(root->name, "a longer name");
  root->children[0]->children[0] = make_node('n', root->children[0]);
}

static void drop(Node *node) {
  if (node == NULL) return;
  drop(node->children[0]);
  drop(node->children[1]);
  if (node->letter != 'b') free(node->values);
  free(node->neighbours);
  free(node->points);
  free(node->name);
  free(node->raw);
  free(node);
}

int main(int argc, char **argv) {
  assert(argc == 2);
  Node *root = NULL;
  Point fixed[2][3];
  memset(fixed, 0, sizeof fixed);
  int runs = 0, is_changed = 0;
#pragma nvcp add_head(root, fixed, runs, is_changed)
#pragma nvcp restore(head)
  if (strcmp(argv[1], "make") == 0) {
    assert(root == NULL && runs == 0);
    root = make();
    fixed[1][2].x = 9;
  } else {
    assert(runs > 0 && fixed[1][2].x == 9 && root->work == NULL && root->cache == NULL);
    check(root, is_changed);
  }
  if (strcmp(argv[1], "change") == 0) {
    change(root);
    is_changed = 1;
  }
  Node other;
  memset(&other, 0, sizeof other);
  if (strcmp(argv[1], "foreign") == 0) root->parent = &other;
  if (strcmp(argv[1], "overlap") == 0) root->children[1]->values++;
  if (strcmp(argv[1], "negative") == 0) root->children[1]->degree = -1;
  runs++;
#pragma nvcp persistent(head)
  check(root, is_changed);
  // Nothing has changed since.
#pragma nvcp persistent(head)
  drop(root);
  puts("structures came back");
  return 0;
}
