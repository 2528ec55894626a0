#include "text/byte_tokenizer.h"

#include <nlohmann/json.hpp>

namespace mlxcel::testing {

std::unique_ptr<Tokenizer> byte_tokenizer(
    const std::vector<std::string>& special) {
  nlohmann::ordered_json vocab, merges = nlohmann::ordered_json::array();
  auto spelling = [](int byte) {
    std::string out;
    int next = 256;
    for (int b = 0; b <= byte; ++b) {
      bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      int code = plain ? b : next++;
      if (b == byte) {
        if (code < 128) {
          out = std::string(1, char(code));
        } else {
          out = {char(0xC0 | code >> 6), char(0x80 | (code & 0x3F))};
        }
      }
    }
    return out;
  };
  for (int byte = 0; byte < 256; ++byte) {
    vocab[spelling(byte)] = byte;
  }
  int next = 256;
  for (const char* word :
       {"{\"", "\":", "tr", "true", "12", "ab", "\",", "]}"}) {
    vocab[word] = next++;
  }
  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  for (const std::string& token : special) {
    added.push_back(
        {{"id", next++},
         {"content", token},
         {"special", true},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false}});
  }
  nlohmann::ordered_json json = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"decoder",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return Tokenizer::from_json(json.dump(), "bytes");
}

}  // namespace mlxcel::testing
