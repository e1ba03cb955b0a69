# A program that gpusnap starts, installed into a package beside its modules.

# program(<package> <name> FOLDER <folder in the package> SOURCES <c files>)
function(program package name)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "FOLDER" "SOURCES")
  add_executable(${name} ${arg_SOURCES})
  target_compile_features(${name} PRIVATE c_std_11)
  target_compile_options(${name} PRIVATE ${GPUSNAP_C_WARNINGS})
  install(TARGETS ${name} RUNTIME DESTINATION "${package}/${arg_FOLDER}")
endfunction()
