// Tokenizer of a checkpoint folder (tokenizer.json, tokenizer.model or
// .tiktoken) and a decoder for streams.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct tk_tokenizer;

namespace mlxcel {

class Tokenizer {
 public:
  // Throws TextError when the folder has no tokenizer or it cannot be read.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& folder);
  // From the text of a tokenizer.json; `name` is for messages.
  static std::unique_ptr<Tokenizer> from_json(
      std::string_view json, const std::string& name);
  ~Tokenizer();

  // add_special: the post-processor's tokens (BOS and the like). Special
  // tokens written in the text are recognised. Ill-formed UTF-8 becomes U+FFFD,
  // one for each maximal ill-formed part.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;
  // As encode, but special tokens in the text are plain text.
  std::vector<int32_t> encode_plain(
      std::string_view text, bool add_special) const;
  // Ids outside the vocabulary decode to nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  int vocab_size() const;  // with added tokens
  std::optional<int32_t> token_id(std::string_view token) const;
  // The vocabulary's own spelling; "" for an id that it lacks.
  std::string token_text(int32_t id) const;
  bool is_special(int32_t id) const;
  std::optional<int32_t> bos() const;  // from tokenizer_config.json
  std::optional<int32_t> eos() const;

 private:
  Tokenizer();
  std::vector<int32_t> encode(std::string_view text, int flags) const;
  const tk_tokenizer* handle() const;
  struct State;
  std::unique_ptr<State> state_;
  friend class StreamDecoder;
  friend class GrammarCompiler;
};

// Turns ids into text piece by piece, at a constant cost an id. A piece never
// ends inside a character; the pieces join to decode() of all ids. (One
// exception: decoders with byte fallback replace a whole run of byte tokens
// once one of its bytes is ill-formed; characters already sent stay sent.)
class StreamDecoder {
 public:
  // `kept`: special tokens that are not skipped but written by their names.
  StreamDecoder(
      const Tokenizer& tokenizer,
      bool skip_special,
      std::vector<int32_t> kept = {});
  std::string push(int32_t id);  // may be empty
  std::string finish();          // what was held back

 private:
  std::string take(size_t count);

  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> kept_;
  // The ids of the last piece, which give the next ones their context, then
  // the ids held back.
  std::vector<int32_t> ids_;
  size_t sent_ = 0;        // ids of the last piece
  std::string sent_text_;  // their text
};

}  // namespace mlxcel
