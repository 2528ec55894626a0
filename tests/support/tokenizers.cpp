#include "support/tokenizers.h"

#include "support/fixtures.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace mlxcel::testing {

namespace fs = std::filesystem;

fs::path cache_folder() {
  const char* named = std::getenv("MLXCEL_CACHE_DIR");
  if (named != nullptr && *named != '\0') {
    return named;
  }
  const char* home = std::getenv("HOME");
  return fs::path(home != nullptr ? home : ".") / ".cache/mlxcel";
}

fs::path default_model_folder() {
  const char* named = std::getenv("MLXCEL_TEST_MODEL");
  return named != nullptr && *named != '\0'
             ? fs::path(named)
             : cache_folder() / "models/SmolLM2-135M-Instruct";
}

std::vector<std::string> tokenizer_case_names() {
  std::vector<std::string> names;
  fs::path root = fixture_root() / "tokenizer";
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    std::string name = entry.path().stem().string();
    if (name.starts_with("small_") || name.starts_with("real_")) {
      names.push_back(name);
    }
  }
  if (names.empty()) {
    throw std::runtime_error("no tokenizers in " + root.string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TokenizerCase load_tokenizer_case(const std::string& name) {
  TokenizerCase out;
  fs::path table = fixture_root() / "tokenizer" / (name + ".json");
  if (name.starts_with("small_")) {
    out.folder = fixture_root() / "tokenizer" / name;
    table = out.folder / "expected.json";
  } else if (name == "real_smollm2") {
    out.folder = default_model_folder();
  } else {
    out.folder = cache_folder() / "tokenizers" / name.substr(5);
  }
  std::ifstream in(table);
  out.expected = nlohmann::ordered_json::parse(in, nullptr, false);
  if (out.expected.is_discarded()) {
    out.problem = "cannot read " + table.string();
  } else if (!fs::exists(out.folder / "tokenizer.json")) {
    out.problem =
        "no tokenizer.json in " + out.folder.string() +
        (name == "real_smollm2" ? ": run ./dev model"
                                : ": run scripts/fetch_tokenizers.sh");
  }
  return out;
}

}  // namespace mlxcel::testing
