// `mlxcel import-gguf`: a GGUF file becomes a checkpoint folder.
#include "gguf/import.h"

#include "cli/command.h"
#include "cli/console.h"
#include "core/error.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace mlxcel::cli {

namespace {

struct ImportOptions {
  std::string file, folder;
  bool dequantize = false;
};

int run_import(const ImportOptions& options) {
  GgufImport result =
      import_gguf(options.file, options.folder, options.dequantize);
  print_note(fmt::format(
      "Wrote {}: {} tensors, {:.1f} M parameters, {}{}",
      options.folder,
      result.tensors,
      double(result.parameters) / 1e6,
      format_bytes(double(result.bytes)),
      result.quantized ? ", quantized" : ""));
  return kOk;
}

}  // namespace

Action declare_import_gguf(CLI::App& app) {
  auto options = std::make_shared<ImportOptions>();
  app.add_option("file", options->file, "The GGUF file")
      ->type_name("FILE")
      ->required();
  app.add_option(
         "folder", options->folder, "Where to write; must be empty or absent")
      ->type_name("OUT_DIR")
      ->required();
  app.add_flag(
      "--dequantize",
      options->dequantize,
      "Write bf16 weights, which adapters can be fused into");
  return [options] { return run_import(*options); };
}

}  // namespace mlxcel::cli
