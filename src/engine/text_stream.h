// From tokens to the text of an answer: decoding that never splits a character,
// then stop strings.
#pragma once

#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace mlxcel {

class TextStream {
 public:
  TextStream(
      const Tokenizer& tokenizer,
      std::vector<std::string> stops,
      bool skip_special = true,
      std::vector<int32_t> kept_special = {})
      : decoder_(tokenizer, skip_special, std::move(kept_special)),
        stops_(std::move(stops)) {}

  // The text that the token makes certain; may be empty.
  std::string push(int32_t token) {
    return stops_.push(decoder_.push(token));
  }
  // What was held back, once the tokens have ended.
  std::string finish() {
    std::string out = stops_.push(decoder_.finish());
    return out += stops_.finish();
  }
  // Index of the stop string that ended the answer.
  std::optional<size_t> stopped() const {
    return stops_.matched();
  }

 private:
  StreamDecoder decoder_;
  StopStrings stops_;
};

}  // namespace mlxcel
