# Two ways to turn a cdef header into an importable module of a package.

# The same warnings for the sources of this project everywhere; cffi's own generated code is
# compiled without them, for it is not ours to mend.
set(GPUSNAP_C_WARNINGS -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes)

# cffi_api_module(<package> <module> CDEF <header> PRELUDE <header> SOURCES <c files>)
function(cffi_api_module package module)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "CDEF;PRELUDE" "SOURCES")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${module}.c")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${Python_EXECUTABLE}" -m cffi.gen_src read-sources
      "${package}.${module}"
      "${CMAKE_CURRENT_SOURCE_DIR}/${arg_CDEF}"
      "${CMAKE_CURRENT_SOURCE_DIR}/${arg_PRELUDE}"
      "${generated}"
    DEPENDS "${arg_CDEF}" "${arg_PRELUDE}"
    COMMENT "Generating ${package}.${module} from ${arg_CDEF}"
    VERBATIM
  )
  add_library(${module}_sources OBJECT ${arg_SOURCES})
  target_compile_features(${module}_sources PRIVATE c_std_11)
  target_compile_options(${module}_sources PRIVATE ${GPUSNAP_C_WARNINGS})
  set_target_properties(${module}_sources PROPERTIES
    C_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON
  )
  python_add_library(${module} MODULE WITH_SOABI USE_SABI 3.11 "${generated}")
  target_include_directories(${module} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/src")
  target_link_libraries(${module} PRIVATE ${module}_sources)
  install(TARGETS ${module} LIBRARY DESTINATION "${package}")
endfunction()

# generated_header(<api module> <header> SCRIPT <python script>)
function(generated_header module header)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "SCRIPT" "")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/include/${header}")
  set(script "${CMAKE_CURRENT_SOURCE_DIR}/${arg_SCRIPT}")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_CURRENT_BINARY_DIR}/include"
    COMMAND "${Python_EXECUTABLE}" "${script}" "${generated}"
    DEPENDS "${script}"
    COMMENT "Generating ${header}"
    VERBATIM
  )
  target_sources(${module}_sources PRIVATE "${generated}")
  target_include_directories(${module}_sources PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/include")
endfunction()

# cffi_abi_module(<package> <module> CDEF <header>)
function(cffi_abi_module package module)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "CDEF" "")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${module}.py")
  set(script "${CMAKE_CURRENT_SOURCE_DIR}/cmake/emit_abi_module.py")
  add_custom_command(
    OUTPUT "${generated}"
    COMMAND "${Python_EXECUTABLE}" "${script}"
      "${package}.${module}"
      "${CMAKE_CURRENT_SOURCE_DIR}/${arg_CDEF}"
      "${generated}"
    DEPENDS "${arg_CDEF}" "${script}"
    COMMENT "Generating ${package}.${module} from ${arg_CDEF}"
    VERBATIM
  )
  add_custom_target(${package}${module} ALL DEPENDS "${generated}")
  install(FILES "${generated}" DESTINATION "${package}")
endfunction()
