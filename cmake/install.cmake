# A tree that can be moved anywhere and needs neither Python nor Rust:
#   bin/mlxcel
#   lib/mlxcel/libmlxcel_graph.so, libfmt, mlx/lib, mlx_*.libs
#   share/mlxcel, share/man, share/doc and the shells' completions
# libmlx looks for its BLAS in ../../mlx_*.libs from its own folder, so the
# wheel's layout is kept.
if(NOT TARGET mlxcel)
  return()
endif()

set(private_libraries ${CMAKE_INSTALL_LIBDIR}/mlxcel)
if(NOT CMAKE_INSTALL_LIBDIR STREQUAL "lib")
  set(private_libraries lib/mlxcel)  # where the program looks, without triplets
endif()

set_target_properties(mlxcel PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${private_libraries}")
install(TARGETS mlxcel RUNTIME DESTINATION bin COMPONENT program)
install(FILES ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/mlxcel-server DESTINATION bin
        COMPONENT program)

get_target_property(fmt_type fmt::fmt TYPE)
if(fmt_type STREQUAL "SHARED_LIBRARY")
  install(IMPORTED_RUNTIME_ARTIFACTS fmt::fmt
          LIBRARY DESTINATION ${private_libraries} COMPONENT program)
endif()

set(wheel_licences "")
if(TARGET mlxcel_graph)
  install(TARGETS mlxcel_graph
          LIBRARY DESTINATION ${private_libraries} COMPONENT program)
  set_target_properties(mlxcel_graph PROPERTIES
    INSTALL_RPATH "$ORIGIN;$ORIGIN/mlx/lib")
  get_filename_component(wheel_root ${MLX_ROOT} ABSOLUTE)
  get_filename_component(site_packages ${wheel_root} DIRECTORY)
  install(DIRECTORY ${wheel_root}/lib/
          DESTINATION ${private_libraries}/mlx/lib COMPONENT program
          USE_SOURCE_PERMISSIONS)
  file(GLOB wheel_libraries ${site_packages}/mlx_*.libs)
  if(wheel_libraries)
    install(DIRECTORY ${wheel_libraries}
            DESTINATION ${private_libraries} COMPONENT program
            USE_SOURCE_PERMISSIONS)
  endif()
  set(wheel_licences ${site_packages})
endif()

# Written by the program and by cargo at install time, from what was built.
install(CODE "
  set(mlxcel_program \"$<TARGET_FILE:mlxcel>\")
  set(mlxcel_stage \"${PROJECT_BINARY_DIR}/stage\")
  file(REMOVE_RECURSE \${mlxcel_stage})
  file(MAKE_DIRECTORY \${mlxcel_stage})
  foreach(shell bash zsh fish)
    execute_process(COMMAND \${mlxcel_program} completions \${shell}
                    OUTPUT_FILE \${mlxcel_stage}/completion.\${shell}
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  execute_process(
    COMMAND ${MLXCEL_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/make_man.py
            \${mlxcel_program} \${mlxcel_stage}/man ${PROJECT_VERSION}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${MLXCEL_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/collect_licences.py
            --output \${mlxcel_stage}/third-party-licences.txt
            --wheels \"${wheel_licences}\" --cargo \"${MLXCEL_CARGO}\"
    COMMAND_ERROR_IS_FATAL ANY)
" COMPONENT program)
set(stage ${PROJECT_BINARY_DIR}/stage)
install(FILES ${stage}/completion.bash RENAME mlxcel
        DESTINATION share/bash-completion/completions COMPONENT program)
install(FILES ${stage}/completion.zsh RENAME _mlxcel
        DESTINATION share/zsh/site-functions COMPONENT program)
install(FILES ${stage}/completion.fish RENAME mlxcel.fish
        DESTINATION share/fish/vendor_completions.d COMPONENT program)
install(DIRECTORY ${stage}/man/ DESTINATION share/man/man1 COMPONENT program)
install(FILES LICENSE README.md CHANGELOG.md ${stage}/third-party-licences.txt
        DESTINATION share/doc/mlxcel COMPONENT program)

# The default model, when its folder is named: a component of its own.
set(MLXCEL_PACKAGED_MODEL "" CACHE PATH
    "Folder of the default model, to package beside the program")
if(MLXCEL_PACKAGED_MODEL)
  install(DIRECTORY ${MLXCEL_PACKAGED_MODEL}
          DESTINATION share/mlxcel/models COMPONENT model EXCLUDE_FROM_ALL)
  # Its licence is the same as ours.
  install(FILES LICENSE DESTINATION share/doc/mlxcel-model
          COMPONENT model EXCLUDE_FROM_ALL)
endif()
