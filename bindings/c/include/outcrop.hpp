// Outcrop for C++17: handles that close themselves, statuses as exceptions. See outcrop.h for what each call does.
#ifndef OUTCROP_HPP
#define OUTCROP_HPP

#include "outcrop.h"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace outcrop {

// What went wrong, and what can be done.
class Error : public std::runtime_error {
 public:
  explicit Error(outcrop_status status) : Error(status, outcrop_error()) {}
  Error(outcrop_status status, const std::string &message) : std::runtime_error(message), status_(status) {}

  // Which kind of error it is.
  outcrop_status status() const noexcept { return status_; }

 private:
  outcrop_status status_;
};

namespace detail {

inline void check(outcrop_status status) {
  if (status != OUTCROP_OK) throw Error(status);
}

// A handle that ends with the value. It can be moved, not copied.
template <typename Opaque, outcrop_status (*End)(Opaque *)>
class Handle {
 public:
  Handle() noexcept = default;
  Handle(Handle &&other) noexcept : handle_(other.release()) {}
  Handle &operator=(Handle &&other) noexcept {
    if (this != &other) {
      end();
      handle_ = other.release();
    }
    return *this;
  }
  ~Handle() { end(); }

  Opaque *get() const noexcept { return handle_; }
  Opaque **place() noexcept { return &handle_; }
  Opaque *release() noexcept { return std::exchange(handle_, nullptr); }
  void close() { check(End(release())); }

 private:
  // A destructor cannot fail: who wants to know the status calls close(). But no version is lost without a word.
  void end() noexcept {
    if (handle_ != nullptr && End(release()) != OUTCROP_OK) std::fprintf(stderr, "outcrop: not closed, and failed: %s\n", outcrop_error());
  }

  Opaque *handle_ = nullptr;
};

template <typename T>
constexpr void check_element() {
  static_assert(std::is_trivially_copyable_v<T>, "elements are saved as bytes: they must be trivially copyable");
}

// What regions of T are made of; bytes if it has no name.
template <typename T>
constexpr outcrop_element element() {
  if constexpr (std::is_same_v<T, bool>) return OUTCROP_BOOL;
  else if constexpr (std::is_same_v<T, float>) return OUTCROP_F32;
  else if constexpr (std::is_same_v<T, double>) return OUTCROP_F64;
  else if constexpr (std::is_same_v<T, std::complex<float>>) return OUTCROP_C64;
  else if constexpr (std::is_same_v<T, std::complex<double>>) return OUTCROP_C128;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 2) return std::is_signed_v<T> ? OUTCROP_I16 : OUTCROP_U16;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return std::is_signed_v<T> ? OUTCROP_I32 : OUTCROP_U32;
  else if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return std::is_signed_v<T> ? OUTCROP_I64 : OUTCROP_U64;
  else if constexpr (std::is_same_v<T, signed char>) return OUTCROP_I8;
  else return OUTCROP_U8;
}

// Whether a value is there for its elements: a container, or what refers to one.
template <typename T, typename = void>
inline constexpr bool is_range = false;
template <typename T>
inline constexpr bool
    is_range<T, std::void_t<decltype(*std::data(std::declval<T &>())), decltype(std::size(std::declval<T &>()))>> = true;

// A text that a call writes to room of the program, of which it says how much is needed.
template <typename Call>
std::string text(Call call) {
  std::size_t needed = 0;
  check(call(nullptr, 0, &needed));
  std::string text;
  // It may become longer meanwhile.
  while (text.size() < needed) {
    text.resize(needed);
    check(call(text.data(), text.size(), &needed));
  }
  text.resize(needed);
  return text;
}

// The pieces of a text that each end with this character.
inline std::vector<std::string> pieces(const std::string &text, char end) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0, next; (next = text.find(end, at)) != std::string::npos; at = next + 1) pieces.push_back(text.substr(at, next - at));
  return pieces;
}

// A product that is not larger than memory can be.
inline std::size_t product(std::size_t a, std::size_t b) {
  if (b != 0 && a > SIZE_MAX / b) throw Error(OUTCROP_USAGE, "an array of so many elements is larger than memory can be");
  return a * b;
}

}  // namespace detail

// The version of the library.
inline std::string version() { return outcrop_version(); }

// A snapshot in the program's hands, read in place. Its slot is free when it is gone.
template <typename T>
class Past {
 public:
  const T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  const T *begin() const noexcept { return data_; }
  const T *end() const noexcept { return data_ + size_; }
  const T &operator[](std::size_t at) const noexcept { return data_[at]; }
  void release() { handle_.close(); }

 private:
  template <typename>
  friend class Lent;
  friend class Tape;

  const T *data_ = nullptr;
  std::size_t size_ = 0;
  detail::Handle<outcrop_past, outcrop_past_release> handle_;
};

// A slot in the program's hands, to compute into. If it is not sealed, it becomes no snapshot.
template <typename T>
class Lent {
 public:
  T *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  T *begin() const noexcept { return data_; }
  T *end() const noexcept { return data_ + size_; }
  T &operator[](std::size_t at) const noexcept { return data_[at]; }

  // Makes it a snapshot.
  void seal() { detail::check(outcrop_lent_seal(handle_.release())); }

  // Makes it a snapshot and goes on reading it.
  Past<T> seal_and_keep() {
    Past<T> past;
    detail::check(outcrop_lent_seal_and_keep(handle_.release(), past.handle_.place()));
    past.data_ = data_;
    past.size_ = size_;
    return past;
  }

 private:
  friend class Tape;

  T *data_ = nullptr;
  std::size_t size_ = 0;
  detail::Handle<outcrop_lent, outcrop_lent_abandon> handle_;
};

// Snapshots that sink and come back up.
class Tape {
 public:
  // Opens a tape as a TOML text describes it.
  explicit Tape(const std::string &config) { detail::check(outcrop_tape_open(config.c_str(), handle_.place())); }

  // Another handle to the same tape, for another thread.
  Tape clone() const {
    Tape other;
    detail::check(outcrop_tape_clone(handle_.get(), other.handle_.place()));
    return other;
  }

  template <typename T>
  void save(std::uint64_t key, const T *values, std::size_t count) {
    detail::check_element<T>();
    detail::check(outcrop_tape_save(handle_.get(), key, values, detail::product(count, sizeof(T))));
  }

  template <typename T>
  void save(std::uint64_t key, const std::vector<T> &values) {
    save(key, values.data(), values.size());
  }

  template <typename T>
  Lent<T> lend(std::uint64_t key, std::size_t count) {
    detail::check_element<T>();
    Lent<T> lent;
    void *data = nullptr;
    detail::check(outcrop_tape_lend(handle_.get(), key, detail::product(count, sizeof(T)), &data, lent.handle_.place()));
    lent.data_ = static_cast<T *>(data);
    lent.size_ = count;
    return lent;
  }

  // How many bytes a snapshot has.
  std::size_t size(std::uint64_t key) const {
    std::size_t bytes = 0;
    detail::check(outcrop_tape_size(handle_.get(), key, &bytes));
    return bytes;
  }

  // Hands over a snapshot for the last time. If it is not made of values of T, nothing happens to it.
  template <typename T>
  Past<T> take(std::uint64_t key) {
    return read<T>(key, outcrop_tape_take);
  }

  // Hands over a snapshot and keeps it.
  template <typename T>
  Past<T> get(std::uint64_t key) {
    return read<T>(key, outcrop_tape_get);
  }

  template <typename T>
  void take_into(std::uint64_t key, T *values, std::size_t count) {
    detail::check_element<T>();
    detail::check(outcrop_tape_take_into(handle_.get(), key, values, detail::product(count, sizeof(T))));
  }

  template <typename T>
  void take_into(std::uint64_t key, std::vector<T> &values) {
    take_into(key, values.data(), values.size());
  }

  void discard(std::uint64_t key) { detail::check(outcrop_tape_discard(handle_.get(), key)); }

  outcrop_tape_stats_t stats() const {
    outcrop_tape_stats_t stats;
    detail::check(outcrop_tape_stats(handle_.get(), &stats, sizeof stats));
    return stats;
  }

  // All that is known of what the tape has done, layer by layer.
  std::string stats_json() const {
    std::string json = detail::text(
        [this](char *text, std::size_t bytes, std::size_t *needed) { return outcrop_tape_stats_json(handle_.get(), text, bytes, needed); });
    json.pop_back();
    return json;
  }

  // Writes the timeline of a tape that was opened with `trace = true`.
  void write_trace(const std::string &path) const { detail::check(outcrop_tape_write_trace(handle_.get(), path.c_str())); }

  void close() { handle_.close(); }

 private:
  Tape() = default;

  template <typename T, typename Read>
  Past<T> read(std::uint64_t key, Read read) {
    detail::check_element<T>();
    Past<T> past;
    const void *data = nullptr;
    std::size_t bytes = size(key);
    if (bytes % sizeof(T) != 0) {
      throw Error(OUTCROP_USAGE, "snapshot " + std::to_string(key) + " has " + std::to_string(bytes) +
                                     " bytes, which are no elements of " + std::to_string(sizeof(T)) + "; nothing was taken");
    }
    detail::check(read(handle_.get(), key, &data, &bytes, past.handle_.place()));
    past.data_ = static_cast<const T *>(data);
    past.size_ = bytes / sizeof(T);
    return past;
  }

  detail::Handle<outcrop_tape, outcrop_tape_close> handle_;
};

// Which index of an array runs fastest in memory: the last one, as in C++, or the first one, as in Fortran.
enum class MemoryOrder { RowMajor = OUTCROP_ROW_MAJOR, ColumnMajor = OUTCROP_COLUMN_MAJOR };

// The part of a global array that a region is: the shape of the whole, and the index of the part's first element there.
struct Box {
  std::vector<std::size_t> shape;
  std::vector<std::size_t> offset;
};

// How the elements of a region form an array: {ny, nx}, or Shape{n, nx}.in_box({ny, nx}, {first, 0}).
struct Shape {
  Shape(std::initializer_list<std::size_t> dimensions) : dimensions(dimensions) {}
  explicit Shape(std::vector<std::size_t> dimensions) : dimensions(std::move(dimensions)) {}

  Shape in_order(MemoryOrder other) const {
    Shape shape = *this;
    shape.order = other;
    return shape;
  }
  // The same as a part of a global array of shape `global` that begins there at `offset`.
  Shape in_box(std::vector<std::size_t> global, std::vector<std::size_t> offset) const {
    Shape shape = *this;
    shape.box = Box{std::move(global), std::move(offset)};
    return shape;
  }
  std::size_t count() const {
    std::size_t count = 1;
    for (const std::size_t dimension : dimensions) count = detail::product(count, dimension);
    return count;
  }

  std::vector<std::size_t> dimensions;
  MemoryOrder order = MemoryOrder::RowMajor;
  std::optional<Box> box;
};

// One series of versions. When it is gone, everything under way is done; close() reports failures.
class Session {
 public:
  // Every save has these values, and every restore writes to them. They must stay where they are.
  template <typename T>
  void protect(const std::string &name, T *values, std::size_t count) {
    detail::check_element<T>();
    static_assert(!std::is_const_v<T>, "a restore writes to what is protected: it cannot be const");
    constexpr outcrop_element element = detail::element<T>();
    const std::size_t elements = element == OUTCROP_U8 ? detail::product(count, sizeof(T)) : count;
    detail::check(outcrop_session_protect(handle_.get(), name.c_str(), values, elements, element));
  }

  // An array of several dimensions: protect("field", data, {ny, nx}).
  template <typename T>
  void protect(const std::string &name, T *values, const Shape &shape) {
    protect(name, values, shape.count());
    say_shape<T>(name, shape);
  }

  // The elements of a vector, array, string or span; they must not move while they are protected. Protect them again if they have.
  template <typename Range, std::enable_if_t<detail::is_range<Range>, int> = 0>
  void protect(const std::string &name, Range &values) {
    protect(name, std::data(values), std::size(values));
  }

  // The same as an array of several dimensions.
  template <typename Range, std::enable_if_t<detail::is_range<Range> && !std::is_array_v<Range>, int> = 0>
  void protect(const std::string &name, Range &values, const Shape &shape) {
    if (shape.count() != std::size(values)) {
      throw Error(OUTCROP_USAGE, "region " + name + " has " + std::to_string(std::size(values)) + " elements, and a shape of " +
                                     std::to_string(shape.count()));
    }
    protect(name, std::data(values), shape);
  }

  // One value.
  template <typename T, std::enable_if_t<!detail::is_range<T>, int> = 0>
  void protect(const std::string &name, T &value) {
    static_assert(!std::is_pointer_v<T>, "say how many values there are, or the pointer itself is saved");
    protect(name, &value, Shape{});
  }

  void unprotect(const std::string &name) { detail::check(outcrop_session_unprotect(handle_.get(), name.c_str())); }
  void save(std::uint64_t version) { detail::check(outcrop_session_save(handle_.get(), version)); }
  void wait(std::uint64_t version, int layer = OUTCROP_ALL) {
    detail::check(outcrop_session_wait(handle_.get(), version, layer));
  }
  void restore(std::uint64_t version) { detail::check(outcrop_session_restore(handle_.get(), version)); }

  // Whether a version is durable there by now.
  bool has_reached(std::uint64_t version, int layer = OUTCROP_ALL) {
    int is_there = 0;
    detail::check(outcrop_session_has_reached(handle_.get(), version, layer, &is_there));
    return is_there != 0;
  }
  // Options of a region from the next save on, as TOML: "compression = 'lz4'".
  void region_options(const std::string &name, const std::string &options) {
    detail::check(outcrop_session_region_options(handle_.get(), name.c_str(), options.c_str()));
  }

  // The versions that can be restored or are under way, in ascending order.
  std::vector<std::uint64_t> versions() {
    std::size_t count = 0;
    detail::check(outcrop_session_versions(handle_.get(), nullptr, 0, &count));
    std::vector<std::uint64_t> versions(count);
    detail::check(outcrop_session_versions(handle_.get(), versions.data(), versions.size(), &count));
    if (count < versions.size()) versions.resize(count);
    return versions;
  }
  // The names of the regions of a version.
  std::vector<std::string> region_names(std::uint64_t version) {
    return detail::pieces(detail::text([this, version](char *text, std::size_t bytes, std::size_t *needed) {
      return outcrop_session_region_names(handle_.get(), version, text, bytes, needed);
    }), '\0');
  }
  // What a region is made of in a version: an outcrop_element, or -1 if it is of another kind.
  int region_element(std::uint64_t version, const std::string &name) {
    int element = 0;
    detail::check(outcrop_session_region_element(handle_.get(), version, name.c_str(), &element));
    return element;
  }
  // A region of a version, without going back to it.
  template <typename T>
  std::vector<T> read(std::uint64_t version, const std::string &name) {
    detail::check_element<T>();
    const std::size_t bytes = region_size(version, name);
    if (bytes % sizeof(T) != 0) {
      throw Error(OUTCROP_USAGE, "region " + name + " of version " + std::to_string(version) + " has " + std::to_string(bytes) +
                                     " bytes, which are no elements of " + std::to_string(sizeof(T)));
    }
    std::vector<T> values(bytes / sizeof(T));
    detail::check(outcrop_session_read(handle_.get(), version, name.c_str(), values.data(), bytes));
    return values;
  }

  // What the last restore has passed over: newer versions that could not be used, and damaged copies.
  std::vector<std::string> skipped() {
    return detail::pieces(detail::text([this](char *text, std::size_t bytes, std::size_t *needed) {
      return outcrop_session_skipped(handle_.get(), text, bytes, needed);
    }), '\n');
  }

  // The version that was restored; nothing if there is none.
  std::optional<std::uint64_t> restore_latest() { return find(outcrop_session_restore_latest); }
  std::optional<std::uint64_t> latest() { return find(outcrop_session_latest); }

  std::size_t region_size(std::uint64_t version, const std::string &name) {
    std::size_t bytes = 0;
    detail::check(outcrop_session_region_size(handle_.get(), version, name.c_str(), &bytes));
    return bytes;
  }
  // The shape that a region has in a version, and its box if it is a part of a global array.
  Shape region_shape(std::uint64_t version, const std::string &name) {
    int order = 0, found = 0;
    std::size_t dimensions = 0;
    detail::check(outcrop_session_region_shape(handle_.get(), version, name.c_str(), &order, &dimensions, nullptr, 0));
    Shape shape{std::vector<std::size_t>(dimensions)};
    Box box{shape.dimensions, shape.dimensions};
    detail::check(outcrop_session_region_shape(handle_.get(), version, name.c_str(), &order, &dimensions,
                                               shape.dimensions.data(), shape.dimensions.size()));
    detail::check(outcrop_session_region_box(handle_.get(), version, name.c_str(), &found, box.shape.data(),
                                             box.offset.data(), box.shape.size()));
    shape.order = static_cast<MemoryOrder>(order);
    if (found != 0) shape.box = std::move(box);
    return shape;
  }
  void mark_dirty(const std::string &name, std::size_t offset, std::size_t bytes) {
    detail::check(outcrop_session_mark_dirty(handle_.get(), name.c_str(), offset, bytes));
  }
  void rewind(std::uint64_t version) { detail::check(outcrop_session_rewind(handle_.get(), version)); }
  void rewind_all() { detail::check(outcrop_session_rewind_all(handle_.get())); }
  void forget_incomplete() { detail::check(outcrop_session_forget_incomplete(handle_.get())); }
  void flush() { detail::check(outcrop_session_flush(handle_.get())); }
  void close() { handle_.close(); }

 private:
  friend class Store;
  Session() = default;

  // Elements without a name are bytes: these are one more dimension, the one that runs fastest.
  template <typename T>
  void say_shape(const std::string &name, Shape shape) {
    if (detail::element<T>() == OUTCROP_U8 && sizeof(T) > 1) {
      const auto add = [&shape](std::vector<std::size_t> &numbers, std::size_t number) {
        numbers.insert(shape.order == MemoryOrder::RowMajor ? numbers.end() : numbers.begin(), number);
      };
      add(shape.dimensions, sizeof(T));
      if (shape.box) {
        add(shape.box->shape, sizeof(T));
        add(shape.box->offset, 0);
      }
    }
    const std::size_t count = shape.dimensions.size();
    if (shape.box && (shape.box->shape.size() != count || shape.box->offset.size() != count)) {
      throw Error(OUTCROP_USAGE, "region " + name + ": shape, global shape and offset have different numbers of dimensions");
    }
    detail::check(outcrop_session_shape(handle_.get(), name.c_str(), static_cast<int>(shape.order), count,
                                        shape.dimensions.data(), shape.box ? shape.box->shape.data() : nullptr,
                                        shape.box ? shape.box->offset.data() : nullptr));
  }

  template <typename Find>
  std::optional<std::uint64_t> find(Find find) {
    std::uint64_t version = 0;
    int found = 0;
    detail::check(find(handle_.get(), &version, &found));
    return found != 0 ? std::optional<std::uint64_t>(version) : std::nullopt;
  }

  detail::Handle<outcrop_session, outcrop_session_close> handle_;
};

// A place for checkpoints.
class Store {
 public:
  // Opens a store as a TOML text describes it.
  explicit Store(const std::string &config) { detail::check(outcrop_store_open(config.c_str(), handle_.place())); }

  // Opens a series of versions.
  Session session(const std::string &name) {
    Session session;
    detail::check(outcrop_store_session(handle_.get(), name.c_str(), session.handle_.place()));
    return session;
  }

  // Whether it is time to save.
  bool due() {
    int due = 0;
    detail::check(outcrop_store_due(handle_.get(), &due));
    return due != 0;
  }

  void close() { handle_.close(); }

 private:
  detail::Handle<outcrop_store, outcrop_store_close> handle_;
};

// A file with arrays of which versions are durable.
class Pool {
 public:
  // Opens a pool, or creates it if there is no such file. It keeps so many versions.
  explicit Pool(const std::string &path, std::uint64_t versions = 2) {
    detail::check(outcrop_pool_open(path.c_str(), versions, handle_.place()));
  }

  // Opens an array of up to three dimensions: ordinary memory, until the pool is closed. It is as in the newest version.
  template <typename T>
  T *array(const std::string &name, const std::vector<std::size_t> &shape) {
    static_assert(sizeof(T) == 1 || detail::element<T>() != OUTCROP_U8, "a pool has arrays of numbers");
    void *data = nullptr;
    detail::check(outcrop_pool_array(handle_.get(), name.c_str(), detail::element<T>(), shape.size(), shape.data(), &data));
    return static_cast<T *>(data);
  }

  // Makes a version of all arrays durable.
  std::uint64_t persist() {
    std::uint64_t version = 0;
    detail::check(outcrop_pool_persist(handle_.get(), &version));
    return version;
  }

  // Has all arrays be as in a version, where they are.
  void restore(std::uint64_t version) { detail::check(outcrop_pool_restore(handle_.get(), version)); }

  // The versions that there are, in ascending order.
  std::vector<std::uint64_t> versions() {
    std::size_t count = 0;
    detail::check(outcrop_pool_versions(handle_.get(), nullptr, 0, &count));
    std::vector<std::uint64_t> versions(count);
    detail::check(outcrop_pool_versions(handle_.get(), versions.data(), versions.size(), &count));
    return versions;
  }

  // Copies an array as it is in a version.
  template <typename T>
  void read(std::uint64_t version, const std::string &name, T *into, std::size_t count) {
    detail::check(outcrop_pool_read(handle_.get(), version, name.c_str(), into, count * sizeof(T)));
  }

  void close() { handle_.close(); }

 private:
  detail::Handle<outcrop_pool, outcrop_pool_close> handle_;
};

// Arrays and linked structures of the program's own memory, of which versions are durable. What was added has to live, where it is,
// until the head is closed or until it was added again from elsewhere.
class Head {
 public:
  // Opens a pool, or creates it if there is no such file. It keeps so many versions. What has changed is written in blocks of so many
  // bytes; 0 is the default. So many seconds pass between failures on average; 0 is a day.
  explicit Head(const std::string &path, std::uint64_t versions = 2, std::size_t block_bytes = 0, double mtbf_s = 0) {
    detail::check(outcrop_head_open(path.c_str(), versions, block_bytes, mtbf_s, handle_.place()));
  }

  // Keeps numbers.
  template <typename T>
  void array(const std::string &name, T *data, std::size_t count) {
    static_assert(sizeof(T) == 1 || detail::element<T>() != OUTCROP_U8, "a head has arrays of numbers; add structs by linked()");
    detail::check(outcrop_head_array(handle_.get(), name.c_str(), detail::element<T>(), data, count));
  }

  // Keeps the elements of a container, or one number. A container that has grown or moved is added again.
  template <typename T>
  void array(const std::string &name, T &kept) {
    if constexpr (detail::is_range<T>) array(name, std::data(kept), std::size(kept));
    else array(name, &kept, 1);
  }

  // Keeps structs with all that their members lead to, which is memory from malloc.
  template <std::size_t Count>
  void linked(const std::string &name, const outcrop_type (&types)[Count], std::size_t type_index, void *data, std::size_t count = 1) {
    detail::check(outcrop_head_linked(handle_.get(), name.c_str(), types, Count, type_index, data, count));
  }

  // Says what is about to change: elements of an array, those of nodes with many edges, and structs by a function.
  void hint(const std::string &name, std::size_t first, std::size_t count) {
    detail::check(outcrop_head_hint_elements(handle_.get(), name.c_str(), first, count));
  }
  void hint_degree(const std::string &name, const std::string &offsets, std::uint64_t degree) {
    detail::check(outcrop_head_hint_degree(handle_.get(), name.c_str(), offsets.c_str(), degree));
  }
  template <std::size_t Count>
  void hint_structs(const outcrop_type (&types)[Count], std::size_t type_index, int (*changes)(void *)) {
    detail::check(outcrop_head_hint_structs(handle_.get(), types, Count, type_index, changes));
  }

  // Makes a version durable.
  std::uint64_t persist() {
    std::uint64_t version = 0;
    detail::check(outcrop_head_persist(handle_.get(), &version));
    return version;
  }

  // Makes a version durable if that is worth it by now. Call it after each iteration.
  std::optional<std::uint64_t> persist_if_worth_it() {
    std::uint64_t version = 0;
    detail::check(outcrop_head_persist_if_worth_it(handle_.get(), &version));
    return version == 0 ? std::nullopt : std::optional(version);
  }

  // Has everything be as in the newest version that is whole. Without one, nothing has changed.
  std::optional<std::uint64_t> restore() {
    std::uint64_t version = 0;
    detail::check(outcrop_head_restore(handle_.get(), &version));
    return version == 0 ? std::nullopt : std::optional(version);
  }

  void close() { handle_.close(); }

 private:
  detail::Handle<outcrop_head, outcrop_head_close> handle_;
};

// A write that was begun. Its buffer must stay as it is until it is done, which the destructor waits for.
class Pending {
 public:
  // Whether it is done, well or not.
  bool done() const {
    int done = 0;
    detail::check(outcrop_pending_test(handle_.get(), &done));
    return done != 0;
  }

  // Waits until it is done, and throws what write() would have thrown. Once.
  void wait() { handle_.close(); }

 private:
  friend class NodeFile;

  detail::Handle<outcrop_pending, outcrop_pending_wait> handle_;
};

// A file of which the newest bytes may be in memory of the node. Several threads may use it.
class NodeFile {
 public:
  // Returns when the values are in memory of the node.
  template <typename T>
  void write(std::uint64_t offset, const T *values, std::size_t count) {
    detail::check_element<T>();
    detail::check(outcrop_node_write(handle_.get(), offset, values, detail::product(count, sizeof(T))));
  }

  template <typename T>
  void write(std::uint64_t offset, const std::vector<T> &values) {
    write(offset, values.data(), values.size());
  }

  // Returns at once. The values must stay as they are until it is done.
  template <typename T>
  [[nodiscard]] Pending write_async(std::uint64_t offset, const T *values, std::size_t count) {
    detail::check_element<T>();
    Pending pending;
    const std::size_t bytes = detail::product(count, sizeof(T));
    detail::check(outcrop_node_write_async(handle_.get(), offset, values, bytes, pending.handle_.place()));
    return pending;
  }

  template <typename T>
  [[nodiscard]] Pending write_async(std::uint64_t offset, const std::vector<T> &values) {
    return write_async(offset, values.data(), values.size());
  }

  // Reads the newest bytes, and says how many there were: fewer at the end of the file.
  std::size_t read(std::uint64_t offset, void *into, std::size_t bytes) {
    std::size_t count = 0;
    detail::check(outcrop_node_read(handle_.get(), offset, into, bytes, &count));
    return count;
  }

  // How many bytes it has.
  std::uint64_t size() const {
    std::uint64_t bytes = 0;
    detail::check(outcrop_node_size(handle_.get(), &bytes));
    return bytes;
  }

  // Cuts it off, or extends it with zeros.
  void resize(std::uint64_t bytes) { detail::check(outcrop_node_resize(handle_.get(), bytes)); }

  // Waits until everything that was written is in the file.
  void drain() { detail::check(outcrop_node_drain(handle_.get())); }

  // Drains, and makes the file durable.
  void sync() { detail::check(outcrop_node_sync(handle_.get())); }

  void close() { handle_.close(); }

 private:
  friend class Node;

  detail::Handle<outcrop_node_file, outcrop_node_close> handle_;
};

// A connection to the node daemon of this user.
class Node {
 public:
  // Connects as a TOML text describes it. If there is no daemon, it is started.
  explicit Node(const std::string &config = "") { detail::check(outcrop_node_connect(config.c_str(), handle_.place())); }

  // Opens a file to be read and written; it is created if it is missing.
  NodeFile open(const std::string &path) {
    NodeFile file;
    detail::check(outcrop_node_open(handle_.get(), path.c_str(), file.handle_.place()));
    return file;
  }

  // Drains all files of all programs of this user on this machine.
  void drain_all() { detail::check(outcrop_node_drain_all(handle_.get())); }

  // What the daemon holds, for whom, and what it could not drain.
  std::string status_json() const {
    std::string json = detail::text(
        [this](char *text, std::size_t bytes, std::size_t *needed) { return outcrop_node_status_json(handle_.get(), text, bytes, needed); });
    json.pop_back();
    return json;
  }

  void close() { handle_.close(); }

 private:
  detail::Handle<outcrop_node, outcrop_node_disconnect> handle_;
};

}  // namespace outcrop

#endif  // OUTCROP_HPP
