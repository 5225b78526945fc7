# find_package(Nemesia) defines these targets. The prefix in which this file is installed may be moved as a whole.
#   Nemesia::shared   libnemesia.so
#   Nemesia::static   libnemesia.a, with the system libraries that it needs
#   Nemesia::Nemesia  one of the two: static if Nemesia_USE_STATIC_LIBS is set
get_filename_component(_nemesia_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET Nemesia::shared)
    add_library(Nemesia::shared SHARED IMPORTED)
    set_target_properties(Nemesia::shared PROPERTIES
        IMPORTED_LOCATION "${_nemesia_prefix}/lib/libnemesia.so.@VERSION@"
        IMPORTED_SONAME "@SONAME@"
        INTERFACE_INCLUDE_DIRECTORIES "${_nemesia_prefix}/include")
endif()

if(NOT TARGET Nemesia::static)
    add_library(Nemesia::static STATIC IMPORTED)
    set_target_properties(Nemesia::static PROPERTIES
        IMPORTED_LOCATION "${_nemesia_prefix}/lib/libnemesia.a"
        IMPORTED_LINK_INTERFACE_LANGUAGES C
        INTERFACE_INCLUDE_DIRECTORIES "${_nemesia_prefix}/include"
        INTERFACE_LINK_LIBRARIES "@SYSTEM_LIBRARIES@")
endif()

if(NOT TARGET Nemesia::Nemesia)
    add_library(Nemesia::Nemesia INTERFACE IMPORTED)
    if(Nemesia_USE_STATIC_LIBS)
        set_target_properties(Nemesia::Nemesia PROPERTIES INTERFACE_LINK_LIBRARIES Nemesia::static)
    else()
        set_target_properties(Nemesia::Nemesia PROPERTIES INTERFACE_LINK_LIBRARIES Nemesia::shared)
    endif()
endif()

foreach(_nemesia_component IN LISTS Nemesia_FIND_COMPONENTS)
    if(TARGET "Nemesia::${_nemesia_component}")
        set("Nemesia_${_nemesia_component}_FOUND" TRUE)
    elseif(Nemesia_FIND_REQUIRED_${_nemesia_component})
        set(Nemesia_FOUND FALSE)
        set(Nemesia_NOT_FOUND_MESSAGE "Nemesia has no component ${_nemesia_component}: it has shared and static")
    endif()
endforeach()
unset(_nemesia_component)
unset(_nemesia_prefix)
