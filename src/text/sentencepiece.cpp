#include "text/sentencepiece.h"

#include "core/error.h"
#include "core/half.h"

#include <array>
#include <bit>

namespace mlxcel {

namespace {

// One field of a protobuf message:
// https://protobuf.dev/programming-guides/encoding
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;      // varint and fixed
  std::string_view bytes;  // length-delimited

  float as_float() const {
    return std::bit_cast<float>(uint32_t(value));
  }
};

class Message {
 public:
  Message(std::string_view bytes, const std::string& file)
      : rest_(bytes), file_(file) {}

  bool next(Field* field) {
    if (rest_.empty()) {
      return false;
    }
    uint64_t key = varint();
    *field = {.number = key >> 3};
    switch (key & 7) {
      case 0:
        field->value = varint();
        return true;
      case 1:
        field->value = fixed<uint64_t>();
        return true;
      case 2: {
        uint64_t size = varint();
        if (size > rest_.size()) {
          fail("a field is longer than the file");
        }
        field->bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        field->value = fixed<uint32_t>();
        return true;
      default:
        fail(cat("wire type ", key & 7, " is unknown"));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw TextError(
        cat("cannot read the SentencePiece model ", file_),
        why,
        "download the file again");
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      auto byte = uint8_t(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail("a number is cut off");
  }

  template <typename T>
  T fixed() {
    if (rest_.size() < sizeof(T)) {
      fail("a number is cut off");
    }
    T value = load_unaligned<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view rest_;
  const std::string& file_;
};

// Field numbers of sentencepiece_model.proto.
constexpr uint64_t kModelPieces = 1, kModelTrainer = 2, kModelNormalizer = 3;
constexpr uint64_t kPieceText = 1, kPieceScore = 2, kPieceType = 3;
constexpr uint64_t kTrainerModelType = 3;
constexpr uint64_t kTrainerBosId = 41, kTrainerEosId = 42;
constexpr uint64_t kNormalizerCharsmap = 2, kNormalizerDummyPrefix = 3;
constexpr uint64_t kNormalizerExtraSpaces = 4;
constexpr uint64_t kUnigram = 1, kBpe = 2;

Piece parse_piece(std::string_view bytes, const std::string& file) {
  Piece piece;
  Message message(bytes, file);
  for (Field field; message.next(&field);) {
    if (field.number == kPieceText) {
      piece.text = field.bytes;
    } else if (field.number == kPieceScore) {
      piece.score = field.as_float();
    } else if (field.number == kPieceType) {
      if (field.value < 1 || field.value > 6) {
        throw TextError(
            cat("cannot read the SentencePiece model ", file),
            cat("a piece has the unknown type ", field.value),
            "download the file again");
      }
      piece.type = PieceType(field.value);
    }
  }
  return piece;
}

// Classes whose ids are not the piece numbers: the reference implementation
// moves them by one and puts other tokens in front.
constexpr std::array<std::string_view, 5> kShiftedClasses = {
    "XLMRoberta", "Camembert", "MBart", "NllbTokenizer", "Barthez"};

}  // namespace

SentencePieceModel parse_sentencepiece(
    std::string_view bytes, const std::string& file) {
  SentencePieceModel model;
  model.remove_extra_whitespaces = true;  // the format's default
  model.unigram = true;                   // the format's default
  int64_t bos = 1, eos = 2;               // the format's defaults
  Message message(bytes, file);
  for (Field field; message.next(&field);) {
    Message inner(field.bytes, file);
    if (field.number == kModelPieces) {
      model.pieces.push_back(parse_piece(field.bytes, file));
    } else if (field.number == kModelTrainer) {
      for (Field part; inner.next(&part);) {
        if (part.number == kTrainerModelType) {
          if (part.value != kUnigram && part.value != kBpe) {
            throw TextError(
                cat("cannot use the SentencePiece model ", file),
                cat("its model type is ",
                    part.value,
                    "; unigram (1) and BPE (2) are supported"),
                "use a checkpoint with a tokenizer.json");
          }
          model.unigram = part.value == kUnigram;
        } else if (part.number == kTrainerBosId) {
          bos = int64_t(part.value);
        } else if (part.number == kTrainerEosId) {
          eos = int64_t(part.value);
        }
      }
    } else if (field.number == kModelNormalizer) {
      for (Field part; inner.next(&part);) {
        if (part.number == kNormalizerCharsmap) {
          model.precompiled_charsmap = part.bytes;
        } else if (part.number == kNormalizerDummyPrefix) {
          model.add_dummy_prefix = part.value != 0;
        } else if (part.number == kNormalizerExtraSpaces) {
          model.remove_extra_whitespaces = part.value != 0;
        }
      }
    }
  }
  if (model.pieces.empty()) {
    throw TextError(
        cat("cannot read the SentencePiece model ", file),
        "it has no pieces",
        "download the file again");
  }
  auto id = [&](int64_t number) -> std::optional<int32_t> {
    if (number < 0 || number >= int64_t(model.pieces.size())) {
      return std::nullopt;
    }
    return int32_t(number);
  };
  model.bos = id(bos);
  model.eos = id(eos);
  return model;
}

std::string sentencepiece_file_to_json(
    std::string_view bytes,
    const std::string& file,
    const TokenizerConfig& config) {
  SentencePieceModel model = parse_sentencepiece(bytes, file);
  std::string kind;
  if (auto found = config.json.find("tokenizer_class");
      found != config.json.end() && found->is_string()) {
    kind = found->get<std::string>();
  }
  for (std::string_view shifted : kShiftedClasses) {
    if (kind.starts_with(shifted)) {
      throw TextError(
          cat("cannot use the SentencePiece model ", file),
          cat("the ids of a ", kind, " are not those of its pieces"),
          "use a checkpoint with a tokenizer.json");
    }
  }
  // T5's texts end in EOS, all others start with BOS.
  bool t5 = kind.starts_with("T5");
  if (!config.flag("add_bos_token", !t5)) {
    model.bos.reset();
  }
  if (!config.flag("add_eos_token", t5)) {
    model.eos.reset();
  }
  return sentencepiece_json(model);
}

}  // namespace mlxcel
