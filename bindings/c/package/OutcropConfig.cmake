# Outcrop for CMake: find_package(Outcrop @VERSION@ CONFIG REQUIRED), then link with
#
#   Outcrop::outcrop         the shared library
#   Outcrop::outcrop_static  the static one
#
# For Fortran, add ${Outcrop_FORTRAN_SOURCE} to the sources of a target: a module has to be compiled by the compiler that uses it.

get_filename_component(Outcrop_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(Outcrop_FORTRAN_SOURCE "${Outcrop_PREFIX}/share/outcrop/fortran/outcrop.f90")

if(NOT TARGET Outcrop::outcrop)
  add_library(Outcrop::outcrop SHARED IMPORTED)
  set_target_properties(Outcrop::outcrop PROPERTIES
    IMPORTED_LOCATION "${Outcrop_PREFIX}/lib/liboutcrop.so"
    INTERFACE_INCLUDE_DIRECTORIES "${Outcrop_PREFIX}/include")
endif()

if(NOT TARGET Outcrop::outcrop_static)
  add_library(Outcrop::outcrop_static STATIC IMPORTED)
  set_target_properties(Outcrop::outcrop_static PROPERTIES
    IMPORTED_LOCATION "${Outcrop_PREFIX}/lib/liboutcrop.a"
    INTERFACE_INCLUDE_DIRECTORIES "${Outcrop_PREFIX}/include"
    INTERFACE_LINK_LIBRARIES "util;rt;pthread;m;dl")
endif()
