// The list of families.
#pragma once

#include "models/family.h"

#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// Every registered family, in the order of the tables.
const std::vector<const Family*>& families();

// Exact match; null when no family has the name.
const Family* find_by_model_type(std::string_view model_type);
const Family* find_by_architecture(std::string_view architecture);

// For messages about unknown names.
std::vector<std::string> known_model_types();
std::vector<std::string> known_architectures();

// The registry as a Markdown table: docs/families.md holds this text.
std::string families_markdown();

}  // namespace mlxcel
