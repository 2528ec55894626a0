#include "cli/command.h"

int main(int argc, char** argv) {
  return mlxcel::cli::main(argc, argv);
}
