# The Rust static library of text functions, built by cargo. All presets share
# one target folder: it does not depend on them.
if(EXISTS ${PROJECT_SOURCE_DIR}/textkit/Cargo.toml)
  find_program(MLXCEL_CARGO cargo REQUIRED)
  set(textkit_target ${PROJECT_SOURCE_DIR}/build/textkit)
  set(textkit_archive ${textkit_target}/release/libtextkit.a)
  file(GLOB_RECURSE textkit_sources CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/textkit/src/*.rs)
  add_custom_command(
    OUTPUT ${textkit_archive}
    COMMAND ${MLXCEL_CARGO} build --quiet --release --locked
            --manifest-path ${PROJECT_SOURCE_DIR}/textkit/Cargo.toml
            --target-dir ${textkit_target}
    COMMAND ${CMAKE_COMMAND} -E touch ${textkit_archive}
    DEPENDS ${textkit_sources} ${PROJECT_SOURCE_DIR}/textkit/Cargo.toml
            ${PROJECT_SOURCE_DIR}/textkit/Cargo.lock
    COMMENT "Building textkit" VERBATIM)
  add_custom_target(textkit_build DEPENDS ${textkit_archive})
  add_library(textkit STATIC IMPORTED GLOBAL)
  add_dependencies(textkit textkit_build)
  set_target_properties(textkit PROPERTIES IMPORTED_LOCATION ${textkit_archive})
  target_include_directories(textkit INTERFACE ${PROJECT_SOURCE_DIR}/textkit/include)
  target_link_libraries(textkit INTERFACE dl m pthread)
else()
  add_library(textkit INTERFACE)
endif()
