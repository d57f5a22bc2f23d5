// What a serializer writes is gone when a checkpoint ends: it has been saved by then.
//
// serialized CONFIG
#include "check.h"

#include <string>
#include <veloc.hpp>

int main(int argc, char **argv) {
    CHECK(argc > 1);
    // So large that the allocator gives it back to the system when it is freed.
    const size_t bytes = 40 << 20;
    std::string state(bytes, 'a');
    veloc::client_t *client = veloc::get_client(7, argv[1]);
    CHECK(client->mem_protect(
        1, [&](std::ostream &out) { out.write(state.data(), static_cast<std::streamsize>(state.size())); },
        [&](std::istream &in) { return !!in.read(&state[0], static_cast<std::streamsize>(state.size())); }));
    CHECK(client->checkpoint_begin("x", 1) && client->checkpoint_mem(VELOC_CKPT_ALL, {}) && client->checkpoint_end(true));
    CHECK(client->checkpoint_wait());
    state.assign(bytes, 'b');
    CHECK(client->restart("x", 1) && state == std::string(bytes, 'a'));
    delete client;
    return 0;
}
