#include "io/safetensors.h"

#include "core/error.h"
#include "core/half.h"
#include "io/json.h"
#include "io/output_target.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>

namespace mlxcel {

static_assert(std::endian::native == std::endian::little);

namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
// The format's own limit: https://github.com/huggingface/safetensors, README.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kFetchAgain =
    "the file is damaged or incomplete; fetch it again";

[[noreturn]] void refuse(
    const std::string& file,
    const std::string& why,
    std::string fix = kFetchAgain) {
  throw CheckpointError(cat("cannot read ", file), why, std::move(fix));
}

// The header's length, checked against the file.
uint64_t header_length(
    std::span<const std::byte> head,
    uint64_t file_bytes,
    const std::string& file) {
  if (file_bytes < kLengthBytes || head.size() < kLengthBytes) {
    refuse(
        file, cat("header length: the file has only ", file_bytes, " bytes"));
  }
  auto length = load_unaligned<uint64_t>(head.data());
  if (length > kMaxHeaderBytes) {
    refuse(
        file,
        cat("header length ",
            length,
            " is above the format's limit of ",
            kMaxHeaderBytes),
        "check that this is a safetensors file");
  }
  if (length > file_bytes - kLengthBytes) {
    refuse(
        file,
        cat("header length ",
            length,
            " reaches past the end of the file at ",
            file_bytes,
            " bytes"));
  }
  return length;
}

std::string known_dtypes() {
  std::string out;
  for (int i = int(DType::boolean); i <= int(DType::f64); ++i) {
    out += (out.empty() ? "" : ", ");
    out += name_of(DType(i));
  }
  return out;
}

std::string text_of(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

// Reads one entry of the header. `data_start` is where offsets count from.
TensorEntry parse_entry(
    const std::string& name,
    const json& fields,
    uint64_t data_start,
    uint64_t file_bytes,
    const std::string& file) {
  auto fail = [&](const std::string& why) {
    refuse(file, cat("tensor \"", name, "\": ", why));
  };
  if (!fields.is_object()) {
    fail(cat("expected an object, found ", text_of(fields)));
  }
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!fields.contains(field)) {
      fail(cat("field \"", field, "\" is missing"));
    }
  }
  TensorEntry entry;
  entry.name = name;

  const json& dtype = fields["dtype"];
  std::optional<DType> known =
      dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>())
                        : std::nullopt;
  if (!known) {
    refuse(
        file,
        cat("tensor \"", name, "\": dtype ", text_of(dtype), " is not known"),
        "known dtypes: " + known_dtypes());
  }
  entry.dtype = *known;

  const json& shape = fields["shape"];
  if (!shape.is_array()) {
    fail(cat("shape ", text_of(shape), " is not a list"));
  }
  uint64_t bytes = size_of(entry.dtype);
  for (const json& dim : shape) {
    // Every count of elements, even of an empty tensor, must fit int64.
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
      fail(cat("shape ", text_of(shape), " holds no sizes"));
    }
    entry.shape.push_back(int64_t(dim.get<uint64_t>()));
    if (__builtin_mul_overflow(bytes, dim.get<uint64_t>(), &bytes)) {
      fail(cat("shape ", text_of(shape), " is too large"));
    }
  }

  const json& offsets = fields["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 ||
      !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    fail(cat(
        "data_offsets ", text_of(offsets), " is not a pair of byte offsets"));
  }
  auto begin = offsets[0].get<uint64_t>();
  auto end = offsets[1].get<uint64_t>();
  if (begin > end || end > file_bytes - data_start) {
    fail(
        cat("data_offsets ",
            text_of(offsets),
            " lie outside the file's ",
            file_bytes - data_start,
            " bytes of data"));
  }
  if (end - begin != bytes) {
    fail(
        cat("data_offsets ",
            text_of(offsets),
            " span ",
            end - begin,
            " bytes, but shape ",
            text_of(shape),
            " of ",
            entry.dtype,
            " takes ",
            bytes));
  }
  entry.begin = data_start + begin;
  entry.end = data_start + end;
  return entry;
}

void refuse_overlap(
    const std::vector<TensorEntry>& tensors, const std::string& file) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : tensors) {
    if (entry.begin != entry.end) {
      order.push_back(&entry);
    }
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return a->begin < b->begin;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->begin < order[i - 1]->end) {
      refuse(
          file,
          cat("data_offsets of tensors \"",
              order[i - 1]->name,
              "\" and \"",
              order[i]->name,
              "\" overlap"));
    }
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(
    std::span<const std::byte> head,
    uint64_t file_bytes,
    const std::string& file) {
  uint64_t length = header_length(head, file_bytes, file);
  if (length > head.size() - kLengthBytes) {
    refuse(file, cat("only ", head.size(), " bytes of the header were read"));
  }
  std::string_view text(
      reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    refuse(
        file,
        "header: it does not begin with '{'",
        "check that this is a safetensors file");
  }
  json root;
  try {
    root = parse_json(text, cat(file, " (header)"));
  } catch (const ConfigError& error) {
    throw CheckpointError(error.summary(), error.why(), kFetchAgain);
  }

  SafetensorsHeader header;
  for (const auto& [name, fields] : root.items()) {
    if (name != "__metadata__") {
      header.tensors.push_back(
          parse_entry(name, fields, kLengthBytes + length, file_bytes, file));
      continue;
    }
    if (fields.is_null()) {
      continue;  // MLX writes it so when there is none
    }
    if (!fields.is_object()) {
      refuse(file, "__metadata__ is not an object");
    }
    for (const auto& [key, value] : fields.items()) {
      if (!value.is_string()) {
        refuse(file, cat("__metadata__: \"", key, "\" is not a string"));
      }
      header.metadata[key] = value.get<std::string>();
    }
  }
  refuse_overlap(header.tensors, file);
  return header;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  std::string file = path.string();
  std::error_code status;
  uint64_t file_bytes = std::filesystem::file_size(path, status);
  std::ifstream in(path, std::ios::binary);
  if (status || !in) {
    refuse(
        file,
        status ? status.message() : std::string("it cannot be opened"),
        "check that the file exists and is readable");
  }
  std::vector<std::byte> head(std::min(file_bytes, kLengthBytes));
  auto read_more = [&](size_t from) {
    in.read(
        reinterpret_cast<char*>(head.data() + from),
        std::streamsize(head.size() - from));
    if (size_t(in.gcount()) != head.size() - from) {
      refuse(file, "it became shorter while it was read");
    }
  };
  read_more(0);
  head.resize(kLengthBytes + header_length(head, file_bytes, file));
  read_more(kLengthBytes);
  return parse_safetensors_header(head, file_bytes, file);
}

SafetensorsFile read_safetensors(
    const std::filesystem::path& path, const ReadOptions& options) {
  std::shared_ptr<const MappedFile> mapped = MappedFile::open(path, options);
  std::span<const std::byte> bytes = mapped->bytes();
  SafetensorsHeader header =
      parse_safetensors_header(bytes, bytes.size(), path.string());
  SafetensorsFile out;
  out.metadata = std::move(header.metadata);
  for (TensorEntry& entry : header.tensors) {
    WeightTensor tensor;
    tensor.dtype = entry.dtype;
    tensor.shape = std::move(entry.shape);
    tensor.data = bytes.data() + entry.begin;
    tensor.bytes = entry.end - entry.begin;
    tensor.file = path.string();
    tensor.owner = mapped;
    out.tensors.set(std::move(entry.name), std::move(tensor));
  }
  return out;
}

void write_safetensors(
    const std::filesystem::path& path,
    const WeightMap& tensors,
    const std::map<std::string, std::string>& metadata) {
  using Entry = std::pair<const std::string, WeightTensor>;
  std::vector<const Entry*> order;
  for (const Entry& entry : tensors) {
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) {
    size_t size_a = size_of(a->second.dtype), size_b = size_of(b->second.dtype);
    return size_a != size_b ? size_a > size_b : a->first < b->first;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  uint64_t offset = 0;
  for (const Entry* entry : order) {
    const auto& [name, tensor] = *entry;
    header[name] = {
        {"dtype", name_of(tensor.dtype)},
        {"shape", tensor.shape},
        {"data_offsets", {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  // Data begins at a whole line, so that loads of one do not read two.
  constexpr size_t kLine = 64;
  uint64_t length = (sizeof(length) + text.size() + kLine - 1) / kLine * kLine -
                    sizeof(length);
  text.resize(length, ' ');

  PendingFile out(path);
  out.write(&length, sizeof(length));
  out.write(text.data(), text.size());
  for (const Entry* entry : order) {
    out.write(entry->second.data, entry->second.bytes);
  }
  out.commit();
}

}  // namespace mlxcel
