// Serializers for client_t::mem_protect, by cereal.
#ifndef OUTCROP_VELOC_CEREAL_HPP
#define OUTCROP_VELOC_CEREAL_HPP

#include <cereal/archives/binary.hpp>
#include <exception>
#include <functional>
#include <istream>
#include <ostream>

namespace veloc::cereal {

using namespace ::cereal;

template <typename T>
std::function<void(std::ostream &)> serializer(T &data) {
    return [&data](std::ostream &out) { ::cereal::BinaryOutputArchive{out}(data); };
}

template <typename T>
std::function<bool(std::istream &)> deserializer(T &data) {
    return [&data](std::istream &in) {
        try {
            ::cereal::BinaryInputArchive{in}(data);
            return true;
        } catch (const std::exception &) {
            return false;
        }
    };
}

}

#endif
