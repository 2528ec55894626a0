// Cases of families without a fixture: tests/data/text_families, which
// tests/oracle/text_families.py writes. Their tensors follow from their names,
// so only shapes and expected values are kept.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mlxcel::testing {

std::vector<std::string> generated_cases();

// A folder as those of the fixtures: model/, expected.safetensors, meta.json.
// Written when first asked for, and removed when the program ends.
std::filesystem::path generated_case(const std::string& name);

}  // namespace mlxcel::testing
