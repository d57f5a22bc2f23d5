// Pools from C++.
//
//   pool DIRECTORY

#include <outcrop.hpp>

#include <complex>
#include <cstdio>
#include <cstdlib>

#define DEMAND(condition)                                                         \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition); \
      std::exit(EXIT_FAILURE);                                                    \
    }                                                                             \
  } while (0)

int main(int argc, char **argv) {
  DEMAND(argc == 2);
  const std::string path = std::string(argv[1]) + "/a.pool";
  {
    outcrop::Pool pool(path, 3);
    auto *wave = pool.array<std::complex<double>>("wave", {3, 4, 5});
    auto *step = pool.array<std::int64_t>("step", {1});
    wave[59] = {1, 2};
    *step = 1;
    const auto first = pool.persist();
    wave[59] = {3, 4};
    DEMAND(pool.persist() == first + 1 && pool.versions().size() == 2);
    std::int64_t old = 0;
    pool.read(first, "step", &old, 1);
    DEMAND(old == 1);
    pool.restore(first);
    DEMAND(wave[59] == std::complex<double>(1, 2));
    try {
      pool.restore(99);
      DEMAND(false);
    } catch (const outcrop::Error &error) {
      DEMAND(error.status() == OUTCROP_MISSING);
    }
  }
  outcrop::Pool pool(path);
  DEMAND(pool.array<std::complex<double>>("wave", {3, 4, 5})[59] == std::complex<double>(3, 4));
  std::puts("pools kept what they should");
}
