// VELOC's interface for C++, on top of Outcrop. The order of the virtual functions is that of VELOC.
#ifndef OUTCROP_VELOC_HPP
#define OUTCROP_VELOC_HPP

#include "veloc/defs.h"

#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <string>

#ifndef VELOC_NO_MPI
#include <mpi.h>
#endif

namespace veloc {

class client_t {
protected:
    // The group of regions of all checkpoints that have none of their own.
    static constexpr char default_mem_group[] = "";
    using serializer_t = std::function<void(std::ostream &)>;
    using deserializer_t = std::function<bool(std::istream &)>;
    using observer_t = std::function<void(const std::string &name, int version)>;

public:
    virtual bool mem_protect(int id, void *ptr, size_t count, size_t base_size, const std::string &name = default_mem_group) = 0;
    virtual bool mem_protect(int id, const serializer_t &s, const deserializer_t &d, const std::string &name = default_mem_group) = 0;
    virtual bool mem_unprotect(int id, const std::string &name = default_mem_group) = 0;
    virtual void mem_clear(const std::string &name = default_mem_group) = 0;
    virtual bool register_observer(int type, const observer_t &obs) = 0;

    virtual std::string route_file(const std::string &original) = 0;
    virtual bool cleanup(const std::string &name) = 0;

    virtual bool checkpoint(const std::string &name, int version) = 0;
    virtual bool checkpoint_begin(const std::string &name, int version) = 0;
    virtual bool checkpoint_mem(int mode, const std::set<int> &ids) = 0;
    virtual bool checkpoint_end(bool success) = 0;
    virtual bool checkpoint_wait() = 0;
    virtual bool checkpoint_finished() = 0;

    // With a target_rank from 0 on, another rank's checkpoints are meant, and nobody else is asked.
    virtual int restart_test(const std::string &name, int version, int target_rank = -1) = 0;
    virtual bool restart(const std::string &name, int version, int target_rank = -1) = 0;
    virtual bool restart_begin(const std::string &name, int version, int target_rank = -1) = 0;
    virtual size_t recover_size(int id) = 0;
    virtual bool recover_mem(int mode, const std::set<int> &ids) = 0;
    virtual bool restart_end(bool success) = 0;

    // Finalises.
    virtual ~client_t() = 0;
};

// The one client of this process, which is also that of the functions of veloc.h. Throws std::runtime_error if it cannot be made.
client_t *get_client(unsigned int id, const std::string &cfg_file);
#ifndef VELOC_NO_MPI
client_t *get_client(MPI_Comm comm, const std::string &cfg_file);
#endif

}

#endif
