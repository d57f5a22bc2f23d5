// Serializers for client_t::mem_protect, by Boost.
#ifndef OUTCROP_VELOC_BOOST_HPP
#define OUTCROP_VELOC_BOOST_HPP

#include <boost/archive/binary_iarchive.hpp>
#include <boost/archive/binary_oarchive.hpp>
#include <exception>
#include <functional>
#include <istream>
#include <ostream>

namespace veloc::boost {

template <typename T>
std::function<void(std::ostream &)> serializer(T &data) {
    return [&data](std::ostream &out) {
        ::boost::archive::binary_oarchive archive(out);
        archive << data;
    };
}

template <typename T>
std::function<bool(std::istream &)> deserializer(T &data) {
    return [&data](std::istream &in) {
        try {
            ::boost::archive::binary_iarchive archive(in);
            archive >> data;
            return true;
        } catch (const std::exception &) {
            return false;
        }
    };
}

}

#endif
