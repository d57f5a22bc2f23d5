// The interface for C++ on several ranks: serializers, observers, and the checkpoints of other ranks.
#include "check.h"

#include <stdexcept>
#include <unistd.h>
#include <vector>
#include <veloc.h>
#include <veloc.hpp>

using numbers_t = std::vector<long>;

static void write(std::ostream &out, const numbers_t &numbers) {
    const size_t count = numbers.size();
    out.write(reinterpret_cast<const char *>(&count), sizeof count);
    out.write(reinterpret_cast<const char *>(numbers.data()), static_cast<std::streamsize>(count * sizeof(long)));
    out.put('!');
}

static bool read(std::istream &in, numbers_t &numbers) {
    size_t count = 0;
    in.read(reinterpret_cast<char *>(&count), sizeof count);
    numbers.resize(count);
    in.read(reinterpret_cast<char *>(numbers.data()), static_cast<std::streamsize>(count * sizeof(long)));
    return in.get() == '!' && in.peek() == std::char_traits<char>::eof();
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    CHECK(argc > 2);
    int rank = 0, count = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    try {
        veloc::get_client(MPI_COMM_WORLD, argv[2]);
        CHECK(!"a configuration that is missing is an error");
    } catch (const std::runtime_error &) {
    }
    veloc::client_t *client = veloc::get_client(MPI_COMM_WORLD, argv[1]);
    CHECK(client == veloc::get_client(MPI_COMM_WORLD, argv[1]));

    int step = 7 + rank;
    numbers_t numbers(100 + rank, 1000 + rank);
    std::vector<std::string> ends;
    CHECK(client->mem_protect(0, &step, 1, sizeof step));
    CHECK(client->mem_protect(
        1, [&](std::ostream &out) { write(out, numbers); }, [&](std::istream &in) { return read(in, numbers); }));
    CHECK(client->register_observer(VELOC_OBSERVE_CKPT_END, [&](const std::string &name, int version) {
        ends.push_back(name + " " + std::to_string(version));
        throw std::runtime_error("observers may fail"); // and nothing else does
    }));
    CHECK(!client->register_observer(5, [](const std::string &, int) {}));
    CHECK(client->restart_test("cpp", 0) == VELOC_FAILURE);
    CHECK(client->checkpoint("cpp", 3));
    CHECK(VELOC_Checkpoint("cpp", 4) == VELOC_SUCCESS); // the same client
    CHECK(client->checkpoint_wait() && client->checkpoint_finished());
    CHECK((ends == std::vector<std::string>{"cpp 3", "cpp 4"}));

    // A serializer that fails, and one that uses the client, leave everything as it was.
    CHECK(client->mem_protect(2, [](std::ostream &) { throw 1; }, [](std::istream &) { return true; }));
    CHECK(!client->checkpoint("cpp", 5));
    CHECK(client->mem_protect(2, [&](std::ostream &) { CHECK(!client->checkpoint_wait()); }, [](std::istream &) { return true; }));
    CHECK(client->checkpoint_begin("cpp", 6) && client->checkpoint_mem(VELOC_CKPT_ALL, {}) && client->checkpoint_end(true));
    CHECK(client->mem_unprotect(2) && !client->mem_unprotect(2));
    CHECK(client->checkpoint_wait());

    step = 0;
    numbers.clear();
    CHECK(client->restart_test("cpp", 4) == 4);
    CHECK(client->restart_begin("cpp", 4));
    CHECK(client->recover_size(0) == sizeof(int) && client->recover_size(1) == sizeof(size_t) + (100 + rank) * sizeof(long) + 1);
    CHECK(client->recover_mem(VELOC_RECOVER_SOME, {0}) && step == 7 + rank && numbers.empty());
    CHECK(client->recover_mem(VELOC_RECOVER_REST, {0}) && numbers == numbers_t(100 + rank, 1000 + rank));
    CHECK(client->restart_end(true));

    // Another rank's state, asked for by one rank only, between what all do.
    CHECK(client->restart_test("cpp", 4) == 4);
    if (rank == 0) {
        const int other = count - 1;
        CHECK(client->restart_test("cpp", 3, other) == 3);
        CHECK(client->restart("cpp", 3, other));
        CHECK(step == 7 + other && numbers == numbers_t(100 + other, 1000 + other));
        CHECK(client->restart_test("cpp", 0, 999) == -1 && !client->restart("cpp", 3, 999));
    }

    CHECK(client->restart("cpp", 4) && step == 7 + rank);

    // Memory and a file in one checkpoint, in either order.
    for (int version : {1, 2}) {
        step = 100 * version + rank;
        CHECK(client->checkpoint_begin("both", version) && (version == 2 || client->checkpoint_mem(VELOC_CKPT_ALL, {})));
        FILE *file = fopen(client->route_file("both.dat").c_str(), "wb");
        CHECK(file != nullptr && fwrite(&step, sizeof step, 1, file) == 1 && fclose(file) == 0);
        CHECK((version == 1 || client->checkpoint_mem(VELOC_CKPT_ALL, {})) && client->checkpoint_end(true));
    }
    CHECK(client->restart_test("both", 0) == 2);
    for (int version : {1, 2}) {
        int in_file = 0;
        CHECK(client->restart_begin("both", version) && client->recover_mem(VELOC_RECOVER_ALL, {}));
        FILE *file = fopen(client->route_file("both.dat").c_str(), "rb");
        CHECK(file != nullptr && fread(&in_file, sizeof in_file, 1, file) == 1 && fclose(file) == 0);
        CHECK(client->restart_end(true) && step == 100 * version + rank && in_file == step);
    }

    CHECK(client->checkpoint_begin("file", 1));
    const std::string path = client->route_file("original.dat");
    CHECK(!path.empty());
    FILE *file = fopen(path.c_str(), "wb");
    CHECK(file != nullptr && fwrite(&rank, sizeof rank, 1, file) == 1 && fclose(file) == 0);
    CHECK(client->checkpoint_end(true) && client->checkpoint_wait());
    CHECK(client->cleanup("file") && client->restart_test("file", 0) == 1);
    client->mem_clear();
    CHECK(!client->checkpoint("cpp", 7));
    delete client;
    CHECK(VELOC_Finalize(1) == VELOC_FAILURE);

    // And once more, with what was saved.
    client = veloc::get_client(MPI_COMM_WORLD, argv[1]);
    CHECK(client->mem_protect(0, &step, 1, sizeof step));
    CHECK(client->restart_test("both", 0) == 2 && client->restart_test("cpp", 0) == 6);
    CHECK(VELOC_Finalize(1) == VELOC_SUCCESS && !client->checkpoint_wait());
    CHECK(VELOC_Init(MPI_COMM_WORLD, argv[1]) == VELOC_SUCCESS && client->checkpoint_wait());
    delete client;
    MPI_Finalize();
    return 0;
}
