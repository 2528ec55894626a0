#include "server/prompt_length.h"

#include "core/error.h"
#include "http/failure.h"
#include "text/token_bytes.h"

#include <algorithm>

namespace mlxcel::server {

using http::Failure;

namespace {

constexpr size_t kPart = size_t(64) << 10;
constexpr size_t kMostCounted = size_t(4) << 20;

// The end of a part that begins at `begin`, between two characters where the
// text is UTF-8.
size_t end_of_part(std::string_view text, size_t begin) {
  size_t end = std::min(begin + kPart, text.size());
  constexpr size_t kMostContinued = 3;
  for (size_t i = 0; i < kMostContinued && end < text.size(); ++i) {
    if (!continues_character(text[end])) {
      break;
    }
    --end;
  }
  return end;
}

}  // namespace

void refuse_prompt_tokens(int64_t tokens, int64_t context, bool or_more) {
  Failure failure(
      400,
      "exceed_context_size_error",
      cat("the prompt has ",
          or_more ? "at least " : "",
          tokens,
          " tokens, more than the context of ",
          context));
  failure.code = "context_length_exceeded";
  failure.details = {{"n_prompt_tokens", tokens}, {"n_ctx", context}};
  throw failure;
}

void check_length(
    std::string_view text, TextUse use, const ServedModel& model) {
  if (use == TextUse::count) {
    if (text.size() > kMostCounted) {
      throw Failure::bad_request(
          cat("the text has ",
              text.size(),
              " bytes; at most ",
              kMostCounted,
              " are turned into tokens at once"));
    }
    return;
  }
  // Prose has about four bytes a token. What may fit is encoded once, whole.
  constexpr int64_t kBytesOfToken = 8;
  int64_t bytes = int64_t(text.size());
  if (model.context <= 0 || bytes <= int64_t(2 * kPart) ||
      bytes / kBytesOfToken <= model.context) {
    return;
  }
  // A cut between two parts adds the tokens of the word that it cuts, a few to
  // thousands. Twice the context is therefore past all doubt.
  int64_t tokens = 0;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = end_of_part(text, begin);
    tokens += int64_t(
        model.tokenizer->encode(text.substr(begin, end - begin), false).size());
    if (tokens > 2 * model.context) {
      refuse_prompt_tokens(tokens / 2, model.context, true);
    }
    begin = end;
  }
}

}  // namespace mlxcel::server
