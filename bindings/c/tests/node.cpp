// The node daemon from C++.
//
//   node DIRECTORY

#include <outcrop.hpp>

#include "check.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>

int main(int argc, char **argv) try {
  DEMAND(argc == 2);
  const std::string directory = argv[1], path = directory + "/file";
  outcrop::Node node("directory = '" + directory + "/node'\nmemory = '8 MiB'\nidle_seconds = 3");
  std::vector<double> values(200'000), back(values.size());
  std::iota(values.begin(), values.end(), 0.5);
  const std::uint64_t bytes = values.size() * sizeof(double);
  {
    outcrop::NodeFile file = node.open(path);
    file.write(0, values);
    outcrop::Pending pending = file.write_async(bytes, values);
    pending.wait();
    {
      // It is waited for at the end of the block.
      const outcrop::Pending other = file.write_async(2 * bytes, values.data(), 3);
      (void)other.done();
    }
    DEMAND(file.size() == 2 * bytes + 24);
    DEMAND(file.read(bytes, back.data(), bytes) == bytes && back == values);
    file.resize(2 * bytes);
    file.sync();
    try {
      outcrop::Pending hopeless = file.write_async(UINT64_MAX - 8, values.data(), 1);
      hopeless.wait();
      DEMAND(false);
    } catch (const outcrop::Error &error) {
      DEMAND(error.status() == OUTCROP_USAGE);
    }
    file.close();
  }
  std::ifstream written(path, std::ios::binary);
  written.seekg(static_cast<std::streamoff>(bytes));
  DEMAND(written.read(reinterpret_cast<char *>(back.data()), static_cast<std::streamsize>(bytes)) && back == values);
  node.drain_all();
  DEMAND(node.status_json().find("\"at_risk_bytes\":0") != std::string::npos);
  try {
    node.open(directory + "/no/such/file");
    DEMAND(false);
  } catch (const outcrop::Error &error) {
    DEMAND(error.status() == OUTCROP_STORAGE);
  }
  node.close();
  std::puts("nothing was lost");
} catch (const outcrop::Error &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return EXIT_FAILURE;
}
