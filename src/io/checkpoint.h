// A checkpoint folder: which of its files hold the tensors, and their tensors
// by key.
#pragma once

#include "io/config.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "io/weight_map.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mlxcel {

// The folder itself, or the one a named file lies in. Throws CheckpointError
// when there is neither.
std::filesystem::path checkpoint_folder(const std::filesystem::path& model);

// The folder's tensor files, sorted by name. With model.safetensors.index.json
// these are the files it names; where some of those are absent, one warning
// names them and the folder's own *.safetensors are taken. Never taken: files
// of adapters, hidden files, files in subfolders, and consolidated*.safetensors
// beside others (the same weights under other names).
struct TensorFiles {
  std::vector<std::filesystem::path> files;
  // File name by tensor, when the index describes the folder; else empty.
  std::map<std::string, std::string> index;
};
TensorFiles find_tensor_files(const std::filesystem::path& folder);

// All tensors of the folder. A tensor in two files is read from the one the
// index names; without an index it is refused. Throws CheckpointError.
WeightMap load_weights(
    const std::filesystem::path& folder, const ReadOptions& options = {});

// The same from the headers alone.
struct CheckpointEntry {
  TensorEntry tensor;
  std::filesystem::path file;
};
std::vector<CheckpointEntry> list_tensors(const std::filesystem::path& folder);

// Whether the folder's first tensor file says in its metadata ("format") that
// MLX wrote it. Never throws for what the files hold: a folder that cannot be
// read counts as published, and is refused by name when its tensors are loaded.
WeightsLayout weights_layout(const std::filesystem::path& folder);

}  // namespace mlxcel
