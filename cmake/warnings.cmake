add_compile_options(-Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(MLXCEL_SANITIZE)
  add_compile_options(-fsanitize=${MLXCEL_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${MLXCEL_SANITIZE})
endif()
if(MLXCEL_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link
                      -fprofile-instr-generate -fcoverage-mapping)
  add_link_options(-fprofile-instr-generate)
endif()
find_program(MLXCEL_MOLD mold)
if(MLXCEL_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
find_program(MLXCEL_CCACHE ccache)
if(MLXCEL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MLXCEL_CCACHE})
endif()
# Paths in messages and debug information are relative to the source tree, and
# equal sources in two checkouts share the compiler cache.
if(NOT MLXCEL_FUZZ)  # coverage reports look the files up
  add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
endif()
