// Every call of the C++ header, and what is thrown when something is wrong.
//
//   calls DIRECTORY

#include "check.h"

#include <array>
#include <complex>
#include <outcrop.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// The status of what a call throws; OUTCROP_OK if it throws nothing.
template <typename Call>
outcrop_status thrown(Call call) {
  try {
    call();
  } catch (const outcrop::Error &error) {
    DEMAND(std::string(error.what()).size() > 10);
    return error.status();
  }
  return OUTCROP_OK;
}

struct Point {
  float x, y;
  int mark;
};

void tapes(const std::string &config, const std::string &directory) {
  DEMAND(thrown([] { outcrop::Tape tape("hots = 3"); }) == OUTCROP_USAGE);
  outcrop::Tape tape(config);
  const std::vector<double> state = {1, 2, 3};
  tape.save(1, state);
  DEMAND(thrown([&] { tape.save(1, state); }) == OUTCROP_EXISTS);
  DEMAND(thrown([&] { tape.take<double>(7); }) == OUTCROP_MISSING);

  outcrop::Lent<Point> lent = tape.lend<Point>(2, 10);
  for (Point &point : lent) point = {1, 2, 3};
  outcrop::Past<Point> kept = lent.seal_and_keep();
  DEMAND(kept.size() == 10 && kept[9].mark == 3);
  DEMAND(thrown([&] { lent.seal(); }) == OUTCROP_USAGE);
  { outcrop::Lent<float> abandoned = tape.lend<float>(3, 10); }
  tape.lend<float>(3, 10).seal();
  tape.discard(3);

  DEMAND(thrown([&] { tape.get<std::array<char, 5>>(1); }) == OUTCROP_USAGE);
  DEMAND(thrown([&] { tape.take<std::array<char, 5>>(1); }) == OUTCROP_USAGE);
  DEMAND(tape.size(1) == 24);  // what does not fit is not taken
  DEMAND(thrown([&] { tape.size(7); }) == OUTCROP_MISSING);
  DEMAND(thrown([&] { tape.lend<double>(9, SIZE_MAX / 8 + 2); }) == OUTCROP_USAGE);
  outcrop::Tape other = tape.clone();
  outcrop::Tape moved = std::move(tape);
  DEMAND(thrown([&] { tape.save(9, state); }) == OUTCROP_USAGE);
  std::thread thread([&other] {
    std::vector<double> copy(3);
    other.take_into(1, copy);
    DEMAND(copy[2] == 3);
  });
  thread.join();
  outcrop::Past<Point> past = moved.take<Point>(2);
  DEMAND(past.end() - past.begin() == 10 && past.data()[1].y == 2);
  kept = std::move(past);
  kept.release();
  DEMAND(moved.stats().saves == 3);
  DEMAND(moved.stats_json().find("\"saves\":3") != std::string::npos && moved.stats_json().back() == '}');
  DEMAND(thrown([&] { moved.write_trace("/dev/null"); }) == OUTCROP_USAGE);
  moved.close();
  DEMAND(thrown([&] { moved.close(); }) == OUTCROP_USAGE);

  outcrop::Tape traced(config + "\ntrace = true");
  traced.save(1, state);
  const std::string path = directory + "/trace.json";
  traced.write_trace(path);
  std::FILE *trace = std::fopen(path.c_str(), "r");
  DEMAND(trace != nullptr && std::fgetc(trace) != EOF && std::fclose(trace) == 0);
  DEMAND(std::remove(path.c_str()) == 0);
}

void stores(const std::string &directory) {
  const std::string config = "host = '1 MiB'\npin = false\ndir = '" + directory + "/store'";
  std::vector<std::complex<double>> waves(100, {1, 2});
  std::uint64_t step = 7;
  Point point = {1, 2, 3};
  bool flags[2] = {true, false};
  {
    outcrop::Store store(config);
    outcrop::Session session = store.session("run");
    DEMAND(thrown([&] { store.session("run"); }) == OUTCROP_BUSY);
    DEMAND(!store.due());
    session.protect("waves", waves);
    session.protect("step", step);
    session.protect("point", point);
    session.protect("flags", flags);
    DEMAND(!session.restore_latest() && !session.latest());
    session.region_options("waves", "compression = 'lz4'\nblock = '256'");
    DEMAND(thrown([&] { session.region_options("waves", "blok = 3"); }) == OUTCROP_USAGE);
    session.save(7);
    session.wait(7);
    DEMAND(session.has_reached(7) && session.has_reached(7, 1));
    DEMAND(thrown([&] { session.has_reached(9); }) == OUTCROP_MISSING);
    DEMAND((session.versions() == std::vector<std::uint64_t>{7}));
    DEMAND((session.region_names(7) == std::vector<std::string>{"waves", "step", "point", "flags"}));
    DEMAND(session.region_element(7, "waves") == OUTCROP_C128 && session.region_element(7, "step") == OUTCROP_U64);
    DEMAND(session.read<std::complex<double>>(7, "waves") == waves && session.read<std::uint64_t>(7, "step")[0] == 7);
    DEMAND(session.read<Point>(7, "point")[0].mark == 3);
    DEMAND(thrown([&] { session.read<std::array<char, 3>>(7, "step"); }) == OUTCROP_USAGE);
    session.wait(7, OUTCROP_HOST);
    session.mark_dirty("waves", 0, 16);
    session.save(8);
    session.flush();
    session.rewind(7);
    DEMAND(session.region_size(7, "waves") == 1600);
    DEMAND(thrown([&] { session.unprotect("nothing"); }) == OUTCROP_USAGE);
  }
  waves.assign(100, 0);
  step = 0;
  point = {};
  flags[0] = false;
  outcrop::Store store(config);
  outcrop::Session session = store.session("run");
  session.protect("waves", waves);
  session.protect("step", step);
  session.protect("point", point);
  session.protect("flags", flags, 2);
  DEMAND(session.restore_latest() == 7u && session.skipped().empty());
  DEMAND(waves[99] == std::complex<double>(1, 2) && step == 7 && point.mark == 3 && flags[0]);
  float wrong[2];
  session.protect("step", wrong, 2);
  DEMAND(thrown([&] { session.restore(7); }) == OUTCROP_USAGE);
  session.unprotect("step");
  session.restore(7);
  session.forget_incomplete();
  DEMAND(session.latest() == 7u);
  session.save(8);
  session.close();
  // A damaged manifest is passed over, and that is said.
  const std::string manifest = directory + "/store/run/rank-00000/version-00000000000000000008";
  std::FILE *file = std::fopen(manifest.c_str(), "r+b");
  DEMAND(file != nullptr && std::fseek(file, 20, SEEK_SET) == 0 && std::fputc('x', file) != EOF && std::fclose(file) == 0);
  session = store.session("run");
  session.protect("waves", waves);
  DEMAND(session.restore_latest() == 7u && session.skipped().size() == 1);
  DEMAND(session.skipped()[0].find("version 8: ") == 0);
  session.forget_incomplete();
  DEMAND(session.restore_latest() == 7u && session.skipped().empty());  // what was forgotten is not said again
  session.rewind_all();
  DEMAND(!session.latest() && !session.restore_latest());
  session.close();
  store.close();
}

// A version that fails when nobody asks.
void dropped(const std::string &directory) {
  const std::string there = directory + "/store/dropped/rank-00000", away = directory + "/store/dropped/away";
  int step = 1;
  outcrop::Store store("host = '1 MiB'\npin = false\ndir = '" + directory + "/store'");
  {
    outcrop::Session session = store.session("dropped");
    session.protect("step", step);
    DEMAND(std::rename(there.c_str(), away.c_str()) == 0);
    session.save(1);
  }
  DEMAND(std::rename(away.c_str(), there.c_str()) == 0);
}

}  // namespace

int main(int count, char **words) {
  DEMAND(count == 2);
  const std::string directory = words[1];
  DEMAND(outcrop::version() == std::to_string(OUTCROP_VERSION_MAJOR) + '.' + std::to_string(OUTCROP_VERSION_MINOR) + '.' +
                                   std::to_string(OUTCROP_VERSION_PATCH));
  tapes("host = '1 MiB'\npin = false\ndir = [{path='" + directory + "/tape', limit='16 MiB'}]", directory);
  stores(directory);
  dropped(directory);
  std::puts("every call did what it should");
}
