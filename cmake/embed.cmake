# mlxcel_embed(target FILE...): compiles files of src/server into the target, as
# arrays embedded_NAME_EXTENSION and their sizes. Also the script that writes
# one of them (cmake -P).
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${INPUT} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  file(WRITE ${OUTPUT} "#include <cstddef>
namespace mlxcel::server {
extern const unsigned char embedded_${NAME}[] = {${bytes}0};
extern const std::size_t embedded_${NAME}_size =
    sizeof(embedded_${NAME}) - 1;
}  // namespace mlxcel::server
")
  return()
endif()

set(MLXCEL_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(mlxcel_embed target)
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "[^a-z]" "_" name ${name})
    set(input ${PROJECT_SOURCE_DIR}/src/server/${file})
    set(output ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
    add_custom_command(
      OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DOUTPUT=${output}
              -DNAME=${name} -P ${MLXCEL_EMBED_SCRIPT}
      DEPENDS ${input} ${MLXCEL_EMBED_SCRIPT} VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endforeach()
endfunction()
