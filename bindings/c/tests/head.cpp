// Heads from C++: containers, numbers, linked structs with a union, and what is refused.
//
//   head DIRECTORY

#include <outcrop.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define DEMAND(condition)                                                         \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition); \
      std::exit(EXIT_FAILURE);                                                    \
    }                                                                             \
  } while (0)

struct Node {
  int is_last;
  union {
    double value;
    Node *next;
  };
};

static const outcrop_field node_fields[] = {
    {"is_last", OUTCROP_NUMBERS, offsetof(Node, is_last), 1, sizeof(int), -1, 0, 0, 0, 0, 0},
    {"value", OUTCROP_NUMBERS, offsetof(Node, value), 1, sizeof(double), -1, 0, 0, offsetof(Node, is_last), sizeof(int), 1},
    {"next", OUTCROP_POINTERS, offsetof(Node, next), 1, 0, 0, 1, 0, offsetof(Node, is_last), sizeof(int), 0},
};
static const outcrop_type types[] = {{"Node", sizeof(Node), node_fields, 3}};

template <typename Work>
static outcrop_status refused(Work work) {
  try {
    work();
  } catch (const outcrop::Error &error) {
    return error.status();
  }
  return OUTCROP_OK;
}

static int is_last(void *node) { return static_cast<Node *>(node)->is_last; }

int main(int argc, char **argv) {
  DEMAND(argc == 2);
  const std::string path = std::string(argv[1]) + "/a.pool";
  {
    outcrop::Head head(path, 3, 4096);
    std::vector<double> heat(5000, 1.5);
    std::vector<std::uint32_t> offsets(5001);
    std::int64_t step = 1;
    Node first{};
    head.array("heat", heat);
    head.array("offsets", offsets);
    head.array("step", step);
    head.linked("first", types, 0, &first);
    DEMAND(!head.restore());
    first.next = static_cast<Node *>(std::calloc(1, sizeof(Node)));
    first.next->is_last = 1;
    first.next->value = 0.25;
    offsets[5000] = 100;
    head.hint("heat", 0, 512);
    head.hint_degree("heat", "offsets", 100);
    head.hint_structs(types, 0, is_last);
    DEMAND(head.persist() == 1);
    // The vector is elsewhere, and has other values.
    heat = std::vector<double>(5000, 2.5);
    head.array("heat", heat);
    step = 2;
    DEMAND(head.persist() == 2);
    const auto third = head.persist_if_worth_it();
    DEMAND(!third || *third == 3);
    DEMAND(refused([&] { head.hint("heat", 1, 5000); }) == OUTCROP_USAGE);
    DEMAND(refused([&] { head.hint("cold", 0, 1); }) == OUTCROP_USAGE);
    DEMAND(refused([&] { outcrop::Head second(path); }) == OUTCROP_BUSY);
    outcrop::Head moved = std::move(head);
    std::free(first.next);
    moved.close();
    DEMAND(refused([&] { moved.persist(); }) == OUTCROP_USAGE);
  }
  // It was closed: it can be opened again, and has what was persisted.
  outcrop::Head head(path);
  std::vector<double> heat(5000);
  std::vector<std::uint32_t> offsets(5001);
  std::int64_t step = 0;
  Node first{};
  head.array("heat", heat);
  head.array("offsets", offsets);
  head.array("step", step);
  head.linked("first", types, 0, &first);
  DEMAND(head.restore() && step == 2 && heat[4999] == 2.5 && offsets[5000] == 100);
  DEMAND(!first.is_last && first.next->is_last && first.next->value == 0.25);
  std::free(first.next);
  std::puts("heads kept what they should");
}
