// Heat spreads in a plate. End it when you like, with Ctrl-C or kill -9, and start it again: it goes on where it was.
//
//   c++ -std=c++17 heat.cpp $(pkg-config --cflags --libs outcrop) -o heat
//   ./heat DIRECTORY [STEPS [STEP AT WHICH IT KILLS ITSELF]]

#include <csignal>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <outcrop.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t side = 256;
constexpr std::uint64_t every = 20;

// One step: every point comes nearer to the mean of its neighbours.
void spread(std::vector<double> &plate) {
  static std::vector<double> before(side * side);
  before = plate;
  for (std::size_t row = 1; row + 1 < side; row++) {
    for (std::size_t at = row * side + 1; at < row * side + side - 1; at++) {
      const double around = before[at - 1] + before[at + 1] + before[at - side] + before[at + side];
      plate[at] = before[at] + 0.2 * (around - 4.0 * before[at]);
    }
  }
}

// A number that tells every state from every other one, to the last bit.
std::uint64_t fingerprint(const std::vector<double> &plate) {
  std::uint64_t hash = 14695981039346656037u;
  for (double value : plate) {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 1099511628211u;
  }
  return hash;
}

void run(const std::string &directory, std::uint64_t steps, std::uint64_t last) {
  std::vector<double> plate(side * side);
  plate[side / 2 * side + side / 2] = 1e6;
  std::uint64_t step = 0;

  // [begin]
  outcrop::Store store("host = '16 MiB'\nkeep_last = 3\ndir = '" + directory + "'");
  outcrop::Session session = store.session("heat");
  session.protect("plate", plate);
  session.protect("step", step);
  if (session.restore_latest()) std::cout << "goes on after step " << step << '\n';

  while (step < steps) {
    spread(plate);
    step += 1;
    if (step % every == 0) session.save(step);  // returns when the plate may change again
    if (step == last) std::raise(SIGKILL);
  }
  session.close();  // waits until all is durable, and throws if it is not
  // [end]
  std::cout << "the state after " << step << " steps is " << std::hex << fingerprint(plate) << '\n';
}

}  // namespace

int main(int count, char **words) {
  try {
    run(count > 1 ? words[1] : "heat-checkpoints", count > 2 ? std::stoull(words[2]) : 1000,
        count > 3 ? std::stoull(words[3]) : UINT64_MAX);
  } catch (const outcrop::Error &error) {
    std::cerr << "heat: " << error.what() << '\n';
    return error.status();
  }
}
