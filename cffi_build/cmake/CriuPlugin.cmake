# A library that CRIU loads into itself, installed into a package beside its modules.

# criu_plugin(<package> <plugin> FOLDER <folder in the package> SOURCES <c files>)
function(criu_plugin package plugin)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "FOLDER" "SOURCES")
  add_library(${plugin} MODULE ${arg_SOURCES})
  target_compile_features(${plugin} PRIVATE c_std_11)
  target_compile_options(${plugin} PRIVATE ${GPUSNAP_C_WARNINGS})
  # CRIU unloads its plugins before it ends, and may still call what one put in place
  target_link_options(${plugin} PRIVATE LINKER:-z,nodelete)
  set_target_properties(${plugin} PROPERTIES C_VISIBILITY_PRESET hidden PREFIX "")
  install(TARGETS ${plugin} LIBRARY DESTINATION "${package}/${arg_FOLDER}")
endfunction()
