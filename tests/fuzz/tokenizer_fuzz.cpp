// tokenizer.json: no crash and no hang, every refusal names the file, and what
// loads encodes, decodes and streams.
// covers: src/text/tokenizer.cpp src/text/stream_decoder.cpp
// covers: src/text/tokenizer_config.cpp
// seeds: tokenizer/*/tokenizer.json quant/affine_4b_g64/model/tokenizer.json
// links: mlxcel_text
#include "core/error.h"
#include "json_mutator.h"
#include "scratch_folder.h"
#include "text/tokenizer.h"

#include <algorithm>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "\"BPE\"",
    "\"Unigram\"",
    "\"WordPiece\"",
    "\"WordLevel\"",
    "\"ByteLevel\"",
    "\"Metaspace\"",
    "\"Sequence\"",
    "\"Split\"",
    "\"Replace\"",
    "\"Strip\"",
    "\"TemplateProcessing\"",
    "\"ByteFallback\"",
    "\"Fuse\"",
    "\"NFC\"",
    "\"Precompiled\"",
    "\"Regex\"",
    "\"(a|a)*$\"",
    "\"\\\\p{L}+|\\\\s\"",
    "\"added_tokens\"",
    "\"special\"",
    "true",
    "false",
    "null",
};

// Plain text, spaces, several scripts, ill-formed UTF-8 and markers.
constexpr std::string_view kTexts[] = {
    "",
    "The quick brown fox",
    "  caf\xc3\xa9 \xed\x95\x9c\xea\xb8\x80 \xf0\x9f\x98\x80\n\t1234",
    "\xff\xc3(\x80 <s> </s> [UNK] <|endoftext|>",
};

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto c = static_cast<unsigned char>(text[i]);
    size_t length = c < 0x80   ? 1
                    : c < 0xc2 ? 0
                    : c < 0xe0 ? 2
                    : c < 0xf0 ? 3
                    : c < 0xf5 ? 4
                               : 0;
    if (length == 0 || i + length > text.size()) {
      return false;
    }
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) {
        return false;
      }
    }
    i += length;
  }
  return true;
}

void use(const Tokenizer& tokenizer) {
  std::vector<int32_t> all = {0, -1, 1 << 30};
  for (std::string_view text : kTexts) {
    for (bool special : {true, false}) {
      try {
        std::vector<int32_t> ids = tokenizer.encode(text, special);
        tokenizer.encode_plain(text, special);
        require(is_utf8(tokenizer.decode(ids, special)));
        all.insert(all.end(), ids.begin(), ids.end());
      } catch (const TextError&) {
        // A tokenizer may refuse a text: no unknown token, for one.
      }
    }
  }
  StreamDecoder stream(tokenizer, true);
  for (int32_t id : all) {
    tokenizer.token_text(id);
    tokenizer.is_special(id);
    try {
      require(is_utf8(stream.push(id)));
    } catch (const TextError&) {
    }
  }
  try {
    require(is_utf8(stream.finish()));
  } catch (const TextError&) {
  }
  tokenizer.token_id("<s>");
  require(tokenizer.vocab_size() >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder scratch;
  static unsigned runs = 0;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    use(*Tokenizer::from_json(text, "FILE"));
  } catch (const TextError& error) {
    require(std::string(error.what()).find("FILE") != std::string::npos);
  }
  if (++runs % 16 == 0) {
    // As a folder; the same text also serves as tokenizer_config.json.
    scratch.write("tokenizer.json", text);
    scratch.write(
        "tokenizer_config.json",
        runs % 32 == 0
            ? std::string_view(text)
            : R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",)"
              R"( "added_tokens_decoder": {"9": {"content": "<new>",)"
              R"( "special": true}}})");
    try {
      std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(scratch.path());
      tokenizer->bos();
      tokenizer->eos();
      use(*tokenizer);
    } catch (const Error& error) {
      require(
          std::string(error.what()).find(scratch.path().string()) !=
          std::string::npos);
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed, kWords);
  std::string text = mutator.mutate(
      std::string(reinterpret_cast<char*>(data), size), max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
