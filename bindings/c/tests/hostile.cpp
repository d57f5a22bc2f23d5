// The table of hostile calls (docs/testing.md) in C++, on a tape and in a store.
//
//   hostile DIRECTORY

#include "check.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <outcrop.hpp>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

std::string directory;

// The status of what a call throws; OUTCROP_OK if it throws nothing.
template <typename Call>
outcrop_status thrown(Call call) {
  try {
    call();
  } catch (const outcrop::Error &error) {
    DEMAND(std::strlen(error.what()) > 10);
    return error.status();
  }
  return OUTCROP_OK;
}

outcrop::Tape a_tape() {
  return outcrop::Tape("host = '256 KiB'\npin = false\npatience_seconds = 0.01\ndir = [{path = '" + directory + "/tape', limit = '16 MiB'}]");
}

outcrop::Session a_session(const std::string &name, const std::string &limit = "64 MiB") {
  outcrop::Store store("host = '4 MiB'\npin = false\nincremental = false\ndir = [{path = '" + directory + "/store/" + name + "', limit = '" +
                       limit + "'}]");
  return store.session(name);
}

std::vector<double> values(int seed, std::size_t count = 10000) {
  std::vector<double> values(count);
  for (std::size_t at = 0; at < count; at++) values[at] = static_cast<double>(seed) + static_cast<double>(at) / 7;
  return values;
}

void forked() {
  outcrop::Tape tape = a_tape();
  outcrop::Session session = a_session("forked");
  std::vector<double> u = values(1);
  tape.save(1, u);
  session.protect("u", u);
  session.save(1);
  const pid_t child = fork();
  if (child == 0) {
    DEMAND(thrown([&] { tape.take<double>(1); }) == OUTCROP_USAGE && thrown([&] { session.save(2); }) == OUTCROP_USAGE);
    DEMAND(thrown([&] { session.close(); }) == OUTCROP_USAGE);
    // What its parent has open is lost to it, and valgrind would say so if it ended in another way.
    std::raise(SIGKILL);
  }
  int end = 0;
  DEMAND(waitpid(child, &end, 0) == child && WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL);
  DEMAND(tape.take<double>(1)[9] == u[9]);
  session.save(2);
  session.close();
}

void other_thread() {
  outcrop::Tape tape = a_tape();
  outcrop::Session session = a_session("thread");
  std::vector<double> u = values(1), copy;
  tape.save(1, u);
  session.protect("u", u);
  std::thread([&] {
    outcrop::Tape own = tape.clone();
    const auto past = own.take<double>(1);
    copy.assign(past.begin(), past.end());
    session.save(1);
    session.flush();
  }).join();
  DEMAND(copy == u && session.versions() == std::vector<std::uint64_t>{1});
}

void huge_and_zero() {
  outcrop::Tape tape = a_tape();
  DEMAND(thrown([&] { tape.lend<char>(1, std::size_t{1} << 30); }) == OUTCROP_TOO_LARGE);
  DEMAND(thrown([&] { tape.lend<double>(1, SIZE_MAX); }) == OUTCROP_USAGE);
  DEMAND(thrown([&] { tape.save(1, static_cast<const double *>(nullptr), SIZE_MAX / 8); }) == OUTCROP_USAGE);
  tape.save(UINT64_MAX, std::vector<double>{});
  DEMAND(tape.take<double>(UINT64_MAX).size() == 0);
  DEMAND(thrown([] { outcrop::Tape nothing("host = 0"); }) == OUTCROP_USAGE);
  outcrop::Session session = a_session("huge");
  std::vector<double> none, large = values(1, 1 << 20);
  DEMAND(thrown([&] { session.protect("u", large.data(), SIZE_MAX); }) == OUTCROP_USAGE);
  DEMAND(thrown([&] { session.protect("u", large, outcrop::Shape{SIZE_MAX, 2}); }) == OUTCROP_USAGE);
  session.protect("none", none);
  session.protect("large", large);
  DEMAND(thrown([&] { session.save(UINT64_MAX); }) == OUTCROP_USAGE);
  session.save(1);
  large.assign(large.size(), 0);
  session.restore(1);
  DEMAND(large == values(1, 1 << 20));
}

void misaligned() {
  std::vector<char> bytes(801);
  for (std::size_t at = 0; at < bytes.size(); at++) bytes[at] = static_cast<char>(at);
  const std::vector<char> saved(bytes.begin() + 1, bytes.end());
  outcrop::Tape tape = a_tape();
  tape.save(1, bytes.data() + 1, 800);
  DEMAND(std::memcmp(tape.take<double>(1).data(), saved.data(), 800) == 0);
  outcrop::Session session = a_session("misaligned");
  session.protect("u", bytes.data() + 1, 800);
  session.save(1);
  bytes.assign(bytes.size(), 0);
  session.restore(1);
  DEMAND(std::vector<char>(bytes.begin() + 1, bytes.end()) == saved && bytes[0] == 0);
}

void overlapping_and_freed() {
  outcrop::Tape tape = a_tape();
  outcrop::Session session = a_session("overlapping");
  {
    std::vector<double> u = values(1);
    tape.save(1, u);
    tape.save(2, u.data() + 1, u.size() - 1);
    session.protect("u", u);
    session.protect("half", u.data() + u.size() / 2, u.size() / 2);
    session.save(1);
    u.assign(u.size(), 7);
    DEMAND(thrown([&] { session.restore(1); }) == OUTCROP_USAGE && u[0] == 7);
    session.unprotect("half");
    session.unprotect("u");
  }
  DEMAND(tape.take<double>(2)[0] == values(1)[1]);
  outcrop::Past<double> past = tape.take<double>(1);
  tape.close();
  DEMAND(past[9] == values(1)[9]);
  DEMAND(session.read<double>(1, "u") == values(1));
}

void full() {
  outcrop::Tape tape("host = '1 MiB'\npin = false\npatience_seconds = 0.01");
  outcrop::Lent<char> lent = tape.lend<char>(1, 600000);
  DEMAND(thrown([&] { tape.lend<char>(2, 600000); }) == OUTCROP_HELD);
  lent.seal();
  DEMAND(thrown([&] { tape.lend<char>(2, 600000); }) == OUTCROP_FULL);
  outcrop::Session session = a_session("full", "256 KiB");
  std::vector<double> u = values(1), large = values(2, 100000);
  session.protect("u", u);
  session.save(1);
  session.flush();
  session.protect("u", large);
  session.save(2);
  DEMAND(thrown([&] { session.flush(); }) == OUTCROP_STORAGE);
  session.protect("u", u);
  session.save(2);
  session.flush();
  DEMAND((session.versions() == std::vector<std::uint64_t>{1, 2}));
}

void read_only() {
  DEMAND(thrown([] { outcrop::Tape tape("host = '1 MiB'\ndir = [{path = '/proc/outcrop', limit = '1 MiB'}]"); }) == OUTCROP_STORAGE);
  DEMAND(thrown([] { outcrop::Store store("dir = '/proc/outcrop'"); }) == OUTCROP_STORAGE);
  static const double constant[3] = {1, 2, 3};
  outcrop::Session session = a_session("constant");
  session.protect("u", const_cast<double *>(constant), 3);
  session.save(1);
  DEMAND(thrown([&] { session.restore(1); }) == OUTCROP_USAGE);
}

void damaged() {
  outcrop::Session session = a_session("damaged");
  std::vector<double> u = values(1), v = values(2);
  session.protect("u", u);
  session.protect("v", v);
  session.save(1);
  session.close();
  for (const auto &entry : std::filesystem::recursive_directory_iterator(directory + "/store/damaged")) {
    if (entry.path().filename().string().rfind("pack-", 0) != 0) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    const std::size_t at = bytes.find(std::string(reinterpret_cast<const char *>(&v[9000]), 64));
    DEMAND(at != std::string::npos);
    file.clear();
    file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(bytes[at] ^ 1));
  }
  session = a_session("damaged");
  session.protect("u", u);
  session.protect("v", v);
  u.assign(u.size(), 7);
  v.assign(v.size(), 8);
  DEMAND(thrown([&] { session.restore_latest(); }) == OUTCROP_DAMAGED);
  DEMAND(u == std::vector<double>(u.size(), 7) && v == std::vector<double>(v.size(), 8));
}

}  // namespace

int main(int count, char **words) {
  DEMAND(count == 2);
  directory = words[1];
  forked();
  other_thread();
  huge_and_zero();
  misaligned();
  overlapping_and_freed();
  full();
  read_only();
  damaged();
  std::puts("no hostile call did harm");
}
