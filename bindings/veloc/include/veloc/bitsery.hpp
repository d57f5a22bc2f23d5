// Serializers for client_t::mem_protect, by Bitsery.
#ifndef OUTCROP_VELOC_BITSERY_HPP
#define OUTCROP_VELOC_BITSERY_HPP

#include <cstdint>

#include <bitsery/adapter/stream.h>
#include <bitsery/bitsery.h>
#include <functional>
#include <istream>
#include <ostream>

namespace veloc::bitsery {

using namespace ::bitsery;

template <typename T>
std::function<void(std::ostream &)> serializer(T &data) {
    return [&data](std::ostream &out) {
        ::bitsery::Serializer<::bitsery::OutputBufferedStreamAdapter> archive{out};
        archive.object(data);
        archive.adapter().flush();
    };
}

template <typename T>
std::function<bool(std::istream &)> deserializer(T &data) {
    return [&data](std::istream &in) {
        const auto result = ::bitsery::quickDeserialization<::bitsery::InputStreamAdapter>(in, data);
        return result.first == ::bitsery::ReaderError::NoError;
    };
}

}

#endif
