# ./dev package: a .tar.gz of the program, and two .debs (the program; the
# default model).
if(NOT TARGET mlxcel)
  return()
endif()

set(CPACK_PACKAGE_NAME mlxcel)
set(CPACK_PACKAGE_VENDOR "mlxcel")
set(CPACK_PACKAGE_CONTACT "mlxcel maintainers <maintainers@mlxcel.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_SOURCE_DIR}/build/packages)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME mlxcel)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS
    "libc6 (>= 2.35), libgcc-s1, libstdc++6 (>= 12)")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS mlxcel-model)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION
    "On CPUs it computes on the quantized weights where they lie in the file.")
set(CPACK_DEBIAN_MODEL_PACKAGE_NAME mlxcel-model)
set(CPACK_DEBIAN_MODEL_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_MODEL_PACKAGE_ENHANCES mlxcel)
set(CPACK_DEBIAN_MODEL_DESCRIPTION
    "SmolLM2-135M-Instruct, the model that mlxcel uses when none is named.")
include(CPack)
