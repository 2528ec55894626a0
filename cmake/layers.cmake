# mlxcel_layer(folder libs...): a static library of src/<folder>/*.cpp. Folders
# of src/ops stand alone; models includes its families.
# Files named *_avx2.cpp, *_avx512.cpp and *_avx512bf16.cpp are compiled for that
# instruction set; the choice is made at run time.
set(MLXCEL_LAYERS "" CACHE INTERNAL "")

set(MLXCEL_FLAGS_avx2 -mavx2 -mfma -mf16c)
# GCC 12 takes the intrinsics' undefined operands for uninitialized variables.
set(MLXCEL_FLAGS_avx512 ${MLXCEL_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -Wno-uninitialized -Wno-maybe-uninitialized)
set(MLXCEL_FLAGS_avx512bf16 ${MLXCEL_FLAGS_avx512} -mavx512bf16 -mavx512vnni)

function(mlxcel_layer folder)
  string(REPLACE "/" "_" name ${folder})
  set(patterns src/${folder}/*.cpp)
  if(folder STREQUAL "models")
    list(APPEND patterns src/models/families/*.cpp)
  elseif(folder STREQUAL "ops/cpu")
    list(APPEND patterns src/ops/cpu/kernels/*.cpp)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_avx(2|512|512bf16)\\.cpp$")
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(mlxcel_${name} STATIC ${sources})
  # Many small files behind the same large headers: compiled as one.
  if(folder STREQUAL "engine" OR folder STREQUAL "cli")
    set_target_properties(mlxcel_${name} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
  if(folder STREQUAL "models")  # a hundred families of fifty lines each
    set_target_properties(mlxcel_${name} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
    set(others ${sources})
    list(FILTER others EXCLUDE REGEX "/families/")
    set_source_files_properties(${others} PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_include_directories(mlxcel_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(mlxcel_${name} PUBLIC ${MLXCEL_LAYERS} ${ARGN})
  foreach(source ${sources})
    foreach(isa avx2 avx512 avx512bf16)
      if(source MATCHES "_${isa}\\.cpp$")
        set_source_files_properties(${source} PROPERTIES
          COMPILE_OPTIONS "${MLXCEL_FLAGS_${isa}};-ffp-contract=off;-Wno-maybe-uninitialized")
      endif()
    endforeach()
  endforeach()
  list(APPEND MLXCEL_LAYERS mlxcel_${name})
  set(MLXCEL_LAYERS "${MLXCEL_LAYERS}" CACHE INTERNAL "")
endfunction()

# Links all layers whole, and exports their symbols for the graph backend's
# library, which is loaded at run time.
function(mlxcel_link_program target)
  target_link_libraries(${target} PRIVATE ${MLXCEL_LAYERS})
  string(REPLACE ";" "," whole "${MLXCEL_LAYERS}")
  set_target_properties(${target} PROPERTIES
    LINK_LIBRARY_OVERRIDE "WHOLE_ARCHIVE,${whole}" ENABLE_EXPORTS ON)
endfunction()
