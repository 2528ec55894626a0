#include "io/json.h"

#include "core/error.h"
#include "io/ordered_json.h"

#include <fstream>
#include <utility>
#include <vector>

namespace mlxcel {

namespace {

using nlohmann::json;

// Builds the value while counting depth and watching for repeated keys, which
// nlohmann's own parser would resolve to the last one in silence.
template <typename Json>
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::string_t;
  using typename nlohmann::json_sax<Json>::binary_t;

  explicit StrictBuilder(const std::string& file) : file_(file) {}

  Json take() {
    return std::move(root_);
  }

  bool null() override {
    return add(nullptr);
  }
  bool boolean(bool value) override {
    return add(value);
  }
  bool number_integer(number_integer_t value) override {
    return add(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value);
  }
  bool number_float(number_float_t value, const string_t&) override {
    return add(value);
  }
  bool string(string_t& value) override {
    return add(std::move(value));
  }
  bool binary(binary_t&) override {
    return false;  // not produced by the text parser
  }
  bool start_object(std::size_t) override {
    return open(Json::object());
  }
  bool end_object() override {
    stack_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    return open(Json::array());
  }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    auto [place, fresh] = stack_.back()->emplace(name, nullptr);
    if (!fresh) {
      throw ConfigError(
          cat("cannot read ", file_),
          cat("key \"", name, "\" appears twice in one object"),
          "keep one of the two entries");
    }
    slot_ = &place.value();
    return true;
  }
  bool parse_error(
      std::size_t position,
      const std::string&,
      const nlohmann::detail::exception& error) override {
    std::string text = error.what();  // "[json.exception...] parse error ..."
    size_t bracket = text.find("] ");
    throw ConfigError(
        cat("cannot read ", file_),
        cat("not valid JSON at byte ",
            position,
            ": ",
            bracket == std::string::npos ? text : text.substr(bracket + 2)),
        "the file may be truncated or not a JSON file; fetch it again");
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    if (stack_.size() == kMaxJsonDepth) {
      throw ConfigError(
          cat("cannot read ", file_),
          cat("nested deeper than ", kMaxJsonDepth, " levels"),
          "no checkpoint file needs that; fetch the file again");
    }
    stack_.push_back(place(std::move(container)));
    return true;
  }

  Json* place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  std::string file_;
  Json root_;
  std::vector<Json*> stack_;  // open containers; parents do not move meanwhile
  Json* slot_ = nullptr;      // value of the key just read
};

template <typename Json>
Json parse_strictly(std::string_view text, const std::string& file) {
  StrictBuilder<Json> builder(file);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  return parse_strictly<json>(text, file);
}

nlohmann::ordered_json parse_ordered_json(
    std::string_view text, const std::string& file) {
  return parse_strictly<nlohmann::ordered_json>(text, file);
}

std::string read_text_file(const std::filesystem::path& path, size_t limit) {
  std::error_code status;
  uintmax_t size = std::filesystem::file_size(path, status);
  std::ifstream in(path, std::ios::binary);
  if (status || !in) {
    throw ConfigError(
        cat("cannot read ", path.string()),
        status ? status.message() : std::string("it cannot be opened"),
        "check that the file exists and is readable");
  }
  if (size > limit) {
    throw ConfigError(
        cat("cannot read ", path.string()),
        cat("it has ", size, " bytes, more than the ", limit, " accepted"),
        "check that this is the file you meant");
  }
  std::string text(size, '\0');
  in.read(text.data(), std::streamsize(size));
  text.resize(size_t(in.gcount()));
  return text;
}

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

}  // namespace mlxcel
