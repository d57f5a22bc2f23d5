// What only C++ can have: the class of veloc.hpp, streams for serializers, and the one meeting of ranks by MPI.

#include "veloc.h"
#include "veloc.hpp"

#include <cstdint>
#include <istream>
#include <memory>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <vector>

// The rest is in Rust.
extern "C" {

struct outcrop_veloc_callbacks {
    void *context;
    int (*serialize)(void *context, void *sink);
    int (*deserialize)(void *context, const uint8_t *bytes, size_t len);
    void (*release)(void *context);
};

struct outcrop_veloc_observer {
    void *context;
    void (*call)(void *context, const char *name, int version);
    void (*release)(void *context);
};

uint64_t outcrop_veloc_number(void);
int outcrop_veloc_is_open(void);
int outcrop_veloc_call(const char *cfg_file, unsigned int rank, unsigned int count, unsigned int local_count, uint64_t number);
int outcrop_veloc_look(unsigned int rank);
int outcrop_veloc_join(unsigned int rank);
void outcrop_veloc_call_off(void);
int outcrop_veloc_protect(int id, outcrop_veloc_callbacks callbacks, const char *name);
void outcrop_veloc_push(void *sink, const uint8_t *bytes, size_t len);
int outcrop_veloc_observe(int kind, outcrop_veloc_observer observer);
int outcrop_veloc_restart_test(const char *name, int version, int target_rank);
int outcrop_veloc_restart_begin(const char *name, int version, int target_rank);
int outcrop_veloc_restart(const char *name, int version, int target_rank);
size_t outcrop_veloc_recover_size(int id);

}

namespace {

// In one piece: other ranks write to the same place.
void say(const std::string &sentence) {
    const std::string line = "veloc (outcrop): " + sentence + "\n";
    std::cerr.write(line.data(), static_cast<std::streamsize>(line.size())).flush();
}

// A stream buffer whose bytes go to Rust at once. Serializers may ask how many there are.
class sink_buffer : public std::streambuf {
    void *sink;
    std::streamoff written = 0;

protected:
    std::streamsize xsputn(const char *bytes, std::streamsize len) override {
        outcrop_veloc_push(sink, reinterpret_cast<const uint8_t *>(bytes), static_cast<size_t>(len));
        written += len;
        return len;
    }

    int_type overflow(int_type next) override {
        if (!traits_type::eq_int_type(next, traits_type::eof())) {
            const char byte = traits_type::to_char_type(next);
            xsputn(&byte, 1);
        }
        return traits_type::not_eof(next);
    }

    pos_type seekoff(off_type offset, std::ios_base::seekdir from, std::ios_base::openmode) override {
        return offset == 0 && from == std::ios_base::cur ? pos_type(written) : pos_type(off_type(-1));
    }

public:
    explicit sink_buffer(void *sink) : sink(sink) {}
};

// A stream buffer over the bytes of one region.
class source_buffer : public std::streambuf {
protected:
    pos_type seekoff(off_type offset, std::ios_base::seekdir from, std::ios_base::openmode) override {
        const char *base = from == std::ios_base::beg ? eback() : from == std::ios_base::cur ? gptr() : egptr();
        const off_type to = (base - eback()) + offset;
        if (to < 0 || to > egptr() - eback())
            return pos_type(off_type(-1));
        setg(eback(), eback() + to, egptr());
        return pos_type(to);
    }

    pos_type seekpos(pos_type to, std::ios_base::openmode mode) override {
        return seekoff(off_type(to), std::ios_base::beg, mode);
    }

public:
    source_buffer(const uint8_t *bytes, size_t len) {
        char *begin = const_cast<char *>(reinterpret_cast<const char *>(bytes));
        setg(begin, begin, begin + len);
    }
};

struct functions {
    std::function<void(std::ostream &)> serialize;
    std::function<bool(std::istream &)> deserialize;
};

// No exception of the program may reach Rust.
int serialize(void *context, void *sink) {
    try {
        sink_buffer buffer(sink);
        std::ostream out(&buffer);
        static_cast<functions *>(context)->serialize(out);
        return out.flush() ? VELOC_SUCCESS : VELOC_FAILURE;
    } catch (...) {
        return VELOC_FAILURE;
    }
}

int deserialize(void *context, const uint8_t *bytes, size_t len) {
    try {
        source_buffer buffer(bytes, len);
        std::istream in(&buffer);
        return static_cast<functions *>(context)->deserialize(in) ? VELOC_SUCCESS : VELOC_FAILURE;
    } catch (...) {
        return VELOC_FAILURE;
    }
}

using observer = std::function<void(const std::string &, int)>;

void observe(void *context, const char *name, int version) {
    try {
        (*static_cast<observer *>(context))(name, version);
    } catch (const std::exception &error) {
        say(std::string("an observer has failed: ") + error.what());
    } catch (...) {
        say("an observer has failed");
    }
}

template <typename T>
void release(void *context) {
    delete static_cast<T *>(context);
}

bool is_well(int status) {
    return status == VELOC_SUCCESS;
}

#ifndef VELOC_NO_MPI

// Whether all ranks say so.
bool all(MPI_Comm comm, int status) {
    int mine = is_well(status) ? 1 : 0, everybody = 0;
    return MPI_Allreduce(&mine, &everybody, 1, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS && everybody == 1;
}

// The only use of MPI: ranks agree on a directory, and talk through it from then on.
int meet(MPI_Comm comm, const char *cfg_file) {
    int is_ready = 0;
    if (MPI_Initialized(&is_ready) != MPI_SUCCESS || !is_ready || comm == MPI_COMM_NULL) {
        say("VELOC_Init needs a communicator; call MPI_Init first, or VELOC_Init_single");
        return VELOC_FAILURE;
    }
    int rank = 0, count = 1, local_count = 1;
    MPI_Comm local = MPI_COMM_NULL;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &count);
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local) == MPI_SUCCESS) {
        MPI_Comm_size(local, &local_count);
        MPI_Comm_free(&local);
    }
    uint64_t number = rank == 0 ? outcrop_veloc_number() : 0;
    MPI_Bcast(&number, 1, MPI_UINT64_T, 0, comm);
    if (!all(comm, outcrop_veloc_call(cfg_file, rank, count, local_count, number)) || !all(comm, outcrop_veloc_look(rank))) {
        outcrop_veloc_call_off();
        return VELOC_FAILURE;
    }
    if (all(comm, outcrop_veloc_join(rank)))
        return VELOC_SUCCESS;
    if (outcrop_veloc_is_open())
        VELOC_Finalize(0);
    return VELOC_FAILURE;
}

#endif

class client_impl : public veloc::client_t {
public:
    bool mem_protect(int id, void *ptr, size_t count, size_t base_size, const std::string &name) override {
        return is_well(VELOC_Region_protect(id, ptr, count, base_size, name.c_str()));
    }

    bool mem_protect(int id, const serializer_t &s, const deserializer_t &d, const std::string &name) override {
        if (!s || !d) {
            say("region " + std::to_string(id) + " needs a serializer and a deserializer");
            return false;
        }
        outcrop_veloc_callbacks callbacks = {new functions{s, d}, serialize, deserialize, release<functions>};
        return is_well(outcrop_veloc_protect(id, callbacks, name.c_str()));
    }

    bool mem_unprotect(int id, const std::string &name) override { return is_well(VELOC_Region_unprotect(id, name.c_str())); }
    void mem_clear(const std::string &name) override { VELOC_Region_clear(name.c_str()); }

    bool register_observer(int type, const observer_t &obs) override {
        if (!obs)
            return false;
        return is_well(outcrop_veloc_observe(type, {new observer(obs), observe, release<observer>}));
    }

    std::string route_file(const std::string &original) override {
        char routed[VELOC_MAX_NAME];
        return is_well(VELOC_Route_file(original.c_str(), routed)) ? routed : "";
    }

    bool cleanup(const std::string &name) override { return is_well(VELOC_Cleanup(name.c_str())); }

    bool checkpoint(const std::string &name, int version) override { return is_well(VELOC_Checkpoint(name.c_str(), version)); }
    bool checkpoint_begin(const std::string &name, int version) override {
        return is_well(VELOC_Checkpoint_begin(name.c_str(), version));
    }
    bool checkpoint_mem(int mode, const std::set<int> &ids) override {
        std::vector<int> list(ids.begin(), ids.end());
        return is_well(VELOC_Checkpoint_selective(mode, list.data(), static_cast<int>(list.size())));
    }
    bool checkpoint_end(bool success) override { return is_well(VELOC_Checkpoint_end(success)); }
    bool checkpoint_wait() override { return is_well(VELOC_Checkpoint_wait()); }
    bool checkpoint_finished() override { return is_well(VELOC_Checkpoint_finished()); }

    int restart_test(const std::string &name, int version, int target_rank) override {
        return outcrop_veloc_restart_test(name.c_str(), version, target_rank);
    }
    bool restart(const std::string &name, int version, int target_rank) override {
        return is_well(outcrop_veloc_restart(name.c_str(), version, target_rank));
    }
    bool restart_begin(const std::string &name, int version, int target_rank) override {
        return is_well(outcrop_veloc_restart_begin(name.c_str(), version, target_rank));
    }
    size_t recover_size(int id) override { return outcrop_veloc_recover_size(id); }
    bool recover_mem(int mode, const std::set<int> &ids) override {
        std::vector<int> list(ids.begin(), ids.end());
        return is_well(VELOC_Recover_selective(mode, list.data(), static_cast<int>(list.size())));
    }
    bool restart_end(bool success) override { return is_well(VELOC_Restart_end(success)); }

    ~client_impl() override;
};

std::mutex lock;
client_impl *the_client = nullptr;

client_impl::~client_impl() {
    std::lock_guard<std::mutex> guard(lock);
    if (the_client == this)
        the_client = nullptr;
    if (outcrop_veloc_is_open())
        VELOC_Finalize(0);
}

// The object stays when VELOC_Finalize is called, and can be used again after the next VELOC_Init.
veloc::client_t *handle(int status) {
    if (!is_well(status))
        throw std::runtime_error("VELOC cannot be initialised; the reason is on stderr");
    std::lock_guard<std::mutex> guard(lock);
    if (the_client == nullptr)
        the_client = new client_impl();
    return the_client;
}

}

veloc::client_t::~client_t() {}

veloc::client_t *veloc::get_client(unsigned int id, const std::string &cfg_file) {
    return handle(outcrop_veloc_is_open() ? VELOC_SUCCESS : VELOC_Init_single(id, cfg_file.c_str()));
}

#ifndef VELOC_NO_MPI

veloc::client_t *veloc::get_client(MPI_Comm comm, const std::string &cfg_file) {
    return handle(outcrop_veloc_is_open() ? VELOC_SUCCESS : meet(comm, cfg_file.c_str()));
}

extern "C" int VELOC_Init(MPI_Comm comm, const char *cfg_file) {
    if (outcrop_veloc_is_open()) {
        say("VELOC_Init: it is initialised already, and goes on as it was");
        return VELOC_SUCCESS;
    }
    return meet(comm, cfg_file);
}

#endif
