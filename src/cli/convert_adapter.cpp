// `mlxcel convert-adapter`: an adapter that PEFT saved becomes one that
// --adapter and --lora take.
#include "adapters/convert.h"

#include "cli/command.h"
#include "cli/console.h"
#include "core/error.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace mlxcel::cli {

namespace {

struct ConvertOptions {
  std::string peft, out;
};

int run_convert(const ConvertOptions& options) {
  AdapterConversion result = convert_peft_adapter(options.peft, options.out);
  print_note(fmt::format(
      "Wrote {}: {} pairs, rank {}, scale {}, {}",
      options.out,
      result.pairs,
      result.rank,
      result.factor,
      format_bytes(double(result.bytes))));
  if (result.folded > 0) {
    print_note(fmt::format(
        "{} pairs have a factor of their own: it is in their lora_b now{}",
        result.folded,
        result.widened > 0
            ? fmt::format(", as F32 in {} of them", result.widened)
            : ""));
  }
  return kOk;
}

}  // namespace

Action declare_convert_adapter(CLI::App& app) {
  auto options = std::make_shared<ConvertOptions>();
  app.add_option(
         "peft", options->peft, "The folder that PEFT's save_pretrained wrote")
      ->type_name("PEFT_DIR")
      ->required();
  app.add_option(
         "folder", options->out, "Where to write; must be empty or absent")
      ->type_name("OUT_DIR")
      ->required();
  return [options] { return run_convert(*options); };
}

}  // namespace mlxcel::cli
