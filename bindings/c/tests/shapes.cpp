// Shapes and boxes from C++: as shapes.c, with its regions and words.
//
//   shapes DIRECTORY | shapes DIRECTORY save | shapes DIRECTORY restore SESSION

#include "check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <outcrop.hpp>
#include <string>
#include <vector>

namespace {

using Numbers = std::vector<std::size_t>;
using outcrop::MemoryOrder;
using outcrop::Shape;

struct Point {
  float x, y;
  int mark;
};

struct State {
  std::vector<double> field = std::vector<double>(12);
  std::int32_t tile[6] = {};
  std::int64_t step = 0;

  void fill() {
    std::iota(field.begin(), field.end(), 10);
    std::iota(std::begin(tile), std::end(tile), 20);
    step = 30;
  }
  bool is_filled() const {
    State other;
    other.fill();
    return field == other.field && std::equal(std::begin(tile), std::end(tile), other.tile) && step == 30;
  }
  void protect(outcrop::Session &session) {
    // Three rows of nine, from the seventh on, and a tile of a plane in Fortran's order.
    session.protect("field", field, Shape{3, 4}.in_box({9, 4}, {6, 0}));
    session.protect("tile", tile, Shape{2, 3}.in_order(MemoryOrder::ColumnMajor).in_box({4, 8}, {1, 2}));
    session.protect("step", step);
  }
};

// Refers to values that lie elsewhere, as std::span does.
struct View {
  float *values;
  std::size_t count;
  float *data() const { return values; }
  std::size_t size() const { return count; }
};

template <typename Call>
bool is_refused(Call call, const std::string &words) {
  try {
    call();
  } catch (const outcrop::Error &error) {
    return error.status() == OUTCROP_USAGE && std::string(error.what()).find(words) != std::string::npos;
  }
  return false;
}

void come_back(outcrop::Session &session) {
  State state;
  state.fill();
  state.protect(session);
  Point points[2][3] = {};
  session.protect("points", &points[0][0], Shape{2, 3}.in_box({4, 3}, {2, 0}));
  session.protect("columns", &points[0][0], Shape{2, 3}.in_order(MemoryOrder::ColumnMajor));
  double plain[6] = {};
  session.protect("plain", plain, {2, 3});
  session.protect("lines", plain, Shape(Numbers{6, 1}));
  float seen[5] = {1, 2, 3, 4, 5};
  View view = {seen, 5};
  std::array<std::int16_t, 4> array = {1, 2, 3, 4};
  std::string text = "seven77";
  session.protect("view", view);
  session.protect("array", array, {2, 2});
  session.protect("text", text);
  session.save(1);
  // What is saved of a range is its elements.
  DEMAND(session.region_size(1, "view") == 20 && session.region_size(1, "text") == 7);
  DEMAND(session.region_shape(1, "array").dimensions == Numbers({2, 2}) && session.region_size(1, "array") == 8);
  seen[4] = 0;
  text[6] = array[3] = 0;

  const Shape field = session.region_shape(1, "field");
  DEMAND(field.dimensions == Numbers({3, 4}) && field.order == MemoryOrder::RowMajor);
  DEMAND(field.box && field.box->shape == Numbers({9, 4}) && field.box->offset == Numbers({6, 0}));
  const Shape tile = session.region_shape(1, "tile");
  DEMAND(tile.dimensions == Numbers({2, 3}) && tile.order == MemoryOrder::ColumnMajor);
  DEMAND(tile.box && tile.box->shape == Numbers({4, 8}) && tile.box->offset == Numbers({1, 2}));
  DEMAND(session.region_shape(1, "step").dimensions.empty() && !session.region_shape(1, "step").box);
  DEMAND(session.region_shape(1, "plain").dimensions == Numbers({2, 3}) && !session.region_shape(1, "plain").box);
  DEMAND(session.region_shape(1, "lines").dimensions == Numbers({6, 1}));
  // What has no name is bytes, next to each other.
  const Shape bytes = session.region_shape(1, "points");
  DEMAND(bytes.dimensions == Numbers({2, 3, 12}));
  DEMAND(bytes.box && bytes.box->shape == Numbers({4, 3, 12}) && bytes.box->offset == Numbers({2, 0, 0}));
  DEMAND(session.region_shape(1, "columns").dimensions == Numbers({12, 2, 3}));
  // They are the same memory as others, and cannot be restored together with these.
  session.unprotect("columns");
  session.unprotect("lines");

  DEMAND(is_refused([&] { session.protect("field", state.field, {3, 5}); }, "12 elements, and a shape of 15"));
  DEMAND(is_refused([&] { session.protect("plain", plain, Shape{2, 3}.in_box({4, 3}, {3, 0})); }, "not inside"));
  DEMAND(is_refused([&] { session.protect("plain", plain, Shape{2, 3}.in_box({4}, {3, 0})); }, "numbers of dimensions"));
  DEMAND(is_refused([&] { session.protect("plain", plain, {SIZE_MAX, 3}); }, "larger than memory"));
  DEMAND(is_refused([&] { session.protect("points", &points[0][0], SIZE_MAX / 2); }, "larger than memory"));
  session.protect("plain", plain, {2, 3});
  session.protect("field", state.field, Shape{3, 4}.in_box({9, 4}, {0, 0}));
  DEMAND(is_refused([&] { session.restore(1); }, "no rank has saved the element"));
  state.field.assign(12, 0);
  state.protect(session);
  session.restore(1);
  DEMAND(state.is_filled() && seen[4] == 5 && text == "seven77" && array[3] == 4);
}

}  // namespace

int main(int count, char **words) {
  DEMAND(count >= 2);
  outcrop::Store store("host = '1 MiB'\npin = false\ndir = '" + std::string(words[1]) + "/store'");
  outcrop::Session session = store.session(count == 4 ? words[3] : count == 3 ? "cpp" : "run");
  if (count == 2) {
    come_back(session);
  } else {
    State state;
    state.protect(session);
    if (count == 3) {
      state.fill();
      session.save(1);
    } else {
      session.restore(1);
      DEMAND(state.is_filled());
    }
  }
  session.close();
  std::puts("shapes came back");
}
