# VELOC's interface on top of Outcrop for CMake, as VELOC itself is found: find_package(veloc REQUIRED), then link with veloc::client.

get_filename_component(veloc_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET veloc::client)
  add_library(veloc::client SHARED IMPORTED)
  set_target_properties(veloc::client PROPERTIES
    IMPORTED_LOCATION "${veloc_PREFIX}/lib/libveloc-client.so"
    INTERFACE_INCLUDE_DIRECTORIES "${veloc_PREFIX}/include")
  if(@HAS_MPI@)
    include(CMakeFindDependencyMacro)
    find_dependency(MPI REQUIRED)
    # Of the languages that the project has.
    foreach(veloc_language C CXX)
      if(TARGET MPI::MPI_${veloc_language})
        set_property(TARGET veloc::client APPEND PROPERTY INTERFACE_LINK_LIBRARIES MPI::MPI_${veloc_language})
      endif()
    endforeach()
  else()
    set_property(TARGET veloc::client PROPERTY INTERFACE_COMPILE_DEFINITIONS VELOC_NO_MPI)
  endif()
  add_library(veloc::veloc-client INTERFACE IMPORTED)
  set_property(TARGET veloc::veloc-client PROPERTY INTERFACE_LINK_LIBRARIES veloc::client)
endif()
