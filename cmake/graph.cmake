# The graph backend: a library of its own, loaded at run time, so that the
# program starts without MLX and one build serves several MLX variants.
file(GLOB graph_sources CONFIGURE_DEPENDS src/ops/graph/*.cpp)
if(graph_sources)
  # Found without importing it: the CUDA wheel imports only beside a GPU driver.
  execute_process(
    COMMAND ${MLXCEL_PYTHON} -c "import importlib.util as u; \
print(next(iter(u.find_spec('mlx').submodule_search_locations)))"
    OUTPUT_VARIABLE MLX_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    RESULT_VARIABLE mlx_missing)
  if(mlx_missing OR NOT EXISTS ${MLX_ROOT}/include/mlx/mlx.h)
    message(FATAL_ERROR "MLX not found with ${MLXCEL_PYTHON}: install the wheel "
            "there, or configure with -DMLXCEL_GRAPH=OFF")
  endif()
  # Not the wheel's own package file: for CUDA that asks for the CUDA toolkit,
  # of which only MLX itself has need.
  add_library(mlx SHARED IMPORTED)
  set_target_properties(mlx PROPERTIES
    IMPORTED_LOCATION ${MLX_ROOT}/lib/libmlx${CMAKE_SHARED_LIBRARY_SUFFIX}
    INTERFACE_INCLUDE_DIRECTORIES ${MLX_ROOT}/include)
  add_library(mlxcel_graph MODULE ${graph_sources})
  target_include_directories(mlxcel_graph PRIVATE src)
  target_link_libraries(mlxcel_graph PRIVATE mlx fmt::fmt)
  # The program opens it by this name on every system; installed, it finds the
  # wheel's libraries beside itself.
  set_target_properties(mlxcel_graph PROPERTIES
    SUFFIX ${CMAKE_SHARED_LIBRARY_SUFFIX}
    INSTALL_RPATH "$ORIGIN/mlx/lib")
  add_dependencies(program mlxcel_graph)
endif()
